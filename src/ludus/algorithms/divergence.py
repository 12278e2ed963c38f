"""Exact divergences between policies, and entropies, over all options of every head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ludus.algorithms.losses import mean_where_used
from ludus.models.operators import LOWEST
from ludus.models.policy import Policy, Unrolled


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


def kl_by_head(
    log_p: Mapping[str, Tensor],
    log_q: Mapping[str, Tensor],
    in_use: Tensor,
    heads: Iterable[str],
    action: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """KL(p || q) of each head per row, given the earlier heads' actions; 0 where the head is not in use.

    `heads` are all heads in their order, `in_use` [..., heads] says which count, `action` how many picks of a
    pointer do: its divergence is the sum over them.
    """
    found = {}
    for index, head in enumerate(heads):
        used = in_use[..., index]
        kl = kl_categorical(log_p[head], log_q[head])
        if kl.dim() > used.dim():
            kl = torch.where(picks_in_use(action[head]), kl, 0.0).sum(-1)
        found[head] = torch.where(used, kl, 0.0)
    return found


def kl_of_heads(
    unrolled: Unrolled, log_q: Mapping[str, Tensor], heads: Iterable[str], action: Mapping[str, Tensor]
) -> Tensor:
    """KL(policy || q) per row: the sum over the heads in use."""
    by_head = kl_by_head(unrolled.log_probs, log_q, unrolled.in_use, heads, action)
    return torch.stack(list(by_head.values())).sum(0)


def normalised_entropy(
    unrolled: Unrolled, heads: Iterable[str], action: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Per head and row from 0, certain, to 1, uniform over what is legal, so that heads with many options do
    not count for more. The mean over the picks in use; 0 where there is nothing to choose."""
    found = {}
    for index, head in enumerate(heads):
        used, log_p = unrolled.in_use[..., index], unrolled.log_probs[head]
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
    """entropy.HEAD: the mean of `normalised_entropy`; nothing if there is only one head, which has all."""
    heads = policy.kind.action.heads
    if len(heads) == 1:
        return {}
    return mean_where_used("entropy", normalised_entropy(unrolled, heads, action), unrolled.in_use, mask)


def picks_in_use(action: Tensor) -> Tensor:
    """A pick is made if the one before it was not the end (-1)."""
    before_end = action >= 0
    return torch.cat([torch.ones_like(before_end[..., :1]), before_end[..., :-1]], -1)
