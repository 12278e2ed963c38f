"""How the ratings of a league went: Elo of all its players after every so many results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ludus.league.payoff import Payoff
from ludus.league.ratings import fit_elo
from ludus.run_view.fold import COMBINED, RunFold

POINTS = 48
"""So many to twice as many are kept, at even distances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingPoint:
    decisions: float
    elo: dict[str, tuple[float, float]]
    """With its standard error, of those that a chain of games joins to the anchor."""


class RatingHistory:
    """Folds the pairs once more, by the rules of now, and fits ratings on the way."""

    def __init__(self, fold: RunFold) -> None:
        self._fold = fold
        self._payoff = Payoff(fold.league.rules.payoff)
        self._done = 0
        self._forgotten = 0
        self._step = 0
        self.points: list[RatingPoint] = []

    def follow(self, anchor: str) -> bool:
        """Fit what is due; whether anything was."""
        length = len(self._fold.pairs)
        if self._step == 0:
            if length == 0:
                return False
            self._step = max(1, length // POINTS)
        before = self._done
        while self._done + self._step <= length:
            self._fold_to(self._done + self._step)
            self.points.append(self._fit(anchor))
            if len(self.points) >= 2 * POINTS:
                self.points = self.points[1::2]
                self._step *= 2
        return self._done > before

    def _fold_to(self, end: int) -> None:
        forgotten = self._fold.forgotten
        while self._forgotten < len(forgotten) and forgotten[self._forgotten].row <= end:
            mark = forgotten[self._forgotten]
            self._add(mark.row)
            self._payoff.forget(mark.player)
            self._forgotten += 1
        self._add(end)

    def _add(self, end: int) -> None:
        if end > self._done:
            self._payoff.add_rows(self._fold.names, self._fold.rows(self._done, end, COMBINED))
            self._done = end

    def _fit(self, anchor: str) -> RatingPoint:
        players = list(self._fold.league.candidates)
        games, points = self._payoff.counts(players)
        met = np.flatnonzero(games.sum(axis=1) > 0)
        elo = {}
        if anchor in (names := [players[one] for one in met]):
            block = np.ix_(met, met)
            for rating in fit_elo(names, games[block], points[block], anchor=anchor).ratings:
                if rating.elo is not None and rating.standard_error is not None:
                    elo[rating.player] = (rating.elo, rating.standard_error)
        return RatingPoint(decisions=float(self._fold.pairs.column("decisions", self._done - 1)[0]), elo=elo)
