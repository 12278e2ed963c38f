"""The baselines of AlphaStar: a deep tower of its own for the value of each reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ludus.models.alphastar_encoder import AlphaStarEncoder
from ludus.models.operators import Linear
from ludus.models.residual import ResidualTower


class Baselines(nn.Module):
    """Reads the actor's features (with gradient) and, through encoders of its own, observations.

    With `bounded`, the value of the main reward, which comes first, stays within -1 and 1.
    """

    def __init__(
        self,
        encoders: Sequence[AlphaStarEncoder],
        feature_size: int,
        *,
        num_values: int,
        size: int,
        blocks: int,
        bounded: bool,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.bounded = bounded
        self.array_names = tuple(name for encoder in encoders for name in encoder.array_names)
        in_size = feature_size + sum(encoder.size for encoder in encoders)
        self.towers = nn.ModuleList(ResidualTower(in_size, size, blocks) for _ in range(num_values))
        self.values = nn.ModuleList(Linear(size, 1, gain=1.0) for _ in range(num_values))

    def forward(self, observation: Mapping[str, Tensor], features: Tensor) -> Tensor:
        read = [encoder(observation).features for encoder in self.encoders]
        features = torch.cat((*read, features), -1) if read else features
        values = [value(tower(features)) for tower, value in zip(self.towers, self.values, strict=True)]
        if self.bounded:
            values[0] = (2.0 / math.pi) * torch.atan((math.pi / 2.0) * values[0])
        return torch.cat(values, -1)
