"""What a policy remembers between decisions: an LSTM whose state is a flat tree {"h", "c"}."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ludus.data.specs import ArraySpec
from ludus.models.operators import LSTM

State = dict[str, Tensor]


class Memory(nn.Module):
    """An LSTM over the decisions of one seat."""

    def __init__(self, in_size: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.lstm = LSTM(in_size, size)
        spec = ArraySpec(shape=(size,), dtype=np.dtype("float32"))
        self.state_arrays = {"h": spec, "c": spec}

    def step(self, inputs: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """One decision per row: what is remembered now, and the state to come back with."""
        hidden, cell = self.lstm.step(self.lstm.project(inputs), state["h"], state["c"])
        return hidden, {"h": hidden, "c": cell}

    def unroll(self, inputs: Tensor, first: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """`inputs` [..., T, B, in_size] to [..., T, B, size]; the state is zeroed where `first`."""
        projected = self.lstm.project(inputs)
        hidden, cell = state["h"], state["c"]
        keep = (~first).unsqueeze(-1).to(hidden.dtype)
        any_first = first.movedim(-2, 0).flatten(1).any(-1).tolist()
        outputs = []
        for t, zero_some in enumerate(any_first):
            if zero_some:
                hidden, cell = hidden * keep.select(-3, t), cell * keep.select(-3, t)
            hidden, cell = self.lstm.step(projected.select(-3, t), hidden, cell)
            outputs.append(hidden)
        return torch.stack(outputs, -3)
