"""The interfaces of policies and models, their weights and averages, the value scale, and devices."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ludus.data.batch import Batch
from ludus.data.checks import nearest, require_in
from ludus.data.specs import ArraySpec, SeatKind
from ludus.data.trees import Array, Tree, under
from ludus.models.tensors import share

_VALUE_NAMES = frozenset(("value", "critic"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Acted:
    """The output of `Policy.act`: numpy rows, one per observation. A stack has a leading model axis."""

    action: Tree
    log_prob: Array
    """[rows, heads]; 0 for heads that the action does not use."""
    value: Array
    """[rows]; zeros if not requested."""
    state: Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Unrolled:
    """The output of `Policy.unroll`: tensors with the leading axes of the batch, [T+1, B] or [rows]."""

    log_prob: Tensor
    """[..., heads]: log-probability of the actions in the batch; 0 for heads not in use."""
    entropy: Tensor
    """[..., heads]: entropy of each head given the earlier heads' actions; 0 for heads not in use."""
    value: Tensor
    """[...]: in units of reward."""
    log_probs: Mapping[str, Tensor]
    """Per head the log-probabilities of all options, [..., options] ([..., picks, options] for a pointer with
    several picks). Illegal ones are about `operators.LOWEST`, so that p * log p is 0. Rows that do not use the
    head hold no distribution. For a `Box`, the parameters of its distribution, [..., numbers, 2]."""
    in_use: Tensor
    """[..., heads] bool."""
    values: Tensor | None = None
    """[..., names]: values of the further rewards, if the kind of seat has any."""
    action_values: Tensor | None = None
    """[..., options]: values of the options of the only head, if the critic tells them; those of illegal ones mean
    nothing. Their expectation under the policy is `value`."""


class Policy(Protocol):
    """A policy, usually an `nn.Module`. Its parameters and buffers are the player's weights."""

    @property
    def kind(self) -> SeatKind: ...
    @property
    def state_arrays(self) -> Mapping[str, ArraySpec]:
        """Specs of one row of memory; empty without memory."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers that one row of `act` uses."""

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
        """Sample actions. The caller provides the randomness: `uniforms`, float32 [rows, num_draws] in [0, 1)."""

    def unroll(self, batch: Batch) -> Unrolled:
        """Evaluate the batch's actions, with gradient. Memory starts from `batch.state`, from 0 at `first`."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name, without copies: new weights are written into them."""


def require_no_memory(policy: Policy) -> None:
    if policy.state_arrays:
        raise ValueError("a network with a memory cannot search: a search jumps between positions")


@torch.inference_mode()
def evaluate(policy: Policy, observation: Tree, legal: Tree) -> tuple[Array, Array]:
    """Log-probabilities of all options [rows, options] and values [rows], of a policy with one head and no memory."""
    require_no_memory(policy)
    (head,) = policy.kind.action.heads
    count = len(next(iter(observation.values())))
    mask = legal.get(head)
    action = np.zeros(count, np.int32) if mask is None else mask.argmax(1).astype(np.int32)
    never = np.zeros(count, np.bool_)
    batch = Batch(observation=observation, legal=legal, action={head: action}, valid=~never, first=never)
    unrolled = policy.unroll(batch)
    return unrolled.log_probs[head].cpu().numpy(), unrolled.value.cpu().numpy()


def value_parameters(policy: Policy) -> list[int]:
    """Indices into `policy.parameters()` of parameters that are, or whose module is, called "value" or "critic"."""
    if not isinstance(policy, nn.Module):
        return []
    names = (name for name, _ in policy.named_parameters())
    return [index for index, name in enumerate(names) if _VALUE_NAMES & set(name.split("."))]


def uses_convolutions(policy: Policy) -> bool:
    """Whether the policy has convolutions, which are cheaper with few different numbers of rows."""
    return any(parameter.dim() >= 4 for parameter in policy.parameters())


class ModelConfig(Protocol):
    """The model of an experiment: builds policies."""

    def build(self, kind: SeatKind, seed: int) -> Policy:
        """A policy with fresh weights that depend only on the seed."""


@runtime_checkable
class ChecksKind(Protocol):
    """A `ModelConfig` that can check a kind of seat before anything is built."""

    def check(self, kind: SeatKind) -> None:
        """Raise a ValueError that names the setting if the model does not fit."""


def weights_of(policy: Policy) -> Tree:
    """Copies of all parameters and buffers by name."""
    return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in policy.state_dict().items()}


def replace_weights(policy: Policy, weights: Mapping[str, Array], *, model: int | None = None) -> None:
    """Copy `weights` into the policy in place, all or none. `model` is the index of one model of a stack."""
    own = policy.state_dict()
    if model is not None:
        own = {name: tensor[model] for name, tensor in own.items()}
    for name, tensor in own.items():
        if name not in weights:
            raise ValueError(f"weight {name!r} is missing{_nearest(name, weights)}")
        given, needed = tuple(weights[name].shape), tuple(tensor.shape)
        if given != needed:
            raise ValueError(f"weight {name!r} has shape {given}, the policy needs {needed}")
    for name in weights:
        if name not in own:
            raise ValueError(f"weight {name!r} is not one of the policy's{_nearest(name, own)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(share(weights[name]))


def join_kinds(policies: Sequence[Policy], trees: Iterable[Tree]) -> Tree:
    """The weights of a player, named KIND/PARAMETER, from the weights of its policies."""
    return {
        f"{policy.kind.name}/{name}": array
        for policy, tree in zip(policies, trees, strict=True)
        for name, array in tree.items()
    }


def load_weights(policies: Sequence[Policy], weights: Mapping[str, Array]) -> None:
    """Copy the weights of a player into its policies; the inverse of `join_kinds`."""
    for policy in policies:
        replace_weights(policy, under(f"{policy.kind.name}/", weights))


def architecture_digest(policy: Policy) -> str:
    """A digest that is equal for policies whose weights are interchangeable: the key of stacks."""
    described = [type(policy).__qualname__, getattr(policy, "signature", ""), repr(policy.kind)]
    for name, tensor in policy.state_dict().items():
        described.append(f"{name} {tuple(tensor.shape)} {tensor.dtype}")
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def joint_memory(memories: Iterable[Mapping[str, ArraySpec]]) -> dict[str, ArraySpec]:
    """Columns that hold the memory of any of these networks. Arrays of one name but other shapes are numbered."""
    joint: dict[str, ArraySpec] = {}
    for memory in memories:
        for name, spec in memory.items():
            joint.setdefault(_column(name, spec, joint), spec)
    return joint


def memory_columns(memory: Mapping[str, ArraySpec], joint: Mapping[str, ArraySpec]) -> dict[str, str]:
    """By array of a network's memory, its column among those of `joint_memory`."""
    return {name: _column(name, spec, joint) for name, spec in memory.items()}


def with_own_memory(batch: Batch, memory: Mapping[str, ArraySpec], joint: Mapping[str, ArraySpec]) -> Batch:
    """A batch whose state has the columns of `joint_memory`, with that of one network."""
    if memory == joint:
        return batch
    columns = memory_columns(memory, joint)
    return replace(batch, state={name: batch.state[column] for name, column in columns.items()})


def _column(name: str, spec: ArraySpec, joint: Mapping[str, ArraySpec]) -> str:
    numbered = (f"{name}@{number}" if number else name for number in count())
    return next(column for column in numbered if joint.get(column, spec) == spec)


def _nearest(name: str, names: Mapping[str, object]) -> str:
    close = nearest(name, names)
    return f"; the nearest name is {close!r}" if close else ""


_UPDATES = "updates"
_PREFIX = "average."


class WeightAverage:
    """An exponential moving average of all parameters and buffers of `policy`, without initial bias."""

    def __init__(self, policy: Policy, *, decay: float = 0.99) -> None:
        require_in(self, "[0, 1)", decay=decay)
        self.decay = decay
        self.num_updates = 0
        self._live: dict[str, torch.Tensor] = policy.state_dict()
        self._average = {name: tensor.clone() for name, tensor in self._live.items()}
        floating = [name for name, tensor in self._live.items() if tensor.is_floating_point()]
        self._pairs = [self._average[name] for name in floating], [self._live[name] for name in floating]
        self._counters = [name for name in self._live if name not in set(floating)]

    @torch.no_grad()
    def update(self) -> None:
        self.num_updates += 1
        share_of_newest = (1.0 - self.decay) / (1.0 - self.decay**self.num_updates)
        averages, live = self._pairs
        torch._foreach_lerp_(averages, live, share_of_newest)
        for name in self._counters:
            self._average[name].copy_(self._live[name])

    def weights(self) -> Tree:
        """Copies by name, like `weights_of`; before the first update, the weights at construction."""
        return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in self._average.items()}

    @torch.no_grad()
    def copy_to(self, policy: Policy) -> None:
        """Give the averaged weights to a copy of the policy."""
        for name, tensor in policy.state_dict().items():
            tensor.copy_(self._average[name])

    def state(self) -> Tree:
        """The state that `load` needs to continue."""
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


class ValueScale(nn.Module):
    """A running mean and deviation of the value targets, without initial bias."""

    mean: Tensor
    mean_square: Tensor
    weight: Tensor

    def __init__(self, *, decay: float = 0.99999, smallest_deviation: float = 0.1) -> None:
        super().__init__()
        self.decay = decay
        self.smallest_deviation = smallest_deviation
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("mean_square", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    @torch.no_grad()
    def update(self, targets: Tensor) -> None:
        """Add value targets in units of reward: [...] for one model, [M, ...] for a stack."""
        targets = targets.flatten(self.mean.dim())
        self.update_moments(targets.mean(-1), targets.square().mean(-1))

    @torch.no_grad()
    def update_moments(self, mean: Tensor, mean_square: Tensor) -> None:
        """`update` from the means of the targets and of their squares."""
        self.mean.lerp_(mean.to(self.mean), 1.0 - self.decay)
        self.mean_square.lerp_(mean_square.to(self.mean), 1.0 - self.decay)
        self.weight.lerp_(torch.ones_like(self.weight), 1.0 - self.decay)

    def normalise(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments(values.dim())
        return (values - mean) / deviation

    def denormalise(self, values: Tensor) -> Tensor:
        mean, deviation = self._moments(values.dim())
        return values * deviation + mean

    def _moments(self, dim: int) -> tuple[Tensor, Tensor]:
        """Mean and deviation, shaped for values of `dim` axes; 0 and 1 before the first update."""
        weight = self.weight.clamp(min=torch.finfo(torch.float32).tiny)
        mean = self.mean / weight
        variance = self.mean_square / weight - mean.square()
        deviation = variance.clamp(min=self.smallest_deviation**2).sqrt()
        deviation = torch.where(self.weight > 0, deviation, 1.0)
        shape = (*self.mean.shape, *(1,) * (dim - self.mean.dim()))
        return mean.reshape(shape), deviation.reshape(shape)


_FORMS = re.compile(r"auto|cpu|cuda(:\d+)?")


def require_device_name(setting: str, asked: str) -> None:
    """Raise unless the name has a known form. `find_device` checks whether this machine has the device."""
    if not _FORMS.fullmatch(asked):
        raise ValueError(f"{setting} must be auto, cpu, cuda or cuda:N, got {asked!r}")


class NoSuchDeviceError(ValueError):
    """This machine does not have the requested device."""


def find_device(asked: str, setting: str = "learner.device") -> torch.device:
    """The device called `asked`; "auto" is a GPU if there is one. Errors name the `setting`."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda" if count else "cpu")
    require_device_name(setting, asked)
    device = torch.device(asked)
    if device.type == "cuda" and (device.index or 0) >= count:
        there = f"{count} GPU{'s' * (count > 1)} (cuda:0 to cuda:{count - 1})" if count else "no usable GPU"
        raise NoSuchDeviceError(f"{asked} was asked for; this machine has {there}: use {setting}=cpu or auto")
    return device


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    name: str
    memory_bytes: int


def find_gpu(asked: str) -> Gpu | None:
    """The GPU that `asked` means on this machine; None if it means the CPU or there is no such GPU."""
    try:
        device = find_device(asked)
    except NoSuchDeviceError:
        return None
    if device.type != "cuda":
        return None
    facts = torch.cuda.get_device_properties(device)
    return Gpu(str(facts.name), int(facts.total_memory))


def device_of_rank(asked: str, rank: int) -> str:
    """The device of one rank: ranks of a node that may use any GPU are spread over all of them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{rank % count}" if asked in ("auto", "cuda") and count > 1 else asked


def gpu_of_rank(asked: str, rank: int) -> str | None:
    """A name of its GPU that no other GPU has, on any machine; None: it computes on the CPU. `rank`: on its node."""
    device = find_device(device_of_rank(asked, rank))
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def placed(policy: Policy, device: torch.device, setting: str = "learner.device") -> Policy:
    if isinstance(policy, nn.Module):
        policy.to(device)
    elif device.type != "cpu":
        raise ValueError(f"{type(policy).__name__} is no torch.nn.Module and cannot go to {device}: use {setting}=cpu")
    return policy


def use_threads(count: int) -> None:
    """Limit torch to `count` threads: more are slower on small networks, and results depend on the number."""
    torch.set_num_threads(count)
