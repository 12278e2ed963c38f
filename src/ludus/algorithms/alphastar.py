"""AlphaStar's loss: V-trace by groups of heads, UPGO, several rewards with a value each, and a teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import Algorithm, Loss, Reference, require_known
from ludus.algorithms.returns import discounts, td_lambda, upgo, vtrace
from ludus.algorithms.teacher import TEACHER, Teacher
from ludus.data.batch import Batch
from ludus.data.checks import require_in
from ludus.data.schedules import Schedule, at
from ludus.data.specs import SeatKind
from ludus.models.policy import Policy, Unrolled

_DELAY = "delay"
_ROUNDING = 1e-4
"""Rounding difference of log-probabilities between acting and learning with the same weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardWeights:
    """The weights of a reward in the loss."""

    policy: Schedule = 1.0
    """Weight of its policy gradient."""
    value: Schedule = 1.0
    """Weight of the error of its value."""


def _published() -> dict[str, RewardWeights]:
    facts = ("built", "built_units", "effects", "upgrades")
    return {"build_order": RewardWeights(policy=4.0)} | dict.fromkeys(facts, RewardWeights(policy=6.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaStarGradient(Algorithm):
    """Learns from whole trajectories of somewhat older weights. The defaults are AlphaStar's."""

    stackable: ClassVar[bool] = True
    needs_sequences: ClassVar[bool] = True
    takes_further_rewards: ClassVar[bool] = True
    gamma: float = 1.0
    """Discount of what comes later, per step of the game's clock."""
    lambda_: float = 0.8
    """Lambda of the value targets, TD(lambda) without a correction for older weights."""
    policy_lambda: float = 1.0
    """Lambda of the advantages, which V-trace corrects."""
    rho_clip: float = 1.0
    """Largest importance weight of a group of heads."""
    c_clip: float = 1.0
    """Largest factor by which a decision passes on later errors."""
    groups: tuple[tuple[str, ...], ...] | None = None
    """Heads that share one probability ratio. None: the first head, the head `delay`, all others together."""
    main: RewardWeights = field(default_factory=lambda: RewardWeights(policy=1.0, value=10.0))
    rewards: Mapping[str, RewardWeights] = field(default_factory=_published)
    """Weights of the further rewards by name; those not named have weights 1 and 1."""
    upgo: Schedule = 1.0
    """Weight of the upgoing returns of the main reward."""
    entropy: Schedule = 1e-4
    """Weight of the sum of the heads' entropies, each normalised to 1 for a uniform distribution."""
    teacher: Teacher | None = field(default_factory=Teacher)
    """The weights that the player first started from; None: no teacher."""
    huber: float | None = None
    """Value errors above this count linearly; of the main reward in units of the policy's value scale."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", gamma=self.gamma, lambda_=self.lambda_, policy_lambda=self.policy_lambda)
        require_in(self, "(0, inf]", rho_clip=self.rho_clip, c_clip=self.c_clip, huber=self.huber)

    @property
    def recomputable(self) -> tuple[str, ...]:
        """Only the teacher: the loss computes values and advantages with the live weights."""
        return () if self.teacher is None else (TEACHER,)

    @property
    def references(self) -> Mapping[str, Reference]:
        return {} if self.teacher is None else {TEACHER: self.teacher.reference}

    def check(self, kinds: Sequence[SeatKind]) -> None:
        heads = dict.fromkeys(head for kind in kinds for head in kind.action.heads)
        rewards = dict.fromkeys(reward for kind in kinds for reward in kind.rewards)
        for reward in self.rewards.keys() - _published().keys():
            require_known(self, [*rewards, *_published()], "further rewards of the game", rewards=reward)
        for head in (head for group in self.groups or () for head in group):
            require_known(self, heads, "heads of the game", groups=head)
        for kind in kinds:
            self._groups(kind)
        if self.teacher is not None:
            self.teacher.check(kinds)

    @torch.no_grad()
    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        """Update the value scale and add the teacher's log-probabilities, which do not change."""
        discount_TB, follows_TB = self._discount(batch), batch.follows[:-1]
        target_TB = td_lambda(batch.reward[:-1], batch.value, discount_TB, follows_TB, self.lambda_)
        losses.update_value_scale(policy, target_TB, batch.valid[:-1], batch.over_ranks)
        if self.teacher is None:
            return batch
        return batch.with_extra(**self.teacher.columns(references[TEACHER], batch))

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        unrolled, valid_TB = policy.unroll(batch), batch.valid[:-1]
        names = ("", *policy.kind.rewards)  # the main reward comes first
        weights = (self.main, *(self.rewards.get(name, RewardWeights()) for name in names[1:]))
        value_TBR = _values(unrolled)
        log_prob_TBG = self._by_group(policy.kind, unrolled.log_prob[:-1])
        log_ratio_TBG = (log_prob_TBG - self._by_group(policy.kind, batch.log_prob[:-1])).detach()
        target_TBR, advantage_TBGR, upgoing_TBG = self._returns(batch, value_TBR.detach(), log_ratio_TBG)

        policy_losses = [
            -losses.masked_mean((log_prob_TBG * advantage_TBG).sum(-1), valid_TB)
            for advantage_TBG in advantage_TBGR.unbind(-1)
        ]
        upgo_loss = -losses.masked_mean((log_prob_TBG * upgoing_TBG).sum(-1), valid_TB)
        pairs = list(zip(value_TBR[:-1].unbind(-1), target_TBR.unbind(-1), strict=True))
        value_losses = [losses.critic_loss(policy, *pairs[0], valid_TB, huber=self.huber)]
        value_losses += [
            losses.masked_mean(losses.value_loss(value_TB, target_TB, huber=self.huber), valid_TB)
            for value_TB, target_TB in pairs[1:]
        ]
        heads, numbers = policy.kind.action.heads, losses.numbers_of(policy)
        entropies = losses.normalised_entropy(unrolled, heads, batch.action, numbers)
        entropy = losses.masked_mean(torch.stack(list(entropies.values())).sum(0)[:-1], valid_TB)

        progress = batch.progress
        total = at(self.upgo, progress) * upgo_loss - at(self.entropy, progress) * entropy
        for weight, policy_term, value_term in zip(weights, policy_losses, value_losses, strict=True):
            total = total + at(weight.policy, progress) * policy_term + at(weight.value, progress) * value_term
        terms = {"upgo_loss": upgo_loss, "entropy": entropy}
        terms |= _named("policy_loss", names, policy_losses) | _named("value_loss", names, value_losses)
        divergences: dict[str, Tensor] = {}
        if self.teacher is not None:
            divergences = self.teacher.divergences(policy, unrolled, batch)
            teacher_loss = losses.masked_mean(self.teacher.loss(divergences, batch)[:-1], valid_TB)
            total = total + teacher_loss
            terms["teacher_loss"] = teacher_loss

        def details() -> dict[str, Tensor]:
            explained = [losses.explained_variance(value_TB, target_TB, valid_TB) for value_TB, target_TB in pairs]
            clipped_TBG = (log_ratio_TBG > math.log(self.rho_clip) + _ROUNDING).to(log_ratio_TBG.dtype)
            groups = [group[0] for group in self._groups(policy.kind)]
            shares = [losses.masked_mean(clipped_TB, valid_TB) for clipped_TB in clipped_TBG.unbind(-1)]
            return {
                "kl": losses.masked_mean(losses.approximate_kl(log_ratio_TBG.sum(-1)), valid_TB),
                **_named("explained_variance", names, explained),
                **_named("clip_fraction", groups, shares),
                **losses.mean_where_used("entropy", entropies, unrolled.in_use, batch.valid),
                **losses.mean_where_used("teacher_kl", divergences, unrolled.in_use, batch.valid),
            }

        return Loss(total=total, statistics=losses.detached(**terms), details=details)

    @torch.no_grad()
    def _returns(self, batch: Batch, value_TBR: Tensor, log_ratio_TBG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value targets [T, B, R], advantages [T, B, G, R], and upgoing advantages [T, B, G] of the main reward."""
        reward_TBR = batch.reward[:-1, :, None]
        if batch.rewards is not None:
            reward_TBR = torch.cat((reward_TBR, batch.rewards[:-1]), -1)
        discount_TB, follows_TB = self._discount(batch), batch.follows[:-1]
        discount_TBR, follows_TBR = discount_TB[..., None], follows_TB[..., None]
        target_TBR = td_lambda(reward_TBR, value_TBR, discount_TBR, follows_TBR, self.lambda_)
        corrected = vtrace(
            log_ratio_TBG[..., None],
            *(column[:, :, None] for column in (reward_TBR, value_TBR, discount_TBR, follows_TBR)),
            rho_clip=self.rho_clip,
            c_clip=self.c_clip,
            lambda_=self.policy_lambda,
        )
        value_TB = value_TBR[..., 0]
        upgoing_TB = upgo(batch.reward[:-1], value_TB, discount_TB, follows_TB) - value_TB[:-1]
        rho_TBG = log_ratio_TBG.exp().clamp(max=self.rho_clip)
        return target_TBR, corrected.advantage, rho_TBG * upgoing_TB[..., None]

    def _discount(self, batch: Batch) -> Tensor:
        return discounts(batch.elapsed[:-1], batch.over[:-1], self.gamma, batch.value.dtype)

    def _groups(self, kind: SeatKind) -> tuple[tuple[str, ...], ...]:
        """The groups of the kind's heads; every head is in exactly one."""
        heads = tuple(kind.action.heads)
        if self.groups is None:
            delay = tuple(head for head in heads[1:] if head == _DELAY)
            rest = tuple(head for head in heads[1:] if head != _DELAY)
            return tuple(group for group in (heads[:1], delay, rest) if group)
        groups = tuple(tuple(head for head in group if head in heads) for group in self.groups)
        grouped = [head for group in groups for head in group]
        for head in heads:
            if grouped.count(head) != 1:
                raise ValueError(
                    f"AlphaStarGradient.groups: head {head!r} of {kind.name!r} must be in one group, is in "
                    f"{grouped.count(head)}"
                )
        return tuple(group for group in groups if group)

    def _by_group(self, kind: SeatKind, log_prob: Tensor) -> Tensor:
        """[..., heads] to [..., groups]: the sum over the heads of each group."""
        places = {head: index for index, head in enumerate(kind.action.heads)}
        columns = log_prob.unbind(-1)
        groups = ([columns[places[head]] for head in group] for group in self._groups(kind))
        return torch.stack([torch.stack(group).sum(0) for group in groups], -1)


def _values(unrolled: Unrolled) -> Tensor:
    """[T+1, B, R]: values of all rewards, the main one first."""
    value = unrolled.value[..., None]
    return value if unrolled.values is None else torch.cat((value, unrolled.values), -1)


def _named(statistic: str, names: Sequence[str], values: Sequence[Tensor]) -> dict[str, Tensor]:
    """STATISTIC.NAME for each value, and STATISTIC for the main reward, which has no name."""
    return {f"{statistic}.{name}" if name else statistic: value for name, value in zip(names, values, strict=True)}
