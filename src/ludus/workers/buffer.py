"""The buffer of one learning player: which of its trajectories wait for the learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from ludus.data.trajectory import SlotPool
from ludus.data.trees import IntArray


class Buffer:
    """Slot numbers by kind of seat. When it overflows, the oldest trajectories are dropped and counted."""

    def __init__(
        self, pools: tuple[SlotPool, ...], max_decisions: int, free: Callable[[int, IntArray], None]
    ) -> None:
        self._pools = pools
        self._max_decisions = max_decisions
        self._free = free
        self._waiting: deque[tuple[int, int]] = deque()
        """(kind, slot), oldest first."""
        self._complete = False
        self.decisions = 0
        self.dropped = 0
        """Decisions thrown away because the buffer was full."""

    def put(self, kind: int, slots: IntArray) -> None:
        lengths = self._pools[kind].slots["length"]
        for slot in slots.tolist():
            self._waiting.append((kind, slot))
            self.decisions += int(lengths[slot])
        while self.decisions > self._max_decisions and len(self._waiting) > 1:
            old_kind, old_slot = self._waiting.popleft()
            length = int(self._pools[old_kind].slots["length"][old_slot])
            self.decisions -= length
            self.dropped += length
            self._free(old_kind, np.array([old_slot]))

    def complete(self) -> None:
        """A synchronous hand-over has ended: what is here now is one batch."""
        self._complete = True

    @property
    def ready(self) -> bool:
        return self._complete and bool(self._waiting)

    def take(self) -> dict[int, IntArray]:
        """All that waits, by kind. The caller frees the slots when it is done with them."""
        taken: dict[int, list[int]] = {}
        for kind, slot in self._waiting:
            taken.setdefault(kind, []).append(slot)
        self._waiting.clear()
        self.decisions = 0
        self._complete = False
        return {kind: np.array(slots, np.int64) for kind, slots in sorted(taken.items())}

    def clear(self) -> None:
        """Forget everything (the player was reset)."""
        for kind, slots in self.take().items():
            self._free(kind, slots)
