"""PPO that goes wrong at chosen gradient steps."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ludus.algorithms.algorithm import Loss
from ludus.algorithms.ppo import PPO


@dataclass(frozen=True, kw_only=True)
class DyingPPO(PPO):
    """Kills its process in the middle of a gradient step, once for each number in `at`."""

    marks: str
    at: tuple[int, ...]
    """Gradient steps of a process, one life after the other."""
    _count: Any = field(default_factory=itertools.count, init=False, repr=False, compare=False)

    def loss(self, policy: Any, batch: Any) -> Loss:
        made = super().loss(policy, batch)
        life = len(list(Path(self.marks).glob("life-*")))
        if life < len(self.at) and next(self._count) >= self.at[life]:
            (Path(self.marks) / f"life-{life}").touch()
            made.total.backward()  # type: ignore[no-untyped-call]
            os.kill(os.getpid(), signal.SIGKILL)
        return made


@dataclass(frozen=True, kw_only=True)
class NanPPO(PPO):
    """Its loss is NaN from one gradient step to another."""

    first: int
    last: int
    _count: Any = field(default_factory=itertools.count, init=False, repr=False, compare=False)

    def loss(self, policy: Any, batch: Any) -> Loss:
        made = super().loss(policy, batch)
        if self.first <= next(self._count) <= self.last:
            return replace(made, total=made.total * float("nan"))
        return made
