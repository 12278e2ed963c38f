"""The policy interface: turns observations into actions while playing, and into log-probabilities
while learning. `NetworkPolicy` (models/network_policy.py) is ours; a user's own class works as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ludus.data.batch import Batch
from ludus.data.specs import ArraySpec, SeatKind
from ludus.data.trees import Array, Tree

_VALUE_NAMES = frozenset(("value", "critic"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Acted:
    """Numpy rows, one per observation (with a leading model axis if the policy is a stack)."""

    action: Tree
    log_prob: Array
    """[rows, heads]; 0 for heads that the action does not use."""
    value: Array
    """[rows]; zeros if not asked for."""
    state: Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Unrolled:
    """Tensors with the leading axes of the batch that was unrolled: [T+1, B] or [rows]."""

    log_prob: Tensor
    """[..., heads]: of the actions in the batch; 0 for heads not in use."""
    entropy: Tensor
    """[..., heads]: of each head given the earlier heads' actions; 0 for heads not in use."""
    value: Tensor
    """[...]: in units of reward."""
    log_probs: Mapping[str, Tensor]
    """Per head the log-probabilities of all options, [..., options] ([..., picks, options] for a
    pointer with several picks); illegal ones are about `operators.LOWEST`, so that p * log p is 0.
    Rows that do not use the head hold no distribution."""
    in_use: Tensor
    """[..., heads] bool."""
    values: Tensor | None = None
    """[..., names]: of the further rewards of the kind of seat, if it has any."""


class Policy(Protocol):
    """Usually an `nn.Module`; its parameters and buffers are the player's weights."""

    @property
    def kind(self) -> SeatKind: ...
    @property
    def state_arrays(self) -> Mapping[str, ArraySpec]:
        """Shape of one row of memory; empty if there is none."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers that one row of `act` uses up."""

    def initial_state(self, rows: int) -> Tree: ...
    def act(
        self,
        observation: Tree,
        legal: Tree,
        state: Tree,
        uniforms: Array,
        *,
        greedy: bool = False,
        want_value: bool = True,
    ) -> Acted:
        """Sample actions; `uniforms` is float32 [rows, num_draws] in [0, 1), so the caller owns chance."""

    def unroll(self, batch: Batch) -> Unrolled:
        """Evaluate the batch's own actions, with gradient. Memory starts from `batch.state` and is
        zeroed where `batch.first`."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name, not copied: weights are renewed by writing into them."""


def value_parameters(policy: Policy) -> list[int]:
    """Places in `policy.parameters()` of those that only the value depends on; empty if it does not say.

    A policy of a user's own says so by calling them, or the module that they are in, "value" or "critic".
    """
    if not isinstance(policy, nn.Module):
        return []
    names = (name for name, _ in policy.named_parameters())
    return [index for index, name in enumerate(names) if _VALUE_NAMES & set(name.split("."))]


def convolves(policy: Policy) -> bool:
    """Whether it has convolutions, of which it is cheaper to see few different numbers of rows."""
    return any(parameter.dim() >= 4 for parameter in policy.parameters())


class ModelConfig(Protocol):
    """What an experiment names as its model."""

    def build(self, kind: SeatKind, seed: int) -> Policy:
        """A policy with fresh weights that depend on the seed only."""


@runtime_checkable
class ChecksKind(Protocol):
    """A `ModelConfig` that can tell, before anything is built, whether it fits a kind of seat."""

    def check(self, kind: SeatKind) -> None:
        """A ValueError that names the setting if it does not."""
