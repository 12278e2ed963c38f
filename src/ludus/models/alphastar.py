"""AlphaStar's network: encoders, a core with memory, heads in order, and baselines. docs/alphastar.md has a diagram."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from ludus.data.checks import nearest
from ludus.data.specs import CRITIC_PREFIX, Choice, Entities, Part, Planes, Pointer, SeatKind, Vector
from ludus.models.alphastar_encoder import AlphaStarEncoder, AlphaStarSizes, Scatter
from ludus.models.alphastar_heads import AlphaStarHeads, Baselines
from ludus.models.encoders import check_vocabulary
from ludus.models.memory import Memory
from ludus.models.network_policy import NetworkPolicy, SeededModel, nothing_for_critics
from ludus.models.operators import MLP
from ludus.models.policy import ModelConfig, ValueScale

_MAY_BE_NONE = ("entity_layers", "map_blocks", "memory", "memory_layers", "action_blocks", "value_blocks")
"""Sizes that may be 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaStar(AlphaStarSizes, SeededModel):
    """AlphaStar's network. The defaults are the mini size; `AlphaStar.full()` has the published sizes."""

    parts: Mapping[str, bool] = field(default_factory=dict)
    """Part of the observation -> whether the network reads it, as in `minimap: off`; default: yes."""
    context: tuple[str, ...] | None = None
    """Vectors and lists of entities whose embeddings gate the heads; default: all vectors."""
    scatter: tuple[Scatter, ...] = ()
    """Entities that are added to maps."""
    entity_types: tuple[int, ...] | None = None
    """Entity types in the network's vocabulary; it cannot tell others apart. Default: all."""
    actions: tuple[int, ...] | None = None
    """Options of the first choice in the network's vocabulary; it takes no other. Default: all."""
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """Head -> divisor of its logits; below 1 is greedier. Default: 1."""
    bounded_value: bool = False
    """The value of the main reward stays within -1 and 1."""
    value_normalisation: bool = False
    """The baseline of the main reward predicts in units of the running deviation of its targets."""
    separate_critic: bool = False
    """The baselines read the observation through their own encoders, besides the actor's features."""
    central_critic: bool = False
    """The baselines also read the critic-only parts of the observation."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            sizes = value if spec.name in ("down", "hidden", "up") else [value] if type(value) is int else ()
            if spec.name == "part_sizes":
                sizes = value.values()
            least = 0 if spec.name in _MAY_BE_NONE else 1
            wrong = [size for size in sizes if size < least]
            if wrong:
                raise ValueError(f"{spec.name} must be at least {least}, got {wrong[0]}")
        if self.entity_size % self.entity_heads:
            raise ValueError(f"entity_size ({self.entity_size}) must be a multiple of entity_heads={self.entity_heads}")
        if self.bounded_value and self.value_normalisation:
            raise ValueError("bounded_value and value_normalisation exclude each other")
        for head, temperature in self.temperatures.items():
            if not temperature > 0.0:
                raise ValueError(f"temperatures: {head!r} must be above 0, got {temperature}")

    @classmethod
    def mini(cls) -> AlphaStar:
        """The default sizes, quick on a CPU."""
        return cls()

    @classmethod
    def full(cls) -> AlphaStar:
        """The published sizes for StarCraft II."""
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

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        parts = self._parts(kind)
        encoder = self._encoder(parts)
        trunk = MLP(encoder.size, self.hidden, "relu")
        memory: Memory | None = None
        if self.memory and self.memory_layers:
            memory = Memory(trunk.size, self.memory, layers=self.memory_layers, layer_norm=True)
        size = trunk.size if memory is None else memory.size
        heads = AlphaStarHeads(kind, encoder, size, self, actions=self.actions, temperatures=self.temperatures)
        critic_encoders = [self._encoder(parts)] if self.separate_critic else []
        if self.central_critic:
            critic_encoders.append(self._encoder(self._critic_parts(kind)))
        critic = Baselines(
            critic_encoders,
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
        """Raise for names and numbers that do not fit the kind of seat."""
        everything = {**kind.observation.parts, **self._critic_parts(kind, everything=True)}
        _require_known("parts", self.parts, everything, f"kind {kind.name!r} sees")
        parts = self._parts(kind)
        for name, head in kind.action.heads.items():
            if isinstance(head, Pointer) and head.into not in parts:
                raise ValueError(f"parts: {head.into!r} must be on, because head {name!r} points into it")
            if isinstance(head, Pointer) and head.into in self.part_sizes:
                raise ValueError(f"part_sizes: set entity_size for {head.into!r}, because head {name!r} points into it")
        if not parts:
            raise ValueError(f"parts: nothing is left on of what kind {kind.name!r} sees")
        if self.central_critic and not self._critic_parts(kind):
            raise ValueError(nothing_for_critics(kind))
        _require_known("temperatures", self.temperatures, kind.action.heads, f"kind {kind.name!r} has")
        # Parts that are off may be named too.
        entities = {name: part for name, part in everything.items() if isinstance(part, Entities)}
        planes = [name for name, part in everything.items() if isinstance(part, Planes)]
        embedded = [name for name in everything if name not in planes]
        _require_known("context", self.context or (), embedded, "the vectors and entities are")
        _require_known("part_sizes", self.part_sizes, embedded, "the vectors and entities are")
        for name, size in self.part_sizes.items():
            if name in entities and size % self.entity_heads:
                raise ValueError(
                    f"part_sizes: {name!r} must be a multiple of entity_heads={self.entity_heads}, got {size}"
                )
        for spec in self.scatter:
            _require_known("scatter.entities", [spec.entities], entities, "the entities are")
            _require_known("scatter.onto", [spec.onto], planes, "the planes are")
            features, column = entities[spec.entities].features, max(spec.x, spec.y)
            if column >= features:
                raise ValueError(f"scatter: column {column} is beyond the {features} features of {spec.entities!r}")
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
        """The parts that the network reads, without the critic-only ones."""
        return {name: part for name, part in kind.observation.parts.items() if self.parts.get(name, True)}

    def _critic_parts(self, kind: SeatKind, *, everything: bool = False) -> dict[str, Part]:
        """The critic-only parts that the baselines read, or everything."""
        parts = {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}
        return {name: part for name, part in parts.items() if everything or self.parts.get(name, True)}

    def _encoder(self, parts: Mapping[str, Part]) -> AlphaStarEncoder:
        context = self.context
        if context is None:
            context = tuple(name for name, part in parts.items() if isinstance(part, Vector))
        return AlphaStarEncoder(parts, self, context=context, scatter=self.scatter, known_types=self.entity_types)


def alphastar_mini() -> ModelConfig:
    """`--set model=alphastar_mini`."""
    return AlphaStar.mini()


def alphastar_full() -> ModelConfig:
    """`--set model=alphastar_full`."""
    return AlphaStar.full()


def _require_known(setting: str, names: Iterable[str], known: Iterable[str], has: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            close = nearest(name, known)
            offer = f"did you mean {close!r}? " if close else ""
            raise ValueError(f"{setting}: unknown name {name!r}; {offer}{has} {', '.join(known) or 'none'}")
