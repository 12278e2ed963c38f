"""The terms that losses are made of: plain functions of tensors that keep the leading axes, and means over
the rows that count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Ratio = Literal["joint", "per_head"]
"""One probability ratio for the whole action, or one for each head."""
OverRanks = Callable[[Tensor], Tensor] | None
"""`Batch.over_ranks`: adds a tensor up over the learner's ranks; None: there is one only."""


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of `x` where `mask` (None: of all); 0 if there is nothing. What is masked out may be NaN."""
    if mask is None:
        return x.mean()
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def mean_where_used(
    name: str, by_head: Mapping[str, Tensor], in_use: Tensor, mask: Tensor | None
) -> dict[str, Tensor]:
    """NAME.HEAD: of each head's rows, the mean over those that count and use it; `in_use` is [..., heads]."""
    return {
        f"{name}.{head}": masked_mean(row, used if mask is None else mask & used)
        for (head, row), used in zip(by_head.items(), in_use.unbind(-1), strict=False)
    }


def mean_over_ranks(x: Tensor, mask: Tensor, over_ranks: OverRanks) -> Tensor:
    """`masked_mean` of the rows of all ranks."""
    if over_ranks is None:
        return masked_mean(x, mask)
    total, count = over_ranks(torch.stack((torch.where(mask, x, 0.0).sum().double(), mask.sum().double())))
    mean: Tensor = total / count.clamp(min=1)
    return mean.to(x.dtype)


def standardise(x: Tensor, mask: Tensor, over_ranks: OverRanks = None) -> Tensor:
    """Mean 0 and variance 1 over the rows that count, those of other ranks included."""
    centred = x - mean_over_ranks(x, mask, over_ranks)
    return centred / (mean_over_ranks(centred.square(), mask, over_ranks).sqrt() + 1e-8)


def ppo_surrogate(
    log_ratio: Tensor, advantage: Tensor, *, clip: float | None = None, dual_clip: float | None = None
) -> Tensor:
    """What PPO maximises: min(r A, clip(r) A), and where A < 0 not below dual_clip * A.

    Without a clip it is the plain importance-weighted advantage.
    """
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
    """Half the squared error, linear beyond `huber`.

    With `clip` the worse of the value and the value held within `clip` of `old_value`.
    """
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
    """Sum over the heads, the last axis."""
    return x.squeeze(-1) if x.shape[-1] == 1 else x.sum(-1)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(old || new) from the log-ratio new - old of one action per row: unbiased and never negative."""
    return log_ratio.expm1() - log_ratio


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """1 if the values tell the targets, 0 if they tell no more than a constant would."""
    error = target - value
    unexplained = masked_mean((error - masked_mean(error, mask)).square(), mask)
    variance = masked_mean((target - masked_mean(target, mask)).square(), mask)
    return torch.where(variance > 0, 1.0 - unexplained / variance, 0.0)


def detached(**terms: Tensor) -> dict[str, Tensor]:
    """Statistics: the same numbers without their graph, left on their device."""
    return {name: term.detach() for name, term in terms.items()}
