"""What another policy thinks of all options, kept beside a batch as extra columns NAME.HEAD."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ludus.data.batch import Batch
from ludus.models.policy import Policy, Unrolled

MOST_ROWS = 4096
"""That a network without memory is asked about at once: a batch has several times as many decisions as a
minibatch, and its layers over maps would take gigabytes."""


@torch.no_grad()
def log_prob_columns(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """For `Batch.with_extra`."""

    def read(unrolled: Unrolled) -> dict[str, Tensor]:
        return {f"{name}.{head}": log_p for head, log_p in unrolled.log_probs.items()}

    return asked_about(policy, batch, batch.valid, read)


@torch.no_grad()
def asked_about(
    policy: Policy, batch: Batch, needed: Tensor, read: Callable[[Unrolled], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """What `read` finds in the answers of a policy to a batch, as columns [T+1, B, ...]. Without memory, it
    is asked about the `needed` rows only and others are 0: after a synchronous hand-over most of the batch is
    padding."""
    if policy.state_arrays:
        return dict(read(policy.unroll(batch)))
    flat = batch.flat()
    index = torch.nonzero(needed.swapaxes(0, 1).reshape(-1)).squeeze(1)
    if not len(index):  # all of it is too old, but a network needs a row to run on
        index = index.new_zeros(1)
    found: dict[str, Tensor] = {}
    for rows in torch.split(index, MOST_ROWS):
        for name, column in read(policy.unroll(flat.pick(rows))).items():
            if name not in found:
                found[name] = column.new_zeros(len(flat.valid), *column.shape[1:])
            found[name][rows] = column
    num_rows, num_columns = batch.valid.shape
    return {
        name: column.reshape(num_columns, num_rows, *column.shape[1:]).swapaxes(0, 1)
        for name, column in found.items()
    }


def log_probs_beside(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """By head, from a batch that has been given these columns."""
    return {head: batch.extra[f"{name}.{head}"] for head in policy.kind.action.heads}
