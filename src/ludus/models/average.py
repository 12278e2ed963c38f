"""An exponential average of a policy's weights over its updates: steadier than the weights themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ludus.data.trees import Array, Tree
from ludus.models.policy import Policy
from ludus.models.tensors import share

_UPDATES = "updates"
_PREFIX = "average."


class WeightAverage:
    """Follows all parameters and buffers of `policy`.

    After n updates the newest weights count (1 - decay) / (1 - decay^n): the first update copies, and the
    start from nothing leaves no bias.
    """

    def __init__(self, policy: Policy, *, decay: float = 0.99) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        self.decay = decay
        self.num_updates = 0
        self._live: dict[str, torch.Tensor] = policy.state_dict()
        self._average = {name: tensor.clone() for name, tensor in self._live.items()}
        floating = [name for name, tensor in self._live.items() if tensor.is_floating_point()]
        self._pairs = [self._average[name] for name in floating], [self._live[name] for name in floating]
        self._counters = [name for name in self._live if name not in set(floating)]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the policy's present weights."""
        self.num_updates += 1
        share_of_newest = (1.0 - self.decay) / (1.0 - self.decay**self.num_updates)
        averages, live = self._pairs
        torch._foreach_lerp_(averages, live, share_of_newest)
        for name in self._counters:
            self._average[name].copy_(self._live[name])

    def weights(self) -> Tree:
        """Copies by name, as `weights_of` gives; before the first update, the weights at construction."""
        return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in self._average.items()}

    def state(self) -> Tree:
        """Everything that `load` needs to go on."""
        averages = {_PREFIX + name: array for name, array in self.weights().items()}
        return {_UPDATES: np.array(self.num_updates, np.int64), **averages}

    @torch.no_grad()
    def load(self, state: Mapping[str, Array]) -> None:
        missing = [name for name in self._average if _PREFIX + name not in state]
        if missing or _UPDATES not in state:
            raise ValueError(f"the state of a weight average lacks {[*missing, _UPDATES][0]!r}")
        self.num_updates = int(state[_UPDATES])
        for name, tensor in self._average.items():
            tensor.copy_(share(state[_PREFIX + name]))
