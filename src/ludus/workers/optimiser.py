"""Adam with clipped gradients that takes no step on numbers that are not finite, and asks the device for
nothing in between: whether a step was taken is known when somebody looks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ludus.data.trees import Array, Tree
from ludus.workers.ranks import ALONE, Ranks

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
