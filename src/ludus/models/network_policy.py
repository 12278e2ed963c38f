"""The policy of our networks (encoder, trunk, memory, heads and critic; one model or a stack) and `ActorCritic`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeGuard, get_args

import torch
from torch import Tensor, nn

from ludus.data.batch import Batch
from ludus.data.checks import require_in, require_one_of
from ludus.data.specs import CRITIC_PREFIX, ArraySpec, SeatKind
from ludus.data.trees import Array, Tree, allocate
from ludus.models.continuous import BoxDistribution, Numbers
from ludus.models.decisions import Chooser, Decisions, Drawn, Greedy, Recorded, acted_of
from ludus.models.encoders import Encoded, Encoder, EncoderSizes
from ludus.models.heads import ActionHeads
from ludus.models.memory import Memory
from ludus.models.operators import ACTIVATIONS, MLP, Activation, Linear, stack_modules
from ludus.models.policy import Acted, Policy, Unrolled, ValueScale, architecture_digest
from ludus.models.tensors import on_device, share, to_host

Observation = Mapping[str, Tensor]


class ObservationEncoder(Protocol):
    """A module that encodes the named arrays of an observation."""

    array_names: tuple[str, ...]

    def __call__(self, observation: Observation) -> Encoded: ...


class Heads(Protocol):
    """A module that makes or evaluates decisions, head after head."""

    @property
    def num_draws(self) -> int: ...
    @property
    def numbers(self) -> Mapping[str, Numbers]:
        """The distributions of `Box` heads."""

    def decide(
        self, features: Tensor, encoded: Encoded, legal: Mapping[str, Tensor], chooser: Chooser
    ) -> Decisions: ...


class Values(Protocol):
    """A module for the values of the main reward and of the further ones, [..., 1 + further], and, if it tells action
    values, how much better each option is, [..., 1 + further + options]."""

    @property
    def array_names(self) -> tuple[str, ...]:
        """The arrays that it reads of the observation, besides the features."""

    def __call__(self, observation: Observation, features: Tensor) -> Tensor: ...


class Critic(nn.Module):
    """Values of the main reward and of `further` columns, from the actor's features or its own encoder (or both)."""

    def __init__(self, encoder: Encoder | None, trunk: MLP, *, reads_features: bool, further: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = trunk
        self.reads_features = reads_features
        self.value = Linear(trunk.size, 1 + further, gain=1.0)

    @property
    def array_names(self) -> tuple[str, ...]:
        return () if self.encoder is None else self.encoder.array_names

    def forward(self, observation: Observation, features: Tensor) -> Tensor:
        if self.encoder is not None:
            own = self.encoder(observation).features
            features = torch.cat((own, features), -1) if self.reads_features else own
        values: Tensor = self.value(self.trunk(features))
        return values


class NetworkPolicy(nn.Module):
    """A `Policy`. With `num_models` set, every array has a leading model axis."""

    def __init__(
        self,
        kind: SeatKind,
        *,
        encoder: ObservationEncoder,
        trunk: MLP,
        memory: Memory | None,
        heads: Heads,
        critic: Values,
        value_scale: ValueScale | None,
        signature: str,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.signature = signature
        self.encoder = encoder
        self.trunk = trunk
        self.memory = memory
        self.heads = heads
        self.critic = critic
        self.value_scale = value_scale
        self.num_models: int | None = None

    @property
    def state_arrays(self) -> Mapping[str, ArraySpec]:
        return {} if self.memory is None else self.memory.state_arrays

    @property
    def num_draws(self) -> int:
        return self.heads.num_draws

    @property
    def numbers(self) -> Mapping[str, Numbers]:
        return self.heads.numbers

    def initial_state(self, rows: int) -> Tree:
        return allocate(self.state_arrays, (*self._models, rows))

    @torch.inference_mode()
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
        device = self.device
        seen = _placed(observation, self.names_read(want_value=want_value), device)
        chooser: Chooser = Greedy() if greedy else Drawn(on_device(uniforms, device))
        decided, value, new_state = self.forward(
            seen, _placed(legal, legal, device), _placed(state, state, device), chooser, want_value=want_value
        )
        return acted_of(to_host(decided.columns(None if value is None else value[..., 0], new_state)))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def names_read(self, *, want_value: bool) -> tuple[str, ...]:
        """The arrays of the observation that acting reads."""
        names = (*self.encoder.array_names, *(self.critic.array_names if want_value else ()))
        return tuple(dict.fromkeys(names))

    def forward(
        self,
        observation: Observation,
        legal: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        chooser: Chooser,
        first: Tensor | None = None,
        *,
        want_value: bool = True,
    ) -> tuple[Decisions, Tensor | None, dict[str, Tensor]]:
        """Decisions of rows of tensors, the values of all rewards [..., 1 + further], and the memory after them. With
        `first` [..., T, B], the rows of a policy with memory are trajectories, and there is no memory after them."""
        encoded = self.encoder(observation)
        features = self.trunk(encoded.features)
        new_state: dict[str, Tensor] = {}
        if self.memory is not None and first is None:
            features, new_state = self.memory.step(features, state)
        elif self.memory is not None and first is not None:
            remembered = self.memory.unroll(features.reshape(*first.shape, -1), first, state)
            features = remembered.reshape(*features.shape[:-1], self.memory.size)
        decisions = self.heads.decide(features, encoded, legal, chooser)
        return decisions, self._values(observation, features) if want_value else None, new_state

    def unroll(self, batch: Batch) -> Unrolled:
        """Leading axes [T+1, B], or [rows] without memory; a stack has its model axis before them."""
        leading = tuple(batch.first.shape)
        flat = (*self._models, -1)

        def rows(arrays: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
            tensors = {name: share(array) for name, array in arrays.items()}
            return {name: tensor.reshape(flat + tensor.shape[len(leading) :]) for name, tensor in tensors.items()}

        if self.memory is not None and len(leading) != len(flat) + 1:
            raise ValueError(f"a policy with memory unrolls trajectories [T+1, B], got leading axes {leading}")
        state = {name: share(array) for name, array in batch.state.items()}
        recorded = Recorded(rows(batch.action), share(batch.valid).reshape(flat))
        given = (rows(batch.observation), rows(batch.legal), state, recorded, share(batch.first))
        decisions, values, _ = self.forward(*given)
        assert values is not None
        return decisions.unrolled(values, leading, rewards=len(self.kind.rewards))

    def _values(self, observation: Observation, features: Tensor) -> Tensor:
        """The values of the main reward and of the further ones."""
        values: Tensor = self.critic(observation, features)
        if self.value_scale is None:
            return values
        return torch.cat((self.value_scale.denormalise(values[..., :1]), values[..., 1:]), -1)

    @property
    def _models(self) -> tuple[int, ...]:
        return () if self.num_models is None else (self.num_models,)


def can_stack(policy: object) -> TypeGuard[NetworkPolicy]:
    """Whether `stack_policies` accepts it. A user's own module runs model by model."""
    return isinstance(policy, NetworkPolicy) and policy.num_models is None


def stack_policies(policies: Sequence[Policy]) -> NetworkPolicy:
    """One policy that runs all models in one call, on arrays with a leading model axis."""
    if not policies:
        raise ValueError("stack_policies needs at least one policy")
    networks: list[NetworkPolicy] = []
    for index, policy in enumerate(policies):
        if not can_stack(policy):
            raise ValueError(f"policy {index} is a {type(policy).__name__}; only a single NetworkPolicy can be stacked")
        networks.append(policy)
    digests = [architecture_digest(policy) for policy in policies]
    for index, digest in enumerate(digests):
        if digest != digests[0]:
            raise ValueError(f"policy {index} has another architecture ({digest}) than policy 0 ({digests[0]})")
    stacked = stack_modules(networks)
    stacked.num_models = len(networks)
    return stacked


def _placed(tree: Tree, names: Iterable[str], device: torch.device) -> dict[str, Tensor]:
    return {name: on_device(tree[name], device) for name in names}


class SeededModel:
    """A model whose fresh weights depend only on the seed."""

    __slots__ = ()

    def build(self, kind: SeatKind, seed: int) -> NetworkPolicy:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.check(kind)
            return self._build(kind)

    def check(self, kind: SeatKind) -> None:
        raise NotImplementedError

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        raise NotImplementedError


def encoder_sizes(model: Any) -> EncoderSizes:
    """The settings of `ActorCritic` or `FullyConv` that its encoders need."""
    names = [field.name for field in fields(EncoderSizes) if hasattr(model, field.name)]
    return EncoderSizes(**{name: getattr(model, name) for name in names})


def check_sizes(model: Any) -> None:
    """Check the settings that `ActorCritic` and `FullyConv` share."""
    if model.activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {model.activation!r}")
    for name, sizes in (("hidden", model.hidden), ("channels", model.channels)):
        wrong = [size for size in sizes if size < 1]
        if wrong:
            raise ValueError(f"{name} must be sizes of at least 1, got {wrong[0]}")
    require_in(model, "[0, inf]", memory=model.memory)
    if model.entity_heads < 1 or model.entity_size < 1 or model.entity_size % model.entity_heads:
        raise ValueError(f"entity_size ({model.entity_size}) must be a multiple of entity_heads ({model.entity_heads})")


def nothing_for_critics(kind: SeatKind) -> str:
    """The message for a `central_critic` whose game shows critics nothing."""
    return (
        f"central_critic: kind {kind.name!r} has no critic-only parts to read; "
        "many games of libraries have them with the option critic_state=true (`ludus games` says which)"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCritic(SeededModel):
    """An encoder for each part of the observation, a trunk, optional memory, heads in order, and a critic."""

    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the trunk's layers."""
    activation: Activation = "tanh"
    """Between layers."""
    memory: int = 0
    """Size of the LSTM after the trunk; 0 for none."""
    separate_critic: bool = True
    """The critic has its own encoder and trunk instead of reading the actor's features."""
    central_critic: bool = False
    """The critic also reads the critic-only parts of the observation."""
    value_normalisation: bool = False
    """The critic predicts in units of the running deviation of its targets."""
    action_values: bool = False
    """The critic also tells a value for every option, which `MagnetPolicyGradient.all_actions` needs. For actions of
    one `Choice`."""
    channels: tuple[int, ...] = (32, 32)
    """Output channels of the 3x3 convolutions over planes."""
    residual_blocks: int = field(default=0, repr=False)
    """Blocks of two more convolutions each, x + f(x), after those of `channels`, with as many channels as the last."""
    entity_size: int = 64
    """Length of the embedding of an entity."""
    entity_heads: int = 2
    """Attention heads among entities."""
    box_distribution: BoxDistribution = "clipped"
    """How the numbers of a `Box` head are distributed."""

    def __post_init__(self) -> None:
        check_sizes(self)
        require_one_of(self, get_args(BoxDistribution), box_distribution=self.box_distribution)
        if self.central_critic and not self.separate_critic:
            raise ValueError("central_critic needs separate_critic: a shared trunk must not see critic-only parts")
        require_in(self, "[0, inf]", residual_blocks=self.residual_blocks)
        if self.residual_blocks and not self.channels:
            raise ValueError("residual_blocks need channels: the blocks have as many as the last convolution")
        if self.action_values and self.value_normalisation:
            raise ValueError("action_values are in units of reward: turn off value_normalisation")

    def check(self, kind: SeatKind) -> None:
        if self.central_critic and not kind.observation.critic:
            raise ValueError(nothing_for_critics(kind))
        if self.action_values and not kind.is_one_choice:
            raise ValueError(
                f"action_values need an action of one Choice; kind {kind.name!r} has {', '.join(kind.action.heads)}"
            )

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        sizes = encoder_sizes(self)
        encoder = Encoder(kind.observation.parts, sizes)
        trunk = MLP(encoder.size, self.hidden, self.activation)
        memory = Memory(trunk.size, self.memory) if self.memory else None
        size = self.memory or trunk.size
        return NetworkPolicy(
            kind,
            encoder=encoder,
            trunk=trunk,
            memory=memory,
            heads=ActionHeads(kind, size, self.entity_size, self.activation, self.box_distribution),
            critic=self._critic(kind, sizes, size),
            value_scale=ValueScale() if self.value_normalisation else None,
            # Without blocks it is what it was before there were any, so that models of then can be loaded.
            signature=repr(self) + (f" residual_blocks={self.residual_blocks}" if self.residual_blocks else ""),
        )

    def _critic(self, kind: SeatKind, sizes: EncoderSizes, feature_size: int) -> Critic:
        further = len(kind.rewards)
        if self.action_values:
            further += sum(map(kind.num_options, kind.action.heads))
        if not self.separate_critic:
            trunk = MLP(feature_size, (), self.activation)
            return Critic(None, trunk, reads_features=True, further=further)
        parts = dict(kind.observation.parts)
        if self.central_critic:
            parts |= {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}
        encoder = Encoder(parts, sizes)
        in_size = encoder.size + (feature_size if self.memory else 0)
        trunk = MLP(in_size, self.hidden, self.activation)
        return Critic(encoder, trunk, reads_features=bool(self.memory), further=further)
