"""Advantage actor-critic: one plain policy-gradient step on fresh data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ludus.algorithms.advantages import advantage_columns
from ludus.algorithms.algorithm import Algorithm, Loss
from ludus.algorithms.checks import require_above, require_between
from ludus.algorithms.critic import critic_loss
from ludus.algorithms.divergence import entropy_by_head
from ludus.algorithms.losses import approximate_kl, detached, explained_variance, masked_mean, over_heads
from ludus.data.batch import Batch
from ludus.data.schedules import Schedule, at
from ludus.models.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class A2C(Algorithm):
    """Uses each batch once; `lambda_` 1 gives n-step returns up to the end of the trajectory.

    Nothing corrects for data of older weights: `kl` among the statistics tells how old it is.
    """

    gamma: float = 0.99
    """Discount of what comes later, per step of the game's clock."""
    lambda_: float = 1.0
    """How far an advantage looks ahead: 0 to the next decision, 1 to the end."""
    entropy: Schedule = 0.01
    """Weight of the entropy bonus, which keeps the policy from settling too early."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    normalise_advantage: bool = False
    """Bring the advantages of a batch to mean 0 and deviation 1."""
    huber: float | None = None
    """Value errors above this count linearly; in units of the policy's value scale."""

    def __post_init__(self) -> None:
        require_between(self, 0, 1, gamma=self.gamma, lambda_=self.lambda_)
        require_above(self, 0, huber=self.huber)

    @property
    def stackable(self) -> bool:
        return True

    @property
    def recomputable(self) -> tuple[str, ...]:
        return ("values", "advantages")

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
        log_prob = over_heads(unrolled.log_prob)
        policy_loss = -masked_mean(log_prob * batch.extra["advantage"], mask)
        value_loss = critic_loss(policy, unrolled.value, target, mask, huber=self.huber)
        entropy = masked_mean(over_heads(unrolled.entropy), mask)

        def details() -> dict[str, Tensor]:
            log_ratio = log_prob - over_heads(batch.log_prob)
            return {
                "kl": masked_mean(approximate_kl(log_ratio), mask),
                "explained_variance": explained_variance(unrolled.value, target, mask),
                **entropy_by_head(policy, unrolled, batch.action, mask),
            }

        return Loss(
            total=policy_loss + self.value_weight * value_loss - at(self.entropy, batch.progress) * entropy,
            statistics=detached(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy),
            details=details,
        )
