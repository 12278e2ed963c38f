"""FullyConv, the network of SC2LE, which chooses places on a map by convolutions throughout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ludus.data.specs import Part, Planes, Point, Pointer, SeatKind
from ludus.models.decisions import Decision, decide
from ludus.models.encoders import ConvTower, Encoded, EncodedEntities, Encoder, EncoderSizes
from ludus.models.heads import HEAD_GAIN, ActionHeads, Question
from ludus.models.memory import Memory
from ludus.models.network_policy import Critic, NetworkPolicy, SeededModel, check_sizes, encoder_sizes
from ludus.models.operators import ACTIVATIONS, MLP, Activation, Linear
from ludus.models.policy import ValueScale
from ludus.models.tensors import as_float

MapSize = tuple[int, int]
"""Height and width in places."""


def map_sizes(kind: SeatKind) -> list[MapSize]:
    """The sizes of the `Point` heads that have planes of the same size."""
    seen = {(part.height, part.width) for part in kind.observation.parts.values() if isinstance(part, Planes)}
    asked = [(head.height, head.width) for head in kind.action.heads.values() if isinstance(head, Point)]
    return [size for size in dict.fromkeys(asked) if size in seen]


class MapEncoder(Encoder):
    """An `Encoder` with maps of the given sizes, whose cells are features and entities called `cells_of(size)`."""

    def __init__(self, parts: Mapping[str, Part], maps: list[MapSize], stride: int, sizes: EncoderSizes) -> None:
        on_map: dict[MapSize, dict[str, Planes]] = {size: {} for size in maps}
        others: dict[str, Part] = {}
        for name, part in parts.items():
            if isinstance(part, Planes) and (part.height, part.width) in on_map:
                on_map[part.height, part.width][name] = part
            else:
                others[name] = part
        super().__init__(others, sizes)
        self.has_others = bool(others)
        self.array_names += tuple(name for planes in on_map.values() for name in planes)
        self.planes_of_map = {cells_of(size): tuple(planes) for size, planes in on_map.items()}
        # The first convolutions halve the map until a cell covers `stride` x `stride` places.
        strides = [2 if stride >> layer > 1 else 1 for layer in range(len(sizes.channels))]
        towers = [
            ConvTower(sum(part.channels for part in planes.values()), size, strides, sizes)
            for size, planes in on_map.items()
        ]
        self.towers = nn.ModuleList(towers)
        self.size += sum(tower.size for tower in towers)

    def forward(self, observation: Mapping[str, Tensor]) -> Encoded:
        features: list[Tensor] = []
        entities: dict[str, EncodedEntities] = {}
        for (cells_name, planes), tower in zip(self.planes_of_map.items(), self.towers, strict=True):
            stacked = [as_float(observation[name]) for name in planes]
            planes_of_cells = tower(stacked[0] if len(stacked) == 1 else torch.cat(stacked, -3))
            cells = planes_of_cells.flatten(-2).transpose(-1, -2)
            features.append(cells.flatten(-2))
            valid = torch.ones(cells.shape[:-1], dtype=torch.bool, device=cells.device)
            entities[cells_name] = EncodedEntities(cells, valid)
        if self.has_others:
            encoded = super().forward(observation)
            features.append(encoded.features)
            entities |= encoded.entities
        return Encoded(features[0] if len(features) == 1 else torch.cat(features, -1), entities)


class MapPointHead(nn.Module):
    """Scores places by 1x1 convolutions over map and global features: one score for the cell, one inside the cell."""

    def __init__(self, spec: Point, tower: ConvTower, stride: int, size: int, activation: Activation) -> None:
        super().__init__()
        self.places = (spec.height, spec.width)
        self.cells = (tower.height, tower.width)
        self.stride = stride
        self.activation = ACTIVATIONS[activation]
        self.inputs = Linear(tower.channels, tower.channels)
        self.context = Linear(size, tower.channels, bias=False)
        # Without a score shared by all places of a cell, each would learn from its own draws only.
        self.scores = Linear(tower.channels, 1, gain=HEAD_GAIN)
        self.within = Linear(tower.channels, stride * stride, gain=HEAD_GAIN) if stride > 1 else None

    def forward(self, question: Question) -> Decision:
        assert question.entities is not None
        context = self.context(question.features).unsqueeze(-2)
        hidden = self.activation(self.inputs(question.entities.embedding) + context)
        scores = self.scores(hidden)
        if self.within is not None:
            scores = scores + self.within(hidden)
        scores = scores.unflatten(-1, (self.stride, self.stride)).unflatten(-3, self.cells)
        # From [row, column, row within, column within] to places; a cell at the edge may cover fewer.
        scores = scores.transpose(-3, -2).flatten(-2).flatten(-3, -2)
        logits = scores[..., : self.places[0], : self.places[1]].flatten(-2)
        return decide(question.name, logits, question.legal, question.in_use, question.chooser)


class MapHeads(ActionHeads):
    """`ActionHeads` in which a `Point` head with a map of the encoder is scored on that map."""

    def __init__(
        self, kind: SeatKind, encoder: MapEncoder, stride: int, size: int, entity_size: int, activation: Activation
    ) -> None:
        super().__init__(kind, size, entity_size, activation)
        towers = dict(zip(encoder.planes_of_map, encoder.towers, strict=True))
        for index, (name, spec) in enumerate(kind.action.heads.items()):
            if not isinstance(spec, Point):
                continue
            cells = cells_of((spec.height, spec.width))
            tower = towers.get(cells)
            if isinstance(tower, ConvTower):
                self.heads[index] = MapPointHead(spec, tower, stride, size, activation)
                self.specs[name] = Pointer(into=cells, when=spec.when, masked=spec.masked)


def cells_of(size: MapSize) -> str:
    """The name of a map's cells among the entities."""
    return f"cells of {size[0]}x{size[1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FullyConv(SeededModel):
    """Planes of the size of a `Point` head become a map, on which the head scores every place. A trunk over the
    map and all other parts of the observation feeds the other heads and the value."""

    channels: tuple[int, ...] = (16, 32)
    """Output channels of the 3x3 convolutions over planes."""
    stride: int = 1
    """Places along a side of a cell of the map features, a power of two. 1 keeps the resolution, more is far
    cheaper; every place has its own score either way."""
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
        check_sizes(self)
        largest = 2 ** len(self.channels)
        if self.stride < 1 or self.stride & (self.stride - 1) or self.stride > largest:
            raise ValueError(
                f"stride must be a power of two up to {largest}, a factor of 2 for each of the "
                f"{len(self.channels)} convolutions; got {self.stride}"
            )

    def check(self, kind: SeatKind) -> None:
        if not map_sizes(kind):
            raise ValueError(
                f"FullyConv: kind {kind.name!r} has no Point head with planes of its size: use ActorCritic"
            )

    def _build(self, kind: SeatKind) -> NetworkPolicy:
        encoder = MapEncoder(kind.observation.parts, map_sizes(kind), self.stride, encoder_sizes(self))
        trunk = MLP(encoder.size, self.hidden, self.activation)
        size = self.memory or trunk.size
        return NetworkPolicy(
            kind,
            encoder=encoder,
            trunk=trunk,
            memory=Memory(trunk.size, self.memory) if self.memory else None,
            heads=MapHeads(kind, encoder, self.stride, size, self.entity_size, self.activation),
            critic=Critic(None, MLP(size, (), self.activation), reads_features=True, further=len(kind.rewards)),
            value_scale=ValueScale() if self.value_normalisation else None,
            signature=repr(self),
        )
