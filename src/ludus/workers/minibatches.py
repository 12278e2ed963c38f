"""How a batch is cut into the pieces of one gradient step each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from ludus.data.batch import Batch
from ludus.models.tensors import on_device
from ludus.workers.rank_shares import Spread

Orders = dict[int, torch.Tensor]
"""By kind of seat: the trajectories, or the valid rows of a flat batch, in the order of one pass."""


def minibatches(
    batches: Mapping[int, Batch], *, whole: bool, size: int, rng: np.random.Generator
) -> Iterator[dict[int, Batch]]:
    """One pass over the batches of all kinds of seat, in pieces of about `size` decisions.

    Shuffled single decisions from flat batches, or with `whole` shuffled whole trajectories. The order is
    drawn and sent to the device once per pass; each piece is copied straight out of the batch.
    """
    orders, num = draw_orders(batches, whole=whole, size=size, rng=rng)
    pieces = {kind: order.tensor_split(num) for kind, order in orders.items()}
    for part in range(num):
        minibatch: dict[int, Batch] = {}
        for kind, batch in batches.items():
            index = pieces[kind][part]
            if len(index):
                minibatch[kind] = batch.columns(index) if whole else batch.pick(index, all_valid=True)
        if minibatch:
            yield minibatch


def shared_minibatches(
    batches: Mapping[int, Batch],
    spread: Mapping[int, Spread],
    *,
    whole: bool,
    size: int,
    rng: np.random.Generator,
) -> Iterator[tuple[dict[int, Batch], dict[int, float]]]:
    """This rank's part of each of the `minibatches` that one learner would cut from the batches of all ranks,
    laid one after the other; and what its mean counts in that of the whole, by kind of seat.

    All ranks draw the same order, so that each knows what the others have. A part may be empty.
    """
    orders = {kind: rng.permutation(one.total) for kind, one in spread.items()}
    num = _num_pieces(sum(one.num_decisions for one in spread.values()), size)
    pieces = {kind: np.array_split(order, num) for kind, order in orders.items()}
    rows = {} if whole else {kind: torch.nonzero(one.valid).squeeze(1) for kind, one in batches.items()}
    for part in range(num):
        present = [kind for kind in spread if len(pieces[kind][part])]
        minibatch: dict[int, Batch] = {}
        weights: dict[int, float] = {}
        for kind in present:
            piece, one = pieces[kind][part], spread[kind]
            mine = piece[(piece >= one.first) & (piece < one.first + one.own)]
            if len(mine):
                batch = batches[kind]
                index = on_device(mine - one.first, batch.valid.device)
                minibatch[kind] = (
                    batch.columns(index) if whole else batch.pick(rows[kind][index], all_valid=True)
                )
                weights[kind] = one.count(mine) / max(one.count(piece), 1) / len(present)
        if present:
            yield minibatch, weights


def draw_orders(
    batches: Mapping[int, Batch], *, whole: bool, size: int, rng: np.random.Generator
) -> tuple[Orders, int]:
    """A random order for one pass, and into how many pieces it is to be cut (as `tensor_split` does)."""
    orders = {kind: _order(batch, whole, rng) for kind, batch in batches.items()}
    decisions = sum(int(batch.valid.sum()) if whole else len(orders[kind]) for kind, batch in batches.items())
    return orders, _num_pieces(decisions, size)


def _num_pieces(decisions: int, size: int) -> int:
    return max(1, round(decisions / size))


def _order(batch: Batch, whole: bool, rng: np.random.Generator) -> torch.Tensor:
    device = batch.valid.device
    if whole:
        return on_device(rng.permutation(batch.valid.shape[1]), device)
    rows = torch.nonzero(batch.valid).squeeze(1)
    return rows[on_device(rng.permutation(len(rows)), device)]
