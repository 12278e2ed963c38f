"""A policy as an ONNX graph: float32 arrays in, actions out, for any number of rows.

Normalisation, masks and sampling are inside of the graph. Opset 16 and arrays of float32 and integers alone keep it
within what both onnxruntime and Unity's inference engine take.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.data.specs import CRITIC_PREFIX, ArraySpec, Box, Entities, Pointer, SeatKind
from ludus.data.trees import Array, Tree
from ludus.models.continuous import Numbers
from ludus.models.decisions import Chooser, Decision, draws_of
from ludus.models.module_policy import ModulePolicy
from ludus.models.network_policy import NetworkPolicy
from ludus.models.policy import Policy
from ludus.models.tensors import DeferredChecks, share

OPSET = 16
UNIFORMS = "uniforms"
_TRACED_ROWS = 3
"""Any number but 1, which would become a constant of the graph."""


class ExportError(ValueError):
    """A policy that cannot become a graph; the message says why."""


class GraphChooser(Chooser):
    """Samples inside of a graph, with one column of `uniforms` [rows, draws] per choice and per number of a `Box`. A
    column below 0 takes the most probable option, or the mode of the number. In float32, so an option is drawn with its
    probability up to about 1e-6."""

    def __init__(self, uniforms: Tensor) -> None:
        self._uniforms = uniforms
        self._column = 0
        self.logits: dict[str, list[Tensor]] = {}
        """By head, one tensor [rows, options] per pick; illegal options have the lowest. Of a `Box`, the parameters of
        its distribution [rows, numbers, 2]."""

    def choose(self, head: str, logits: Tensor, pick: int | None) -> Decision:
        self.logits.setdefault(head, []).append(logits)
        uniform = self._uniforms[:, self._column : self._column + 1]
        self._column += 1
        log_probs = functional.log_softmax(logits, -1)
        cumulative = log_probs.exp().cumsum(-1)
        total = cumulative[:, -1:]
        # Below the total, so that an option of probability 0 is never the first to exceed it.
        threshold = torch.minimum(uniform * total, total * (1.0 - 2.0**-23))
        drawn = (cumulative <= threshold).long().sum(-1)
        action = torch.where(uniform[:, 0] < 0.0, logits.argmax(-1), drawn)
        log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return Decision(action, log_prob, None, None)

    def choose_numbers(self, head: str, numbers: Numbers, parameters: Tensor) -> Tensor:
        self.logits[head] = [parameters]
        uniforms = self._uniforms[:, self._column : self._column + numbers.size]
        self._column += numbers.size
        return torch.where(uniforms < 0.0, numbers.mode(parameters), numbers.draw(parameters, uniforms.clamp(min=0.0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphArray:
    """One input or output of a graph, without its leading axis of rows."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphLayout:
    """The inputs and outputs of a graph, in order."""

    inputs: tuple[GraphArray, ...]
    outputs: tuple[GraphArray, ...]
    draws: tuple[str, ...]
    """The head that each column of `uniforms` is for."""


def layout_of(policy: Policy, *, value: bool = False, logits: bool = False) -> GraphLayout:
    """The inputs and outputs of the graph of a policy."""
    kind = policy.kind
    seen, legal = kind.observation.arrays, kind.legal_arrays
    inputs = [_array("observation", name, seen[name]) for name in _names_read(policy, value=value)]
    inputs += [_array("legal", name, spec) for name, spec in legal.items()]
    inputs += [_array("memory", name, spec) for name, spec in policy.state_arrays.items()]
    draws = [name for name, head in kind.action.heads.items() for _ in range(draws_of(head))]
    inputs.append(GraphArray(name=UNIFORMS, shape=(len(draws),)))
    outputs = [
        GraphArray(name=f"action.{name}", shape=spec.shape, dtype=str(spec.dtype))
        for name, spec in kind.action.arrays.items()
    ]
    outputs.append(GraphArray(name="log_prob", shape=(len(kind.action.heads),)))
    if logits:
        outputs += [GraphArray(name=f"logits.{name}", shape=_logits_shape(kind, name)) for name in kind.action.heads]
    if value:
        outputs.append(GraphArray(name="value", shape=()))
    outputs += [_array("next_memory", name, spec) for name, spec in policy.state_arrays.items()]
    return GraphLayout(inputs=tuple(inputs), outputs=tuple(outputs), draws=tuple(draws))


class PolicyGraph(nn.Module):
    """Computes the outputs of the graph of a policy from its inputs. Tracing it gives the graph."""

    def __init__(self, policy: Policy, *, value: bool = False, logits: bool = False) -> None:
        super().__init__()
        self.layout = layout_of(policy, value=value, logits=logits)
        if not isinstance(policy, NetworkPolicy | ModulePolicy):
            raise ExportError(
                f"{type(policy).__name__} is a Policy of your own; only networks of Ludus and a `ModulePolicy` around "
                "an nn.Module become ONNX"
            )
        self.policy = policy
        self.value = value

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = {array.name: tensor for array, tensor in zip(self.layout.inputs, inputs, strict=True)}
        kind = self.policy.kind
        chooser = GraphChooser(given[UNIFORMS])
        seen = {name: _scaled(tensor, name, kind) for name, tensor in _group("observation", given).items()}
        legal = {name: tensor > 0.5 for name, tensor in _group("legal", given).items()}
        with DeferredChecks(collect=False):
            decisions, value, memory = self.policy.forward(
                seen, legal, _group("memory", given), chooser, want_value=self.value
            )
        columns = decisions.columns(value[..., 0] if value is not None else None, {})
        columns |= {f"next_memory.{name}": tensor for name, tensor in memory.items()}
        for head, picks in chooser.logits.items():
            columns[f"logits.{head}"] = torch.stack(picks, 1) if _picks(kind, head) > 1 else picks[0]
        return tuple(columns[array.name] for array in self.layout.outputs)

    def outputs(self, given: Mapping[str, Array]) -> Tree:
        """The outputs by name, from the inputs by name, computed by PyTorch."""
        with torch.inference_mode():
            found = self(*(share(given[array.name]) for array in self.layout.inputs))
        return {array.name: tensor.numpy() for array, tensor in zip(self.layout.outputs, found, strict=True)}


def onnx_bytes(graph: PolicyGraph, metadata: Mapping[str, str]) -> bytes:
    """The graph in ONNX's format. Raises `ExportError` with what the network does that ONNX cannot express."""
    import onnx

    weight = next(graph.parameters(), None)
    if weight is not None and weight.device.type != "cpu":
        raise ExportError(f"its weights are on {weight.device}: load it on the CPU")
    examples = tuple(_example(array, graph.layout.draws) for array in graph.layout.inputs)
    names = [array.name for array in graph.layout.inputs], [array.name for array in graph.layout.outputs]
    written = io.BytesIO()
    with warnings.catch_warnings(record=True) as said, _silent_output(), torch.no_grad():
        warnings.simplefilter("always")
        try:
            torch.onnx.export(
                graph,
                examples,
                written,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=names[0],
                output_names=names[1],
                dynamic_axes={name: {0: "rows"} for name in (*names[0], *names[1])},
            )
        except Exception as error:  # whatever a user's module may raise
            raise ExportError(f"{_network(graph)}: {_first_line(error)}{_doubts(said)}") from error
    model = onnx.load_from_string(written.getvalue())
    # Tracing forgets some sizes, and inputs that the network does not use.
    for arrays, described in ((graph.layout.inputs, model.graph.input), (graph.layout.outputs, model.graph.output)):
        del described[:]
        described.extend(_value_info(array) for array in arrays)
    onnx.helper.set_model_props(model, dict(metadata))
    model.producer_name = "ludus"
    onnx.checker.check_model(model)
    found: bytes = model.SerializeToString()
    return found


def _value_info(array: GraphArray) -> Any:
    import onnx

    kind = onnx.TensorProto.INT32 if array.dtype == "int32" else onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(array.name, kind, ["rows", *array.shape])


@contextmanager
def _silent_output() -> Iterator[None]:
    """The exporter prints the whole graph from C++ when it fails."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _array(group: str, name: str, spec: ArraySpec) -> GraphArray:
    return GraphArray(name=f"{group}.{name}", shape=spec.shape)


def _group(prefix: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in given.items() if name.startswith(start)}


def _names_read(policy: Policy, *, value: bool) -> tuple[str, ...]:
    """The arrays of the observation that the graph takes."""
    if isinstance(policy, NetworkPolicy):
        names = policy.names_read(want_value=value)
    else:
        names = tuple(name for name in policy.kind.observation.arrays if not name.startswith(CRITIC_PREFIX))
    hidden = [name for name in names if name.startswith(CRITIC_PREFIX)]
    if hidden:
        raise ExportError(f"the value needs {hidden[0]!r}, which exists in training only: export without the value")
    return names


def _picks(kind: SeatKind, head: str) -> int:
    spec = kind.action.heads[head]
    return spec.picks if isinstance(spec, Pointer) else 1


def _logits_shape(kind: SeatKind, head: str) -> tuple[int, ...]:
    spec = kind.action.heads[head]
    if isinstance(spec, Box):
        return (spec.size, 2)
    picks, options = _picks(kind, head), kind.num_options(head)
    return (options,) if picks == 1 else (picks, options + 1)


def _scaled(tensor: Tensor, name: str, kind: SeatKind) -> Tensor:
    """Bytes are divided by 255, as networks do with arrays of bytes; the numbers of types and categories are not."""
    part = kind.observation.parts.get(name)
    if part is None:  # the length of a list of entities
        return tensor.int()
    if part.dtype != "uint8":
        return tensor
    if not isinstance(part, Entities):
        return tensor / 255.0
    first, last = int(part.types > 0), part.features - len(part.categories)
    return torch.cat((tensor[..., :first], tensor[..., first:last] / 255.0, tensor[..., last:]), -1)


def _example(array: GraphArray, draws: tuple[str, ...]) -> Tensor:
    shape = (_TRACED_ROWS, *array.shape)
    if array.name == UNIFORMS:
        return torch.full((_TRACED_ROWS, len(draws)), 0.5)
    return torch.ones(shape) if array.name.startswith("legal.") or not array.shape else torch.zeros(shape)


def _network(graph: PolicyGraph) -> str:
    policy: Any = graph.policy
    inner = policy.module if isinstance(policy, ModulePolicy) else policy
    return f"{type(inner).__module__}.{type(inner).__qualname__} does not become ONNX"


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _doubts(said: list[warnings.WarningMessage]) -> str:
    """What the tracer warned of: a step of the network that depends on the values of a tensor."""
    found = [one for one in said if one.category.__name__ == "TracerWarning"]
    return "".join(f"\n  {one.filename}:{one.lineno}: {str(one.message).splitlines()[0]}" for one in found[:3])
