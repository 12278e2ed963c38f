"""Gumbel AlphaZero: learning players search before each move, and the network learns what the search found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import ActorCriticAlgorithm, Loss
from ludus.algorithms.returns import advantage_columns
from ludus.data.batch import Batch
from ludus.data.schedules import Schedule, at, is_off
from ludus.data.search import SEARCH_POLICY, GumbelSearch
from ludus.data.specs import Choice, SeatKind
from ludus.models.policy import Policy


def _few_simulations() -> GumbelSearch:
    return GumbelSearch(simulations=32)


@dataclass(frozen=True, kw_only=True, slots=True)
class GumbelAlphaZero(ActorCriticAlgorithm):
    """Cross entropy to the policy that a search has improved, and the squared error of the value."""

    gamma: float = 1.0
    lambda_: float = 1.0
    """How far a value target looks ahead: 1 to the outcome; less mixes in the values that later searches found."""
    value_weight: float = 1.0
    """Weight of the value loss."""
    search: GumbelSearch = field(default_factory=_few_simulations)
    """The search of learning players while they train. Frozen players, and evaluations, play by the network alone."""
    entropy: Schedule = 0.0
    """Weight of an entropy bonus, which keeps the policy from settling too early."""

    @property
    def recomputable(self) -> tuple[str, ...]:
        return ()

    def check(self, kinds: Sequence[SeatKind]) -> None:
        for kind in kinds:
            heads = list(kind.action.heads.values())
            if len(heads) > 1 or not isinstance(heads[0], Choice):
                raise ValueError(f"GumbelAlphaZero: a move of {kind.name!r} seats is more than one choice")

    @torch.no_grad()
    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        columns = advantage_columns(policy, batch, gamma=self.gamma, lambda_=self.lambda_, normalise=False)
        return batch.with_extra(target=columns["target"])

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        if SEARCH_POLICY not in batch.extra:
            raise ValueError("GumbelAlphaZero learns from searches, and these decisions were made without one")
        unrolled, mask, target = policy.unroll(batch), batch.mask, batch.extra["target"]
        [log_p] = unrolled.log_probs.values()
        wanted = batch.extra[SEARCH_POLICY]
        # KL(wanted, policy): the cross entropy less a constant, so that it is 0 for a policy that no search improves.
        difference = torch.where(wanted > 0, wanted.clamp(min=1e-30).log() - log_p, 0.0)
        policy_loss = losses.masked_mean((wanted * difference).sum(-1), mask)
        value_loss = losses.critic_loss(policy, unrolled.value, target, mask, huber=self.huber)
        entropy = losses.masked_mean(losses.over_heads(unrolled.entropy), mask)
        total = policy_loss + self.value_weight * value_loss
        entropy_weight = at(self.entropy, batch.progress)
        if not is_off(entropy_weight):
            total = total - entropy_weight * entropy

        def details() -> dict[str, Tensor]:
            searched = -torch.where(wanted > 0, wanted * wanted.clamp(min=1e-30).log(), 0.0).sum(-1)
            return {
                "search_entropy": losses.masked_mean(searched, mask),
                "explained_variance": losses.explained_variance(unrolled.value, target, mask),
            }

        statistics = losses.detached(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)
        return Loss(total=total, statistics=statistics, details=details)
