"""`WatchedTables`: a batch whose view is checked against the promises of a game after every `reset` and `step`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, Entities, GameSpec, Pointer, SeatKind, length_name
from ludus.data.trees import Array, IntArray, Tree, put, take
from ludus.games.check_report import Evidence, TableLost
from ludus.games.game import Actions, Bot, GameBatch, TableView, allocate_actions, lost_tables

TOLERANCE = 1e-4
"""Relative tolerance: rewards are float32 and add up over an episode."""


class WatchedTables:
    """Wraps a `GameBatch` and inspects its view after each `reset` and `step`, which raise `TableLost` if a table is
    lost."""

    def __init__(self, batch: GameBatch, evidence: Evidence) -> None:
        self.batch = batch
        self.spec: GameSpec = batch.spec
        self.evidence = evidence
        self.steps = np.zeros(batch.num_tables, np.int64)
        self.acted = np.zeros((batch.num_tables, self.spec.num_seats), np.bool_)
        self.total = np.zeros((batch.num_tables, self.spec.num_seats), np.float64)
        self.broken = np.zeros(batch.num_tables, np.bool_)
        """Tables that cannot be stepped until their next reset."""
        self._arrays = flat_view(batch.view)

    @property
    def view(self) -> TableView:
        return self.batch.view

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.view.over | self.view.truncated

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        before = {name: array.copy() for name, array in flat_view(self.view).items()}
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
        before = {name: array.copy() for name, array in flat_view(self.view).items()}
        running = np.flatnonzero(~self.ended)
        self.acted |= self.view.to_act
        self.evidence.step += 1
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
        for kind in range(len(self.spec.kinds)):
            tables, columns, seats = rows_to_act(self.spec, self.view, kind, playable)
            if len(tables):
                put(actions[kind], (tables, columns), bot.act(self.batch, tables, seats, rng))
        return actions

    def _require_all_there(self, played: IntArray) -> None:
        """Raise `TableLost` for a lost table, preferably one that was played."""
        lost = lost_tables(self.batch)
        if lost:
            table = min(lost, key=lambda table: table not in played)
            raise TableLost(table, int(self.steps[table]), lost[table])

    def _check_arrays(self) -> None:
        now = flat_view(self.view)
        moved = [name for name, array in now.items() if self._arrays.get(name) is not array]
        seen = f"{', '.join(moved)} became another array"
        if not self.evidence.expect("in_place", not moved, "view", self.evidence.step, seen):
            self._arrays = now
            check_shapes(self.batch, self.evidence)

    def _unchanged(self, promise: str, tables: IntArray, before: Tree) -> None:
        now = flat_view(self.view)
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
            row = self._inspect_observation("observation", table, seat)
            playable &= self._inspect_legal(table, seat, row)
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
            for seat in np.flatnonzero(self.acted[table]).tolist():
                self._inspect_observation("truncation", table, seat)

    def _inspect_observation(self, promise: str, table: int, seat: int) -> Tree:
        kind = self.spec.kinds[self.spec.seats[seat]]
        row = seat_observation(self.spec, self.view, table, seat)
        for name, maximum in entities_of(kind).items():
            length = int(row[length_name(name)])
            seen = f"{length_name(name)} is {length}, outside 0 to {maximum}"
            self._expect(promise, 0 <= length <= maximum, table, seen, seat)
        for name, array in row.items():
            finite = bool(np.isfinite(array).all())
            seen = "" if finite else _first_not_finite(name, array)
            self._expect(promise, finite, table, seen, seat)
        return row

    def _inspect_legal(self, table: int, seat: int, row: Tree) -> bool:
        kind = self.spec.kinds[self.spec.seats[seat]]
        legal = seat_legal(self.spec, self.view, table, seat)
        stuck = [name for name in legal if kind.can_count(name, legal) and not _options(kind, legal, row, name)]
        seen = f"head {stuck[0]!r} has the mask {legal[stuck[0]].astype(int).tolist()}" if stuck else ""
        return self._expect("legal", not stuck, table, seen, seat)

    def _expect(self, promise: str, kept: bool, table: int, seen: object, seat: int | None = None) -> bool:
        where = f"table {table}" if seat is None else f"table {table}, seat {seat}"
        return self.evidence.expect(promise, kept, where, int(self.steps[table]), seen)


def check_shapes(batch: GameBatch, evidence: Evidence) -> bool:
    expected, given = flat_view(TableView.allocate(batch.spec, batch.num_tables)), flat_view(batch.view)
    kept = True
    for name in expected.keys() | given.keys():
        want, have = expected.get(name), given.get(name)
        right = want is not None and have is not None and (want.shape, want.dtype) == (have.shape, have.dtype)
        seen = f"expected {_described(want)}, got {_described(have)}"
        kept &= evidence.expect("shapes", right, name, evidence.step, seen)
    return kept


def rows_to_act(
    spec: GameSpec, view: TableView, kind: int, among: NDArray[np.bool_]
) -> tuple[IntArray, IntArray, IntArray]:
    """Tables, columns and seats of one kind of the seats to act at these tables."""
    seats_of_kind = np.asarray(spec.seats_of_kind[kind])
    tables, columns = np.nonzero(view.to_act[:, seats_of_kind] & among[:, None])
    return tables, columns, seats_of_kind[columns]


def flat_view(view: TableView) -> Tree:
    """All arrays of a view by name, with the table as first axis."""
    arrays: Tree = {}
    for kind, tree in enumerate(view.observation):
        arrays.update({f"observation[{kind}].{name}": array for name, array in tree.items()})
    for kind, tree in enumerate(view.legal):
        arrays.update({f"legal[{kind}].{name}": array for name, array in tree.items()})
    for name in ("to_act", "reward", "over", "truncated", "score", "clock"):
        arrays[name] = getattr(view, name)
    arrays.update({f"rewards[{kind}]": array for kind, array in enumerate(view.rewards)})
    return arrays


def seat_observation(spec: GameSpec, view: TableView, table: int, seat: int) -> Tree:
    """The observation of a seat without the padding of entities."""
    kind, column = spec.seats[seat], spec.column_of_seat[seat]
    row = {name: array[table, column, ...] for name, array in view.observation[kind].items()}
    return crop(spec.kinds[kind], row)


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


def seat_legal(spec: GameSpec, view: TableView, table: int, seat: int) -> Tree:
    kind, column = spec.seats[seat], spec.column_of_seat[seat]
    return {name: array[table, column] for name, array in view.legal[kind].items()}


def shown(spec: GameSpec, view: TableView, table: int, acted: NDArray[np.bool_]) -> Tree:
    """Copies of all values that count at a table; `acted` [seats]: seats that have acted in this episode."""
    ended = bool(view.over[table] or view.truncated[table])
    names = ["to_act", "reward", "over", "truncated"]
    names += ["score"] * ended + ["clock"] * spec.timed
    arrays = {name: np.array(getattr(view, name)[table]) for name in names}
    arrays.update({f"rewards[{kind}]": array[table].copy() for kind, array in enumerate(view.rewards)})
    for seat in np.flatnonzero(acted if view.truncated[table] else view.to_act[table]).tolist():
        for name, array in seat_observation(spec, view, table, seat).items():
            arrays[f"observation {name} of seat {seat}"] = array.copy()
    for seat in np.flatnonzero(view.to_act[table]).tolist():
        for name, array in seat_legal(spec, view, table, seat).items():
            arrays[f"legal {name} of seat {seat}"] = array.copy()
    return arrays


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


def _options(kind: SeatKind, legal: Tree, row: Tree, name: str) -> Sequence[int]:
    head, options = kind.action.heads[name], np.flatnonzero(legal[name])
    if isinstance(head, Pointer):
        options = options[options < row[length_name(head.into)]]
    picked: list[int] = options.tolist()
    return picked


def _first_not_finite(name: str, array: NDArray[np.generic]) -> str:
    index = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
    return f"{name}{list(index)} is {array[index]}"


def _finite(array: NDArray[np.float32]) -> bool:
    return bool(np.isfinite(array).all())


def _described(array: NDArray[np.generic] | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
