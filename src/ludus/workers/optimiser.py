"""Adam with clipped gradients that takes no step on numbers that are not finite, and asks the device for
nothing in between: whether a step was taken is known when somebody looks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ludus.algorithms.algorithm import Loss
from ludus.data.batch import Batch
from ludus.data.trees import Array, Tree
from ludus.models.tensors import on_device
from ludus.workers.ranks import ALONE, Measured, Ranks, Spread, means

_STATE = ("step", "exp_avg", "exp_avg_sq")


class AdamSettings(NamedTuple):
    """What stays the same from step to step."""

    beta1: float
    beta2: float
    epsilon: float
    max_gradient_norm: float


class Optimiser:
    """Holds the moments of the parameters of one player."""

    def __init__(self, parameters: Sequence[nn.Parameter], settings: AdamSettings) -> None:
        self.parameters = list(parameters)
        self._settings = settings
        self.clear()

    def clear(self) -> None:
        """Begin again, as if no step had been taken."""
        device = self.parameters[0].device
        self.steps = [torch.zeros((), device=device) for _ in self.parameters]
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    def change(self, settings: AdamSettings) -> None:
        self._settings = settings

    def step(
        self,
        loss: Tensor | None,
        learning_rate: float,
        only: Collection[int] | None = None,
        ranks: Ranks = ALONE,
    ) -> Tensor:
        """Step down the gradient of `loss`; parameters that it does not use stay as they are, and so do all
        but those at the places `only`. With several ranks, down that of the sum of their losses; None: this
        one adds nothing.

        Returns a scalar on the loss's device: 1 where loss or gradient were not finite, so that nothing was
        changed, else 0.
        """
        for parameter in self.parameters:
            parameter.grad = None
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        # These lie in memory as the parameters do; the kernel relies on it and `autograd.grad` does not care.
        gradients = {
            index: parameter.grad
            for index, parameter in enumerate(self.parameters)
            if parameter.grad is not None and (only is None or index in only)
        }
        with torch.no_grad():
            if ranks.count > 1:
                loss, gradients = self._summed(ranks, loss, gradients)
            assert loss is not None
            used, given = list(gradients), list(gradients.values())
            norm = torch.linalg.vector_norm(torch.cat([gradient.reshape(-1) for gradient in given]))
            broken = torch.isfinite(norm + loss.detach()).logical_not_().float()
            settings = self._settings
            adam(
                [self.parameters[index] for index in used],
                given,
                [self.means[index] for index in used],
                [self.squares[index] for index in used],
                [],
                [self.steps[index] for index in used],
                fused=True,
                # the kernel divides gradients by this and leaves everything alone where `found_inf` is 1
                grad_scale=((norm + 1e-6) / settings.max_gradient_norm).clamp_(min=1.0).float(),
                found_inf=broken,
                amsgrad=False,
                beta1=settings.beta1,
                beta2=settings.beta2,
                lr=learning_rate,
                weight_decay=0.0,
                eps=settings.epsilon,
                maximize=False,
            )
        return broken

    def _summed(
        self, ranks: Ranks, loss: Tensor | None, gradients: Mapping[int, Tensor]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Over all ranks, in one message: the gradients of parameters that any of them uses, and the loss."""
        sizes = [parameter.numel() for parameter in self.parameters]
        joint = self.parameters[0].new_zeros(sum(sizes) + len(sizes) + 1)
        *pieces, uses, total = torch.split(joint, [*sizes, len(sizes), 1])
        # As the parameters lie in memory, for the kernel.
        views = [
            piece.as_strided(parameter.size(), parameter.stride(), piece.storage_offset())
            for piece, parameter in zip(pieces, self.parameters, strict=True)
        ]
        for index, gradient in gradients.items():
            views[index].copy_(gradient)
            uses[index] = 1.0
        if loss is not None:
            total.copy_(loss.detach())
        ranks.sum(joint)
        used = [index for index, count in enumerate(uses.tolist()) if count]
        return total.squeeze(0), {index: views[index] for index in used}

    def save(self) -> Tree:
        """The moments as NUMBER.NAME, of parameters that have taken a step."""
        return {
            f"{index}.{name}": tensor.detach().cpu().numpy().copy()
            for index, tensors in enumerate(zip(self.steps, self.means, self.squares, strict=True))
            if float(tensors[0])
            for name, tensor in zip(_STATE, tensors, strict=True)
        }

    def load(self, saved: Mapping[str, Array]) -> None:
        self.clear()
        for index, tensors in enumerate(zip(self.steps, self.means, self.squares, strict=True)):
            for name, tensor in zip(_STATE, tensors, strict=True):
                if f"{index}.{name}" in saved:
                    tensor.copy_(torch.from_numpy(np.array(saved[f"{index}.{name}"])))


OnDevice = dict[int, tuple[float, Mapping[str, Tensor]]]
"""As `Measured`, on the device."""


class GradientStep(NamedTuple):
    """What one step measured."""

    broken: bool
    """Loss or gradient were not finite, so it was not taken."""
    statistics: Mapping[str, float]


def total_loss(losses: Mapping[int, Loss], weights: Mapping[int, float]) -> Tensor | None:
    """The mean over the kinds of seat, or with weights this rank's part of it; None if it has none."""
    if weights:
        return torch.stack([weights[kind] * loss.total for kind, loss in losses.items()]).sum()
    totals = [loss.total for loss in losses.values()]
    if len(totals) < 2:
        return totals[0] if totals else None
    return torch.stack(totals).mean()


def gradient_steps(ranks: Ranks, broken: Sequence[Tensor], measured: Sequence[OnDevice]) -> list[GradientStep]:
    """All numbers in one transfer from the device; what other ranks measured is taken in."""
    if not broken:
        return []
    found = [
        one
        for first, kinds in zip(broken, measured, strict=True)
        for one in (first, *(value for _, rest in kinds.values() for value in rest.values()))
    ]
    values = iter(torch.stack([one.to(broken[0]) for one in found]).tolist())
    flags: list[bool] = []
    own: list[Measured] = []
    for kinds in measured:
        flags.append(bool(next(values)))
        own.append({kind: (weight, {name: next(values) for name in rest}) for kind, (weight, rest) in kinds.items()})
    everywhere = ranks.gather(own) if ranks.count > 1 else [own]
    return [GradientStep(flag, means(step)) for flag, *step in zip(flags, *everywhere, strict=True)]


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
                minibatch[kind] = batch.columns(index) if whole else batch.pick(rows[kind][index], all_valid=True)
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
