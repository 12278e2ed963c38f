"""What the conformance check tests (`PROMISES`), the evidence that it collects, and `WatchedTables`: a batch whose view
is inspected after every `reset` and `step`."""

from __future__ import annotations

import faulthandler
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, Entities, GameSpec, SeatKind, length_name
from ludus.data.trees import Array, IntArray, Tree, take
from ludus.games.bots import Rows, act_among
from ludus.games.game import Actions, Bot, GameBatch, TableView, allocate_actions, lost_tables
from ludus.games.seat_rows import GameError

PROMISES = {
    "spec": "the source and its tables give the same, coherent spec",
    "calls": "no call raises an error, and no table is lost",
    "shapes": "the view has every array of the spec, with its shape and dtype",
    "in_place": "the view's arrays are the same objects all along",
    "observation": "observations of seats to act are finite, with entity lengths within their maximum",
    "critic": "critic-only parts are finite, and those declared common are the same for all seats",
    "legal": "a seat to act has a legal option in every head that can count",
    "bounds": "numbers up to the bounds of a Box are played; the game refuses others, and NaN, by the head's name",
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
    "tensor_twin": "its tensor game plays move for move as it does, with fixed shapes",
}
"""The promises of a game in the order of the report."""

_ENDS = ("crashed", "hung", "leaked", "raised")  # first words of the reasons of a game in a process of its own


class TableLost(GameError):  # noqa: N818 - named as `CanLoseTables.lost`
    """A table was lost during play, so that nothing it shows can be checked."""

    def __init__(self, table: int, step: int, reason: str) -> None:
        kind = reason.partition(":")[0]
        super().__init__(f"the game {reason}" if kind in _ENDS else f"the table was lost: {reason}")
        self.table = table
        self.step = step


CALL_SECONDS = 60.0
STUCK_SECONDS = 10.0
"""After so much longer, a call that lets no Python run is taken for stuck."""
ends_if_stuck: ContextVar[bool] = ContextVar("ends_if_stuck", default=False)
"""Whether such a call ends the process, after where it is was printed. `ludus check` sets it: nothing else could name a
loop in C that never returns."""


class GameHung(GameError):  # noqa: N818 - what has happened, as `TableLost`
    """A call has not returned. The check ends here: every further call may hang too."""


@contextmanager
def time_limit(call: str) -> Iterator[None]:
    """Raise `GameHung` in a call that takes longer than `CALL_SECONDS`. Python has to run meanwhile, as it does in a
    loop or a sleep, and in the main thread; else `ends_if_stuck` counts. A game in a process of its own (`--isolated`)
    is ended in any case."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f"; it is in {_place(frame)}"
        raise GameHung(f"{call} has not returned for {CALL_SECONDS:g} s{where}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS)
    if ends_if_stuck.get():
        faulthandler.dump_traceback_later(CALL_SECONDS + STUCK_SECONDS, exit=True, file=2)
    try:
        yield
    finally:
        if ends_if_stuck.get():
            faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


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


LARGE = 100.0
"""Networks learn badly from numbers that are larger."""


@dataclass(kw_only=True, slots=True)
class PartRange:
    """The numbers that seats have seen in one array of their observations."""

    low: float = np.inf
    high: float = -np.inf
    total: float = 0.0
    count: int = 0
    largest_at: tuple[int, ...] = ()
    """Place of the number furthest from 0."""
    is_float: bool = False

    def see(self, array: Array) -> None:
        known = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        if not known.size:
            return
        low, high = float(known.min()), float(known.max())
        if max(-low, high) > max(-self.low, self.high):
            self.largest_at = tuple(map(int, np.unravel_index(int(np.nanargmax(np.abs(array))), array.shape)))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.total, self.count = self.total + float(known.sum(dtype=np.float64)), self.count + known.size
        self.is_float = array.dtype.kind == "f"

    def __str__(self) -> str:
        if not self.count:
            return "nothing"
        text = f"{self.low:.4g} to {self.high:.4g}, mean {self.total / self.count:.3g}"
        if self.low == self.high:
            return f"always {self.low:.4g}"
        if self.is_float and max(-self.low, self.high) > LARGE:
            text += f"; large, at {list(self.largest_at)}: scale it to about -1 to 1"
        return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The verdicts on all promises; printed as a table followed by what seats have seen and by the failures."""

    game: str
    verdicts: tuple[Verdict, ...]
    ranges: Mapping[str, PartRange] = field(default_factory=dict)
    """What seats have seen in play, by the array of an observation; KIND/ARRAY if there are several kinds of seat."""

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
        if self.ranges:
            room = max(map(len, self.ranges))
            lines += ["Seen in play, by part of the observation:"]
            lines += [f"  {name:<{room}}  {seen}" for name, seen in self.ranges.items()]
        lines += [f"  {failure}" for failure in self.failures]
        return "\n".join(lines)


@dataclass(kw_only=True, slots=True)
class Evidence:
    """Collects the tests of a check; keeps the first few failures of each promise."""

    keep: int = 3
    step: int = 0
    """Steps of the current batch, for the message of an error."""
    times: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROMISES, 0))
    failures: dict[str, list[Failure]] = field(default_factory=lambda: {name: [] for name in PROMISES})
    lost: bool = False
    ranges: dict[str, PartRange] = field(default_factory=dict)

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
        except GameHung as error:
            self.expect("calls", self.lost, where, self.step, error)
            self.lost = True
            raise
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
        return Report(game=game, verdicts=verdicts, ranges=self.ranges)


def described(error: Exception) -> str:
    """Type, message and place of an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}, raised in {last.name} ({last.filename}:{last.lineno})"


TOLERANCE = 1e-4  # relative tolerance: rewards are float32 and add up over an episode


class WatchedTables:
    """Wraps a `GameBatch` and inspects its view after each `reset` and `step`, which raise `TableLost`."""

    def __init__(self, batch: GameBatch, evidence: Evidence) -> None:
        self.batch = batch
        self.spec: GameSpec = batch.spec
        self.evidence = evidence
        self.steps = np.zeros(batch.num_tables, np.int64)
        self.acted = np.zeros((batch.num_tables, self.spec.num_seats), np.bool_)
        self.total = np.zeros((batch.num_tables, self.spec.num_seats), np.float64)
        self.broken = np.zeros(batch.num_tables, np.bool_)
        """Tables that cannot be stepped until their next reset."""
        self.has_decided = False
        """Whether any seat had to act in any episode so far."""
        self._arrays = batch.view.named()

    @property
    def view(self) -> TableView:
        return self.batch.view

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.view.over | self.view.truncated

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        before = {name: array.copy() for name, array in self.view.named().items()}
        with time_limit("reset"):
            self.batch.reset(tables, seeds)
        self.steps[tables] = 0
        self.total[tables] = 0.0
        self.acted[tables] = self.broken[tables] = False
        self._require_all_there(tables)
        others = np.setdiff1d(np.arange(self.batch.num_tables), tables)
        self._unchanged("reset_only", others, before)
        self._check_arrays()
        for table in tables.tolist():
            cut = bool(self.view.truncated[table])
            reward, further = self.view.reward[table], [array[table] for array in self.view.rewards]
            seen = f"reward {reward.tolist()}, truncated {cut}"
            if any(one.any() for one in further):
                seen += f", further rewards {[one.tolist() for one in further]}"
            paid = reward.any() or any(one.any() for one in further)
            self._expect("fresh", not paid and not cut, table, seen)
            self._inspect(table)

    def step(self, actions: Actions) -> None:
        before = {name: array.copy() for name, array in self.view.named().items()}
        running = np.flatnonzero(~self.ended)
        self.acted |= self.view.to_act
        self.has_decided |= bool(self.view.to_act.any())
        self.evidence.step += 1
        with time_limit("step"):
            self.batch.step(actions)
        self.steps[running] += 1
        self._require_all_there(running)
        self.total[running] += self.view.reward[running]
        self._unchanged("ended_stays", np.setdiff1d(np.arange(self.batch.num_tables), running), before)
        self._check_arrays()
        for table in running.tolist():
            if self.spec.timed:
                was, now = int(before["clock"][table]), int(self.view.clock[table])
                self._expect("clock", now >= was, table, f"clock went from {was} to {now}")
            self._inspect(table)

    def choose(self, bot: Bot, rng: np.random.Generator, among: NDArray[np.bool_] | None = None) -> Actions:
        """The bot's actions for all seats to act (at the tables in `among`), zero elsewhere."""
        actions = allocate_actions(self.spec, self.batch.num_tables)
        playable = ~self.broken if among is None else ~self.broken & among
        act_among(bot, self.batch, playable[:, None], rng, actions)
        return actions

    def observation(self, table: int, seat: int) -> Tree:
        """The observation of a seat without the padding of entities."""
        kind, column = self.spec.seats[seat], self.spec.column_of_seat[seat]
        row = {name: array[table, column, ...] for name, array in self.view.observation[kind].items()}
        return crop(self.spec.kinds[kind], row)

    def legal(self, table: int, seat: int) -> Tree:
        return take(self.view.legal[self.spec.seats[seat]], (table, self.spec.column_of_seat[seat]))

    def showing(self, table: int) -> Tree:
        """Copies of all values that count at a table."""
        spec, view = self.spec, self.view
        ended = bool(view.over[table] or view.truncated[table])
        names = ["to_act", "reward", "over", "truncated"]
        names += ["score"] * ended + ["clock"] * spec.timed
        arrays = {name: np.array(getattr(view, name)[table]) for name in names}
        arrays.update({f"rewards[{kind}]": array[table].copy() for kind, array in enumerate(view.rewards)})
        for seat in np.flatnonzero((self.acted if view.truncated[table] else view.to_act)[table]).tolist():
            for name, array in self.observation(table, seat).items():
                arrays[f"observation {name} of seat {seat}"] = array.copy()
        for seat in np.flatnonzero(view.to_act[table]).tolist():
            for name, array in self.legal(table, seat).items():
                arrays[f"legal {name} of seat {seat}"] = array.copy()
        return arrays

    def _require_all_there(self, played: IntArray) -> None:
        """Raise `TableLost` for a lost table, preferably one that was played."""
        lost = lost_tables(self.batch)
        if lost:
            table = min(lost, key=lambda table: table not in played)
            raise TableLost(table, int(self.steps[table]), lost[table])

    def _check_arrays(self) -> None:
        now = self.view.named()
        moved = [name for name, array in now.items() if self._arrays.get(name) is not array]
        seen = f"{', '.join(moved)} became another array"
        if not self.evidence.expect("in_place", not moved, "view", self.evidence.step, seen):
            self._arrays = now
            check_shapes(self.batch, self.evidence)

    def _unchanged(self, promise: str, tables: IntArray, before: Tree) -> None:
        now = self.view.named()
        for table in tables.tolist():
            changed = difference(take(before, table), take(now, table))
            self._expect(promise, changed is None, table, changed)

    def _inspect(self, table: int) -> None:
        view = self.view
        over, cut = bool(view.over[table]), bool(view.truncated[table])
        to_act = np.flatnonzero(view.to_act[table]).tolist()
        self._expect("one_end", not (over and cut), table, "over and truncated are both True")
        for reward in (view.reward[table], *(array[table] for array in view.rewards)):
            self._expect("reward", _finite(reward), table, f"reward {reward.tolist()}")
        if over or cut:
            self._expect("ended_is_quiet", not to_act, table, f"ended, but seats {to_act} are to act")
            self._inspect_end(table)
            return
        playable = self._expect("someone_acts", bool(to_act), table, "not ended, but no seat is to act")
        for seat in to_act:
            self._inspect_observation("observation", table, seat)
            playable &= self._inspect_legal(table, seat)
        self._inspect_common(table, to_act)
        steps, limit = int(self.steps[table]), self.spec.max_length
        playable &= self._expect("max_length", steps < limit, table, f"not ended after {steps} steps")
        self.broken[table] = not playable

    def _inspect_end(self, table: int) -> None:
        spec, view, total, score = self.spec, self.view, self.total[table], self.view.score[table]
        teams = np.array([total[list(seats)].mean() for seats in spec.seats_of_team])
        scale = TOLERANCE * (1.0 + np.abs(total).max())
        self._expect("score", _finite(score), table, f"score {score.tolist()}")
        if spec.zero_sum:
            seen = f"the totals {teams.tolist()} of the teams add up to {teams.sum():g}"
            self._expect("zero_sum", abs(teams.sum()) <= scale, table, seen)
        if spec.reward_is_score:
            seen = f"score {score.tolist()}, but mean total reward {teams.tolist()}"
            self._expect("score_is_reward", bool((np.abs(score - teams) <= scale).all()), table, seen)
        if spec.timed and self.steps[table]:
            clock = int(view.clock[table])
            self._expect("clock", clock > 0, table, f"the episode ended at clock {clock}")
        if view.truncated[table]:
            acted = np.flatnonzero(self.acted[table]).tolist()
            for seat in acted:
                self._inspect_observation("truncation", table, seat)
            self._inspect_common(table, acted)

    def _inspect_observation(self, promise: str, table: int, seat: int) -> None:
        kind = self.spec.kinds[self.spec.seats[seat]]
        row = self.observation(table, seat)
        for name, maximum in entities_of(kind).items():
            length = int(row[length_name(name)])
            seen = f"{length_name(name)} is {length}, outside 0 to {maximum}"
            self._expect(promise, 0 <= length <= maximum, table, seen, seat)
        for name, array in row.items():
            shown = name if len(self.spec.kinds) == 1 else f"{kind.name}/{name}"
            self.evidence.ranges.setdefault(shown, PartRange()).see(array)
            wrong = np.argwhere(~np.isfinite(array))
            seen = f"{name}{wrong[0].tolist()} is {array[tuple(wrong[0])]}" if len(wrong) else ""
            told = "critic" if name.startswith(CRITIC_PREFIX) else promise
            self._expect(told, not len(wrong), table, seen, seat)

    def _inspect_common(self, table: int, seats: Sequence[int]) -> None:
        """Compare the parts that are declared common between the first seat and the others, also of other kinds."""
        shown: dict[str, tuple[int, Array]] = {}
        for seat in seats:
            kind = self.spec.kinds[self.spec.seats[seat]].observation
            row = self.observation(table, seat)
            for name in [array for part in kind.common for array in kind.critic[part].arrays(CRITIC_PREFIX + part)]:
                first, array = shown.setdefault(name, (seat, row[name]))
                if first != seat:
                    changed = difference({name: array}, {name: row[name]})
                    self._expect("critic", changed is None, table, f"seat {first}, then seat {seat}: {changed}", seat)

    def _inspect_legal(self, table: int, seat: int) -> bool:
        rows = Rows.of(self.batch, np.array([table]), np.array([seat]))
        legal = self.legal(table, seat)
        stuck = [name for name in legal if rows.kind.can_count(name, legal) and not rows.mask(name).any()]
        seen = f"head {stuck[0]!r} has the mask {legal[stuck[0]].astype(int).tolist()}" if stuck else ""
        return self._expect("legal", not stuck, table, seen, seat)

    def _expect(self, promise: str, kept: bool, table: int, seen: object, seat: int | None = None) -> bool:
        where = f"table {table}" if seat is None else f"table {table}, seat {seat}"
        return self.evidence.expect(promise, kept, where, int(self.steps[table]), seen)


def check_shapes(batch: GameBatch, evidence: Evidence) -> bool:
    expected, given = TableView.allocate(batch.spec, batch.num_tables).named(), batch.view.named()
    kept = True
    for name in expected.keys() | given.keys():
        want, have = expected.get(name), given.get(name)
        right = want is not None and have is not None and (want.shape, want.dtype) == (have.shape, have.dtype)
        seen = f"expected {_described(want)}, got {_described(have)}"
        kept &= evidence.expect("shapes", right, name, evidence.step, seen)
    return kept


def crop(kind: SeatKind, row: Mapping[str, Array]) -> Tree:
    """An observation without the padding of its entities."""
    lengths = {name: int(row[length_name(name)]) for name in entities_of(kind) if length_name(name) in row}
    return {name: array[: max(0, lengths[name])] if name in lengths else array for name, array in row.items()}


def entities_of(kind: SeatKind) -> dict[str, int]:
    """Arrays of entities -> their maximum."""
    observation = kind.observation
    named = [*observation.parts.items()]
    named += [(CRITIC_PREFIX + name, part) for name, part in observation.critic.items()]
    return {name: part.maximum for name, part in named if isinstance(part, Entities)}


def difference(first: Mapping[str, Array], second: Mapping[str, Array]) -> str | None:
    """The first difference between two showings, in words; None if there is none."""
    return next(_differences(first, second), None)


def _differences(first: Mapping[str, Array], second: Mapping[str, Array]) -> Iterator[str]:
    for name, one in first.items():
        other = second.get(name)
        if other is None:
            yield f"{name} was {one.tolist()}, then not shown"
        elif one.shape != other.shape:
            yield f"{name} had shape {list(one.shape)}, then {list(other.shape)}"
        elif not np.array_equal(one, other):
            # NaN equals NaN here: whether a value is finite is another promise.
            wrong = np.argwhere((one != other) & ~((one != one) & (other != other)))
            if len(wrong):
                index = tuple(wrong[0].tolist())
                place = f"{name}{list(index)}" if index else name
                yield f"{place} was {one[index]}, then {other[index]}"
    for name in second:
        if name not in first:
            yield f"{name} was not shown, then {second[name].tolist()}"


def _finite(array: NDArray[np.float32]) -> bool:
    return bool(np.isfinite(array).all())


def _described(array: NDArray[np.generic] | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
