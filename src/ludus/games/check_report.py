"""The report of the conformance check: one verdict per promise of a game, and the evidence that it collects."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ludus.games.seat_rows import GameError

PROMISES = {
    "spec": "the source and its tables give the same, coherent spec",
    "calls": "no call raises an error, and no table is lost",
    "shapes": "the view has every array of the spec, with its shape and dtype",
    "in_place": "the view's arrays are the same objects all along",
    "observation": "observations of seats to act are finite, with entity lengths within their maximum",
    "legal": "a seat to act has a legal option in every head that can count",
    "someone_acts": "at least one seat must act at every table that has not ended",
    "ended_is_quiet": "no seat must act at a table that has ended",
    "one_end": "a table is not both over and truncated",
    "max_length": "an episode ends within `max_length` steps",
    "reward": "rewards are finite",
    "zero_sum": "the teams' totals of an episode (mean over the seats of a team) add up to zero",
    "score": "scores are finite when an episode ends",
    "score_is_reward": "a team's score is the mean of its seats' total reward",
    "clock": "the clock of a timed game never goes back, and has moved when an episode ends",
    "truncation": "after a truncation every seat that has acted has a valid observation",
    "ended_stays": "the rows of an ended table stay as they are until reset",
    "fresh": "reset starts an episode: not ended unless by the rules, no reward",
    "reset_only": "reset changes only the tables it is given",
    "same_again": "the same seeds and actions give the same episodes in a new batch",
    "same_elsewhere": "an episode does not depend on its table, its neighbours or the number of tables",
    "idle_actions": "actions of seats that are not to act, and of ended tables, change nothing",
    "bots": "there is a bot `random`, and every bot gives legal actions of the right shape",
    "tree": "the game tree is well-formed, and agrees with the tables where they can be searched",
}
"""The promises of a game in the order of the report."""

_ENDS = ("crashed", "hung", "leaked", "raised")
"""First words of the reasons of a game in a process of its own."""


class TableLost(GameError):  # noqa: N818 - named as `CanLoseTables.lost`
    """A table was lost during play, so that nothing it shows can be checked."""

    def __init__(self, table: int, step: int, reason: str) -> None:
        kind = reason.partition(":")[0]
        super().__init__(f"the game {reason}" if kind in _ENDS else f"the table was lost: {reason}")
        self.table = table
        self.step = step


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One broken promise: the place, the step of the episode (0: after reset), and what was seen."""

    promise: str
    where: str
    step: int
    seen: str
    bot: str = ""
    """The outside bot at fault; empty: the game is."""

    def __str__(self) -> str:
        return f"{self.promise}: {self.where}, step {self.step}: {self.seen}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How often a promise was tested, and its first failures."""

    promise: str
    text: str
    times: int
    failures: tuple[Failure, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def mark(self) -> str:
        return "FAIL" if self.failures else "pass" if self.times else "not seen"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The verdicts on all promises; printed as a table followed by the failures."""

    game: str
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for verdict in self.verdicts for failure in verdict.failures)

    @property
    def _summary(self) -> str:
        blamed = sorted({failure.bot for failure in self.failures})
        if not blamed:
            return "keeps its promises"
        if "" in blamed:
            return "breaks promises"
        names = ", ".join(f"bot {name!r}" for name in blamed)
        return f"keeps its promises, but {names} {'fails' if len(blamed) == 1 else 'fail'}"

    def __str__(self) -> str:
        width = max(len(verdict.promise) for verdict in self.verdicts)
        lines = [f"{self.game}: {self._summary}"]
        lines += [
            f"  {verdict.mark:<8}  {verdict.promise:<{width}}  {verdict.text} ({verdict.times}x)"
            for verdict in self.verdicts
        ]
        return "\n".join(lines + [f"  {failure}" for failure in self.failures])


@dataclass(kw_only=True, slots=True)
class Evidence:
    """Collects the tests of a check; keeps the first few failures of each promise."""

    keep: int = 3
    step: int = 0
    """Steps of the current batch, for the message of an error."""
    times: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROMISES, 0))
    failures: dict[str, list[Failure]] = field(default_factory=lambda: {name: [] for name in PROMISES})
    lost: bool = False

    def expect(self, promise: str, kept: bool, where: str, step: int, seen: object, *, bot: str = "") -> bool:
        """Count one test of a promise; `seen` describes a failure, `bot` is the bot at fault."""
        self.times[promise] += 1
        if not kept and len(self.failures[promise]) < self.keep:
            failure = Failure(promise=promise, where=where, step=step, seen=str(seen), bot=bot)
            self.failures[promise].append(failure)
        return kept

    @contextmanager
    def calls(self, where: str) -> Iterator[None]:
        """Turn an error of the game into a failure, and skip the rest of the block."""
        self.step = 0
        try:
            yield
        except TableLost as error:
            # A game that crashes does so in every check: one failure is enough.
            self.expect("calls", self.lost, f"{where}, table {error.table}", error.step, error)
            self.lost = True
        except GameError as error:
            self.expect("calls", False, where, self.step, error)
        except Exception as error:
            self.expect("calls", False, where, self.step, described(error))
        else:
            self.expect("calls", True, where, 0, "")

    def report(self, game: str) -> Report:
        verdicts = tuple(
            Verdict(promise=name, text=text, times=self.times[name], failures=tuple(self.failures[name]))
            for name, text in PROMISES.items()
        )
        return Report(game=game, verdicts=verdicts)


def described(error: Exception) -> str:
    """Type, message and place of an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}, raised in {last.name} ({last.filename}:{last.lineno})"
