"""What another policy thinks of all options, kept beside a batch as extra columns NAME.HEAD."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.data.batch import Batch
from ludus.models.policy import Policy

MOST_ROWS = 4096
"""That a network without memory is asked about at once: a batch has several times as many decisions as a
minibatch, and its layers over maps would take gigabytes."""


@torch.no_grad()
def log_prob_columns(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """For `Batch.with_extra`. Without memory, rows that are not valid are left out: after a synchronous
    hand-over that is most of the batch."""
    if policy.state_arrays:
        return {f"{name}.{head}": log_p for head, log_p in policy.unroll(batch).log_probs.items()}
    flat = batch.flat()
    index = torch.nonzero(flat.valid).squeeze(1)
    if not len(index):  # all of it is too old, but a network needs a row to run on
        index = index.new_zeros(1)
    found: dict[str, Tensor] = {}
    for rows in torch.split(index, MOST_ROWS):
        for head, log_p in policy.unroll(flat.pick(rows, all_valid=True)).log_probs.items():
            if head not in found:
                found[head] = log_p.new_zeros(len(flat.valid), *log_p.shape[1:])
            found[head][rows] = log_p
    num_rows, num_columns = batch.valid.shape
    return {
        f"{name}.{head}": log_p.reshape(num_columns, num_rows, *log_p.shape[1:]).swapaxes(0, 1)
        for head, log_p in found.items()
    }


def log_probs_beside(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """By head, from a batch that has been given these columns."""
    return {head: batch.extra[f"{name}.{head}"] for head in policy.kind.action.heads}
