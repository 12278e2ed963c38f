"""The networks that an experiment can name as its model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ludus.data.specs import CRITIC_PREFIX, SeatKind
from ludus.models.encoders import Encoder, EncoderSizes
from ludus.models.heads import ActionHeads
from ludus.models.memory import Memory
from ludus.models.network_policy import Critic, NetworkPolicy
from ludus.models.operators import ACTIVATIONS, MLP, Activation
from ludus.models.value_scale import ValueScale


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCritic:
    """An encoder for each part of the observation, a trunk, optional memory, heads in order, and a critic."""

    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the trunk's layers."""
    activation: Activation = "tanh"
    """Between layers."""
    memory: int = 0
    """Size of the LSTM after the trunk; 0 for none."""
    separate_critic: bool = True
    """The critic has an encoder and a trunk of its own instead of reading the actor's features."""
    central_critic: bool = False
    """The critic also reads the critic-only parts of the observation."""
    value_normalisation: bool = False
    """The critic predicts in units of the running deviation of its targets."""
    channels: tuple[int, ...] = (32, 32)
    """Output channels of the 3x3 convolutions over planes."""
    entity_size: int = 64
    """Length of the embedding of an entity."""
    entity_heads: int = 2
    """Attention heads among entities."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        for name in ("hidden", "channels"):
            wrong = [size for size in getattr(self, name) if size < 1]
            if wrong:
                raise ValueError(f"{name} must be sizes of at least 1, got {wrong[0]}")
        if self.memory < 0:
            raise ValueError(f"memory must be at least 0, got {self.memory}")
        if self.entity_heads < 1 or self.entity_size < 1 or self.entity_size % self.entity_heads:
            raise ValueError(
                f"entity_size ({self.entity_size}) must be a multiple of entity_heads ({self.entity_heads})"
            )
        if self.central_critic and not self.separate_critic:
            raise ValueError(
                "central_critic needs separate_critic: a shared trunk must not see critic-only parts"
            )

    def check(self, kind: SeatKind) -> None:
        if self.central_critic and not kind.observation.critic:
            raise ValueError(f"central_critic: kind {kind.name!r} has no critic-only parts to read")

    def build(self, kind: SeatKind, seed: int) -> NetworkPolicy:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build(kind)

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        self.check(kind)
        sizes = EncoderSizes(
            channels=self.channels,
            entity_size=self.entity_size,
            entity_heads=self.entity_heads,
            activation=self.activation,
        )
        encoder = Encoder(kind.observation.parts, sizes)
        trunk = MLP(encoder.size, self.hidden, self.activation)
        memory = Memory(trunk.size, self.memory) if self.memory else None
        size = self.memory or trunk.size
        return NetworkPolicy(
            kind,
            encoder=encoder,
            trunk=trunk,
            memory=memory,
            heads=ActionHeads(kind, size, self.entity_size, self.activation),
            critic=self._critic(kind, sizes, size),
            value_scale=ValueScale() if self.value_normalisation else None,
            signature=repr(self),
        )

    def _critic(self, kind: SeatKind, sizes: EncoderSizes, feature_size: int) -> Critic:
        if not self.separate_critic:
            trunk = MLP(feature_size, (), self.activation)
            return Critic(None, trunk, reads_features=True, further=len(kind.rewards))
        parts = dict(kind.observation.parts)
        if self.central_critic:
            parts |= {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}
        encoder = Encoder(parts, sizes)
        in_size = encoder.size + (feature_size if self.memory else 0)
        trunk = MLP(in_size, self.hidden, self.activation)
        return Critic(encoder, trunk, reads_features=bool(self.memory), further=len(kind.rewards))
