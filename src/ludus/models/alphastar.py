"""AlphaStar's network, at any size: encoders for scalars, entities and maps, a core with memory, heads in the
order of the game, and a baseline for each reward. docs/alphastar.md draws it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

import torch

from ludus.data.specs import CRITIC_PREFIX, Choice, Entities, Part, Planes, Pointer, SeatKind, Vector
from ludus.models.alphastar_encoder import AlphaStarEncoder, AlphaStarSizes, Scatter, SpatialSizes
from ludus.models.alphastar_heads import AlphaStarHeads, Baselines, HeadSizes
from ludus.models.encoders import check_vocabulary
from ludus.models.network_policy import NetworkPolicy
from ludus.models.operators import MLP, Memory
from ludus.models.policy import ModelConfig, ValueScale

_MAY_BE_NONE = ("entity_layers", "map_blocks", "memory", "memory_layers", "action_blocks", "value_blocks")
"""Sizes that may be 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaStar:
    """Without arguments the mini size, a few hundred thousand weights; `AlphaStar.full()` is the real one."""

    parts: Mapping[str, bool] = field(default_factory=dict)
    """Part of the observation -> whether the network reads it, as in `minimap: off`; yes if not given."""
    context: tuple[str, ...] | None = None
    """Vectors whose embeddings gate the heads; all if not given."""
    scatter: tuple[Scatter, ...] = ()
    """Which entities are put onto which map."""
    entity_types: tuple[int, ...] | None = None
    """Types of entity that the network knows; all others look the same to it. All if not given."""
    actions: tuple[int, ...] | None = None
    """Options of the first choice that the network knows; it takes no other. All if not given."""
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """Head -> what its logits are divided by; below 1 is bolder. 1 if not given."""

    scalar_size: int = 32
    """Of the embedding of each vector."""
    entity_size: int = 64
    """Of the embedding of an entity."""
    entity_layers: int = 1
    entity_heads: int = 2
    entity_hidden: int = 128
    """Of the layer inside each layer of the entity transformer."""
    scatter_channels: int = 8
    map_channels: int = 16
    """Channels of maps at their own resolution."""
    down: tuple[int, ...] = (32, 32)
    """Channels of the convolutions that halve a map; small maps stay as large as they are."""
    map_blocks: int = 1
    """Residual blocks over the halved map, and in the head that chooses a place."""
    spatial_size: int = 64
    """Of the embedding of a map."""
    hidden: tuple[int, ...] = (128,)
    """Sizes of the layers before the memory."""
    memory: int = 128
    """Size of each layer of the LSTM; 0 for no memory."""
    memory_layers: int = 1
    """Layers of the LSTM; 0 for no memory."""
    action_size: int = 128
    action_blocks: int = 1
    """Residual blocks of the head of the action type."""
    head_hidden: int = 64
    """Of the layers of all other heads."""
    key_size: int = 32
    """Of what pointers compare."""
    embedding_size: int = 128
    """Of what a head sees of the situation and of earlier heads."""
    up: tuple[int, ...] = (16,)
    """Channels of the convolutions that double the map, before the last one."""
    value_size: int = 128
    value_blocks: int = 1
    """Residual blocks of each baseline."""

    bounded_value: bool = False
    """The value of the main reward stays within -1 and 1."""
    value_normalisation: bool = False
    """The baseline of the main reward predicts in units of the running deviation of its targets."""
    separate_critic: bool = False
    """The baselines read the observation through encoders of their own, besides the actor's features."""
    central_critic: bool = False
    """The baselines also read the critic-only parts of the observation."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            sizes = value if spec.name in ("down", "hidden", "up") else [value] if type(value) is int else ()
            least = 0 if spec.name in _MAY_BE_NONE else 1
            wrong = [size for size in sizes if size < least]
            if wrong:
                raise ValueError(f"{spec.name} must be at least {least}, got {wrong[0]}")
        if self.entity_size % self.entity_heads:
            raise ValueError(
                f"entity_size ({self.entity_size}) must be a multiple of entity_heads ({self.entity_heads})"
            )
        if self.bounded_value and self.value_normalisation:
            raise ValueError("bounded_value and value_normalisation exclude each other")
        for head, temperature in self.temperatures.items():
            if not temperature > 0.0:
                raise ValueError(f"temperatures: {head!r} must be above 0, got {temperature}")

    @classmethod
    def mini(cls) -> AlphaStar:
        """Quick on a CPU."""
        return cls()

    @classmethod
    def full(cls) -> AlphaStar:
        """The sizes that were published for StarCraft II."""
        return cls(
            scalar_size=64,
            entity_size=256,
            entity_layers=3,
            entity_heads=2,
            entity_hidden=1024,
            scatter_channels=32,
            map_channels=32,
            down=(64, 128, 128),
            map_blocks=4,
            spatial_size=256,
            hidden=(),
            memory=384,
            memory_layers=3,
            action_size=256,
            action_blocks=16,
            head_hidden=256,
            key_size=32,
            embedding_size=1024,
            up=(128, 64, 16),
            value_size=256,
            value_blocks=16,
            bounded_value=True,
            separate_critic=True,
        )

    def build(self, kind: SeatKind, seed: int) -> NetworkPolicy:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build(kind)

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        self.check(kind)
        parts = self._parts(kind)
        encoder = self._encoder(parts)
        trunk = MLP(encoder.size, self.hidden, "relu")
        memory: Memory | None = None
        if self.memory and self.memory_layers:
            memory = Memory(trunk.size, self.memory, layers=self.memory_layers, layer_norm=True)
        size = trunk.size if memory is None else memory.size
        heads = AlphaStarHeads(
            kind,
            encoder,
            size,
            self._head_sizes,
            entity_size=self.entity_size,
            actions=self.actions,
            temperatures=self.temperatures,
        )
        critic = Baselines(
            self._critic_encoders(kind, parts),
            size,
            num_values=1 + len(kind.rewards),
            size=self.value_size,
            blocks=self.value_blocks,
            bounded=self.bounded_value,
        )
        return NetworkPolicy(
            kind,
            encoder=encoder,
            trunk=trunk,
            memory=memory,
            heads=heads,
            critic=critic,
            value_scale=ValueScale() if self.value_normalisation else None,
            signature=repr(self),
        )

    def check(self, kind: SeatKind) -> None:
        """Names and numbers that only the kind of seat can tell to be wrong."""
        _require_known("parts", self.parts, kind.observation.parts, f"kind {kind.name!r} sees")
        parts = self._parts(kind)
        for name, head in kind.action.heads.items():
            if isinstance(head, Pointer) and head.into not in parts:
                raise ValueError(f"parts: {head.into!r} must be on, because head {name!r} points into it")
        if not parts:
            raise ValueError(f"parts: nothing is left on of what kind {kind.name!r} sees")
        if self.central_critic and not kind.observation.critic:
            raise ValueError(f"central_critic: kind {kind.name!r} has no critic-only parts to read")
        _require_known("temperatures", self.temperatures, kind.action.heads, f"kind {kind.name!r} has")
        seen = {**kind.observation.parts, **_critic_parts(kind)}  # what is off may be named, and is left out
        vectors = [name for name, part in seen.items() if isinstance(part, Vector)]
        _require_known("context", self.context or (), vectors, "the vectors are")
        entities = {name: part for name, part in seen.items() if isinstance(part, Entities)}
        planes = [name for name, part in seen.items() if isinstance(part, Planes)]
        for spec in self.scatter:
            _require_known("scatter.entities", [spec.entities], entities, "the entities are")
            _require_known("scatter.onto", [spec.onto], planes, "the planes are")
            features = entities[spec.entities].features
            if max(spec.x, spec.y) >= features:
                raise ValueError(
                    f"scatter: column {max(spec.x, spec.y)} is beyond the {features} features of {spec.entities!r}"
                )
        if self.entity_types is not None:
            types = [part.types for part in parts.values() if isinstance(part, Entities)]
            if not any(types):
                raise ValueError(f"entity_types: kind {kind.name!r} reads no entities with types")
            check_vocabulary("entity_types", self.entity_types, max(types))
        if self.actions is not None:
            choices = [head for head in kind.action.heads.values() if isinstance(head, Choice)]
            if not choices:
                raise ValueError(f"actions: kind {kind.name!r} has no choice among options")
            check_vocabulary("actions", self.actions, choices[0].num)

    def _parts(self, kind: SeatKind) -> dict[str, Part]:
        """What the network reads, the critic-only parts aside."""
        return {name: part for name, part in kind.observation.parts.items() if self.parts.get(name, True)}

    def _encoder(self, parts: Mapping[str, Part]) -> AlphaStarEncoder:
        sizes = AlphaStarSizes(
            scalar_size=self.scalar_size,
            entity_size=self.entity_size,
            entity_layers=self.entity_layers,
            entity_heads=self.entity_heads,
            entity_hidden=self.entity_hidden,
            spatial=SpatialSizes(
                scatter_channels=self.scatter_channels,
                inputs=self.map_channels,
                down=self.down,
                blocks=self.map_blocks,
                size=self.spatial_size,
            ),
        )
        return AlphaStarEncoder(
            parts,
            sizes,
            context=tuple(parts) if self.context is None else self.context,
            scatter=self.scatter,
            known_types=self.entity_types,
        )

    @property
    def _head_sizes(self) -> HeadSizes:
        return HeadSizes(
            action_size=self.action_size,
            action_blocks=self.action_blocks,
            hidden=self.head_hidden,
            key_size=self.key_size,
            embedding_size=self.embedding_size,
            up=self.up,
        )

    def _critic_encoders(self, kind: SeatKind, parts: Mapping[str, Part]) -> list[AlphaStarEncoder]:
        encoders = [self._encoder(parts)] if self.separate_critic else []
        if self.central_critic:
            encoders.append(self._encoder(_critic_parts(kind)))
        return encoders


def alphastar_mini() -> ModelConfig:
    """`--set model=alphastar_mini`."""
    return AlphaStar.mini()


def alphastar_full() -> ModelConfig:
    """`--set model=alphastar_full`."""
    return AlphaStar.full()


def _critic_parts(kind: SeatKind) -> dict[str, Part]:
    return {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}


def _require_known(setting: str, names: Iterable[str], known: Iterable[str], has: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            offer = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"{setting}: unknown name {name!r}; {offer}{has} {', '.join(known) or 'none'}")
