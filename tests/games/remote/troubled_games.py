"""Kuhn poker at tables that do what a test tells them to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ludus.data.specs import GameSpec
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import Actions, Bot, GameBatch


@dataclass
class Trouble:
    """What happens before the next step; and how many batches are open."""

    before_step: Callable[[], None] | None = None
    opened: int = 0
    closed: int = 0
    going_on: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        self.going_on.wait(30.0)


@dataclass(frozen=True)
class TroubledKuhn:
    trouble: Trouble

    @cached_property
    def spec(self) -> GameSpec:
        return Kuhn().spec

    def tables(self, num_tables: int) -> GameBatch:
        self.trouble.opened += 1
        tables: Any = _Troubled(Kuhn().tables(num_tables), self.trouble)
        return tables  # type: ignore[no-any-return]

    def bots(self) -> dict[str, Bot]:
        return {**Kuhn().bots(), "broken": _BrokenBot()}

    def tree(self) -> None:
        return None


class _BrokenBot:
    def act(self, *_: Any) -> Any:
        raise RuntimeError("this bot is broken")


class _Troubled:
    def __init__(self, batch: GameBatch, trouble: Trouble) -> None:
        self._batch = batch
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def step(self, actions: Actions) -> None:
        if self._trouble.before_step is not None:
            self._trouble.before_step()
        self._batch.step(actions)

    def close(self) -> None:
        self._trouble.closed += 1
        self._batch.close()
