"""Your own algorithm: imitate your own actions, weighted by how well they turned out.

    ludus train examples/my_algorithm.py:experiment

Weighting each action by exp(advantage / temperature) is a step of multiplicative weights, which suits games.
After 40,000 decisions, within ten seconds on one core, the player beats a random one in six games of seven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ludus import (
    ActorConfig,
    ActorCritic,
    Algorithm,
    Batch,
    BySteps,
    Experiment,
    LeagueRules,
    LearnerConfig,
    Loss,
    Policy,
    Role,
    SelfPlay,
)
from ludus.algorithms import advantage_columns, critic_loss, detached, masked_mean
from ludus.games import TicTacToe


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedImitation(Algorithm):
    """Advantage-weighted regression: no ratios, no clipping, no gradient through the weights."""

    gamma: float = 1.0
    lambda_: float = 0.95
    temperature: float = 1.0
    """In units of the standard deviation of the advantages; a lower value is greedier."""
    max_weight: float = 20.0
    """Upper limit of a weight, so that no single decision dominates."""
    entropy: float = 0.1
    value_weight: float = 0.5

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        """Once per batch: compute advantages, value targets and the weight of each decision."""
        columns = advantage_columns(policy, batch, gamma=self.gamma, lambda_=self.lambda_, normalise=True)
        weight = (columns["advantage"] / self.temperature).exp().clamp(max=self.max_weight)
        return batch.with_extra(weight=weight, target=columns["target"])

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        """Once per minibatch: compute the loss over the `valid` rows."""
        unrolled, valid = policy.unroll(batch), batch.valid
        policy_loss = -masked_mean(batch.extra["weight"] * unrolled.log_prob.sum(-1), valid)
        value_loss = critic_loss(policy, unrolled.value, batch.extra["target"], valid)
        entropy = masked_mean(unrolled.entropy.sum(-1), valid)
        return Loss(
            total=policy_loss + self.value_weight * value_loss - self.entropy * entropy,
            statistics=detached(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy),
        )


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=20_000))
    return Experiment(
        name="weighted_imitation",
        game=TicTacToe(),
        budget=55_000,
        model=ActorCritic(activation="relu"),
        algorithm=WeightedImitation(temperature=1.0),
        actor=ActorConfig(num_tables=128),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=512, epochs=4, learning_rate=3e-3),
        league=LeagueRules(roles={"main": main}, bots=("random",)),
    )
