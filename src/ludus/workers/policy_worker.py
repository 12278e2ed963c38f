"""The policy worker: batched inference for several actors, which write their rows into a `RequestArea` each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ludus.data.records import ModelId
from ludus.data.specs import ArraySpec, SeatKind
from ludus.data.trees import Array, Tree, allocate, put
from ludus.models.policy import Acted
from ludus.store.model_pool import ModelPoolError, ModelsUnreachable
from ludus.workers.inference import ActingRows, Group, Inference, InferenceResult
from ludus.workers.worker import IDLE, Progress

PLAYER_BYTES = 64
"""Maximum length of a player's id."""
ERROR_BYTES = 1024
COUNTERS = ("batches", "requests", "rows", "wait_s")
"""Counters of a policy worker since the start of the run; `wait_s` is the time until the batch of a request began."""
NewArray = Callable[[tuple[int, ...], Any], Array]


class RowLayout(NamedTuple):
    """What the rows of one kind of seat have, whichever network decides on them."""

    kind: SeatKind
    state_arrays: Mapping[str, ArraySpec]
    num_draws: int


class InferenceFailed(RuntimeError):  # noqa: N818
    """The policy worker failed on the rows of this actor."""


FAILURES: tuple[type[Exception], ...] = (InferenceFailed, ModelPoolError, ModelsUnreachable)
"""Errors that an actor is told of: unreadable weights are not the fault of its rows."""


class PolicyWorker:
    """Decides on a player's rows of all actors in one dense call, and on several pinned players in one stacked call."""

    def __init__(
        self,
        inference: Inference,
        areas: Sequence[RequestArea],
        layouts: Sequence[RowLayout],
        *,
        delay_s: float,
        wake: Callable[[int], None],
        counters: Array,
        new: NewArray = np.zeros,
        name: str = "policy-worker",
    ) -> None:
        """`layouts`: one per kind of seat; `new` allocates arrays for the rows of all actors."""
        self.name = name
        self._inference = inference
        self._areas = areas
        self._delay_s = delay_s
        self._wake = wake
        self.counters = counters
        self._expected: set[int] = set()
        """Actors of the last batch. One that misses a batch is not waited for until it asks again."""
        self._joint = [
            _new_rows(kind, layout, sum(len(area.kinds[kind].asked.uniforms) for area in areas), new)
            for kind, layout in enumerate(layouts)
        ]

    def patience(self, now: float) -> float | None:
        """Seconds until the waiting requests are answered, unless more arrive; None: there are none."""
        waiting = self._waiting()
        if not waiting:
            return None
        if self._expected.issubset(waiting):
            return 0.0
        first = min(self._areas[actor].asked_at for actor in waiting)
        return max(0.0, first + self._delay_s - now)

    def step(self) -> Progress:
        """Answer all waiting requests, if any, with the newest weights, and wake each answered actor."""
        waiting = self._waiting()
        if not waiting:
            return IDLE
        now = time.monotonic()
        wait_s = sum(now - self._areas[actor].asked_at for actor in waiting)
        self._expected = set(waiting)
        self._inference.refresh()  # once, so that a batch uses one version of the weights per player
        rows = self._answer(waiting)
        self.counters += (1, len(waiting), rows, wait_s)
        return Progress(count=rows)

    def close(self) -> None:
        """A policy worker holds no resources."""

    def _waiting(self) -> list[int]:
        return [actor for actor, area in enumerate(self._areas) if area.is_waiting]

    def _answer(self, actors: Sequence[int]) -> int:
        """Answer these actors. If the batch fails, each is answered alone, so that only the faulty one is told."""
        failed: Exception | None = None
        rows = 0
        try:
            rows = sum(self._decide(kind, actors) for kind in range(len(self._joint)))
        except (EOFError, ConnectionError):
            raise  # the controller is gone; the rows are not at fault
        except Exception as failure:
            if len(actors) > 1:
                return sum(self._answer([actor]) for actor in actors)
            failed = failure
        for actor in actors:
            self._areas[actor].done(failed)
            self._wake(actor)
        return rows

    def _decide(self, kind: int, actors: Sequence[int]) -> int:
        """Decide on the rows of one kind of seat; returns their number."""
        areas = [self._areas[actor].kinds[kind] for actor in actors]
        asked = [(area, area.groups()) for area in areas]
        asked = [(area, groups) for area, groups in asked if groups]
        if not asked:
            return 0
        if len(asked) == 1:
            area, groups = asked[0]
            pieces = [Piece(area, slice(group.start, group.stop), group.start) for group in groups]
            rows = area.asked.first(groups)
        else:
            pieces, rows = _joined(asked, self._joint[kind])
        [answer] = self._inference.act_all([rows])
        models = {group.player: ModelId.parse(self._inference.model_name(group.player)) for group in rows.groups}
        for piece in pieces:
            piece.area.write_answer(piece.asked, answer.at(piece.in_batch))
        for area, groups in asked:
            area.note_models([models[group.player] for group in groups])
        return len(answer.version)


class Piece(NamedTuple):
    """The rows of one player in one actor's request, and their first row in the batch."""

    area: KindArea
    asked: slice
    start: int

    @property
    def in_batch(self) -> slice:
        return slice(self.start, self.start + self.asked.stop - self.asked.start)


def _joined(asked: Sequence[tuple[KindArea, tuple[Group, ...]]], joint: ActingRows) -> tuple[list[Piece], ActingRows]:
    """Join the rows of several actors by player; returns where each piece came from, and the joint rows."""
    by_player: dict[str, list[tuple[KindArea, Group]]] = {}
    for area, groups in asked:
        for group in groups:
            by_player.setdefault(group.player, []).append((area, group))
    pieces: list[Piece] = []
    together: list[Group] = []
    start = 0
    for player, theirs in by_player.items():
        began = start
        for area, group in theirs:
            pieces.append(Piece(area, slice(group.start, group.stop), start))
            start = pieces[-1].in_batch.stop
        together.append(Group(player, began, start, any(group.want_value for _, group in theirs)))
    columns = [(piece.area.asked, piece.asked) for piece in pieces]
    for name in ("observation", "legal", "state"):
        target: Tree = getattr(joint, name)
        for key, array in target.items():
            np.concatenate([getattr(part, name)[key][rows] for part, rows in columns], out=array[:start])
    np.concatenate([part.uniforms[rows] for part, rows in columns], out=joint.uniforms[:start])
    return pieces, joint.first(tuple(together))


class RequestArea:
    """The shared memory of one actor and the policy worker."""

    def __init__(self, layouts: Sequence[RowLayout], capacities: Sequence[int], new: NewArray) -> None:
        """By kind of seat: its rows, and the most of one request."""
        self.kinds = tuple(
            KindArea(kind, layout, capacity, new)
            for kind, (layout, capacity) in enumerate(zip(layouts, capacities, strict=True))
        )
        self._asked = new((1,), np.int64)
        """Number of requests."""
        self._answered = new((1,), np.int64)
        """Number of the latest answered request."""
        self._asked_at = new((1,), np.float64)
        self._failure = new((1,), np.int64)
        """0, or 1 + the index in `FAILURES` of the error that the actor raises."""
        self._error = new((1,), np.dtype(f"S{ERROR_BYTES}"))

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked[0] != self._answered[0])

    def ask(self, requests: Sequence[ActingRows]) -> None:
        """Write a request of one or more kinds of seat. The previous one must have been answered."""
        by_kind = {rows.kind: rows for rows in requests}
        for kind, area in enumerate(self.kinds):
            area.write(by_kind.get(kind))
        self._asked_at[0] = time.monotonic()
        self._asked[0] += 1  # last, so that the policy worker sees complete requests

    def answers(self, requests: Sequence[ActingRows]) -> list[InferenceResult]:
        """Without copies: they are valid until the next request for the same kind of seat."""
        if self._failure[0]:
            raise FAILURES[int(self._failure[0]) - 1](bytes(self._error[0]).decode(errors="replace"))
        return [self.kinds[rows.kind].answered.at(slice(0, rows.groups[-1].stop)) for rows in requests]

    @property
    def asked_at(self) -> float:
        """`time.monotonic` of the request, which all processes of a machine share."""
        return float(self._asked_at[0])

    def done(self, failure: Exception | None = None) -> None:
        """Mark the request as answered or failed, after the answer is written."""
        fits = [number for number, kind in enumerate(FAILURES) if isinstance(failure, kind)]
        self._failure[0] = 0 if failure is None else 1 + max(fits, default=0)
        if failure is not None:
            self._error[0] = f"{type(failure).__name__}: {failure}".encode()[:ERROR_BYTES]
        self._answered[0] = self._asked[0]


class KindArea:
    """The rows of one actor and one kind of seat, their players, and the answer."""

    def __init__(self, kind: int, layout: RowLayout, capacity: int, new: NewArray) -> None:
        self.asked = _new_rows(kind, layout, capacity, new)
        heads, numbers = layout.kind.action, np.dtype(np.float32)
        self.answered = InferenceResult(
            acted=Acted(
                action=allocate(heads.arrays, (capacity,), new),
                log_prob=new((capacity, len(heads.heads)), numbers),
                value=new((capacity,), numbers),
                state=allocate(layout.state_arrays, (capacity,), new),
            ),
            version=new((capacity,), np.dtype(np.int64)),
        )
        self._num_groups = new((1,), np.int64)
        self._players = new((capacity,), np.dtype(f"S{PLAYER_BYTES}"))
        self._bounds = new((capacity, 3), np.int64)
        """[groups, (start, stop, want_value)]"""
        self._models = new((capacity, 2), np.int64)
        """[groups, (incarnation, step)] of the weights that decided."""

    def write(self, rows: ActingRows | None) -> None:
        self._num_groups[0] = 0 if rows is None else len(rows.groups)
        if rows is None:
            return
        used = slice(0, rows.groups[-1].stop)
        put(self.asked.observation, used, rows.observation)
        put(self.asked.legal, used, rows.legal)
        put(self.asked.state, used, rows.state)
        self.asked.uniforms[used] = rows.uniforms
        for index, group in enumerate(rows.groups):
            self._players[index] = group.player.encode()
            self._bounds[index] = group.start, group.stop, group.want_value

    def groups(self) -> tuple[Group, ...]:
        count = int(self._num_groups[0])
        players, bounds = self._players[:count].tolist(), self._bounds[:count].tolist()
        return tuple(
            Group(player.decode(), start, stop, bool(want_value))
            for player, (start, stop, want_value) in zip(players, bounds, strict=True)
        )

    def write_answer(self, where: slice, answer: InferenceResult) -> None:
        own, acted = self.answered.acted, answer.acted
        put(own.action, where, acted.action)
        put(own.state, where, acted.state)
        own.log_prob[where], own.value[where] = acted.log_prob, acted.value
        self.answered.version[where] = answer.version

    def note_models(self, models: Sequence[ModelId]) -> None:
        self._models[: len(models)] = [(model.incarnation, model.step) for model in models]

    def versions(self, num_groups: int) -> list[tuple[int, int]]:
        """By group: (incarnation, step) of the weights that decided."""
        return [(incarnation, step) for incarnation, step in self._models[:num_groups].tolist()]


def _new_rows(kind: int, layout: RowLayout, capacity: int, new: NewArray) -> ActingRows:
    """Arrays for the inputs of decisions of one kind of seat."""
    return ActingRows(
        kind=kind,
        groups=(),
        observation=allocate(layout.kind.observation.arrays, (capacity,), new),
        legal=allocate(layout.kind.legal_arrays, (capacity,), new),
        state=allocate(layout.state_arrays, (capacity,), new),
        uniforms=new((capacity, layout.num_draws), np.dtype(np.float32)),
    )


class InferenceStatistics:
    """Recent statistics of a policy worker, from its counters."""

    def __init__(self, counters: Array) -> None:
        self._counters = counters
        self._before = counters.copy()
        self.latest: dict[str, float] = {}

    def update(self) -> dict[str, float]:
        """Means since the last update; unchanged without new requests."""
        batches, requests, rows, wait_s = (self._counters - self._before).tolist()
        if requests:
            self._before = self._counters.copy()
            self.latest = {
                "inference/rows_per_batch": rows / batches,
                "inference/requests_per_batch": requests / batches,
                "inference/wait_ms": 1000 * wait_s / requests,
            }
        return self.latest
