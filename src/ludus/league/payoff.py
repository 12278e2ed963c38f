"""Payoffs: decayed wins, draws and margins of every pair of players, folded from results. Never NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in
from ludus.data.records import Match, Result

Floats = NDArray[np.float64]


PayoffView = Literal["training", "evaluation", "combined"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PayoffRules:
    """How fast old games decay, and how many games a win rate needs. A result of n games multiplies the earlier games
    of the pair by decay ** (n / decay_games), then adds its own in full."""

    decay: float = 0.99
    decay_games: float = 10.0
    min_games: float = 10.0
    """With fewer decayed games the win rate is exactly 0.5."""

    def __post_init__(self) -> None:
        require_in(self, "(0, 1]", decay=self.decay)
        require_in(self, "(0, inf)", decay_games=self.decay_games)
        require_in(self, "[0, inf)", min_games=self.min_games)
        if self.min_games >= self.memory_games:
            raise ValueError(
                f"PayoffRules.min_games={self.min_games:g} is never reached: decay={self.decay:g} per "
                f"{self.decay_games:g} games remembers {self.memory_games:.1f} games at most, and every "
                "win rate would stay 0.5; lower min_games or raise decay_games"
            )

    def fade(self, episodes: int) -> float:
        """The factor by which a result of so many episodes decays older games."""
        return float(self.decay ** (episodes / self.decay_games))

    @property
    def memory_games(self) -> float:
        """The limit of decayed games of a pair that plays one game per result. Longer results reach more."""
        per_game = self.decay ** (1.0 / self.decay_games)
        return math.inf if per_game == 1.0 else 1.0 / (1.0 - per_game)


@cache
def normal_quantile(share: float) -> float:
    """The number below which a standard normal variable lies with probability `share`. Importing scipy's takes longer
    than opening a large league from its saved fold."""
    return NormalDist().inv_cdf(share)


def chance_of_winning(gap: Floats) -> Floats:
    """The logistic function of a difference of strengths in log odds."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * gap))


def wilson_interval(points: float, games: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson interval of a win rate, given `points` = wins + draws / 2. Draws make it too wide, never narrow."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if games <= 0:
        return 0.0, 1.0
    z2 = normal_quantile(0.5 + confidence / 2) ** 2
    rate = points / games
    centre = (rate + z2 / (2 * games)) / (1 + z2 / games)
    half = math.sqrt(z2 * (rate * (1 - rate) / games + z2 / (4 * games * games))) / (1 + z2 / games)
    return max(0.0, centre - half), min(1.0, centre + half)


PairCounts = dict[tuple[str, str], tuple[int, int, int, float]]


def pair_counts(match: Match, result: Result, *, captains: bool = True) -> PairCounts:
    """Wins, draws, losses and margin (half the difference of the score sums) of every pair of players, in alphabetical
    order. A side of several players counts for its captain, or without `captains` for no player."""
    counts: PairCounts = {}
    sides = [side.stands_for if captains or not side.is_mixed else None for side in match.sides]
    for pair in result.pairs:
        a, b = sides[pair.side], sides[pair.other]
        if a is None or b is None or a == b:
            continue
        ahead = (result.score_sum[pair.side] - result.score_sum[pair.other]) / 2
        key, wins, losses, margin = (a, b), pair.wins, pair.losses, ahead
        if b < a:
            key, wins, losses, margin = (b, a), losses, wins, -ahead
        before = counts.get(key, (0, 0, 0, 0.0))
        counts[key] = (before[0] + wins, before[1] + pair.draws, before[2] + losses, before[3] + margin)
    return counts


class Payoff:
    """Decayed wins, draws and margins per ordered pair of players, in arrays that grow with the league. Reading never
    changes it: pairs that have not met and unknown players have 0 games and a win rate of 0.5."""

    def __init__(self, rules: PayoffRules | None = None) -> None:
        self.rules = rules or PayoffRules()
        self._index: dict[str, int] = {}
        # The last row and column stay zero and stand for every player without games.
        self._set_tables(np.zeros((8, 8)), np.zeros((8, 8)), np.zeros((8, 8)))
        self._means: dict[tuple[str, ...], Floats] = {}
        """Cache of mean scores: frozen players are read often and seldom meet."""

    def record(self, match: Match, result: Result) -> None:
        """Fold one finished match. Self-play changes nothing."""
        self.add(pair_counts(match, result), result.episodes)

    def add(self, counts: PairCounts, episodes: int) -> None:
        """Fold the `pair_counts` of a finished match."""
        fade = self.rules.fade(episodes)
        for (a, b), (wins, draws, losses, margin) in counts.items():
            i, j = self._row(a), self._row(b)
            all_wins, all_draws, margins = self._flat
            size = len(self._wins)
            there, back = i * size + j, j * size + i
            all_wins[there] = all_wins[there] * fade + wins
            all_wins[back] = all_wins[back] * fade + losses
            all_draws[there] = all_draws[back] = all_draws[there] * fade + draws
            margins[there] = margins[there] * fade + margin
            margins[back] = -margins[there]
            if self._means:
                self._means = {names: old for names, old in self._means.items() if not {a, b} <= {*names}}

    def forget(self, player: str) -> None:
        """Drop the games of a player. Its row goes to the last one, so that the tables grow with the players that are
        in the league and not with those that ever were."""
        if player not in self._index:
            return
        self._means.clear()
        row, last = self._index.pop(player), len(self._index)
        mover = next((name for name, place in self._index.items() if place == last), None)
        if mover is not None:
            self._index[mover] = row
        for table in self._tables:
            table[row, :], table[:, row] = table[last, :], table[:, last]
            table[row, row] = 0.0
            table[last, :] = table[:, last] = 0.0

    def wins(self, a: str, b: str) -> float:
        return float(self._wins[self._find(a), self._find(b)])

    def draws(self, a: str, b: str) -> float:
        return float(self._draws[self._find(a), self._find(b)])

    def losses(self, a: str, b: str) -> float:
        return self.wins(b, a)

    def games(self, a: str, b: str) -> float:
        return float(self._gather([a], [b])[0][0, 0])

    def win_rate(self, a: str, b: str) -> float:
        """(wins + draws / 2) / games of a against b; exactly 0.5 below `min_games`."""
        return float(self.win_rates(a, [b])[0])

    def win_rates(self, player: str, others: Sequence[str]) -> Floats:
        return self._per_game(*self._gather([player], others)).reshape(-1)

    def games_against(self, player: str, others: Sequence[str]) -> Floats:
        return self._gather([player], others)[0].reshape(-1)

    def matrix(self, players: Sequence[str]) -> Floats:
        """Win rate of each player (row) against each (column); 0.5 on the diagonal."""
        return self._per_game(*self._gather(players, players))

    def mean_scores(self, players: Sequence[str]) -> Floats:
        """Mean score of each player (row) against each (column): half the mean difference of their scores, and 0
        below `min_games`. Preferable to win rates where the stakes differ, as in poker."""
        names = tuple(players)
        if names not in self._means:
            games, _ = self._gather(names, names)
            margins = self._margins.ravel().take(self._cells(names, names))
            means = self._per_game(games, margins, otherwise=0.0)
            means.flags.writeable = False
            self._means = {**dict(list(self._means.items())[-3:]), names: means}
        return self._means[names]

    def counts(self, players: Sequence[str]) -> tuple[Floats, Floats]:
        """(games, points) of each player (row) against each (column), points being wins + draws / 2."""
        return self._gather(players, players)

    def win_rate_interval(self, a: str, b: str, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson interval of the win rate from the decayed counts, whatever `min_games` is."""
        games, points = self._gather([a], [b])
        return wilson_interval(float(points[0, 0]), float(games[0, 0]), confidence)

    def change_rules(self, rules: PayoffRules) -> None:
        """Apply new rules to later results and to all reads."""
        self.rules = rules
        self._means = {}

    def fingerprint(self) -> bytes:
        """The exact state, for the league's digest."""
        size = len(self._index)
        tables = [np.ascontiguousarray(table[:size, :size]).tobytes() for table in self._tables]
        return msgspec.msgpack.encode((sorted(self._index, key=self._index.__getitem__), tables))

    def load(self, fingerprint: bytes) -> None:
        """Become what a fingerprint describes; this payoff is new."""
        names, tables = msgspec.msgpack.decode(fingerprint, type=tuple[list[str], list[bytes]])
        for name in names:
            self._row(name)
        size = len(names)
        for table, content in zip(self._tables, tables, strict=True):
            table[:size, :size] = np.frombuffer(content, np.float64).reshape(size, size)

    def _per_game(self, games: Floats, sums: Floats, otherwise: float = 0.5) -> Floats:
        """sums / games, and `otherwise` below `min_games`."""
        means = np.full(games.shape, otherwise)
        np.divide(sums, games, out=means, where=(games >= self.rules.min_games) & (games > 0))
        return means

    def _gather(self, rows: Sequence[str], columns: Sequence[str]) -> tuple[Floats, Floats]:
        cells = self._cells(rows, columns)
        wins, draws = self._wins.ravel().take(cells), self._draws.ravel().take(cells)
        losses = wins.T if rows is columns else self._wins.ravel().take(self._cells(columns, rows)).T
        games = wins + losses
        games += draws
        draws *= 0.5  # in place from here on: in a large league allocations cost more than the arithmetic
        draws += wins
        return games, draws

    def _cells(self, rows: Sequence[str], columns: Sequence[str]) -> NDArray[np.intp]:
        """Indices into the flat tables: three times as fast as one index per axis."""
        size = len(self._wins)
        i = np.fromiter((self._find(name) for name in rows), np.intp, len(rows))
        j = np.fromiter((self._find(name) for name in columns), np.intp, len(columns))
        return np.asarray(i[:, None] * size + j)

    def _find(self, player: str) -> int:
        return self._index.get(player, len(self._wins) - 1)

    def _row(self, player: str) -> int:
        row = self._index.setdefault(player, len(self._index))
        if row == len(self._wins) - 1:
            wins, draws, margins = (np.pad(table, (0, len(table))) for table in self._tables)
            self._set_tables(wins, draws, margins)
        return row

    def _set_tables(self, wins: Floats, draws: Floats, margins: Floats) -> None:
        self._wins, self._draws, self._margins = wins, draws, margins
        # Flat views of the tables: a single cell is read and written faster than by an index of the array.
        self._flat = tuple(cast("memoryview[float]", table.reshape(-1).data) for table in self._tables)

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, as edits are tried on: views cannot be copied, and its own lead to its own tables."""
        return {name: value for name, value in vars(self).items() if name != "_flat"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_tables(*self._tables)

    @property
    def _tables(self) -> tuple[Floats, Floats, Floats]:
        return self._wins, self._draws, self._margins


class PayoffBook:
    """One payoff per purpose, and one of training and evaluation together. `combined` leaves out human games, and
    line-ups of several players, because they measure the captain together with its team-mates."""

    def __init__(self, rules: PayoffRules | None = None) -> None:
        self._all = tuple(Payoff(rules) for _ in range(4))
        self.training, self.evaluation, self.human, self.combined = self._all

    def view(self, name: PayoffView) -> Payoff:
        return {"training": self.training, "evaluation": self.evaluation, "combined": self.combined}[name]

    def record(self, match: Match, result: Result) -> None:
        if match.purpose == "human":
            self.human.record(match, result)
            return
        counts = pair_counts(match, result)
        (self.training if match.purpose == "training" else self.evaluation).add(counts, result.episodes)
        if any(side.is_mixed for side in match.sides):
            counts = pair_counts(match, result, captains=False)
        self.combined.add(counts, result.episodes)

    def forget(self, player: str) -> None:
        for payoff in self._all:
            payoff.forget(player)

    def change_rules(self, rules: PayoffRules) -> None:
        for payoff in self._all:
            payoff.change_rules(rules)

    def fingerprint(self) -> bytes:
        return msgspec.msgpack.encode([payoff.fingerprint() for payoff in self._all])

    def load(self, fingerprint: bytes) -> None:
        for payoff, content in zip(self._all, msgspec.msgpack.decode(fingerprint, type=list[bytes]), strict=True):
            payoff.load(content)


def groups(met: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Connected components: the group of each player. scipy's take longer to import than a league takes to rate."""
    number = np.full(len(met), -1, np.intp)
    for player in range(len(met)):
        if number[player] < 0:
            group = int(number.max()) + 1
            reached = np.zeros(len(met), np.bool_)
            reached[player] = True
            while reached.any():
                number[reached] = group
                reached = met[reached].any(axis=0) & (number < 0)
    return number


def largest_group(met: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The indices of the players of the (first) largest group."""
    number = groups(met)
    return np.flatnonzero(number == np.bincount(number).argmax())
