"""Exact divergences between policies, over all options of every head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ludus.models.operators import LOWEST
from ludus.models.policy import Unrolled


def is_legal(log_probs: Tensor) -> Tensor:
    """Illegal options carry about `LOWEST` (or -inf), which no softmax reaches by itself."""
    return log_probs > LOWEST / 2


def kl_categorical(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) over the last axis. Options that are illegal under p add nothing, gradient included."""
    difference = torch.where(is_legal(log_p), log_p - log_q, 0.0)
    return (log_p.exp() * difference).sum(-1)


def uniform_log_probs(log_p: Tensor) -> Tensor:
    """Of the uniform policy over the options that are legal under p."""
    legal = is_legal(log_p)
    even = -legal.sum(-1, keepdim=True).clamp(min=1).to(log_p.dtype).log()
    return torch.where(legal, even, LOWEST)


def kl_of_heads(
    unrolled: Unrolled, log_q: Mapping[str, Tensor], heads: Iterable[str], action: Mapping[str, Tensor]
) -> Tensor:
    """KL(policy || q) per row: the sum over the heads in use, each given the earlier heads' actions.

    `heads` are all heads in their order, `action` says how many picks of a pointer are in use.
    """
    total = torch.zeros_like(unrolled.value)
    for index, head in enumerate(heads):
        kl = kl_categorical(unrolled.log_probs[head], log_q[head])
        if kl.dim() > total.dim():
            kl = torch.where(_picks_in_use(action[head]), kl, 0.0).sum(-1)
        total = total + torch.where(unrolled.in_use[..., index], kl, 0.0)
    return total


def _picks_in_use(action: Tensor) -> Tensor:
    """A pick is made if the one before it was not the end (-1)."""
    before_end = action >= 0
    return torch.cat([torch.ones_like(before_end[..., :1]), before_end[..., :-1]], -1)
