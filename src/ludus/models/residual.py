"""Residual blocks and gates: what deep towers are made of. All of them stack."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ludus.models.operators import Conv2d, LayerNorm, Linear


class GatedLinear(nn.Module):
    """A linear layer whose inputs are let through as far as a context says (GLU); without one it is plain."""

    def __init__(
        self, in_size: int, context_size: int, out_size: int, *, gain: float = math.sqrt(2.0)
    ) -> None:
        super().__init__()
        self.gate = Linear(context_size, in_size, gain=1.0) if context_size else None
        self.outputs = Linear(in_size, out_size, gain=gain)

    def forward(self, inputs: Tensor, context: Tensor | None) -> Tensor:
        if self.gate is not None:
            inputs = torch.sigmoid(self.gate(context)) * inputs
        outputs: Tensor = self.outputs(inputs)
        return outputs


class ResidualBlock(nn.Module):
    """x + f(x), where f is two linear layers, each after layer norm and ReLU."""

    def __init__(self, size: int, *, gain: float) -> None:
        super().__init__()
        self.norm = LayerNorm(size)
        self.inputs = Linear(size, size)
        self.mix_norm = LayerNorm(size)
        self.mix = Linear(size, size, gain=gain)

    def forward(self, inputs: Tensor) -> Tensor:
        entered = self.inputs(torch.relu(self.norm(inputs)))
        hidden: Tensor = self.mix(torch.relu(self.mix_norm(entered)))
        return inputs + hidden


class ResidualTower(nn.Module):
    """A linear layer to `size`, then residual blocks; after a ReLU, features to be read off linearly."""

    def __init__(self, in_size: int, size: int, blocks: int) -> None:
        super().__init__()
        self.size = size
        self.inputs = Linear(in_size, size)
        self.blocks = nn.ModuleList(ResidualBlock(size, gain=_gain_of_one(blocks)) for _ in range(blocks))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inputs(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return torch.relu(hidden)


class ResidualConv(nn.Module):
    """x + f(x) over maps, where f is two 3x3 convolutions, each after a ReLU.

    With a context, each channel of f is scaled and shifted as the context says (FiLM).
    """

    def __init__(self, channels: int, *, num_blocks: int, context_size: int = 0) -> None:
        super().__init__()
        self.inputs = Conv2d(channels, channels)
        self.mix = Conv2d(channels, channels, gain=_gain_of_one(num_blocks))
        self.film = Linear(context_size, 2 * channels, gain=1.0) if context_size else None

    def forward(self, planes: Tensor, context: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.mix(torch.relu(self.inputs(torch.relu(planes))))
        if self.film is not None:
            scale, shift = self.film(context)[..., None, None].chunk(2, -3)
            hidden = torch.addcmul(hidden + shift, hidden, scale)
        return planes + hidden


def _gain_of_one(num_blocks: int) -> float:
    """Of the last layer of each of so many blocks, so that together they add about what came in."""
    return 1.0 / math.sqrt(num_blocks)
