"""The optimisers of several players in one: each of them clips, steps and skips by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ludus.workers.optimiser import AdamSettings, Optimiser


class StackedOptimiser:
    """Adam on a stack of M models with P parameters each.

    All numbers of one kind lie in one matrix [M, numbers of a model], so that a step is a few calls on
    matrices, however many models and parameters there are. The stack's parameters become views of it.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimisers: Sequence[Optimiser], settings: AdamSettings
    ) -> None:
        self._parameters = list(parameters)
        self._optimisers = optimisers
        self._settings = settings
        sizes = [parameter[0].numel() for parameter in parameters]
        device = parameters[0].device
        self._owner = torch.repeat_interleave(
            torch.arange(len(sizes), device=device), torch.tensor(sizes, device=device)
        )
        """Which parameter each number belongs to."""
        self._weights = torch.cat([parameter.detach().flatten(1) for parameter in parameters], 1)
        self._steps = torch.stack([torch.stack(one.steps) for one in optimisers])
        self._means = torch.stack([_joined(one.means) for one in optimisers])
        self._squares = torch.stack([_joined(one.squares) for one in optimisers])
        for parameter, own in zip(parameters, torch.split(self._weights, sizes, 1), strict=True):
            parameter.data = own.view(parameter.shape)

    def step(self, losses: Tensor, learning_rates: Tensor, may_change: Tensor) -> Tensor:
        """Each model steps down the gradient of its own loss [M]; `may_change` [M, P] says which parameters.

        Returns which models were left as they were because their loss or gradient was not finite.
        """
        gradients = torch.autograd.grad(losses.sum(), self._parameters, allow_unused=True)
        settings = self._settings
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
            finite = torch.isfinite(norms + losses.detach())
            taken = may_change & finite[:, None]
            changes = changes & finite[:, None]
            scales = ((norms + 1e-6) / settings.max_gradient_norm).clamp_(min=1.0)
            gradient = torch.where(changes, gradient / scales[:, None], 0.0)

            self._steps += taken
            self._means.lerp_(gradient, changes * (1.0 - settings.beta1))
            self._squares.lerp_(gradient.square_(), changes * (1.0 - settings.beta2))
            steps = self._steps.double().clamp_(min=1.0)  # in float32 little would be left of 1 - beta2
            sizes = (taken * learning_rates[:, None] / (1.0 - settings.beta1**steps)).float()
            corrections = (1.0 - settings.beta2**steps).sqrt_().float()
            deviations = (self._squares.sqrt() / self._spread(corrections)).add_(settings.epsilon)
            self._weights.sub_(deviations.reciprocal_().mul_(self._means).mul_(self._spread(sizes)))
        return ~finite

    def _spread(self, by_parameter: Tensor) -> Tensor:
        """From one number per parameter to one per number of it."""
        return by_parameter.index_select(1, self._owner)

    @torch.no_grad()
    def hand_back(self) -> None:
        """Give the players' own parameters and moments what they have become."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for model, one in enumerate(self._optimisers):
            sizes = [parameter.numel() for parameter in one.parameters]
            for own, joint in (
                (one.parameters, self._weights),
                (one.means, self._means),
                (one.squares, self._squares),
            ):
                targets += own
                pieces = torch.split(joint[model], sizes)
                sources += [piece.view(tensor.shape) for piece, tensor in zip(pieces, own, strict=True)]
            targets += one.steps
            sources += self._steps[model].unbind()
        torch._foreach_copy_(targets, sources)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
