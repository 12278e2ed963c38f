"""Where an actor and the policy worker meet: rows to decide on and what was decided, in shared memory.

Each actor has one area. It writes its rows, then counts its request; the policy worker writes the answer,
then counts that. Only the side whose turn it is touches the area, and a request that was not counted as
answered is still there for whoever is the policy worker next: nobody has to send anything again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ludus.data.records import ModelId
from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, Tree, allocate, put, take
from ludus.models.policy import Acted, Policy
from ludus.store.model_pool import ModelPoolError
from ludus.workers.inference import Answer, Group, Rows

PLAYER_BYTES = 64
"""The longest id of a player."""
ERROR_BYTES = 1024

NewArray = Callable[[tuple[int, ...], Any], Array]


class InferenceFailed(RuntimeError):  # noqa: N818
    """The policy worker could not decide on these rows."""


FAILURES: tuple[type[Exception], ...] = (InferenceFailed, ModelPoolError)
"""How an actor learns of a failure: weights that do not open are no fault of its rows."""


class RowColumns:
    """Space for rows of one kind of seat: what goes into a decision."""

    def __init__(self, policy: Policy, capacity: int, new: NewArray) -> None:
        self.observation = allocate(policy.kind.observation.arrays, (capacity,), new)
        self.legal = allocate(policy.kind.legal_arrays, (capacity,), new)
        self.state = allocate(policy.state_arrays, (capacity,), new)
        self.uniforms = new((capacity, policy.num_draws), np.dtype(np.float32))

    def rows(self, kind: int, groups: tuple[Group, ...]) -> Rows:
        """The first rows, in place."""
        used = slice(0, groups[-1].stop)
        return Rows(
            kind=kind,
            groups=groups,
            observation=take(self.observation, used),
            legal=take(self.legal, used),
            state=take(self.state, used),
            uniforms=self.uniforms[used],
        )


class AnswerColumns:
    """Space for what was decided, row by row."""

    def __init__(self, policy: Policy, capacity: int, new: NewArray) -> None:
        heads = policy.kind.action
        self.action = allocate(heads.arrays, (capacity,), new)
        self.state = allocate(policy.state_arrays, (capacity,), new)
        self._numbers: Tree = allocate(
            {
                "log_prob": ArraySpec(shape=(len(heads.heads),), dtype=np.dtype(np.float32)),
                "value": ArraySpec(shape=(), dtype=np.dtype(np.float32)),
                "version": ArraySpec(shape=(), dtype=np.dtype(np.int64)),
            },
            (capacity,),
            new,
        )

    def write(self, where: slice, answer: Answer, source: slice) -> None:
        acted = answer.acted
        put(self.action, where, take(acted.action, source))
        put(self.state, where, take(acted.state, source))
        self._numbers["log_prob"][where] = acted.log_prob[source]
        self._numbers["value"][where] = acted.value[source]
        self._numbers["version"][where] = answer.version[source]

    def answer(self, num_rows: int) -> Answer:
        """The first rows, in place: they hold until the next request."""
        used = slice(0, num_rows)
        acted = Acted(
            action=take(self.action, used),
            log_prob=self._numbers["log_prob"][used],
            value=self._numbers["value"][used],
            state=take(self.state, used),
        )
        return Answer(acted=acted, version=self._numbers["version"][used])


class KindArea:
    """The rows of one actor and one kind of seat, whose rows they are, and the answer."""

    def __init__(self, policy: Policy, capacity: int, new: NewArray) -> None:
        self.capacity = capacity
        self.asked = RowColumns(policy, capacity, new)
        self.answered = AnswerColumns(policy, capacity, new)
        self._num_groups = new((1,), np.int64)
        self._players = new((capacity,), np.dtype(f"S{PLAYER_BYTES}"))
        self._bounds = new((capacity, 3), np.int64)
        """[groups, (start, stop, want_value)]"""
        self._models = new((capacity, 2), np.int64)
        """[groups, (incarnation, step)] of the weights that decided."""

    def write(self, rows: Rows | None) -> None:
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

    def note_models(self, models: Sequence[ModelId]) -> None:
        """By group, which weights decided."""
        self._models[: len(models)] = [(model.incarnation, model.step) for model in models]

    def versions(self, num_groups: int) -> list[tuple[int, int]]:
        """By group (incarnation, step) of the weights that decided."""
        return [(incarnation, step) for incarnation, step in self._models[:num_groups].tolist()]


class RequestArea:
    """Everything that passes between one actor and the policy worker."""

    def __init__(self, policies: Sequence[Policy], capacities: Sequence[int], new: NewArray) -> None:
        """Per kind of seat its policy and the most rows of one request."""
        self.kinds = tuple(
            KindArea(policy, capacity, new) for policy, capacity in zip(policies, capacities, strict=True)
        )
        self._asked = new((1,), np.int64)
        """Requests that the actor has made."""
        self._answered = new((1,), np.int64)
        """The latest request that was answered."""
        self._asked_at = new((1,), np.float64)
        self._failure = new((1,), np.int64)
        """0, or 1 and more: the place of what the answer raises among `FAILURES`."""
        self._error = new((1,), np.dtype(f"S{ERROR_BYTES}"))

    @property
    def is_waiting(self) -> bool:
        """There is a request that has not been answered."""
        return bool(self._asked[0] != self._answered[0])

    # --- the actor's side ---

    def ask(self, requests: Sequence[Rows]) -> None:
        """Rows of one or more kinds of seat. The area must not be waiting."""
        by_kind = {rows.kind: rows for rows in requests}
        for kind, area in enumerate(self.kinds):
            area.write(by_kind.get(kind))
        self._asked_at[0] = time.monotonic()
        self._asked[0] += 1  # last, so that the policy worker never sees half a request

    def answers(self, requests: Sequence[Rows]) -> list[Answer]:
        """In place: they hold until the next request for the same kind of seat."""
        if self._failure[0]:
            raise FAILURES[int(self._failure[0]) - 1](bytes(self._error[0]).decode(errors="replace"))
        return [self.kinds[rows.kind].answered.answer(rows.groups[-1].stop) for rows in requests]

    # --- the policy worker's side ---

    @property
    def asked_at(self) -> float:
        """When the request was made, by `time.monotonic`, which all processes of a machine share."""
        return float(self._asked_at[0])

    def done(self, failure: Exception | None = None) -> None:
        """The whole answer is written, or the request failed."""
        self._failure[0] = 0 if failure is None else 1 + isinstance(failure, ModelPoolError)
        if failure is not None:
            self._error[0] = f"{type(failure).__name__}: {failure}".encode()[:ERROR_BYTES]
        self._answered[0] = self._asked[0]
