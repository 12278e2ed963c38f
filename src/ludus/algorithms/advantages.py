"""From a batch to the columns that actor-critic losses train on: advantages and value targets."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.algorithms.critic import update_value_scale
from ludus.algorithms.losses import standardise
from ludus.algorithms.returns import discounts, gae
from ludus.data.batch import Batch
from ludus.models.policy import Policy


@torch.no_grad()
def advantage_columns(
    policy: Policy, batch: Batch, *, gamma: float, lambda_: float, normalise: bool
) -> dict[str, Tensor]:
    """`advantage` by GAE and `target` by TD(lambda) from the batch's values, for `Batch.with_extra`.

    `normalise` makes the advantages of the whole batch (not of each minibatch) mean 0 and variance 1.
    """
    discount_TB = discounts(batch.elapsed[:-1], batch.over[:-1], gamma, batch.value.dtype)
    advantage = torch.zeros_like(batch.value)
    advantage[:-1] = gae(batch.reward[:-1], batch.value, discount_TB, batch.follows[:-1], lambda_)
    target = batch.value + advantage
    update_value_scale(policy, target, batch.valid, batch.over_ranks)
    return {
        "advantage": standardise(advantage, batch.valid, batch.over_ranks) if normalise else advantage,
        "target": target,
    }
