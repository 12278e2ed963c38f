"""Pgx's games on a device: JAX plays, in the memory of torch's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ludus.games.adapters.pgx import START_DRAWS, Pgx, PgxRules, require_platform, same_memory
from ludus.games.device.tensor_game import START, TensorState, TensorStep, TensorTwin
from ludus.games.game import GameSource


@dataclass(frozen=True)
class TensorPgx(TensorTwin):
    """The state is that of `PgxRules`. What a seat sees is a part of it, so only `start` and `step` call JAX.

    Both libraries have a stream of work of their own on a GPU. By DLPack's protocol a call of JAX waits for what torch
    was asked to do before, and torch then waits for the result. So neither reuses memory that the other still reads.
    """

    recordable: ClassVar[bool] = False
    start_draws: ClassVar[int] = START_DRAWS
    seen: ClassVar[tuple[str, ...]] = ("observation", "legal", "seat")

    @classmethod
    def of(cls, game: GameSource) -> Self | None:
        """None where `max_length` cuts episodes off."""
        assert isinstance(game, Pgx)
        return cls(game) if game.spec.max_length == game.rules.facts.max_length else None

    @cached_property
    def _rules(self) -> PgxRules:
        assert isinstance(self.game, Pgx)
        return self.game.rules

    @property
    def step_draws(self) -> int:  # type: ignore[override]
        return self._rules.step_draws

    def require_device(self, device: torch.device) -> None:
        require_platform(device.type)

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        return self._rules.draws(seeds, None if step == START else step)

    def start(self, draws: Tensor) -> TensorState:
        return _tensors(self._rules.start(_array(draws)))

    def to_act(self, state: TensorState) -> Tensor:
        return torch.arange(self.spec.num_seats, device=state["seat"].device) == state["seat"].unsqueeze(1)

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        return {"observation": state["observation"]}

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        return state["legal"]

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        moves = actions.gather(1, state["seat"].long().unsqueeze(1)).squeeze(1).int()
        arrays = {name: _array(tensor) for name, tensor in state.items()}
        given = _array(moves)
        # Without chance nothing reads the draws, and a tensor of no numbers has no memory to hand over.
        after, reward, over = self._rules.step(arrays, given, _array(draws) if self.step_draws else given)
        return TensorStep(_tensors(after), from_dlpack(reward), from_dlpack(over))


def _array(tensor: Tensor) -> Any:
    return same_memory(tensor.contiguous())


def _tensors(arrays: dict[str, Any]) -> TensorState:
    return {name: from_dlpack(array) for name, array in arrays.items()}
