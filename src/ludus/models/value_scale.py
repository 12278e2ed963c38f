"""Keeps the value head's targets near zero mean and unit variance, whatever the size of the rewards."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueScale(nn.Module):
    """A running mean and deviation of the value targets, corrected for its start from nothing."""

    mean: Tensor
    mean_square: Tensor
    weight: Tensor

    def __init__(self, *, decay: float = 0.99999, smallest_deviation: float = 0.1) -> None:
        super().__init__()
        self.decay = decay
        self.smallest_deviation = smallest_deviation
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("mean_square", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    @torch.no_grad()
    def update(self, targets: Tensor) -> None:
        """Take in value targets in units of reward: [...] for one model, [M, ...] for a stack."""
        targets = targets.flatten(self.mean.dim())
        self.update_moments(targets.mean(-1), targets.square().mean(-1))

    @torch.no_grad()
    def update_moments(self, mean: Tensor, mean_square: Tensor) -> None:
        """The same from the means of the targets and of their squares."""
        self.mean.lerp_(mean.to(self.mean), 1.0 - self.decay)
        self.mean_square.lerp_(mean_square.to(self.mean), 1.0 - self.decay)
        self.weight.lerp_(torch.ones_like(self.weight), 1.0 - self.decay)

    def normalise(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments(values.dim())
        return (values - mean) / deviation

    def denormalise(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments(values.dim())
        return values * deviation + mean

    def _moments(self, dim: int) -> tuple[Tensor, Tensor]:
        """Mean and deviation, shaped to meet values of `dim` axes; 0 and 1 before the first update."""
        weight = self.weight.clamp(min=torch.finfo(torch.float32).tiny)
        mean = self.mean / weight
        variance = self.mean_square / weight - mean.square()
        deviation = variance.clamp(min=self.smallest_deviation**2).sqrt()
        deviation = torch.where(self.weight > 0, deviation, 1.0)
        shape = (*self.mean.shape, *(1,) * (dim - self.mean.dim()))
        return mean.reshape(shape), deviation.reshape(shape)
