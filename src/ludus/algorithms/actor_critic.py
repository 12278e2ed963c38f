"""Actor-critic algorithms: A2C on fresh data, and IMPALA, which corrects for older weights by V-trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, get_args

import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import ActorCriticAlgorithm, Loss
from ludus.algorithms.losses import Ratio
from ludus.algorithms.returns import advantage_columns, discounts, td_lambda, upgo, vtrace
from ludus.data.batch import Batch
from ludus.data.checks import require_in, require_one_of
from ludus.data.schedules import Schedule, at
from ludus.models.policy import Policy, Unrolled


@dataclass(frozen=True, kw_only=True, slots=True)
class A2C(ActorCriticAlgorithm):
    """Advantage actor-critic, which uses each batch once and does not correct for data of older weights."""

    entropy: Schedule = 0.01
    """Weight of the entropy bonus, which keeps the policy from settling too early."""
    normalise_advantage: bool = False
    """Scale the advantages of a batch to mean 0 and deviation 1."""

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        columns = advantage_columns(
            policy,
            batch,
            gamma=self.gamma,
            lambda_=self.lambda_,
            normalise=self.normalise_advantage,
            loss_has_ratio=False,
        )
        return batch.with_extra(**columns)

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        unrolled, mask, target = policy.unroll(batch), batch.mask, batch.extra["target"]
        log_prob = losses.over_heads(unrolled.log_prob)
        policy_loss = -losses.masked_mean(log_prob * batch.extra["advantage"], mask)
        value_loss = losses.critic_loss(policy, unrolled.value, target, mask, huber=self.huber)
        entropy = losses.masked_mean(losses.over_heads(unrolled.entropy), mask)

        def details() -> dict[str, Tensor]:
            log_ratio = log_prob - losses.over_heads(batch.log_prob)
            return {
                "kl": losses.masked_mean(losses.approximate_kl(log_ratio), mask),
                "explained_variance": losses.explained_variance(unrolled.value, target, mask),
                **losses.entropy_by_head(policy, unrolled, batch.action, mask),
            }

        return Loss(
            total=policy_loss + self.value_weight * value_loss - at(self.entropy, batch.progress) * entropy,
            statistics=losses.detached(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy),
            details=details,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Impala(ActorCriticAlgorithm):
    """IMPALA: learns from whole trajectories of somewhat older weights."""

    needs_sequences: ClassVar[bool] = True
    entropy: Schedule = 0.01
    """Weight of the entropy bonus, which keeps the policy from settling too early."""
    rho_clip: float = 1.0
    """Largest weight of a decision; below infinity the values are biased towards the acting policy."""
    c_clip: float = 1.0
    """Largest factor by which a decision passes on later errors."""
    upgo_weight: float = 0.0
    """Weight of the advantage of upgoing returns."""
    ratio: Ratio = "joint"
    """With "per_head" each head's gradient is corrected by its own ratio; values always use the joint one."""

    def __post_init__(self) -> None:
        ActorCriticAlgorithm.__post_init__(self)
        require_in(self, "(0, inf]", rho_clip=self.rho_clip, c_clip=self.c_clip)
        require_one_of(self, get_args(Ratio), ratio=self.ratio)

    @property
    def recomputable(self) -> tuple[str, ...]:
        return ()  # the loss computes values and advantages with the live weights

    @torch.no_grad()
    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        """Update the value scale. Targets depend on the live weights, but their spread hardly does."""
        target_TB = td_lambda(*self._steps(batch, batch.value), self.lambda_)
        losses.update_value_scale(policy, target_TB, batch.valid[:-1], batch.over_ranks)
        return batch

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        unrolled, valid_TB = policy.unroll(batch), batch.valid[:-1]
        value_TB, log_prob_TBH = unrolled.value[:-1], unrolled.log_prob[:-1]
        target_TB, advantage_TBG = self._corrected(batch, unrolled)
        policy_loss = -losses.masked_mean((log_prob_TBH * advantage_TBG).sum(-1), valid_TB)
        value_loss = losses.critic_loss(policy, value_TB, target_TB, valid_TB, huber=self.huber)
        entropy = losses.masked_mean(unrolled.entropy[:-1].sum(-1), valid_TB)

        def details() -> dict[str, Tensor]:
            log_ratio_TB = (log_prob_TBH - batch.log_prob[:-1]).sum(-1)
            return {
                "kl": losses.masked_mean(losses.approximate_kl(log_ratio_TB), valid_TB),
                "explained_variance": losses.explained_variance(value_TB, target_TB, valid_TB),
                **losses.entropy_by_head(policy, unrolled, batch.action, batch.valid),
            }

        return Loss(
            total=policy_loss + self.value_weight * value_loss - at(self.entropy, batch.progress) * entropy,
            statistics=losses.detached(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy),
            details=details,
        )

    @torch.no_grad()
    def _corrected(self, batch: Batch, unrolled: Unrolled) -> tuple[Tensor, Tensor]:
        """Value targets [T, B] and advantages [T, B, G]: one group of heads if joint, else one per head."""
        steps = self._steps(batch, unrolled.value)
        correct = partial(vtrace, rho_clip=self.rho_clip, c_clip=self.c_clip, lambda_=self.lambda_)
        log_ratio_TBG = (unrolled.log_prob - batch.log_prob)[:-1]
        joint = correct(log_ratio_TBG.sum(-1), *steps)
        if self.ratio == "joint":
            log_ratio_TBG = log_ratio_TBG.sum(-1, keepdim=True)
            advantage_TBG = joint.advantage[..., None]
        else:
            grouped_steps = (column[..., None] for column in steps)
            advantage_TBG = correct(log_ratio_TBG, *grouped_steps).advantage
        if self.upgo_weight:
            upgoing_TB = upgo(*steps) - unrolled.value[:-1]
            rho_TBG = log_ratio_TBG.exp().clamp(max=self.rho_clip)
            advantage_TBG = advantage_TBG + self.upgo_weight * rho_TBG * upgoing_TB[..., None]
        return joint.target, advantage_TBG

    def _steps(self, batch: Batch, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments shared by all returns: reward, value, discount, follows."""
        discount_TB = discounts(batch.elapsed[:-1], batch.over[:-1], self.gamma, value.dtype)
        return batch.reward[:-1], value, discount_TB, batch.follows[:-1]
