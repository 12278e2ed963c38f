"""Which snapshot of a learning player has measured best."""

from __future__ import annotations

from ludus.league.league import League
from ludus.league.ratings import fit_elo


def best_snapshot(league: League, player: str) -> str | None:
    """By mean score in a game with one team, else by Elo from evaluation games alone; of equals the newest.

    Training games do not count: they are between players that change. None before the first measurement.
    """
    history = league.candidates.history_of(player)
    if league.num_teams == 1:
        measured = {snapshot: score.mean for snapshot, score in league.scores.items()}
    else:
        measured = _ratings(league, history)
    newest_first = [snapshot for snapshot in reversed(history) if snapshot in measured]
    return max(newest_first, key=measured.__getitem__, default=None)


def _ratings(league: League, history: tuple[str, ...]) -> dict[str, float]:
    """Elo of the snapshots that a chain of evaluation games joins to the newest one that was measured."""
    candidates = league.candidates
    rated = (*candidates.frozen(), *candidates.scripted())
    games, points = league.payoffs.evaluation.counts(rated)
    met = {player for player, total in zip(rated, games.sum(axis=1).tolist(), strict=True) if total}
    anchor = next((snapshot for snapshot in reversed(history) if snapshot in met), None)
    if anchor is None:
        return {}
    ratings = fit_elo(rated, games, points, anchor=anchor).ratings
    return {rating.player: rating.elo for rating in ratings if rating.elo is not None}
