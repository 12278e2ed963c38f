"""The critic's side of a loss, in the units in which the policy's critic learns."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.algorithms.losses import OverRanks, masked_mean, value_loss
from ludus.models.policy import Policy
from ludus.models.value_scale import ValueScale


def value_scale(policy: Policy) -> ValueScale | None:
    """The scale of a policy whose critic is normalised; without one, values are in plain units of reward."""
    scale: ValueScale | None = getattr(policy, "value_scale", None)
    return scale


@torch.no_grad()
def update_value_scale(policy: Policy, target: Tensor, valid: Tensor, over_ranks: OverRanks = None) -> None:
    """Show the policy's scale, if it has one, the targets that count, those of other ranks included."""
    scale = value_scale(policy)
    if scale is None:
        return
    targets = target[valid]
    if over_ranks is None:
        if targets.numel() > 0:
            scale.update(targets)
        return
    sums = [targets.sum(), targets.square().sum(), valid.sum()]
    total, squares, count = over_ranks(torch.stack([one.double() for one in sums]))
    if count > 0:
        scale.update_moments(total / count, squares / count)


def critic_loss(
    policy: Policy,
    value: Tensor,
    target: Tensor,
    mask: Tensor | None,
    *,
    huber: float | None = None,
    old_value: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Mean of `value_loss`, with `huber` and `clip` too in units of the policy's value scale."""
    scale = value_scale(policy)
    if scale is not None:
        value, target = scale.normalise(value), scale.normalise(target)
        old_value = None if old_value is None else scale.normalise(old_value)
    return masked_mean(value_loss(value, target, huber=huber, old_value=old_value, clip=clip), mask)
