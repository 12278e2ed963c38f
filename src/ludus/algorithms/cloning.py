"""Behaviour cloning: supervised learning of recorded actions, each head given those of the heads before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import Algorithm, Loss
from ludus.data.batch import Batch
from ludus.data.checks import require_in
from ludus.data.specs import Box, Head, Pointer, SeatKind
from ludus.models.policy import Policy, Unrolled

CLOSE = 0.05
"""Share of the range of a number within which a clone's number counts as that of the recording."""
OUTCOME = "outcome"
"""The column of `Batch.extra` with the episode's outcome for the seat, which the critic learns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cloning(Algorithm):
    """Minimises the negative log-probability of the recorded action, summed over its heads. Actions that the policy can
    never take (illegal, outside of its vocabulary) are counted as `impossible` and not trained on."""

    head_weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by head; 1 for those not named."""
    value_weight: float = 0.25
    """Weight of the critic's error about the episode's outcome; 0: do not train the critic."""
    label_smoothing: float = 0.0
    """Share of each target that is spread uniformly over the legal options; numbers of a `Box` are not smoothed."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", label_smoothing=self.label_smoothing)
        weights = {f"head_weights.{head}": weight for head, weight in self.head_weights.items()}
        require_in(self, "[0, inf]", value_weight=self.value_weight, **weights)

    def check(self, kinds: Sequence[SeatKind]) -> None:
        known = list(dict.fromkeys(head for kind in kinds for head in kind.action.heads))
        for head in self.head_weights:
            if head not in known:
                raise ValueError(f"Cloning.head_weights names {head!r}; the heads are {', '.join(known)}")

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        """Replace actions outside of the range of their head by 0; rows that use such an action do not count."""
        kind = policy.kind
        possible = batch.valid
        action: dict[str, Tensor] = {}
        used: dict[str, Tensor] = {}
        for name, head in kind.action.heads.items():
            recorded = batch.action[name]
            if isinstance(head, Box):
                numbers = losses.numbers_of(policy)[name]
                inside = numbers.inside(recorded)
                action[name] = torch.where(inside.unsqueeze(-1), recorded, numbers.rest(recorded.device))
            else:
                options_inside = _in_range(recorded, head, kind.num_options(name))
                action[name] = torch.where(options_inside, recorded, 0)
                inside = options_inside.all(-1) if _has_picks(head) else options_inside
            used[name] = _is_used(head, action, used, batch.valid)
            possible = possible & (~used[name] | inside)
        if OUTCOME in batch.extra:
            losses.update_value_scale(policy, batch.extra[OUTCOME], possible)
        return replace(batch, action=action).with_extra(possible=possible)

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        unrolled = unroll_leniently(policy, batch)
        choices = choices_of(policy, unrolled, batch)
        mask = choices.possible
        policy_loss = -losses.masked_mean(losses.over_heads(self._log_prob(policy.kind, unrolled, batch)), mask)
        total, terms = policy_loss, {"policy_loss": policy_loss}
        if self.value_weight and OUTCOME in batch.extra:
            terms["value_loss"] = losses.critic_loss(policy, unrolled.value, batch.extra[OUTCOME], mask)
            total = total + self.value_weight * terms["value_loss"]

        def details() -> dict[str, Tensor]:
            found = choices.statistics(policy.kind)
            found["impossible"] = (batch.valid & ~mask).sum().float()
            if OUTCOME in batch.extra:
                outcome = batch.extra[OUTCOME]
                found["explained_variance"] = losses.explained_variance(unrolled.value, outcome, mask)
            return found

        return Loss(total=total, statistics=losses.detached(loss=total, **terms), details=details)

    def _log_prob(self, kind: SeatKind, unrolled: Unrolled, batch: Batch) -> Tensor:
        """[..., heads]: smoothed and weighted log-probabilities of the recorded actions."""
        columns = []
        for index, (name, head) in enumerate(kind.action.heads.items()):
            log_prob = unrolled.log_prob[..., index]
            if self.label_smoothing and not isinstance(head, Box):
                log_probs = unrolled.log_probs[name]
                legal = losses.is_legal(log_probs)
                even = torch.where(legal, log_probs, 0.0).sum(-1) / legal.sum(-1).clamp(min=1)
                if _has_picks(head):
                    even = torch.where(losses.picks_in_use(batch.action[name]), even, 0.0).sum(-1)
                even = torch.where(unrolled.in_use[..., index], even, 0.0)
                log_prob = log_prob + self.label_smoothing * (even - log_prob)
            columns.append(self.head_weights.get(name, 1.0) * log_prob)
        return torch.stack(columns, -1)


class Choices(NamedTuple):
    """Recorded choices compared with those of a policy. A head with several picks makes one choice per pick, a `Box`
    one per number, which is right within `CLOSE` of its range."""

    possible: Tensor
    """[...]: rows that count, whose recorded action the policy can take."""
    made: Tensor
    """[..., heads]: number of choices of the recorded action; 0 where the head is not in use."""
    right: Tensor
    """[..., heads]: number of these that are the policy's most likely option, given the choices before."""
    log_prob: Tensor
    """[..., heads]: log-probability of the recorded action."""

    def sums(self) -> Tensor:
        """[4, heads]: sums over the rows that count of: rows in use, choices, right choices, log-probability."""
        used = self.made > 0
        columns = torch.stack((used.float(), self.made.float(), self.right.float(), self.log_prob))
        counted = torch.where(self.possible[..., None], columns, 0.0)
        return counted.reshape(4, -1, counted.shape[-1]).sum(1)

    def statistics(self, kind: SeatKind) -> dict[str, Tensor]:
        return statistics_of(kind, self.sums())


def statistics_of(kind: SeatKind, sums: Tensor) -> dict[str, Tensor]:
    """`accuracy.HEAD` and `log_prob.HEAD` from `Choices.sums`; NaN for a head that was never in use."""
    rows, made, right, log_prob = sums
    found = {}
    for index, head in enumerate(kind.action.heads):
        found[f"accuracy.{head}"] = right[index] / made[index]
        found[f"log_prob.{head}"] = log_prob[index] / rows[index]
    return found


def unroll_leniently(policy: Policy, batch: Batch) -> Unrolled:
    """Evaluate recorded actions without raising for illegal ones, which `choices_of` finds."""
    return policy.unroll(replace(batch, valid=torch.zeros_like(batch.valid), all_valid=False))


def choices_of(policy: Policy, unrolled: Unrolled, batch: Batch) -> Choices:
    """Compare the recorded choices with those that the policy would make."""
    possible = batch.extra["possible"]
    made, right = [], []
    for index, (name, head) in enumerate(policy.kind.action.heads.items()):
        used = unrolled.in_use[..., index]
        if isinstance(head, Box):
            numbers = losses.numbers_of(policy)[name]
            away = numbers.place(numbers.mode(unrolled.log_probs[name])) - numbers.place(batch.action[name])
            close = away.abs() <= 2.0 * CLOSE  # places are two apart from one bound to the other
            made.append(used.long() * head.size)
            right.append(torch.where(used, close.sum(-1), 0))
            continue
        log_probs, action = unrolled.log_probs[name], batch.action[name].long()
        if _has_picks(head):
            used = used[..., None] & losses.picks_in_use(action)
            action = torch.where(action < 0, log_probs.shape[-1] - 1, action)
        legal = losses.is_legal(log_probs.gather(-1, action[..., None]).squeeze(-1)) | ~used
        correct = used & (log_probs.argmax(-1) == action)
        if _has_picks(head):
            legal, used, correct = legal.all(-1), used.sum(-1), correct.sum(-1)
        possible = possible & legal
        made.append(used.long())
        right.append(correct.long())
    return Choices(possible, torch.stack(made, -1), torch.stack(right, -1), unrolled.log_prob.detach())


def _has_picks(head: Head) -> bool:
    return isinstance(head, Pointer) and head.picks > 1


def _is_used(head: Head, action: Mapping[str, Tensor], used: Mapping[str, Tensor], valid: Tensor) -> Tensor:
    if head.when is None:
        return torch.ones_like(valid)
    values = torch.tensor(head.when.values, device=valid.device)
    return used[head.when.head] & torch.isin(action[head.when.head], values)


def _in_range(action: Tensor, head: Head, options: int) -> Tensor:
    """Which actions are in range; -1, the end of a pointer, is too."""
    return (action >= (-1 if _has_picks(head) else 0)) & (action < options)
