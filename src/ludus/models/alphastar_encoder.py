"""AlphaStar's encoder: vectors, entities and maps become one feature vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.data.checks import require_in
from ludus.data.specs import CRITIC_PREFIX, Entities, Part, Planes, Vector, length_name
from ludus.models.encoders import Encoded, EncodedEntities, KnownTypes, crop_entities, embed_by_length
from ludus.models.operators import Attention, Conv2d, Embedding, LayerNorm, Linear, ResidualConv
from ludus.models.tensors import as_float

_SMALLEST_SIDE = 8
"""Maps with a shorter side are not halved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """Adds the embeddings of entities to a map, at their places."""

    entities: str
    """The `Entities` part."""
    onto: str
    """The `Planes` part."""
    x: int
    """The feature that holds the x coordinate; a type counts as the first feature."""
    y: int
    scale: float = 1.0
    """Coordinates run from 0 to this."""

    def __post_init__(self) -> None:
        if self.x < 0 or self.y < 0:
            raise ValueError(f"Scatter: x and y must be columns from 0 on, got {min(self.x, self.y)}")
        require_in(self, "(0, inf]", scale=self.scale)


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaStarSizes:
    """The sizes of AlphaStar's network. The defaults are the mini size."""

    scalar_size: int = 32
    """Size of the embedding of each vector."""
    entity_size: int = 64
    """Size of the embedding of an entity."""
    entity_layers: int = 1
    entity_heads: int = 2
    entity_hidden: int = 128
    """Size of the hidden layer of each transformer layer."""
    part_sizes: Mapping[str, int] = field(default_factory=dict)
    """Vector or list of entities -> size of its embedding, where it differs; a transformer is scaled as a whole."""
    scatter_channels: int = 8
    map_channels: int = 16
    """Channels of maps at their own resolution."""
    down: tuple[int, ...] = (32, 32)
    """Channels of the convolutions that halve a map; small maps keep their size."""
    map_blocks: int = 1
    """Residual blocks over the halved map, and in the head that chooses a place."""
    spatial_size: int = 64
    """Size of the embedding of a map."""
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
    """Size of the layers of all other heads."""
    key_size: int = 32
    """Size of the keys of pointers."""
    embedding_size: int = 128
    """Size of the input of a head: the features and the decisions of earlier heads."""
    up: tuple[int, ...] = (16,)
    """Channels of the convolutions that double the map, before the last one."""
    value_size: int = 128
    value_blocks: int = 1
    """Residual blocks of each baseline."""

    def size_of(self, name: str, usual: int) -> int:
        """Size of the embedding of a part; a critic-only part has the size of the part of its name."""
        return self.part_sizes.get(name, self.part_sizes.get(name.removeprefix(CRITIC_PREFIX), usual))


class TransformerLayer(nn.Module):
    """Attention among the valid entities, then two linear layers, each with a residual connection."""

    def __init__(self, size: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(size)
        self.attention = Attention(size, num_heads)
        self.mix_norm = LayerNorm(size)
        self.hidden = Linear(size, hidden)
        self.mix = Linear(hidden, size, gain=1.0)

    def forward(self, entities: Tensor, valid: Tensor) -> Tensor:
        entities = entities + self.attention(self.attention_norm(entities), valid)
        mixed: Tensor = self.mix(torch.relu(self.hidden(self.mix_norm(entities))))
        return entities + mixed


class EntityTransformer(nn.Module):
    """Embeds features, type and categories of each entity, then applies attention. `known_types` limits the
    vocabulary of types."""

    def __init__(self, part: Entities, size: int, sizes: AlphaStarSizes, known_types: tuple[int, ...] | None) -> None:
        super().__init__()
        self.size = size
        self.maximum = part.maximum
        self.typed = part.types > 0
        self.first_category = part.features - len(part.categories)
        num_features = self.first_category - self.typed
        self.inputs = Linear(num_features, size) if num_features else None
        if self.typed:
            self.types = KnownTypes(part.types, known_types)
            self.type_embedding = Embedding(self.types.num_places, size)
        self.category_sizes = part.categories
        self.categories = nn.ModuleList(Embedding(number, size) for number in part.categories)
        hidden = max(1, sizes.entity_hidden * size // sizes.entity_size)
        self.layers = nn.ModuleList(
            TransformerLayer(size, sizes.entity_heads, hidden) for _ in range(sizes.entity_layers)
        )
        self.outputs_norm = LayerNorm(size)
        self.outputs = Linear(size, size)
        self.whole = Linear(size, size)

    def forward(self, entities: Tensor, length: Tensor) -> tuple[Tensor, EncodedEntities]:
        """[..., size] for the list as a whole, and its entities, cropped to the longest list."""
        rows, valid = crop_entities(entities, length, self.maximum)
        embedding = embed_by_length(rows, valid, length, self._transform)
        mean = embedding.sum(-2) / length.clamp(1, self.maximum).unsqueeze(-1)
        return torch.relu(self.whole(mean)), EncodedEntities(embedding, valid)

    def _transform(self, rows: Tensor, valid: Tensor) -> Tensor:
        hidden = self._embedded(rows)
        for layer in self.layers:
            hidden = layer(hidden, valid)
        hidden = torch.relu(self.outputs(torch.relu(self.outputs_norm(hidden))))
        return hidden.masked_fill(~valid.unsqueeze(-1), 0.0)

    def _embedded(self, rows: Tensor) -> Tensor:
        found: list[Tensor] = []
        if self.typed:
            found.append(self.type_embedding(self.types(rows[..., 0])))
        if self.inputs is not None:
            found.append(self.inputs(as_float(rows[..., self.typed : self.first_category])))
        for column, (size, embedding) in enumerate(zip(self.category_sizes, self.categories, strict=True)):
            numbers = rows[..., self.first_category + column].long()
            found.append(embedding(numbers.clamp(0, size - 1)))
        return sum(found[1:], found[0])


class ScatterConnection(nn.Module):
    """Reduces the embeddings of entities and sums them at their places."""

    def __init__(self, spec: Scatter, places: tuple[int, int], entity_size: int, channels: int) -> None:
        super().__init__()
        self.entities, self.onto = spec.entities, spec.onto
        self.x, self.y, self.scale = spec.x, spec.y, spec.scale
        self.places = places
        self.reduce = Linear(entity_size, channels)

    def forward(self, observation: Mapping[str, Tensor], embedded: Mapping[str, EncodedEntities]) -> Tensor:
        """[..., channels, height, width]."""
        entities, valid = embedded[self.entities], embedded[self.entities].valid
        reduced = torch.relu(self.reduce(entities.embedding)).masked_fill(~valid.unsqueeze(-1), 0.0)
        height, width = self.places
        seen = observation[self.entities][..., : valid.shape[-1], :]
        place = self._cell(seen[..., self.y], valid, height) * width
        place = place + self._cell(seen[..., self.x], valid, width)
        index = place.flatten(0, -2).unsqueeze(-1).expand(-1, -1, reduced.shape[-1])
        values = reduced.flatten(0, -3)
        cells = values.new_zeros(values.shape[0], height * width, values.shape[-1]).scatter_add(1, index, values)
        return cells.transpose(-1, -2).reshape(*valid.shape[:-1], -1, height, width)

    def _cell(self, coordinate: Tensor, valid: Tensor, cells: int) -> Tensor:
        share = coordinate.masked_fill(~valid, 0).float() / self.scale
        return (share * cells).long().clamp(0, cells - 1)


class SpatialTower(nn.Module):
    """Planes of one size: a 1x1 projection, convolutions that halve large maps, and residual blocks."""

    def __init__(self, in_channels: int, places: tuple[int, int], sizes: AlphaStarSizes) -> None:
        super().__init__()
        self.places = places
        self.inputs = Conv2d(in_channels, sizes.map_channels, kernel=1, padding=0)
        self.down = nn.ModuleList()
        self.halvings = 0
        self.channels, (height, width) = sizes.map_channels, places
        for channels in sizes.down:
            if min(height, width) >= _SMALLEST_SIDE:
                self.down.append(Conv2d(self.channels, channels, kernel=4, stride=2))
                self.halvings += 1
                height, width = -(-height // 2), -(-width // 2)
            else:
                self.down.append(Conv2d(self.channels, channels))
            self.channels = channels
        self.cells = (height, width)
        num_blocks = sizes.map_blocks
        self.blocks = nn.ModuleList(ResidualConv(self.channels, num_blocks=num_blocks) for _ in range(num_blocks))
        self.whole = Linear(self.channels * height * width, sizes.spatial_size)

    def forward(self, planes: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """[..., channels, height, width] to [..., size] and the features of the map at `cells`."""
        if planes.dim() == 4:
            planes = planes.contiguous(memory_format=torch.channels_last)
        planes = torch.relu(self.inputs(planes))
        for index, layer in enumerate(self.down):
            if index < self.halvings:  # an odd side is padded, so that a cell always covers two places
                odd_height, odd_width = planes.shape[-2] % 2, planes.shape[-1] % 2
                if odd_height or odd_width:
                    planes = functional.pad(planes, (0, odd_width, 0, odd_height))
            planes = torch.relu(layer(planes))
        skips = []
        for block in self.blocks:
            planes = block(planes)
            skips.append(planes)
        whole = torch.relu(self.whole(torch.relu(planes).flatten(-3)))
        return whole, tuple(skips) or (planes,)


class AlphaStarEncoder(nn.Module):
    """A linear layer per vector, a transformer per list of entities, and a tower for all planes of one size."""

    def __init__(
        self,
        parts: Mapping[str, Part],
        sizes: AlphaStarSizes,
        *,
        context: tuple[str, ...],
        scatter: tuple[Scatter, ...],
        known_types: tuple[int, ...] | None,
    ) -> None:
        super().__init__()
        vectors = {name: part for name, part in parts.items() if isinstance(part, Vector)}
        entities = {name: part for name, part in parts.items() if isinstance(part, Entities)}
        self.array_names = tuple(array for name, part in parts.items() for array in part.arrays(name))
        self.vector_names, self.entity_names = tuple(vectors), tuple(entities)
        out = {name: sizes.size_of(name, sizes.scalar_size) for name in vectors}
        out |= {name: sizes.size_of(name, sizes.entity_size) for name in entities}
        self.in_context = frozenset(name for name in out if name in context)
        self.context_size = sum(out[name] for name in self.in_context)
        self.vectors = nn.ModuleList(Linear(part.size, out[name]) for name, part in vectors.items())
        self.entities = nn.ModuleList(
            EntityTransformer(part, out[name], sizes, known_types) for name, part in entities.items()
        )
        self.planes_of_map = _by_size(parts)
        self.scatters = nn.ModuleList()
        self.towers = nn.ModuleList()
        for names in self.planes_of_map.values():
            planes = [part for name, part in parts.items() if name in names and isinstance(part, Planes)]
            places = (planes[0].height, planes[0].width)
            channels = sum(part.channels for part in planes)
            for spec in scatter:
                if spec.onto in names and spec.entities in entities:
                    extra = sizes.scatter_channels
                    self.scatters.append(ScatterConnection(spec, places, out[spec.entities], extra))
                    channels += extra
            self.towers.append(SpatialTower(channels, places, sizes))
        self.size = sum(out.values()) + sizes.spatial_size * len(self.towers)

    def tower_of(self, name: str) -> SpatialTower:
        """The tower whose features are in `Encoded.maps` under this name."""
        tower = self.towers[list(self.planes_of_map).index(name)]
        assert isinstance(tower, SpatialTower)
        return tower

    def forward(self, observation: Mapping[str, Tensor]) -> Encoded:
        features: list[Tensor] = []
        context: list[Tensor] = []
        for name, vector in zip(self.vector_names, self.vectors, strict=True):
            features.append(torch.relu(vector(as_float(observation[name]))))
            if name in self.in_context:
                context.append(features[-1])
        embedded: dict[str, EncodedEntities] = {}
        for name, transformer in zip(self.entity_names, self.entities, strict=True):
            whole, embedded[name] = transformer(observation[name], observation[length_name(name)])
            features.append(whole)
            if name in self.in_context:
                context.append(whole)
        maps: dict[str, tuple[Tensor, ...]] = {}
        for (name, planes), tower in zip(self.planes_of_map.items(), self.towers, strict=True):
            layers = [as_float(observation[plane]) for plane in planes]
            layers += [scatter(observation, embedded) for scatter in self.scatters if scatter.onto in planes]
            whole, maps[name] = tower(_joined(layers, -3))
            features.append(whole)
        return Encoded(
            features=_joined(features, -1),
            entities=embedded,
            context=_joined(context, -1) if context else None,
            maps=maps,
        )


def _by_size(parts: Mapping[str, Part]) -> dict[str, tuple[str, ...]]:
    """The names of planes of the same size, keyed by the first of them."""
    maps: dict[tuple[int, int], tuple[str, ...]] = {}
    for name, part in parts.items():
        if isinstance(part, Planes):
            size = (part.height, part.width)
            maps[size] = (*maps.get(size, ()), name)
    return {names[0]: names for names in maps.values()}


def _joined(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)
