"""A tournament of any players: every pair meets, pairs that are least certain play on, and the results of all are a
table of win rates, ratings and the Nash average. Results are kept in a file, so that it can go on."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from ludus.config import ConfigError
from ludus.data.records import Match, Result, Side
from ludus.evaluation.entrants import Field
from ludus.evaluation.tournament import Tournament
from ludus.league.matches import check_result
from ludus.league.measures import LeagueMeasures, measure
from ludus.league.payoff import Floats, Payoff, PayoffRules
from ludus.league.players import with_weights
from ludus.league.ratings import Rating, fit_elo
from ludus.observe.terminal import add_numbers, as_text, new_table
from ludus.store.files import StoreError, read_file, seal, unseal
from ludus.store.run_folder import MetricsFile

MOST_IN_MATRIX = 12
"""Players in the printed matrix; JSON and HTML have all."""
MOST_NAMED = 5


def line_ups_of(a: str, b: str, teams: int) -> list[tuple[str, ...]]:
    """The tables at which two players meet: one against copies of the other, and with three teams or more also the
    other way round, because one among several is not several against one."""
    pairs = [(a, b)] if teams == 2 else [(a, b), (b, a)]
    return [(one, *(other,) * (teams - 1)) for one, other in pairs]


_Played = tuple[tuple[str, ...], Result]
"""A line-up and its result."""


def payoff_of(played: Sequence[_Played]) -> Payoff:
    """The payoff of line-ups and their results; all games count the same."""
    payoff = Payoff(PayoffRules(decay=1.0, min_games=0.0))
    for number, (players, result) in enumerate(played):
        payoff.record(_as_match(number, players, result), result)
    return payoff


def _as_match(number: int, players: Sequence[str], result: Result) -> Match:
    return Match(number, "evaluation", tuple(Side(players=(one,)) for one in players), 1, result.episodes)


class CrossPlay:
    """A tournament in progress."""

    def __init__(
        self,
        field: Field,
        *,
        episodes: int,
        tables: int = 64,
        seed: int = 0,
        greedy: bool = False,
        into: Path | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`episodes`: fewest of a pair, and of each further match; `into`: the file of results, which may exist."""
        spec = field.game.spec
        if spec.num_teams == 1:
            raise ConfigError(f"{spec.name} has one team: its players never meet; `ludus eval` has their scores")
        if len(field.entrants) < 2:
            raise ConfigError("a tournament needs two players or more")
        self._field, self._tell = field, tell
        self._episodes, self._tables, self._seed = episodes, tables, seed
        self._names = [one.name for one in field.entrants]
        self._digests = {one.name: one.digest for one in field.entrants}
        self._setup = {"game": field.game_digest, "tables": tables, "seed": seed, "greedy": greedy}
        self._played: dict[tuple[str, str], dict[int, list[_Played]]] = {}
        """By pair of names, in the order of the players, and by number of the match."""
        self._file = into
        if into is not None and into.exists():
            self._take_up(into)

    def run(self, *, precision: float | None = None, most: int | None = None) -> CrossPlayTable:
        """Every pair plays once. With `precision`, the pair whose win rate has the widest 95 % interval plays on, until
        all are within so much of their middle. At most about `most` games in all, those of the file included."""
        pairs = list(itertools.combinations(self._names, 2))
        for pair in pairs:
            while self._games(pair) < self._episodes and not self._is_enough(most):
                self._play(pair)
        while precision is not None and not self._is_enough(most):
            widths = [self._half_width(pair) for pair in pairs]
            widest = int(np.argmax(widths))
            if widths[widest] <= precision:
                break
            self._play(pairs[widest])
        return self.table

    @property
    def table(self) -> CrossPlayTable:
        return CrossPlayTable(self._field, payoff_of([one for pair in self._played for one in self._of(pair)]))

    def _of(self, pair: tuple[str, str]) -> list[_Played]:
        matches = self._played.get(pair, {})
        return [one for number in sorted(matches) for one in matches[number]]

    def _is_enough(self, most: int | None) -> bool:
        return most is not None and sum(map(self._games, self._played)) >= most

    def _games(self, pair: tuple[str, str]) -> int:
        return sum(result.episodes for _, result in self._of(pair))

    def _half_width(self, pair: tuple[str, str]) -> float:
        low, high = payoff_of(self._of(pair)).win_rate_interval(*pair)
        return (high - low) / 2

    def _play(self, pair: tuple[str, str]) -> None:
        """Play one more match of a pair. Its chances follow from its players and its number alone: the order of the
        matches, and a kill between them, change nothing."""
        spec = self._field.game.spec
        wanted = line_ups_of(*pair, spec.num_teams)
        played = self._played.setdefault(pair, {})
        number = next(number for number in itertools.count() if number not in played)
        words = repr((self._seed, number, *(self._digests[name] for name in pair)))
        results = Tournament(
            self._field.game,
            self._field.players,
            wanted,
            episodes=-(-self._episodes // len(wanted)),
            num_tables=self._tables,
            seed=int.from_bytes(hashlib.sha256(words.encode()).digest()[:7]),
        ).run()
        found = [(line_up, results[place]) for place, line_up in enumerate(wanted)]
        self._keep(number, found)
        played[number] = found
        payoff = payoff_of(self._of(pair))
        low, high = payoff.win_rate_interval(*pair)
        self._tell(
            f"{pair[0]} against {pair[1]}: {payoff.win_rate(*pair):.1%} ({100 * low:.1f} to {100 * high:.1f}) of "
            f"{self._games(pair):,} games"
        )

    # --- the file of results ---

    def _keep(self, number: int, found: Sequence[_Played]) -> None:
        """All line-ups of a match are one line: half a match would not be repeated."""
        if self._file is None:
            return
        match = [
            {
                "players": line_up,
                "digests": [self._digests[name] for name in line_up],
                "result": msgspec.to_builtins(result),
            }
            for line_up, result in found
        ]
        with MetricsFile(self._file) as file:
            file.append(seal({**self._setup, "number": number, "match": match}))

    def _take_up(self, path: Path) -> None:
        """Read the matches of these players in this game. A player under the same name with other weights is another
        one: its old games do not count."""
        others, damaged = 0, []
        for place, content in enumerate(read_file(path).split(b"\n"), 1):
            if not content.strip():
                continue
            try:
                row = unseal(content)
                if {name: row.get(name) for name in self._setup} != self._setup:
                    others += 1
                else:
                    self._take(msgspec.convert(row, _Line))
            except (StoreError, msgspec.ValidationError, ValueError):
                damaged.append(place)
        if damaged:
            lines = ", ".join(map(str, damaged[:MOST_NAMED]))
            self._tell(f"{path}: damaged lines ({len(damaged)}: {lines}) do not count; their matches are played again")
        if others:
            self._tell(f"{path}: {others} matches of another game, seed, --tables or --greedy do not count here")
        if self._played:
            self._tell(f"{path}: {sum(map(self._games, self._played)):,} games are played already")

    def _take(self, line: _Line) -> None:
        """Raises ValueError for what cannot be a match of this tournament."""
        names = {digest: name for name, digest in self._digests.items()}
        match = [(tuple(names.get(one, "") for one in entry.digests), entry.result) for entry in line.match]
        teams = self._field.game.spec.num_teams
        a, b = [*dict.fromkeys(match[0][0]), ""][:2] if match else ("", "")
        if not a or not b:
            return  # of players that are not here
        if [line_up for line_up, _ in match] != line_ups_of(a, b, teams):
            raise ValueError("its line-ups are not those of two players")
        for line_up, result in match:
            check_result(_as_match(0, line_up, result), result)
        if self._names.index(a) > self._names.index(b):
            a, b = b, a
        # Two commands that write the same file play the same match: it counts once.
        self._played.setdefault((a, b), {}).setdefault(line.number, match)


class _Entry(msgspec.Struct, frozen=True):
    digests: list[str]
    result: Result


class _Line(msgspec.Struct, frozen=True):
    """A match in the file of results."""

    number: int
    match: list[_Entry]


class CrossPlayTable:
    """What a tournament has found so far. `print` shows ratings and the matrix of win rates."""

    def __init__(self, field: Field, payoff: Payoff) -> None:
        self._field, self.payoff = field, payoff
        self.game = field.game.spec.name
        self.entrants = field.entrants
        names = [one.name for one in field.entrants]
        games, points = payoff.counts(names)
        self.anchor = next((one.name for one in field.entrants if one.weights is None), names[0])
        """The player whose Elo is 0: the first bot, or the first player."""
        self.ratings: dict[str, Rating] = fit_elo(names, games, points, anchor=self.anchor)
        self.measures: LeagueMeasures = measure(payoff, names, with_alpha_rank=False)
        self.games, self.win_rates = games, np.where(games > 0, payoff.matrix(names), np.nan)
        self.mean_scores = np.where(games > 0, payoff.mean_scores(names), np.nan)
        """Of the row against the column: half the mean difference of their scores."""

    @property
    def names(self) -> list[str]:
        """The strongest first."""
        elo = {name: rating.elo for name, rating in self.ratings.items()}
        return sorted(elo, key=lambda name: (elo[name] is None, -(elo[name] or 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, players in the order in which they were named."""
        nash = {one.player: one for one in self.measures.players}
        names = [one.name for one in self.entrants]
        players = []
        for one in self.entrants:
            rating, found = self.ratings[one.name], nash.get(one.name)
            players.append(
                {
                    "name": one.name,
                    "address": one.address,
                    "model": one.seated.model_name,
                    "weights": one.weights,
                    "digest": one.digest,
                    "elo": rating.elo,
                    "elo_interval": rating.interval(),
                    "games": rating.games,
                    "nash_share": None if found is None else msgspec.to_builtins(found.nash_share),
                    "nash_skill": None if found is None else msgspec.to_builtins(found.nash_skill),
                }
            )
        return {
            "game": self.game,
            "anchor": self.anchor,
            "players": players,
            "win_rates": _plain(self.win_rates),
            "mean_scores": _plain(self.mean_scores),
            "win_rate_intervals": [
                [self.payoff.win_rate_interval(a, b) if self.payoff.games(a, b) else None for b in names] for a in names
            ],
            "games": self.games.tolist(),
            "unidentified": self.measures.unidentified,
        }

    def tables(self, most: int | None = None) -> list[Table]:
        """Ratings, and win rates with half of their intervals; the matrix has at most so many players."""
        weights = {one.name: one.weights for one in self.entrants}
        nash = {one.player: one for one in self.measures.players}
        rated = new_table("player")
        add_numbers(rated, f"Elo, {self.anchor} = 0 (95 %)", "games", "Nash share (95 %)", "Nash skill (95 %)")
        add_numbers(rated, "mean score")
        score = {one.name: row[np.isfinite(row)] for one, row in zip(self.entrants, self.mean_scores, strict=True)}
        for name in self.names:
            rating, found = self.ratings[name], nash.get(name)
            interval = rating.interval()
            elo = "" if rating.elo is None or interval is None else f"{rating.elo:+.0f} ±{interval[1] - rating.elo:.0f}"
            cells = ["", ""]
            if found is not None:
                share, skill = found.nash_share, found.nash_skill
                cells = [
                    f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})",
                    f"{skill.value:+.2f} ({skill.low:+.2f} to {skill.high:+.2f})",
                ]
            cells.append(f"{score[name].mean():+.3f}" if len(score[name]) else "")
            rated.add_row(with_weights(name, weights[name]), elo, f"{rating.games:,.0f}", *cells)
        shown = self.names[:most]
        matrix = new_table("win rate of row, %")
        add_numbers(matrix, *map(str, range(1, len(shown) + 1)))
        for number, name in enumerate(shown, 1):
            matrix.add_row(f"{number} {name}", *(self._cell(name, other) for other in shown))
        if len(shown) < len(self.names):
            matrix.caption = f"The best {len(shown)} of {len(self.names)} players; --json and --html have all."
        return [rated, matrix]

    def _cell(self, name: str, other: str) -> str:
        if name == other or not self.payoff.games(name, other):
            return ""
        low, high = self.payoff.win_rate_interval(name, other)
        return f"{100 * self.payoff.win_rate(name, other):.1f} ±{50 * (high - low):.1f}"

    def __str__(self) -> str:
        rated, matrix = self.tables(MOST_IN_MATRIX)
        return as_text(rated, "", matrix)

    __repr__ = __str__


def _plain(matrix: Floats) -> list[list[float | None]]:
    """For JSON, which has no NaN."""
    return [[None if np.isnan(value) else value for value in row] for row in matrix.tolist()]
