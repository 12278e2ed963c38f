"""What a policy remembers between decisions: an LSTM whose state is a flat tree {"h", "c"}."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ludus.data.specs import ArraySpec
from ludus.models.operators import LSTM, NormalisedLSTM

State = dict[str, Tensor]


class Memory(nn.Module):
    """An LSTM over the decisions of one seat, of one or more layers; their states lie side by side."""

    def __init__(self, in_size: int, size: int, *, layers: int = 1, layer_norm: bool = False) -> None:
        super().__init__()
        self.size = size
        cell = NormalisedLSTM if layer_norm else LSTM
        self.lstm = cell(in_size, size)
        self.above = nn.ModuleList(cell(size, size) for _ in range(layers - 1))
        spec = ArraySpec(shape=(layers * size,), dtype=np.dtype("float32"))
        self.state_arrays = {"h": spec, "c": spec}

    def step(self, inputs: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """One decision per row: what is remembered now, and the state to come back with."""
        layers = self._layers
        if len(layers) == 1:
            hidden, cell = self.lstm.step(self.lstm.project(inputs), state["h"], state["c"])
            return hidden, {"h": hidden, "c": cell}
        states = []
        for lstm, before in zip(layers, self._split(state), strict=True):
            states.append(lstm.step(lstm.project(inputs), *before))
            inputs = states[-1][0]
        hiddens, cells = zip(*states, strict=True)
        return inputs, {"h": torch.cat(hiddens, -1), "c": torch.cat(cells, -1)}

    def unroll(self, inputs: Tensor, first: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """`inputs` [..., T, B, in_size] to [..., T, B, size]; the state is zeroed where `first`."""
        keep = (~first).unsqueeze(-1).to(inputs.dtype)
        any_first = first.movedim(-2, 0).flatten(1).any(-1).tolist()
        for lstm, (hidden, cell) in zip(self._layers, self._split(state), strict=True):
            projected = lstm.project(inputs)
            outputs = []
            for t, zero_some in enumerate(any_first):
                if zero_some:
                    hidden, cell = hidden * keep.select(-3, t), cell * keep.select(-3, t)
                hidden, cell = lstm.step(projected.select(-3, t), hidden, cell)
                outputs.append(hidden)
            inputs = torch.stack(outputs, -3)
        return inputs

    @property
    def _layers(self) -> list[LSTM | NormalisedLSTM]:
        return [self.lstm, *self.above]

    def _split(self, state: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """(hidden, cell) of each layer."""
        hiddens, cells = (torch.split(state[name], self.size, -1) for name in ("h", "c"))
        return list(zip(hiddens, cells, strict=True))
