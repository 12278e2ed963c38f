"""Terms of losses: functions of tensors that keep the leading axes, and means over the rows that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ludus.models.continuous import Numbers
from ludus.models.operators import LOWEST
from ludus.models.policy import Policy, Unrolled, ValueScale

Ratio = Literal["joint", "per_head"]
"""One probability ratio for the whole action, or one for each head."""
NO_NUMBERS: Mapping[str, Numbers] = {}
OverRanks = Callable[[Tensor], Tensor] | None
"""`Batch.over_ranks`: sums a tensor over the learner's ranks; None: there is only one."""


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of `x` where `mask` (None: everywhere); 0 if the mask is empty. Masked-out values may be NaN."""
    if mask is None:
        return x.mean()
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def mean_where_used(name: str, by_head: Mapping[str, Tensor], in_use: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """NAME.HEAD: the mean over the rows that count and use the head; `in_use` is [..., heads]."""
    return {
        f"{name}.{head}": masked_mean(row, used if mask is None else mask & used)
        for (head, row), used in zip(by_head.items(), in_use.unbind(-1), strict=False)
    }


def mean_over_ranks(x: Tensor, mask: Tensor, over_ranks: OverRanks) -> Tensor:
    """`masked_mean` over the rows of all ranks."""
    if over_ranks is None:
        return masked_mean(x, mask)
    total, count = over_ranks(torch.stack((torch.where(mask, x, 0.0).sum().double(), mask.sum().double())))
    mean: Tensor = total / count.clamp(min=1)
    return mean.to(x.dtype)


def standardise(x: Tensor, mask: Tensor, over_ranks: OverRanks = None) -> Tensor:
    """Scale to mean 0 and variance 1 over the rows that count, including those of other ranks."""
    centred = x - mean_over_ranks(x, mask, over_ranks)
    return centred / (mean_over_ranks(centred.square(), mask, over_ranks).sqrt() + 1e-8)


def ppo_surrogate(
    log_ratio: Tensor, advantage: Tensor, *, clip: float | None = None, dual_clip: float | None = None
) -> Tensor:
    """PPO's objective: min(r A, clip(r) A) or, without `clip`, r A, and where A < 0 not below dual_clip * A."""
    ratio = log_ratio.exp()
    surrogate = ratio * advantage
    if clip is not None:
        surrogate = torch.minimum(surrogate, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    if dual_clip is not None:
        surrogate = torch.where(advantage < 0, torch.maximum(surrogate, dual_clip * advantage), surrogate)
    return surrogate


def value_loss(
    value: Tensor,
    target: Tensor,
    *,
    huber: float | None = None,
    old_value: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Half the squared error, linear beyond `huber`; with `clip`, at least that of a value close to `old_value`."""
    loss = _half_square(value - target, huber)
    if clip is None:
        return loss
    if old_value is None:
        raise ValueError(f"value_loss with clip={clip} needs old_value, the value to stay close to")
    held = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(loss, _half_square(held - target, huber))


def _half_square(error: Tensor, huber: float | None) -> Tensor:
    nothing = torch.zeros_like(error)
    if huber is None:
        return 0.5 * functional.mse_loss(error, nothing, reduction="none")
    return functional.huber_loss(error, nothing, reduction="none", delta=huber)


def over_heads(x: Tensor) -> Tensor:
    """The sum over the heads, the last axis."""
    return x.squeeze(-1) if x.shape[-1] == 1 else x.sum(-1)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(old || new) from the log-ratio new - old of one action per row."""
    return log_ratio.expm1() - log_ratio


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """1 if the values equal the targets up to a constant, 0 if they explain no more than a constant."""
    error = target - value
    unexplained = masked_mean((error - masked_mean(error, mask)).square(), mask)
    variance = masked_mean((target - masked_mean(target, mask)).square(), mask)
    return torch.where(variance > 0, 1.0 - unexplained / variance, 0.0)


def detached(**terms: Tensor) -> dict[str, Tensor]:
    """The terms without their graph, on their device, as statistics."""
    return {name: term.detach() for name, term in terms.items()}


def value_scale(policy: Policy) -> ValueScale | None:
    """The scale of a policy with a normalised critic; None if its values are in units of reward."""
    scale: ValueScale | None = getattr(policy, "value_scale", None)
    return scale


def numbers_of(policy: Policy) -> Mapping[str, Numbers]:
    """The distributions of the policy's `Box` heads."""
    numbers: Mapping[str, Numbers] = getattr(policy, "numbers", NO_NUMBERS)
    return numbers


@torch.no_grad()
def update_value_scale(policy: Policy, target: Tensor, valid: Tensor, over_ranks: OverRanks = None) -> None:
    """Update the policy's value scale, if any, with the targets that count, including those of other ranks."""
    scale = value_scale(policy)
    if scale is None:
        return
    targets = target[valid]
    if over_ranks is None:
        if targets.numel() > 0:
            scale.update(targets)
        return
    sums = [targets.sum(), targets.square().sum(), valid.sum()]
    total, squares, count = over_ranks(torch.stack([one.double() for one in sums]))
    if count > 0:
        scale.update_moments(total / count, squares / count)


def critic_loss(
    policy: Policy,
    value: Tensor,
    target: Tensor,
    mask: Tensor | None,
    *,
    huber: float | None = None,
    old_value: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Mean of `value_loss`, with everything, including `huber` and `clip`, in units of the policy's value scale."""
    scale = value_scale(policy)
    if scale is not None:
        value, target = scale.normalise(value), scale.normalise(target)
        old_value = None if old_value is None else scale.normalise(old_value)
    return masked_mean(value_loss(value, target, huber=huber, old_value=old_value, clip=clip), mask)


def is_legal(log_probs: Tensor) -> Tensor:
    """Whether options are legal. Illegal ones have about `LOWEST` (or -inf), which no softmax reaches by itself."""
    return log_probs > LOWEST / 2


_COMPARED = 256
"""Decisions that are enough to see whether a policy distinguishes positions."""
_FEWEST_COMPARED = 8
_ROUNDING = 1e-5
"""Relative to log-probabilities: differences below it may come from rounding alone."""


@torch.no_grad()
def is_constant(unrolled: Unrolled, valid: Tensor) -> Tensor:
    """1 if the policy gives all decisions the same distribution, but for what is illegal there; else 0, also if there
    are too few decisions to compare. Shapes are fixed, so that it can be compiled. A policy that is merely sure of
    itself, or that plays nearly the same everywhere, still has log-odds that differ by more than rounding."""
    keep = slice(None, None, max(1, valid.numel() // _COMPARED))
    compared = torch.zeros((), dtype=torch.long, device=valid.device)
    same = torch.ones((), dtype=torch.bool, device=valid.device)
    for index, log_probs in enumerate(unrolled.log_probs.values()):
        rows = log_probs.detach().flatten(0, valid.dim() - 1)[keep].flatten(1).float()
        made = (valid & unrolled.in_use[..., index]).flatten()[keep]
        legal = (rows > LOWEST / 2) & made.unsqueeze(1)
        most = legal.sum(1).argmax().unsqueeze(0)  # the row with the most options shares some with most others
        first = rows.index_select(0, most)
        common = legal & legal.index_select(0, most)
        highest = torch.where(common, rows - first, -torch.inf).amax(1)
        lowest = torch.where(common, rows - first, torch.inf).amin(1)
        size = torch.where(common, rows.abs() + first.abs(), 0.0).amax(1)
        told = common.sum(1) > 1
        compared = compared + told.sum()
        same = same & (~told | (highest - lowest <= _ROUNDING * size)).all()
    return (same & (compared > _FEWEST_COMPARED)).float()


def kl_categorical(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) over the last axis. Options that are illegal under p contribute nothing, nor any gradient."""
    difference = torch.where(is_legal(log_p), log_p - log_q, 0.0)
    return (log_p.exp() * difference).sum(-1)


def uniform_log_probs(log_p: Tensor) -> Tensor:
    """Log-probabilities of the uniform policy over the options that are legal under p."""
    legal = is_legal(log_p)
    even = -legal.sum(-1, keepdim=True).clamp(min=1).to(log_p.dtype).log()
    return torch.where(legal, even, LOWEST)


def kl_by_head(
    log_p: Mapping[str, Tensor],
    log_q: Mapping[str, Tensor],
    in_use: Tensor,
    heads: Iterable[str],
    action: Mapping[str, Tensor],
    numbers: Mapping[str, Numbers] = NO_NUMBERS,
) -> dict[str, Tensor]:
    """KL(p || q) of each head per row, given the earlier heads' actions; 0 where the head is not in use [..., heads].
    That of a pointer with several picks is the sum over the picks made in `action`. `numbers`: `numbers_of` the policy,
    if the game has `Box` heads."""
    found = {}
    for index, head in enumerate(heads):
        used = in_use[..., index]
        if head in numbers:
            kl = numbers[head].divergence(log_p[head], log_q[head])
        else:
            kl = kl_categorical(log_p[head], log_q[head])
        if kl.dim() > used.dim():
            kl = torch.where(picks_in_use(action[head]), kl, 0.0).sum(-1)
        found[head] = torch.where(used, kl, 0.0)
    return found


def kl_of_heads(
    unrolled: Unrolled,
    log_q: Mapping[str, Tensor],
    heads: Iterable[str],
    action: Mapping[str, Tensor],
    numbers: Mapping[str, Numbers] = NO_NUMBERS,
) -> Tensor:
    by_head = kl_by_head(unrolled.log_probs, log_q, unrolled.in_use, heads, action, numbers)
    return torch.stack(list(by_head.values())).sum(0)


def kl_to_uniform(
    unrolled: Unrolled, heads: Iterable[str], action: Mapping[str, Tensor], numbers: Mapping[str, Numbers] = NO_NUMBERS
) -> Tensor:
    """KL(p || uniform) per row, summed over the heads: over legal options, or over the levels of a number."""
    heads = list(heads)
    log_p = {head: unrolled.log_probs[head] for head in heads if head not in numbers}
    uniform = {head: uniform_log_probs(one) for head, one in log_p.items()}
    places = [index for index, head in enumerate(heads) if head not in numbers]
    found = torch.zeros_like(unrolled.entropy[..., 0])
    for kl in kl_by_head(log_p, uniform, unrolled.in_use[..., places], log_p, action).values():
        found = found + kl
    for index, head in enumerate(heads):
        if head in numbers:
            missing = numbers[head].most_entropy - unrolled.entropy[..., index]
            found = found + torch.where(unrolled.in_use[..., index], missing, 0.0)
    return found


def normalised_entropy(
    unrolled: Unrolled, heads: Iterable[str], action: Mapping[str, Tensor], numbers: Mapping[str, Numbers] = NO_NUMBERS
) -> dict[str, Tensor]:
    """Entropy per head and row, from 0 to 1 (uniform over legal options or within bounds); the mean over the picks in
    use."""
    found = {}
    for index, head in enumerate(heads):
        used, log_p = unrolled.in_use[..., index], unrolled.log_probs[head]
        if head in numbers:
            found[head] = unrolled.entropy[..., index] / numbers[head].most_entropy
            continue
        legal = is_legal(log_p)
        entropy = -(log_p.exp() * torch.where(legal, log_p, 0.0)).sum(-1)
        options = legal.sum(-1)
        share = torch.where(options > 1, entropy / options.clamp(min=2).to(log_p.dtype).log(), 0.0)
        if share.dim() > used.dim():
            picks = picks_in_use(action[head])
            share = torch.where(picks, share, 0.0).sum(-1) / picks.sum(-1)
        found[head] = torch.where(used, share, 0.0)
    return found


def entropy_by_head(
    policy: Policy, unrolled: Unrolled, action: Mapping[str, Tensor], mask: Tensor | None
) -> dict[str, Tensor]:
    """entropy.HEAD: the mean of `normalised_entropy`; empty if there is only one head."""
    heads = policy.kind.action.heads
    if len(heads) == 1:
        return {}
    shares = normalised_entropy(unrolled, heads, action, numbers_of(policy))
    return mean_where_used("entropy", shares, unrolled.in_use, mask)


def picks_in_use(action: Tensor) -> Tensor:
    """Mask of the picks that were made: those whose predecessor was not the end (-1)."""
    before_end = action >= 0
    return torch.cat([torch.ones_like(before_end[..., :1]), before_end[..., :-1]], -1)
