"""The policy worker: answers what several actors ask, in as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from ludus.data.records import ModelId
from ludus.data.trees import Array, Tree
from ludus.models.policy import Policy
from ludus.runtime.program import IDLE, Progress
from ludus.workers.inference import Group, Inference, Rows
from ludus.workers.policy_requests import KindArea, NewArray, RequestArea, RowColumns

COUNTERS = ("batches", "requests", "rows", "wait_s")
"""What a policy worker counts, from the start of the run: batches, requests and rows answered, and how long
the requests had waited when their batch began."""


class InferenceStatistics:
    """What a policy worker has done of late, from its counters."""

    def __init__(self, counters: Array) -> None:
        self._counters = counters
        self._before = counters.copy()
        self.latest: dict[str, float] = {}

    def update(self) -> dict[str, float]:
        """Means since the last update; as they were, if nothing has been asked since."""
        batches, requests, rows, wait_s = (self._counters - self._before).tolist()
        if requests:
            self._before = self._counters.copy()
            self.latest = {
                "inference/rows_per_batch": rows / batches,
                "inference/requests_per_batch": requests / batches,
                "inference/wait_ms": 1000 * wait_s / requests,
            }
        return self.latest


@dataclass(slots=True)
class Piece:
    """The rows of one player in one actor's request."""

    area: KindArea
    group: Group
    start: int = 0
    """Where they lie in the batch."""

    @property
    def asked(self) -> slice:
        return slice(self.group.start, self.group.stop)

    @property
    def in_batch(self) -> slice:
        return slice(self.start, self.start + self.group.stop - self.group.start)


class PolicyWorker:
    """Rows of a player from several actors are one dense call, those of several pinned players one stacked
    call."""

    def __init__(
        self,
        inference: Inference,
        areas: Sequence[RequestArea],
        policies: Sequence[Policy],
        *,
        delay_s: float,
        wake: Callable[[int], None],
        counters: Array,
        new: NewArray = np.zeros,
        name: str = "policy-worker",
    ) -> None:
        """`policies`: per kind of seat, one that shows the shapes; `wake(actor)`: its request is answered;
        `new`: makes the memory in which the rows of several actors are brought together."""
        self.name = name
        self._inference = inference
        self._areas = areas
        self._delay_s = delay_s
        self._wake = wake
        self.counters = counters
        self._expected: set[int] = set()
        """Who asked last time. An actor that lets a batch go without it, because it waits for the learner
        or has died, is not waited for until it asks again."""
        self._joint = [
            RowColumns(policy, sum(area.kinds[kind].capacity for area in areas), new)
            for kind, policy in enumerate(policies)
        ]

    def patience(self, now: float) -> float | None:
        """Seconds until the requests that wait are answered, if nobody else asks; None: nobody waits."""
        waiting = self._waiting()
        if not waiting:
            return None
        if self._expected.issubset(waiting):
            return 0.0
        first = min(self._areas[actor].asked_at for actor in waiting)
        return max(0.0, first + self._delay_s - now)

    def step(self) -> Progress:
        """Answer everything that waits, with the newest weights there are.

        consumes:  the requests in the areas
        waits for: nothing; idle if nobody has asked
        produces:  answers, and a wake for each actor that has one
        """
        waiting = self._waiting()
        if not waiting:
            return IDLE
        now = monotonic()
        wait_s = sum(now - self._areas[actor].asked_at for actor in waiting)
        self._expected = set(waiting)
        self._inference.refresh()  # once: all rows of a player in a batch are decided by the same weights
        rows = self._answer(waiting)
        self.counters += (1, len(waiting), rows, wait_s)
        return Progress(count=rows)

    def close(self) -> None:
        """Nothing to let go of."""

    def _waiting(self) -> list[int]:
        return [actor for actor, area in enumerate(self._areas) if area.is_waiting]

    def _answer(self, actors: Sequence[int]) -> int:
        """Answer these; an actor whose rows cannot be decided on is told, and the others do not notice."""
        failed: Exception | None = None
        rows = 0
        try:
            rows = sum(self._decide(kind, actors) for kind in range(len(self._joint)))
        except (EOFError, ConnectionError):
            raise  # the controller is gone, and nothing was wrong with the rows
        except Exception as failure:
            if len(actors) > 1:
                return sum(self._answer([actor]) for actor in actors)
            failed = failure
        for actor in actors:
            self._areas[actor].done(failed)
            self._wake(actor)
        return rows

    def _decide(self, kind: int, actors: Sequence[int]) -> int:
        """Decide on the rows of one kind of seat; returns how many there were."""
        areas = [self._areas[actor].kinds[kind] for actor in actors]
        asked = [(area, area.groups()) for area in areas]
        asked = [(area, groups) for area, groups in asked if groups]
        if not asked:
            return 0
        if len(asked) == 1:
            area, groups = asked[0]
            pieces = [Piece(area, group, group.start) for group in groups]
            rows = area.asked.rows(kind, groups)
        else:
            pieces, rows = _joined(kind, asked, self._joint[kind])
        [answer] = self._inference.act_all([rows])
        models = {
            group.player: ModelId.parse(self._inference.model_name(group.player)) for group in rows.groups
        }
        for piece in pieces:
            piece.area.answered.write(piece.asked, answer, piece.in_batch)
        for area, groups in asked:
            area.note_models([models[group.player] for group in groups])
        return len(answer.version)


def _joined(
    kind: int, asked: Sequence[tuple[KindArea, tuple[Group, ...]]], joint: RowColumns
) -> tuple[list[Piece], Rows]:
    """The rows of several actors brought together by player, and where they came from."""
    by_player: dict[str, list[Piece]] = {}
    for area, groups in asked:
        for group in groups:
            by_player.setdefault(group.player, []).append(Piece(area, group))
    pieces: list[Piece] = []
    together: list[Group] = []
    start = 0
    for player, theirs in by_player.items():
        began = start
        for piece in theirs:
            piece.start = start
            start = piece.in_batch.stop
        together.append(Group(player, began, start, any(piece.group.want_value for piece in theirs)))
        pieces += theirs
    columns = [(piece.area.asked, piece.asked) for piece in pieces]
    for name in ("observation", "legal", "state"):
        target: Tree = getattr(joint, name)
        for key, array in target.items():
            np.concatenate([getattr(part, name)[key][rows] for part, rows in columns], out=array[:start])
    np.concatenate([part.uniforms[rows] for part, rows in columns], out=joint.uniforms[:start])
    return pieces, joint.rows(kind, tuple(together))
