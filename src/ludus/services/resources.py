"""What each process of a service needs of the machine that it runs on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

RAYS_OWN = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_mb"}
"""Names that Ray has for what has a field here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """For one process of a service: as many of them as `count` says are needed."""

    cpus: float = 0.0
    """Cores that are left to it, and threads that its numpy and torch use; 0: whatever the others leave."""
    gpus: float = 0.0
    """GPUs that it sees, and no other service does; below 1: a share of one. 0: it sees all of them."""
    memory_mb: float = 0.0
    """Memory that the machine must have for it, in millions of bytes."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """Resources by which nodes of a Ray cluster are told apart, by name; a single machine has all of them."""

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus", "memory_mb"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"resources.{name} must be 0 or more, and finite, got {getattr(self, name):g}"
                )
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"resources.gpus must be a whole number above 1, got {self.gpus:g}")
        for name, amount in self.custom.items():
            if name in RAYS_OWN:
                raise ValueError(f"resources.custom: {name!r} is {RAYS_OWN[name]} here")
            if not name or not 0 < amount < math.inf:
                raise ValueError(f"resources.custom: {name!r} must be above 0 and finite, got {amount:g}")

    def __str__(self) -> str:
        """As in 2 cpus, 1 gpus, 500 memory_mb."""
        amounts = {"cpus": self.cpus, "gpus": self.gpus, "memory_mb": self.memory_mb, **self.custom}
        return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount) or "nothing"
