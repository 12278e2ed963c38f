"""Acting by CUDA graphs: a decision of a large network is a thousand small kernels, and starting them one by one takes
longer than running them. A graph starts all of them at once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ludus.data.trees import Array, Tree
from ludus.models.decisions import Drawn, Greedy, acted_of
from ludus.models.network_policy import NetworkPolicy, can_stack
from ludus.models.policy import Acted, Policy, architecture_digest
from ludus.models.tensors import DeferredChecks, share, to_host

_FAILED = "failed"
_LEAST_ROWS = 32
"""Fewer rows are padded; above, to the next power of two, so that there are few graphs."""
_WARM_UP = 2
"""Calls before a capture, in which libraries choose their kernels and allocate their workspaces."""

log = logging.getLogger(__name__)


class _Key(NamedTuple):
    architecture: str
    rows: int
    greedy: bool
    want_value: bool


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph, and the arrays that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


class GraphedActing:
    """`Policy.act` by graphs, one for each architecture and number of rows. Players of one architecture share a network
    for their graphs, into which their weights are copied before each call. A policy that is on a CPU, is not ours or
    cannot be captured acts as it does without this class."""

    def __init__(self) -> None:
        self._digests: WeakKeyDictionary[NetworkPolicy, str] = WeakKeyDictionary()
        self._weights: WeakKeyDictionary[NetworkPolicy, list[Tensor]] = WeakKeyDictionary()
        self._networks: dict[str, NetworkPolicy | None] = {}
        """By architecture; None: it cannot be captured."""
        self._captured: dict[_Key, _Captured] = {}
        self._pool: Any = None
        """Memory that all graphs share, since they never run at the same time."""

    def covers(self, policy: Policy) -> bool:
        """Whether `act` uses a graph for this policy, as far as is known."""
        return (
            can_stack(policy)
            and policy.device.type == "cuda"
            and self._networks.get(self._digest(policy), policy) is not None
        )

    def act(self, policy: Policy, observation: Tree, legal: Tree, state: Tree, uniforms: Array, **how: bool) -> Acted:
        """`policy.act`. Its errors are the same too: a call that fails a check is repeated without the graph."""
        if not self.covers(policy):
            return policy.act(observation, legal, state, uniforms, **how)
        assert can_stack(policy)
        greedy, want_value = how.get("greedy", False), how.get("want_value", True)
        seen = {name: observation[name] for name in policy.names_read(want_value=want_value)}
        arrays = {f"observation.{name}": array for name, array in seen.items()}
        arrays |= {f"legal.{name}": array for name, array in legal.items()}
        arrays |= {f"state.{name}": array for name, array in state.items()}
        arrays["uniforms"] = uniforms
        with torch.inference_mode():
            found = self._run(policy, arrays, greedy=greedy, want_value=want_value)
        if found is None or found.pop(_FAILED):
            return policy.act(observation, legal, state, uniforms, **how)
        return acted_of(found)

    def _run(self, policy: NetworkPolicy, arrays: Tree, *, greedy: bool, want_value: bool) -> Tree | None:
        """The columns of the decisions on the host; None if the policy cannot be captured."""
        digest = self._digest(policy)
        count = len(arrays["uniforms"])
        key = _Key(digest, max(_LEAST_ROWS, 1 << (count - 1).bit_length()), greedy, want_value)
        if key not in self._captured:
            network = self._networks.setdefault(digest, copy.deepcopy(policy).requires_grad_(False))
            assert network is not None
            inputs = {name: _filled(array, key.rows, policy.device) for name, array in arrays.items()}
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            try:
                self._captured[key] = _capture(network, inputs, self._pool, greedy=greedy, want_value=want_value)
            except Exception as error:
                log.warning("acting without CUDA graphs, since capturing one failed: %s", error)
                self._networks[digest] = None
                return None
        captured, network = self._captured[key], self._networks[digest]
        assert network is not None
        torch._foreach_copy_(self._tensors(network), self._tensors(policy))
        for name, array in arrays.items():
            _fill(captured.inputs[name], array)
        captured.graph.replay()
        return to_host(
            {name: column if name == _FAILED else column[:count] for name, column in captured.outputs.items()}
        )

    def _tensors(self, policy: NetworkPolicy) -> list[Tensor]:
        """Its weights, into which new ones are written."""
        found = self._weights.get(policy)
        if found is None:
            found = self._weights[policy] = list(policy.state_dict().values())
        return found

    def _digest(self, policy: NetworkPolicy) -> str:
        found = self._digests.get(policy)
        if found is None:
            found = self._digests[policy] = f"{architecture_digest(policy)} {policy.device}"
        return found


def _capture(
    network: NetworkPolicy, inputs: Mapping[str, Tensor], pool: Any, *, greedy: bool, want_value: bool
) -> _Captured:
    device = network.device
    torch.cuda.synchronize(device)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            decide_at_once(network, inputs, greedy=greedy, want_value=want_value)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        outputs = decide_at_once(network, inputs, greedy=greedy, want_value=want_value)
    return _Captured(graph, inputs, outputs)


def decide_at_once(
    network: NetworkPolicy, inputs: Mapping[str, Tensor], *, greedy: bool, want_value: bool
) -> dict[str, Tensor]:
    """Decisions in fixed shapes, without waiting for the device, and whether a check failed."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in inputs.items() if name.startswith(prefix)}

    with DeferredChecks() as checks:
        decisions, values, state = network.forward(
            under("observation."),
            under("legal."),
            under("state."),
            Greedy() if greedy else Drawn(inputs["uniforms"]),
            want_value=want_value,
        )
        columns = decisions.columns(None if values is None else values[..., 0], state)
        return columns | {_FAILED: checks.any_failed(network.device)}


def _filled(array: Array, rows: int, device: torch.device) -> Tensor:
    """A tensor of so many rows that begins with those of the array."""
    tensor = share(array)
    filled = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=device)
    _fill(filled, array)
    return filled


def _fill(target: Tensor, array: Array) -> None:
    """Write the first rows. Those that are missing are copies of a real one, since no other is sure to have a legal
    action."""
    tensor = share(array)
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    count = len(tensor)
    target[:count].copy_(tensor, non_blocking=True)
    if count < len(target):
        target[count:] = target[:1]
