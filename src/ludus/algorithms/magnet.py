"""Magnetic mirror descent: a policy gradient pulled towards a magnet, which converges where a plain gradient cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import ActorCriticAlgorithm, Loss, Reference, log_prob_columns, log_probs_beside
from ludus.algorithms.returns import action_value_columns, advantage_columns, taken_values
from ludus.data.batch import Batch
from ludus.data.checks import require_in
from ludus.data.schedules import Schedule, at, is_off
from ludus.data.specs import SeatKind
from ludus.models.policy import Policy, Unrolled


@dataclass(frozen=True, kw_only=True, slots=True)
class MagnetPolicyGradient(ActorCriticAlgorithm):
    """Maximises advantage - magnet_weight * KL(policy, magnet) - step_weight * KL(policy, last policy)."""

    gamma: float = 1.0
    magnet: Reference | None = None
    """The copy of the weights that serves as magnet; None: the uniform policy over legal options. A moving magnet leads
    to an equilibrium of the game itself, a uniform one to that of the regularised game, so its weight should fall."""
    magnet_weight: Schedule = 0.2
    """Weight of the divergence from the magnet."""
    step_weight: Schedule = 1.0
    """Weight of the divergence from the policy before this batch: one over the step size of mirror descent."""
    clip: float | None = None
    """Clip the probability ratio as PPO does."""
    reward_scale: float = 1.0
    """Factor of rewards, and so of values."""
    normalise_advantage: bool = False
    """Scale the advantages to mean 0 and deviation 1, which changes the relative weight of the divergences."""
    all_actions: bool = False
    """Follow the expected gradient over all options instead of that of the action taken. The critic's action values
    (`model.action_values`) are the baseline of every option; that of the action taken is corrected by its return. The
    critic learns by expected SARSA(lambda), and may see hidden cards (`model.central_critic`)."""

    def __post_init__(self) -> None:
        ActorCriticAlgorithm.__post_init__(self)
        require_in(self, "(0, inf]", clip=self.clip, reward_scale=self.reward_scale)
        if self.all_actions and (self.clip is not None or self.normalise_advantage):
            setting = "clip" if self.clip is not None else "normalise_advantage"
            raise ValueError(
                f"MagnetPolicyGradient.all_actions has no ratio to clip and scales nothing: unset {setting}"
            )

    @property
    def recomputable(self) -> tuple[str, ...]:
        return () if self.all_actions else ("values", "advantages")

    def check(self, kinds: Sequence[SeatKind]) -> None:
        for kind in kinds:
            if self.all_actions and not kind.is_one_choice:
                raise ValueError(
                    f"algorithm.all_actions needs an action of one Choice; kind {kind.name!r} has "
                    f"{', '.join(kind.action.heads)}"
                )

    @property
    def references(self) -> Mapping[str, Reference]:
        return {} if self.magnet is None else {"magnet": self.magnet}

    @torch.no_grad()
    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        scaled = replace(batch, reward=batch.reward * self.reward_scale)
        if self.all_actions:
            columns = action_value_columns(policy, scaled, gamma=self.gamma, lambda_=self.lambda_)
        else:
            columns = advantage_columns(
                policy, scaled, gamma=self.gamma, lambda_=self.lambda_, normalise=self.normalise_advantage
            )
        if self.magnet is not None:
            columns |= log_prob_columns("magnet", references["magnet"], batch)
        if not self.all_actions and not is_off(at(self.step_weight, batch.progress)):
            columns |= log_prob_columns("last", policy, batch)
        return batch.with_extra(**columns)

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        unrolled, mask, target = policy.unroll(batch), batch.mask, batch.extra["target"]
        log_ratio = losses.over_heads(unrolled.log_prob - batch.log_prob)
        if mask is not None:
            log_ratio = torch.where(mask, log_ratio, 0.0)
        if self.all_actions:
            value = taken_values(unrolled, batch)
            (log_probs,) = unrolled.log_probs.values()
            gained = (log_probs.exp() * batch.extra["advantages"]).sum(-1)
        else:
            value = unrolled.value
            gained = losses.ppo_surrogate(log_ratio, batch.extra["advantage"], clip=self.clip)
        policy_loss = -losses.masked_mean(gained, mask)
        magnet_kl = losses.masked_mean(self._magnet_kl(policy, unrolled, batch), mask)
        value_loss = losses.critic_loss(policy, value, target, mask, huber=self.huber)
        total = policy_loss + at(self.magnet_weight, batch.progress) * magnet_kl + self.value_weight * value_loss
        step_weight = at(self.step_weight, batch.progress)
        if not is_off(step_weight):
            kl = losses.masked_mean(_kl(policy, unrolled, log_probs_beside("last", policy, batch), batch), mask)
            total = total + step_weight * kl
        else:
            kl = losses.masked_mean(losses.approximate_kl(log_ratio.detach()), mask)

        def details() -> dict[str, Tensor]:
            found = {
                "entropy": losses.masked_mean(losses.over_heads(unrolled.entropy), mask),
                "explained_variance": losses.explained_variance(value, target, mask),
            }
            if self.clip is not None:
                clipped = (log_ratio.exp() - 1.0).abs() > self.clip
                found["clip_fraction"] = losses.masked_mean(clipped.to(log_ratio.dtype), mask)
            return found

        return Loss(
            total=total,
            statistics=losses.detached(policy_loss=policy_loss, value_loss=value_loss, kl=kl, magnet_kl=magnet_kl),
            details=details,
        )

    def _magnet_kl(self, policy: Policy, unrolled: Unrolled, batch: Batch) -> Tensor:
        if self.magnet is None:
            return losses.kl_to_uniform(unrolled, policy.kind.action.heads, batch.action, losses.numbers_of(policy))
        return _kl(policy, unrolled, log_probs_beside("magnet", policy, batch), batch)


def _kl(policy: Policy, unrolled: Unrolled, log_q: Mapping[str, Tensor], batch: Batch) -> Tensor:
    heads, numbers = policy.kind.action.heads, losses.numbers_of(policy)
    return losses.kl_of_heads(unrolled, log_q, heads, batch.action, numbers)
