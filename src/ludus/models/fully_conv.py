"""FullyConv, the network of SC2LE: places on the map are chosen by convolutions all the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ludus.data.specs import SeatKind
from ludus.models.encoders import EncoderSizes
from ludus.models.map_features import MapEncoder, MapHeads, map_sizes
from ludus.models.memory import Memory
from ludus.models.network_policy import Critic, NetworkPolicy
from ludus.models.operators import ACTIVATIONS, MLP, Activation
from ludus.models.value_scale import ValueScale


@dataclass(frozen=True, kw_only=True, slots=True)
class FullyConv:
    """Planes that have the size of a `Point` head become a map, on which the head scores every place. A trunk
    over the map and all other parts of the observation feeds the other heads and the value."""

    channels: tuple[int, ...] = (16, 32)
    """Output channels of the 3x3 convolutions over planes."""
    stride: int = 1
    """Places along a side of a cell of the map features, a power of two: 1 keeps the resolution, more is far
    cheaper. Every place has a score of its own either way."""
    hidden: tuple[int, ...] = (256,)
    """Sizes of the trunk's layers."""
    activation: Activation = "relu"
    """Between layers."""
    memory: int = 0
    """Size of the LSTM after the trunk; 0 for none."""
    value_normalisation: bool = False
    """The critic predicts in units of the running deviation of its targets."""
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
        largest = 2 ** len(self.channels)
        if self.stride < 1 or self.stride & (self.stride - 1) or self.stride > largest:
            raise ValueError(
                f"stride must be a power of two up to {largest}, a factor of 2 for each of the "
                f"{len(self.channels)} convolutions; got {self.stride}"
            )
        if self.memory < 0:
            raise ValueError(f"memory must be at least 0, got {self.memory}")
        if self.entity_heads < 1 or self.entity_size < 1 or self.entity_size % self.entity_heads:
            raise ValueError(
                f"entity_size ({self.entity_size}) must be a multiple of entity_heads ({self.entity_heads})"
            )

    def check(self, kind: SeatKind) -> None:
        if not map_sizes(kind):
            raise ValueError(
                f"FullyConv: kind {kind.name!r} has no Point head with planes of its size; use ActorCritic"
            )

    def build(self, kind: SeatKind, seed: int) -> NetworkPolicy:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build(kind)

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        self.check(kind)
        maps = map_sizes(kind)
        sizes = EncoderSizes(
            channels=self.channels,
            entity_size=self.entity_size,
            entity_heads=self.entity_heads,
            activation=self.activation,
        )
        encoder = MapEncoder(kind.observation.parts, maps, self.stride, sizes)
        trunk = MLP(encoder.size, self.hidden, self.activation)
        size = self.memory or trunk.size
        return NetworkPolicy(
            kind,
            encoder=encoder,
            trunk=trunk,
            memory=Memory(trunk.size, self.memory) if self.memory else None,
            heads=MapHeads(kind, encoder, self.stride, size, self.entity_size, self.activation),
            critic=Critic(
                None, MLP(size, (), self.activation), reads_features=True, further=len(kind.rewards)
            ),
            value_scale=ValueScale() if self.value_normalisation else None,
            signature=repr(self),
        )
