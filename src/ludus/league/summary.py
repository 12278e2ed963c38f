"""The league at a glance: who is how strong, who beats whom, and which mixture nobody beats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.league.equilibrium import nash
from ludus.league.league import League
from ludus.league.payoff import Payoff
from ludus.league.players import Player
from ludus.league.ratings import Rating, fit_elo


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueSummary:
    """All players of now, in joining order, with the numbers that follow from their games."""

    players: tuple[Player, ...]
    ratings: tuple[Rating, ...]
    """Elo relative to `anchor`; games of training and evaluation together."""
    anchor: str
    win_rates: NDArray[np.float64]
    games: NDArray[np.float64]
    equilibrium: dict[str, float]
    """Share of each frozen player in the mixture that no other one of them beats on average."""
    scores: dict[str, tuple[float, float]]
    """Games with one team: mean score and its standard error."""


def summarise(league: League) -> LeagueSummary:
    payoff = league.payoffs.view("combined")
    players = tuple(league.players[player] for player in league.candidates)
    ids = [player.id for player in players]
    anchor = next((player.id for player in players if player.scripted), ids[0])
    games, points = payoff.counts(ids)
    return LeagueSummary(
        players=players,
        ratings=fit_elo(ids, games, points, anchor=anchor).ratings,
        anchor=anchor,
        win_rates=payoff.matrix(ids),
        games=games,
        equilibrium=equilibrium_of([player.id for player in players if player.frozen], payoff),
        scores={name: (score.mean, score.standard_error) for name, score in league.scores.items()},
    )


def equilibrium_of(ids: list[str], payoff: Payoff) -> dict[str, float]:
    """Nash mixture over mean scores; empty where no two of the players have met."""
    games, _ = payoff.counts(ids)
    if not games.any():
        return {}
    shares = nash(payoff.mean_scores(ids)).row
    return {player: float(share) for player, share in zip(ids, shares, strict=True) if share > 1e-6}
