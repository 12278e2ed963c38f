"""What another policy thinks of all options, kept beside a batch as extra columns NAME.HEAD."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.data.batch import Batch
from ludus.models.policy import Policy


@torch.no_grad()
def log_prob_columns(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """For `Batch.with_extra`. Without memory, rows that are not valid are left out: after a synchronous
    hand-over that is most of the batch."""
    if policy.state_arrays:
        return {f"{name}.{head}": log_p for head, log_p in policy.unroll(batch).log_probs.items()}
    flat = batch.flat()
    index = torch.nonzero(flat.valid).squeeze(1)
    num_rows, num_columns = batch.valid.shape
    columns = {}
    for head, log_p in policy.unroll(flat.pick(index, all_valid=True)).log_probs.items():
        column = log_p.new_zeros(batch.valid.numel(), *log_p.shape[1:])
        column[index] = log_p
        columns[f"{name}.{head}"] = column.reshape(num_columns, num_rows, *log_p.shape[1:]).swapaxes(0, 1)
    return columns


def log_probs_beside(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """By head, from a batch that has been given these columns."""
    return {head: batch.extra[f"{name}.{head}"] for head in policy.kind.action.heads}
