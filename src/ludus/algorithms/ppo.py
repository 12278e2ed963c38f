"""Proximal policy optimisation, with optional dual clip and teacher, and MAPPO's constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import ActorCriticAlgorithm, Loss, Reference
from ludus.algorithms.losses import Ratio
from ludus.algorithms.returns import advantage_columns
from ludus.algorithms.teacher import TEACHER, Teacher
from ludus.data.batch import Batch
from ludus.data.checks import require_in, require_one_of
from ludus.data.schedules import Schedule, at, is_off
from ludus.data.specs import SeatKind
from ludus.models.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class PPO(ActorCriticAlgorithm):
    """Several epochs on the same batch, with a clipped objective that limits how far the policy moves."""

    lambda_: float = 0.95
    clip: float = 0.2
    """Largest distance of the probability ratio from 1 that still has a gradient."""
    dual_clip: float | None = None
    """Bounds the loss of bad actions that have become likely; 3 is usual for older data."""
    entropy: Schedule = 0.01
    """Weight of the entropy bonus, which keeps the policy from settling too early."""
    normalise_advantage: bool = True
    """Scale the advantages of a batch to mean 0 and deviation 1."""
    value_clip: float | None = None
    """Largest change of a value since acting that still has a gradient, in units of the policy's value scale."""
    ratio: Ratio = "joint"
    """One ratio for the whole action, or one per head."""
    recompute_values: bool = False
    """Compute advantages from values of the live weights, which takes one more pass. The same as
    `learner.recompute=values`, which works for every algorithm."""
    teacher: Teacher | None = None
    """Pulls the policy towards the weights that the player first started from."""

    def __post_init__(self) -> None:
        ActorCriticAlgorithm.__post_init__(self)
        require_in(self, "(0, inf]", clip=self.clip, value_clip=self.value_clip)
        require_in(self, "(1, inf]", dual_clip=self.dual_clip)
        require_one_of(self, get_args(Ratio), ratio=self.ratio)

    @property
    def recomputable(self) -> tuple[str, ...]:
        return ("values", "advantages") if self.teacher is None else ("values", "advantages", TEACHER)

    @property
    def references(self) -> Mapping[str, Reference]:
        return {} if self.teacher is None else {TEACHER: self.teacher.reference}

    def check(self, kinds: Sequence[SeatKind]) -> None:
        if self.teacher is not None:
            self.teacher.check(kinds)

    @torch.no_grad()
    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        if self.recompute_values:
            batch = replace(batch, value=policy.unroll(batch).value)
        columns = advantage_columns(
            policy, batch, gamma=self.gamma, lambda_=self.lambda_, normalise=self.normalise_advantage
        )
        if self.teacher is not None:
            columns |= self.teacher.columns(references[TEACHER], batch)
        return batch.with_extra(**columns)

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        unrolled, mask, target = policy.unroll(batch), batch.mask, batch.extra["target"]
        log_ratio, advantage, counts = unrolled.log_prob - batch.log_prob, batch.extra["advantage"], mask
        if mask is not None:
            log_ratio = torch.where(mask[..., None], log_ratio, 0.0)
        joint_log_ratio = losses.over_heads(log_ratio)
        if self.ratio == "joint":
            log_ratio = joint_log_ratio
        else:
            advantage = advantage[..., None]
            counts = unrolled.in_use if mask is None else mask[..., None] & unrolled.in_use
        surrogate = losses.ppo_surrogate(log_ratio, advantage, clip=self.clip, dual_clip=self.dual_clip)
        if self.ratio == "per_head":
            surrogate = torch.where(counts, surrogate, 0.0).sum(-1)
        policy_loss = -losses.masked_mean(surrogate, mask)
        value_loss = losses.critic_loss(
            policy, unrolled.value, target, mask, huber=self.huber, old_value=batch.value, clip=self.value_clip
        )
        total = policy_loss + self.value_weight * value_loss
        entropy = losses.masked_mean(losses.over_heads(unrolled.entropy), mask)
        entropy_weight = at(self.entropy, batch.progress)
        if not is_off(entropy_weight):  # saves the backward pass of the entropy
            total = total - entropy_weight * entropy
        statistics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        divergences: dict[str, Tensor] = {}
        if self.teacher is not None:
            divergences = self.teacher.divergences(policy, unrolled, batch)
            teacher_loss = losses.masked_mean(self.teacher.loss(divergences, batch), mask)
            total = total + teacher_loss
            statistics["teacher_loss"] = teacher_loss

        def details() -> dict[str, Tensor]:
            clipped = (log_ratio.exp() - 1.0).abs() > self.clip
            return {
                "kl": losses.masked_mean(losses.approximate_kl(joint_log_ratio), mask),
                "clip_fraction": losses.masked_mean(clipped.to(log_ratio.dtype), counts),
                "explained_variance": losses.explained_variance(unrolled.value, target, mask),
                **losses.entropy_by_head(policy, unrolled, batch.action, mask),
                **losses.mean_where_used("teacher_kl", divergences, unrolled.in_use, mask),
            }

        return Loss(total=total, statistics=losses.detached(**statistics), details=details)


def mappo(**overrides: Any) -> PPO:
    """PPO with the published constants of MAPPO; its central critic and normalised values are settings of the model."""
    published = PPO(gamma=0.99, lambda_=0.95, clip=0.2, entropy=0.01, value_weight=1.0, value_clip=0.2, huber=10.0)
    return replace(published, **overrides)
