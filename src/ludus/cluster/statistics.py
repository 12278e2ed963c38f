"""Numbers of a run on a cluster that the metrics show beside the others."""

from __future__ import annotations

import time

from ludus.data.trees import Array
from ludus.workers.policy_worker import InferenceStatistics


class ClusterStatistics(InferenceStatistics):
    """Beside those of the policy workers: nodes, and what travels between them."""

    def __init__(self, counters: Array) -> None:
        super().__init__(counters)
        self.num_nodes = 0
        self.bytes = 0
        """Of trajectories that were sent to the learner's node so far."""
        self._last = (time.monotonic(), 0)

    def update(self) -> dict[str, float]:
        super().update()
        now, (then, before) = time.monotonic(), self._last
        self._last = now, self.bytes
        self.latest |= {
            "cluster/nodes": self.num_nodes,
            "cluster/bytes_per_s": (self.bytes - before) / max(now - then, 1e-9),
        }
        return self.latest
