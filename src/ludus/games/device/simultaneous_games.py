"""Games in torch whose seats all choose at once: matrix games (rock, paper, scissors; Blotto) and goofspiel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ludus.games.builtin.goofspiel import SEATS, Goofspiel
from ludus.games.builtin.matrix_game import Matrix
from ludus.games.device.tensor_game import START, TensorState, TensorStep, TensorTwin, below_one
from ludus.games.seeding import uniform


@dataclass(frozen=True)
class _AllAtOnce(TensorTwin):
    simultaneous: ClassVar[bool] = True

    def to_act(self, state: TensorState) -> Tensor:
        rows = len(state["round"])
        return torch.ones(rows, self.spec.num_seats, dtype=torch.bool, device=state["round"].device)


@dataclass(frozen=True)
class TensorMatrixGame(_AllAtOnce):
    """`last` [rows] is the number of the latest round's pair of choices, `round` [rows] how many were played."""

    @cached_property
    def _matrix(self) -> Matrix:
        matrix: Matrix = self.game.matrix  # type: ignore[attr-defined]
        return matrix

    @cached_property
    def _constants(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def _tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rewards [pairs, seats] and encodings [pairs or 1, seats, size]."""
        if device not in self._constants:
            arrays = self._matrix.rewards, self._matrix.encodings
            rewards, encodings = (torch.from_numpy(array.copy()).to(device) for array in arrays)
            self._constants[device] = rewards, encodings
        return self._constants[device]

    def start(self, draws: Tensor) -> TensorState:
        rows, device = len(draws), draws.device
        return {
            "last": torch.full((rows,), self.num_options**2, dtype=torch.int32, device=device),
            "round": torch.zeros(rows, dtype=torch.int16, device=device),
        }

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        encodings = self._tables(seats.device)[1]
        last = state["last"].clamp(max=len(encodings) - 1).long()
        both = encodings.index_select(0, last)
        return {self._matrix.part: torch.where((seats == 0).unsqueeze(1), both[:, 0], both[:, 1])}

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        return torch.ones(len(seats), self.num_options, dtype=torch.bool, device=seats.device)

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        pair = self.num_options * actions[:, 0] + actions[:, 1]
        played = state["round"] + 1
        reward = self._tables(actions.device)[0].index_select(0, pair)
        return TensorStep({"last": pair.int(), "round": played}, reward, played == self.spec.max_length)


@dataclass(frozen=True)
class TensorGoofspiel(_AllAtOnce):
    """`prizes` [rows, cards] in the order of the episode, `hands` [rows, seats, cards] bool, `points` [rows, seats]."""

    @property
    def num_cards(self) -> int:
        assert isinstance(self.game, Goofspiel)
        return self.game.num_cards

    @property
    def start_draws(self) -> int:  # type: ignore[override]
        return self.num_cards

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        """The keys that the prizes of the CPU game are sorted by, as ranks: float32 would have ties."""
        if step != START:
            return np.zeros((len(seeds), 0), np.float32)
        keys = uniform(seeds[:, None], np.arange(self.num_cards)[None, :])
        return below_one(keys.argsort(1, kind="stable").argsort(1, kind="stable") / self.num_cards)

    def start(self, draws: Tensor) -> TensorState:
        rows, device = len(draws), draws.device
        return {
            "prizes": draws.argsort(1).to(torch.int8),
            "hands": torch.ones(rows, SEATS, self.num_cards, dtype=torch.bool, device=device),
            "points": torch.zeros(rows, SEATS, dtype=torch.int16, device=device),
            "round": torch.zeros(rows, dtype=torch.int8, device=device),
        }

    def _prize(self, state: TensorState) -> Tensor:
        """[rows]: the prize of this round; the last one after the end."""
        number = state["round"].clamp(max=self.num_cards - 1).long().unsqueeze(1)
        return state["prizes"].gather(1, number).squeeze(1)

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        order = (seats.unsqueeze(1) + torch.arange(SEATS, device=seats.device)) % SEATS
        hands = state["hands"].gather(1, order.unsqueeze(2).expand(-1, -1, self.num_cards))
        prizes = functional.one_hot(state["prizes"].long(), self.num_cards)
        rounds = torch.arange(self.num_cards, device=seats.device) - state["round"].unsqueeze(1)
        total = self.num_cards * (self.num_cards + 1) // 2
        return {
            "hands": hands.flatten(1).float(),
            "prize": (prizes * (rounds == 0).unsqueeze(2)).sum(1).float(),
            "to_come": (prizes * (rounds > 0).unsqueeze(2)).sum(1).float(),
            "points": state["points"].gather(1, order).float() / total,
        }

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        index = seats.view(-1, 1, 1).expand(-1, 1, self.num_cards)
        return state["hands"].gather(1, index).squeeze(1)

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        highest = actions == actions.amax(1, keepdim=True)
        takes = highest & (highest.sum(1, keepdim=True) == 1)
        won = takes * (self._prize(state).to(torch.int16) + 1).unsqueeze(1)
        others = won.sum(1, keepdim=True) - won
        reward = (won.float() - others.float() / 2) / (self.num_cards * (self.num_cards + 1) // 2)
        cards = torch.arange(self.num_cards, device=actions.device)
        played = state["round"] + 1
        after = {
            "prizes": state["prizes"],
            "hands": state["hands"] & (cards != actions.unsqueeze(2)),
            "points": (state["points"] + won).to(torch.int16),
            "round": played,
        }
        return TensorStep(after, reward, played == self.num_cards)
