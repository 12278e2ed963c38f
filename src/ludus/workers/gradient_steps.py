"""Gradient steps: what is stepped down, and what was measured on the way, by all ranks of the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ludus.algorithms.algorithm import Loss
from ludus.workers.rank_shares import Measured, means
from ludus.workers.ranks import Ranks

OnDevice = dict[int, tuple[float, Mapping[str, Tensor]]]
"""As `Measured`, on the device."""


class GradientStep(NamedTuple):
    """What one step measured."""

    broken: bool
    """Loss or gradient were not finite, so it was not taken."""
    statistics: Mapping[str, float]


def total_loss(losses: Mapping[int, Loss], weights: Mapping[int, float]) -> Tensor | None:
    """The mean over the kinds of seat, or with weights this rank's part of it; None if it has none."""
    if weights:
        return torch.stack([weights[kind] * loss.total for kind, loss in losses.items()]).sum()
    totals = [loss.total for loss in losses.values()]
    if len(totals) < 2:
        return totals[0] if totals else None
    return torch.stack(totals).mean()


def gradient_steps(
    ranks: Ranks, broken: Sequence[Tensor], measured: Sequence[OnDevice]
) -> list[GradientStep]:
    """All numbers in one transfer from the device; what other ranks measured is taken in."""
    if not broken:
        return []
    found = [
        one
        for first, kinds in zip(broken, measured, strict=True)
        for one in (first, *(value for _, rest in kinds.values() for value in rest.values()))
    ]
    values = iter(torch.stack([one.to(broken[0]) for one in found]).tolist())
    flags: list[bool] = []
    own: list[Measured] = []
    for kinds in measured:
        flags.append(bool(next(values)))
        own.append(
            {kind: (weight, {name: next(values) for name in rest}) for kind, (weight, rest) in kinds.items()}
        )
    everywhere = ranks.gather(own) if ranks.count > 1 else [own]
    return [GradientStep(flag, means(step)) for flag, *step in zip(flags, *everywhere, strict=True)]
