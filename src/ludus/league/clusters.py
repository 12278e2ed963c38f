"""The spinning top of a league: layers of players that beat each other in circles, strongest layer first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.league.symmetric_nash import check_antisymmetric, max_entropy_nash

_IN_SUPPORT = 1e-7


@dataclass(frozen=True, kw_only=True, slots=True)
class NashCluster:
    """The players of an equilibrium of all that no layer above has taken."""

    players: tuple[int, ...]
    """Rows of the payoff, in their order."""
    strength: float
    """Mean payoff of the layer's players against the whole league: how far up the top it sits."""

    @property
    def size(self) -> int:
        """How cyclic the league is at this strength: 1 where skill decides alone."""
        return len(self.players)


def nash_clusters(payoff: Any) -> tuple[NashCluster, ...]:
    """Take the players of the equilibrium of largest entropy out of the league, again and again.

    Every layer does at least as well against every layer below as the other way round, each playing its
    equilibrium (Czarnecki et al. 2020). A league of pure skill has layers of one, rock-paper-scissors is one.
    """
    matrix = check_antisymmetric(payoff)
    others = max(1, len(matrix) - 1)
    left = np.arange(len(matrix))
    clusters: list[NashCluster] = []
    while len(left):
        inside = _support(matrix[np.ix_(left, left)])
        players = left[inside]
        clusters.append(
            NashCluster(
                players=tuple(int(player) for player in players),
                strength=float(matrix[players].sum(axis=1).mean() / others),
            )
        )
        left = left[~inside]
    return tuple(clusters)


def _support(payoff: NDArray[np.float64]) -> NDArray[np.bool_]:
    mixture = max_entropy_nash(payoff)
    return np.asarray(mixture > _IN_SUPPORT * mixture.max())
