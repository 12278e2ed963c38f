"""A policy around a user's plain `nn.Module`, which gives logits and values without masks or sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ludus.data.batch import Batch
from ludus.data.specs import ArraySpec, Box, Pointer, SeatKind, length_name
from ludus.data.trees import Array, Tree, allocate
from ludus.models.continuous import BoxDistribution, Numbers
from ludus.models.decisions import (
    Chooser,
    Decision,
    Decisions,
    Drawn,
    Greedy,
    Recorded,
    decide,
    decide_numbers,
    decide_several,
    head_in_use,
    num_draws,
)
from ludus.models.encoders import valid_entities
from ludus.models.policy import Acted, Unrolled
from ludus.models.tensors import CPU, as_float, on_device, share

Observation = dict[str, Tensor]
State = dict[str, Tensor]


class ModulePolicy(nn.Module):
    """A `Policy` that runs one model at a time. Without memory `module(observation)` returns (logits, value); with
    `state_arrays`, `module(observation, state)` returns (logits, value, state), all with leading axis [rows].
    Observations are float32, except for the lengths of entity lists. `logits` is a dict by head or the tensor of a
    single head, with `kind.num_options(head)` logits, and one more, the end token, for a pointer with several picks.
    A `Box` has 2 for each number: [rows, 2 * numbers] or [rows, numbers, 2]."""

    value_scale: None = None

    def __init__(
        self,
        kind: SeatKind,
        module: nn.Module,
        *,
        state_arrays: Mapping[str, ArraySpec] | None = None,
        box_distribution: BoxDistribution = "clipped",
    ) -> None:
        super().__init__()
        self.kind = kind
        self.module = module
        self.state_arrays = dict(state_arrays or {})
        self.num_draws = num_draws(kind.action.heads)
        boxes = {name: head for name, head in kind.action.heads.items() if isinstance(head, Box)}
        self.numbers = {name: Numbers(box, box_distribution) for name, box in boxes.items()}
        self.signature = f"{type(module).__module__}.{type(module).__qualname__}"
        self._lengths = {name for name, spec in kind.observation.arrays.items() if not spec.shape}

    def initial_state(self, rows: int) -> Tree:
        return allocate(self.state_arrays, (rows,))

    @torch.inference_mode()
    def act(
        self,
        observation: Tree,
        legal: Tree,
        state: Tree,
        uniforms: Array,
        *,
        greedy: bool = False,
        want_value: bool = True,
    ) -> Acted:
        weight = next(self.parameters(), None)
        device = CPU if weight is None else weight.device

        def tensors(tree: Tree) -> dict[str, Tensor]:
            return {name: on_device(array, device) for name, array in tree.items()}

        chooser: Chooser = Greedy() if greedy else Drawn(on_device(uniforms, device))
        decisions, values, new_state = self.forward(
            tensors(observation), tensors(legal), tensors(state), chooser, want_value=want_value
        )
        return decisions.acted(None if values is None else values[..., 0], new_state)

    def forward(
        self,
        observation: Observation,
        legal: Mapping[str, Tensor],
        state: State,
        chooser: Chooser,
        *,
        want_value: bool = True,
    ) -> tuple[Decisions, Tensor | None, State]:
        """Decisions of rows of tensors, the value [rows, 1], and the memory after them."""
        logits, value, new_state = self._run(observation, state)
        decisions = self._decide(logits, observation, legal, chooser)
        return decisions, value.unsqueeze(-1) if want_value else None, new_state

    def unroll(self, batch: Batch) -> Unrolled:
        leading = tuple(batch.first.shape)

        def rows(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
            tensors = {name: share(array) for name, array in arrays.items()}
            return {name: tensor.reshape(-1, *tensor.shape[len(leading) :]) for name, tensor in tensors.items()}

        observation = rows(batch.observation)
        if self.state_arrays:
            logits, value = self._run_in_time(batch, leading)
        else:
            logits, value, _ = self._run(observation, {})
        recorded = Recorded(rows(batch.action), share(batch.valid).reshape(-1))
        return self._decide(logits, observation, rows(batch.legal), recorded).unrolled(value.unsqueeze(-1), leading)

    def _run(self, observation: Observation, state: State) -> tuple[dict[str, Tensor], Tensor, State]:
        """Run the module and bring its outputs into one form, checked."""
        seen = {name: tensor if name in self._lengths else as_float(tensor) for name, tensor in observation.items()}
        if self.state_arrays:
            logits, value, state = self.module(seen, state)
        else:
            logits, value = self.module(seen)
        heads = self.kind.action.heads
        if isinstance(logits, Tensor):
            logits = dict.fromkeys(heads, logits)
        for name, head in heads.items():
            if isinstance(head, Box) and name in logits and logits[name].shape[-2:] == (head.size, 2):
                logits = {**logits, name: logits[name].flatten(-2)}
            options = _num_logits(self.kind, name)
            if name not in logits or logits[name].shape[-1] != options:
                got = tuple(logits[name].shape) if name in logits else "none"
                raise ValueError(f"{self.signature} must return logits [rows, {options}] for head {name!r}, got {got}")
        return logits, value.reshape(-1), state

    def _run_in_time(self, batch: Batch, leading: tuple[int, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Run [T+1, B] step by step, with the state zeroed where `first`; the results as rows."""
        if len(leading) != 2:
            raise ValueError(f"a policy with memory unrolls trajectories [T+1, B], got leading axes {leading}")
        state = {name: share(array) for name, array in batch.state.items()}
        first = share(batch.first)
        steps = []
        for t in range(leading[0]):
            state = {name: tensor.clone() for name, tensor in state.items()}
            for tensor in state.values():
                tensor[first[t]] = 0
            seen = {name: share(array)[t] for name, array in batch.observation.items()}
            logits, value, state = self._run(seen, state)
            steps.append((logits, value))
        joined = {name: torch.cat([logits[name] for logits, _ in steps]) for name in steps[0][0]}
        return joined, torch.cat([value for _, value in steps])

    def _decide(
        self, logits: Mapping[str, Tensor], observation: Observation, legal: Mapping[str, Tensor], chooser: Chooser
    ) -> Decisions:
        decided: dict[str, Decision] = {}
        in_use: dict[str, Tensor | None] = {}
        for name, head in self.kind.action.heads.items():
            used = in_use[name] = head_in_use(head, decided, in_use)
            mask = legal.get(name)
            if isinstance(head, Pointer):
                maximum = self.kind.num_options(name)
                real = valid_entities(observation[length_name(head.into)], maximum)
                mask = real if mask is None else mask & real
            if name in self.numbers:
                parameters = logits[name].reshape(-1, self.numbers[name].size, 2)
                decided[name] = decide_numbers(name, self.numbers[name], parameters, used, chooser)
            elif isinstance(head, Pointer) and head.picks > 1:
                assert mask is not None

                def unchanged(chosen: Tensor, scores: Tensor = logits[name]) -> Tensor:
                    return scores

                decided[name] = decide_several(name, unchanged, head.picks, mask, used, chooser)
            else:
                decided[name] = decide(name, logits[name], mask, used, chooser)
        return Decisions(decided, in_use)


def _num_logits(kind: SeatKind, name: str) -> int:
    head = kind.action.heads[name]
    if isinstance(head, Box):
        return 2 * head.size
    return kind.num_options(name) + (isinstance(head, Pointer) and head.picks > 1)
