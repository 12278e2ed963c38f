"""Gradient steps: Adam for one player or a stack of them, minibatches, and statistics of steps. A step on numbers that
are not finite changes nothing. No step synchronises with the device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ludus.algorithms.algorithm import Loss
from ludus.data.batch import Batch
from ludus.data.trees import Array, IntArray, Tree
from ludus.models.tensors import on_device
from ludus.workers.ranks import ALONE, Ranks

_STATE = ("step", "exp_avg", "exp_avg_sq")


class AdamSettings(NamedTuple):
    beta1: float
    beta2: float
    epsilon: float
    max_gradient_norm: float


class Optimiser:
    """Adam on the parameters of one player, with clipped gradients."""

    def __init__(self, parameters: Sequence[nn.Parameter], settings: AdamSettings) -> None:
        self.parameters = list(parameters)
        self.settings = settings
        device = self.parameters[0].device
        self.steps = [torch.zeros((), device=device) for _ in self.parameters]
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    def clear(self) -> None:
        """Forget all steps. In place: the tensors may be views of a stack."""
        for tensors in (self.steps, self.means, self.squares):
            for tensor in tensors:
                tensor.zero_()

    def step(
        self, loss: Tensor | None, learning_rate: float, only: Collection[int] | None = None, ranks: Ranks = ALONE
    ) -> Tensor:
        """Step down the gradient of `loss` (summed over ranks; None: this rank adds nothing) in the parameters of
        `only`. Returns 1, on the loss's device, if loss or gradient were not finite and nothing was changed, else 0."""
        for parameter in self.parameters:
            parameter.grad = None
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        # The kernel relies on gradients in the parameters' memory layout, which `autograd.grad` does not keep.
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
            settings = self.settings
            adam(
                [self.parameters[index] for index in used],
                given,
                [self.means[index] for index in used],
                [self.squares[index] for index in used],
                [],
                [self.steps[index] for index in used],
                fused=True,
                # The kernel divides gradients by this, and changes nothing if `found_inf` is 1.
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
        """Sum the loss and the gradients of parameters that any rank uses, in one message."""
        sizes = [parameter.numel() for parameter in self.parameters]
        joint = self.parameters[0].new_zeros(sum(sizes) + len(sizes) + 1)
        *pieces, uses, total = torch.split(joint, [*sizes, len(sizes), 1])
        # In the parameters' memory layout, for the kernel.
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
        """The moments of parameters that have taken a step, by NUMBER.NAME."""
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


class StackedOptimiser:
    """Adam on a stack of M models with P parameters each, whose weights and moments are matrices [M, numbers of a
    model]. The stack's parameters become views of the weights."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimisers: Sequence[Optimiser],
        settings: AdamSettings,
        storage: Tensor | None = None,
    ) -> None:
        """`storage` [M, numbers of a model]: where the weights go; None: into a new tensor."""
        self._parameters = list(parameters)
        self._optimisers = optimisers
        self.settings = settings
        sizes = [parameter[0].numel() for parameter in parameters]
        counts = torch.tensor(sizes, device=parameters[0].device)
        self._owner = torch.repeat_interleave(torch.arange(len(sizes), device=counts.device), counts)
        """By number of a model: its parameter."""
        self._weights = torch.cat([parameter.detach().flatten(1) for parameter in parameters], 1)
        self._steps = torch.stack([torch.stack(one.steps) for one in optimisers])
        self._means = torch.stack([_joined(one.means) for one in optimisers])
        self._squares = torch.stack([_joined(one.squares) for one in optimisers])
        if storage is not None:
            self._weights = storage.copy_(self._weights)
        self._sizes = sizes
        for parameter, own in zip(parameters, torch.split(self._weights, sizes, 1), strict=True):
            parameter.data = own.view(parameter.shape)

    def share(self) -> None:
        """Let the single optimisers, and the policies that they train, use the rows of the stack as their own."""
        for model, one in enumerate(self._optimisers):
            weights, means, squares = (
                torch.split(joint[model], self._sizes) for joint in (self._weights, self._means, self._squares)
            )
            one.steps = list(self._steps[model].unbind())
            for index, parameter in enumerate(one.parameters):
                parameter.data = weights[index].view(parameter.shape)
                one.means[index] = means[index].view(parameter.shape)
                one.squares[index] = squares[index].view(parameter.shape)

    def step(self, losses: Tensor, learning_rates: Tensor, may_change: Tensor) -> Tensor:
        """Step each model down the gradient of its own loss [M], in the parameters of `may_change` [M, P]. Returns the
        models that were not changed because their loss or gradient was not finite."""
        gradients = torch.autograd.grad(losses.sum(), self._parameters, allow_unused=True)
        return self.descend(gradients, losses.detach(), learning_rates, may_change)

    def descend(
        self, gradients: Sequence[Tensor | None], losses: Tensor, learning_rates: Tensor, may_change: Tensor
    ) -> Tensor:
        """The part of `step` after the backward pass. It may be replaced by itself compiled."""
        settings = self.settings
        with torch.no_grad():
            found = [
                torch.zeros_like(parameter) if gradient is None else gradient
                for gradient, parameter in zip(gradients, self._parameters, strict=True)
            ]
            if any(gradient is None for gradient in gradients):
                used = torch.tensor([one is not None for one in gradients], device=losses.device)
                may_change = may_change & used
            changes = self._spread(may_change)
            gradient = torch.where(changes, torch.cat([one.flatten(1) for one in found], 1), 0.0)
            norms = torch.linalg.vector_norm(gradient, dim=1)
            finite = torch.isfinite(norms + losses)
            taken = may_change & finite[:, None]
            changes = changes & finite[:, None]
            scales = ((norms + 1e-6) / settings.max_gradient_norm).clamp_(min=1.0)
            gradient = torch.where(changes, gradient / scales[:, None], 0.0)

            self._steps += taken
            self._means.lerp_(gradient, changes * (1.0 - settings.beta1))
            self._squares.lerp_(gradient.square_(), changes * (1.0 - settings.beta2))
            steps = self._steps.double().clamp_(min=1.0)  # float32 is too coarse for 1 - beta2
            sizes = (taken * learning_rates[:, None] / (1.0 - settings.beta1**steps)).float()
            corrections = (1.0 - settings.beta2**steps).sqrt_().float()
            deviations = (self._squares.sqrt() / self._spread(corrections)).add_(settings.epsilon)
            self._weights.sub_(deviations.reciprocal_().mul_(self._means).mul_(self._spread(sizes)))
        return ~finite

    def _spread(self, by_parameter: Tensor) -> Tensor:
        """Expand a value per parameter to all of its numbers."""
        return by_parameter.index_select(1, self._owner)

    @torch.no_grad()
    def hand_back(self) -> None:
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for model, one in enumerate(self._optimisers):
            sizes = [parameter.numel() for parameter in one.parameters]
            for own, joint in ((one.parameters, self._weights), (one.means, self._means), (one.squares, self._squares)):
                targets += own
                pieces = torch.split(joint[model], sizes)
                sources += [piece.view(tensor.shape) for piece, tensor in zip(pieces, own, strict=True)]
            targets += one.steps
            sources += self._steps[model].unbind()
        torch._foreach_copy_(targets, sources)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


Measured = Mapping[int, tuple[float, Mapping[str, float]]]
"""Statistics of one gradient step by kind of seat, with its weight."""
OnDevice = dict[int, tuple[float, Mapping[str, Tensor]]]
"""Like `Measured`, on the device."""


class GradientStep(NamedTuple):
    """The result of one gradient step."""

    broken: bool
    """Loss or gradient were not finite, so that it was not taken."""
    statistics: Mapping[str, float]


def total_loss(losses: Mapping[int, Loss], weights: Mapping[int, float]) -> Tensor | None:
    """The mean over the kinds of seat, or with weights this rank's part of it; None if it has no minibatch."""
    if weights:
        return torch.stack([weights[kind] * loss.total for kind, loss in losses.items()]).sum()
    totals = [loss.total for loss in losses.values()]
    if len(totals) < 2:
        return totals[0] if totals else None
    return torch.stack(totals).mean()


def gradient_steps(ranks: Ranks, broken: Sequence[Tensor], measured: Sequence[OnDevice]) -> list[GradientStep]:
    """Read all numbers in one transfer from the device, and join those of all ranks."""
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


def means(steps: Sequence[Measured]) -> dict[str, float]:
    """Statistics of one gradient step: the weighted mean over ranks, then over the kinds of seat that have it."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for step in steps:
        for kind, (weight, statistics) in step.items():
            for name, value in statistics.items():
                found.setdefault(name, {}).setdefault(kind, []).append((weight, value))
    return {name: fmean(map(_weighted, kinds.values())) for name, kinds in found.items()}


def _weighted(values: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in values)
    if len(values) == 1 or not total:
        return fmean(value for _, value in values)
    return sum(weight * value for weight, value in values) / total


Orders = dict[int, torch.Tensor]
"""By kind of seat: the trajectories, or the valid rows of a flat batch, in the order of one epoch."""


def minibatches(
    batches: Mapping[int, Batch],
    spread: Mapping[int, Spread] | None,
    *,
    whole: bool,
    size: int,
    rng: np.random.Generator,
) -> Iterator[tuple[dict[int, Batch], dict[int, float]]]:
    """One epoch over the batches of all kinds of seat, in pieces of about `size` decisions of flat batches or, with
    `whole`, of whole trajectories. With ranks, each piece comes with its weight in the mean of all, by kind of seat."""
    if spread is not None:
        yield from _shared_minibatches(batches, spread, whole=whole, size=size, rng=rng)
        return
    orders, num = draw_orders(batches, whole=whole, size=size, rng=rng)
    pieces = {kind: order.tensor_split(num) for kind, order in orders.items()}
    for part in range(num):
        minibatch: dict[int, Batch] = {}
        for kind, batch in batches.items():
            index = pieces[kind][part]
            if len(index):
                minibatch[kind] = batch.columns(index) if whole else batch.pick(index, all_valid=True)
        if minibatch:
            yield minibatch, {}


class Spread(NamedTuple):
    """How the pieces of one kind of seat's minibatches are distributed over the ranks."""

    first: int
    """Number of this rank's first piece in the sequence of all ranks' pieces."""
    own: int
    """Pieces of this rank."""
    total: int
    """Pieces of all ranks."""
    decisions: IntArray | None
    """By piece of all ranks; None: one each."""

    def count(self, pieces: IntArray) -> int:
        return len(pieces) if self.decisions is None else int(self.decisions[pieces].sum())

    @property
    def num_decisions(self) -> int:
        return self.total if self.decisions is None else int(self.decisions.sum())


def spread_over(ranks: Ranks, batches: Mapping[int, Batch], *, whole: bool) -> dict[int, Spread]:
    """By kind of seat in any rank. Pieces are whole trajectories or single decisions."""
    own: dict[int, Any] = {
        kind: batch.valid.sum(0).tolist() if whole else int(batch.valid.sum()) for kind, batch in batches.items()
    }
    everywhere = ranks.gather(own)
    found = {}
    for kind in sorted({kind for one in everywhere for kind in one}):
        held = [one.get(kind, [] if whole else 0) for one in everywhere]
        sizes = [len(one) for one in held] if whole else held
        decisions = np.array([count for one in held for count in one], np.int64) if whole else None
        found[kind] = Spread(sum(sizes[: ranks.rank]), sizes[ranks.rank], sum(sizes), decisions)
    return found


def _shared_minibatches(
    batches: Mapping[int, Batch], spread: Mapping[int, Spread], *, whole: bool, size: int, rng: np.random.Generator
) -> Iterator[tuple[dict[int, Batch], dict[int, float]]]:
    """This rank's part, maybe empty, of the minibatches of all ranks, which all draw the same order."""
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
    """A random order for one epoch, and the number of pieces to cut it into (as `tensor_split` does)."""
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
