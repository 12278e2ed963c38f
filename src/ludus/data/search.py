"""Players that search with their network: how they are named, and the settings of a search."""

from __future__ import annotations

from dataclasses import dataclass

from ludus.data.checks import require_in

SEARCH_POLICY = "search_policy"  # column of trajectories: the improved policy of a decision that was searched
_SEARCH = "?search="
MOST_SIMULATIONS = 10_000
"""That a name may ask for: viewers of a page choose names, and a decision cannot be broken off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GumbelSearch:
    """Settings of a search with a network, as in Gumbel AlphaZero."""

    simulations: int = 64
    """Positions that the search looks at, per decision."""
    considered: int = 16
    """Most moves that it compares; sequential halving drops the worse half again and again."""
    c_visit: float = 50.0
    """Values count as if the move with the most visits had so many more."""
    c_scale: float = 1.0
    """Weight of values against the network's probabilities."""
    max_depth: int | None = None
    """Most moves from the root to a position that it looks at; None: any number. Few simulations reach so deep only
    where few moves are legal, and on a GPU each further move costs time in every simulation."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", simulations=self.simulations, considered=self.considered, max_depth=self.max_depth)
        require_in(self, "[0, inf)", c_visit=self.c_visit, c_scale=self.c_scale)


def split_search(text: str) -> tuple[str, int | None]:
    """The name of a player or model, and the simulations that it searches with before each move: `main@best?search=64`
    gives `main@best` and 64. None: it plays by its network alone."""
    name, mark, number = text.rpartition(_SEARCH)
    if not mark:
        return text, None
    simulations = int(number) if number.isdecimal() and len(number) < 10 else 0
    if not 1 <= simulations <= MOST_SIMULATIONS:
        shown = number if len(number) <= 20 else f"{number[:20]}..."
        raise ValueError(
            f"{name}: search must be a number of simulations from 1 to {MOST_SIMULATIONS:,}, got {shown!r}"
        )
    return name, simulations


def with_search(name: str, simulations: int | None) -> str:
    """The inverse of `split_search`."""
    return name if simulations is None else f"{name}{_SEARCH}{simulations}"
