"""Tensor games by look-up in a game tree that is small enough to walk: a table is the number of its node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.data.game_tree import FlatTree
from ludus.games.device.tensor_game import START, TensorState, TensorStep, TensorTwin, below_one
from ludus.games.seeding import uniform
from ludus.games.tree_batch import Successors, flat_tree, successors


@dataclass(frozen=True)
class TensorTree(TensorTwin):
    """A turn-based game with one `Choice` head, from its game tree. Runs of chance nodes take one random number."""

    start_draws: ClassVar[int] = 1
    step_draws: ClassVar[int] = 1

    @cached_property
    def _flat(self) -> FlatTree:
        root = self.game.tree()
        if root is None:
            raise ValueError(f"{self.spec.name} has no game tree that could be walked")
        return flat_tree(cast("Any", root))  # hashable, which the protocol of a state does not say

    @cached_property
    def _successors(self) -> Successors:
        return successors(self._flat)

    def start(self, draws: Tensor) -> TensorState:
        nodes = torch.zeros(len(draws), dtype=torch.int32, device=draws.device)
        return {"node": self._after_chance(nodes, draws)}

    def to_act(self, state: TensorState) -> Tensor:
        return self._at("to_act", state["node"])

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        nodes, tree = state["node"], self._flat
        numbers = self._at("infostate", nodes)
        seen = {name: self._at(f"observation.{name}", numbers) for name in tree.observations}
        return seen | {name: self._at(f"observation.{name}", nodes) for name in tree.critic_observations}

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        return self._at("legal", self._at("infostate", state["node"]))

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        nodes = state["node"]
        seats = self._at("seat", nodes).clamp(min=0)
        moves = actions.gather(1, seats.long().unsqueeze(1)).squeeze(1)
        after = self._at("child", nodes).gather(1, moves.unsqueeze(1)).squeeze(1)
        after = self._after_chance(after.clamp(min=0), draws)
        return TensorStep({"node": after}, self._at("returns", after), self._at("seat", after) < 0)

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        """A chance node at depth d takes draw number d, as in `TreeBatch`."""
        root = self._successors.depth_after_root  # depth of the first decision
        depth = 0 if step == START else root + 1 + step
        return below_one(uniform(seeds[:, None], depth))

    def _after_chance(self, nodes: Tensor, draws: Tensor) -> Tensor:
        deals = self._at("deal", nodes)
        wanted = deals.clamp(min=0) + draws[:, 0].double()
        edges, outcomes = self._constant("edges", nodes.device), self._constant("outcomes", nodes.device)
        drawn = torch.searchsorted(edges, wanted, right=True).to(torch.int32)
        drawn = torch.minimum(drawn, self._at("last", deals.clamp(min=0)))
        return torch.where(deals >= 0, outcomes.index_select(0, drawn), nodes)

    def _at(self, name: str, index: Tensor) -> Tensor:
        return self._constant(name, index.device).index_select(0, index)

    def _constant(self, name: str, device: torch.device) -> Tensor:
        if device not in self._constants:
            self._constants[device] = {key: torch.from_numpy(array).to(device) for key, array in self._arrays.items()}
        return self._constants[device][name]

    @cached_property
    def _constants(self) -> dict[torch.device, dict[str, Tensor]]:
        return {}

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        tree, moves, options = self._flat, self._successors, self.num_options
        missing = options - tree.legal.shape[1]
        arrays: dict[str, NDArray[Any]] = {
            "seat": tree.seat.astype(np.int32),
            "infostate": np.maximum(tree.infostate, 0).astype(np.int32),
            "to_act": tree.seat[:, None] == np.arange(self.spec.num_seats),
            "returns": tree.returns.astype(np.float32),
            "legal": np.pad(tree.legal, ((0, 0), (0, missing))),
            "child": np.pad(moves.child, ((0, 0), (0, missing)), constant_values=-1).astype(np.int32),
            "deal": moves.deal.astype(np.int32),
            # Never empty, so that a game without chance needs no branch.
            "last": np.append(moves.last, 0).astype(np.int32),
            "edges": np.append(moves.edges, np.inf),
            "outcomes": np.append(moves.outcomes, 0).astype(np.int32),
        }
        shown = {**tree.observations, **tree.critic_observations}
        return arrays | {f"observation.{name}": array for name, array in shown.items()}
