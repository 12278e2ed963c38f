"""From a batch to the columns that actor-critic losses train on: advantages and value targets."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.algorithms.critic import update_value_scale
from ludus.algorithms.losses import standardise
from ludus.algorithms.recompute import LOG_RATIO
from ludus.algorithms.returns import discounts, gae, vtrace
from ludus.data.batch import Batch
from ludus.models.policy import Policy


@torch.no_grad()
def advantage_columns(
    policy: Policy,
    batch: Batch,
    *,
    gamma: float,
    lambda_: float,
    normalise: bool,
    loss_has_ratio: bool = True,
) -> dict[str, Tensor]:
    """`advantage` by GAE and `target` by TD(lambda) from the batch's values, for `Batch.with_extra`. If the
    batch says how much likelier the newest weights make each action, both are by V-trace; `loss_has_ratio`
    tells whether the loss multiplies with the decision's own probability ratio itself.

    `normalise` makes the advantages of the whole batch (not of each minibatch) mean 0 and variance 1.
    """
    discount_TB = discounts(batch.elapsed[:-1], batch.over[:-1], gamma, batch.value.dtype)
    steps = (batch.reward[:-1], batch.value, discount_TB, batch.follows[:-1])
    advantage = torch.zeros_like(batch.value)
    if LOG_RATIO in batch.extra:
        log_ratio_TB = batch.extra[LOG_RATIO][:-1]
        corrected = vtrace(log_ratio_TB, *steps, rho_clip=1.0, c_clip=1.0, lambda_=lambda_)
        advantage[:-1] = corrected.unweighted if loss_has_ratio else corrected.advantage
        target = batch.value.clone()
        target[:-1] = corrected.target
    else:
        advantage[:-1] = gae(*steps, lambda_)
        target = batch.value + advantage
    update_value_scale(policy, target, batch.valid, batch.over_ranks)
    return {
        "advantage": standardise(advantage, batch.valid, batch.over_ranks) if normalise else advantage,
        "target": target,
    }
