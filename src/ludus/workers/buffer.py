"""The buffer of one learning player: which of its trajectories wait for the learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ludus.data.trajectory import SlotPool
from ludus.data.trees import IntArray


class Buffer:
    """Slot numbers by kind of seat. When it overflows, the oldest trajectories are dropped and counted."""

    def __init__(
        self,
        pools: tuple[SlotPool, ...],
        *,
        max_decisions: int,
        max_slots: int,
        free: Callable[[int, IntArray], None],
        num_actors: int = 1,
    ) -> None:
        self._pools = pools
        self._max_decisions = max_decisions
        self._max_slots = max_slots
        """Trajectories may be cut short, so that few decisions take many slots."""
        self._free = free
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(kind, slot, decisions in it), oldest first."""
        self._hand_overs = [0] * num_actors
        """Hand-overs of each actor that have ended and have not been taken: one of each makes a batch."""
        self.decisions = 0
        self.dropped = 0
        """Decisions thrown away because the buffer was full."""

    def put(self, kind: int, slots: IntArray) -> None:
        counts = self._pools[kind].num_decisions(slots).tolist()
        self._waiting.extend((kind, slot, count) for slot, count in zip(slots.tolist(), counts, strict=True))
        self.decisions += sum(counts)
        while self._overflows and len(self._waiting) > 1:
            old_kind, old_slot, count = self._waiting.popleft()
            self.decisions -= count
            self.dropped += count
            self._free(old_kind, np.array([old_slot]))

    def complete(self, actor: int = 0) -> None:
        """A hand-over of this actor has ended: its share of a batch is here."""
        self._hand_overs[actor] += 1

    @property
    def ready(self) -> bool:
        return min(self._hand_overs) > 0

    def take(self) -> dict[int, IntArray]:
        """All that waits, by kind. The caller frees the slots when it is done with them."""
        taken: dict[int, list[int]] = {}
        for kind, slot, _ in self._waiting:
            taken.setdefault(kind, []).append(slot)
        self._waiting.clear()
        self.decisions = 0
        self._hand_overs = [max(0, count - 1) for count in self._hand_overs]
        return {kind: np.array(slots, np.int64) for kind, slots in sorted(taken.items())}

    def clear(self) -> None:
        """Forget everything (the player was reset)."""
        for kind, slots in self.take().items():
            self._free(kind, slots)

    def forget(self, actor: int, is_lost: Callable[[int, int], bool]) -> None:
        """The actor has died: its trajectories, those for which `is_lost(kind, slot)`, are gone."""
        self._waiting = deque(entry for entry in self._waiting if not is_lost(entry[0], entry[1]))
        self.decisions = sum(count for _, _, count in self._waiting)
        self._hand_overs[actor] = 0

    def save(self) -> dict[str, Any]:
        """Which slots wait, to go on with the same pools."""
        return {"waiting": list(self._waiting), "hand_overs": self._hand_overs, "dropped": self.dropped}

    def load(self, facts: Mapping[str, Any]) -> None:
        self._waiting = deque((kind, slot, count) for kind, slot, count in facts["waiting"])
        self.decisions = sum(count for _, _, count in self._waiting)
        self._hand_overs = list(facts["hand_overs"])
        self.dropped = facts["dropped"]

    @property
    def _overflows(self) -> bool:
        return self.decisions > self._max_decisions or len(self._waiting) > self._max_slots
