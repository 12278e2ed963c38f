"""Encoders of observations, into one feature vector per row and one vector per entity, and vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.data.specs import Entities, Part, Planes, Vector, length_name
from ludus.models.decisions import Chooser, Decision, decide
from ludus.models.operators import ACTIVATIONS, LOWEST, MLP, Activation, Attention, Conv2d, LayerNorm, ResidualConv
from ludus.models.tensors import DeferredChecks, as_float

_LARGE_PLANE = 16
"""Planes longer than this are halved by the next convolution."""
_GROUPED_ROWS = 256
"""Least number of entity lists in a group of similar length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSizes:
    channels: tuple[int, ...]
    entity_size: int
    entity_heads: int
    activation: Activation
    residual_blocks: int = 0


@dataclass(frozen=True, slots=True)
class EncodedEntities:
    """Entities of one part, cropped to the longest list among the rows."""

    embedding: Tensor
    """[..., N, size]; zero where not valid."""
    valid: Tensor
    """[..., N] bool."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The output of an encoder."""

    features: Tensor
    entities: Mapping[str, EncodedEntities]
    context: Tensor | None = None
    """[..., size]: gates the heads of networks that have gates."""
    maps: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """Spatial features [..., channels, height, width], early layers first."""


def valid_entities(length: Tensor, maximum: int) -> Tensor:
    """[..., maximum] bool: which rows of an entity list are real."""
    return torch.arange(maximum, device=length.device) < length.unsqueeze(-1)


def crop_entities(entities: Tensor, length: Tensor, maximum: int) -> tuple[Tensor, Tensor]:
    """Entity lists cropped to the longest one, with padding set to zero, and which entities are valid."""
    longest = maximum
    if not DeferredChecks.active():
        longest = max(1, min(maximum, int(length.max()))) if length.numel() else 1
    valid = valid_entities(length, longest)
    # Padding may hold anything, NaN included, so it is replaced rather than multiplied by zero.
    return entities[..., :longest, :].masked_fill(~valid.unsqueeze(-1), 0), valid


def embed_by_length(rows: Tensor, valid: Tensor, length: Tensor, embed: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`embed(rows, valid)`, [..., N, size] and zero where not valid. Many lists on a CPU are embedded in groups of
    similar length, each cropped to its own longest list: most are far shorter than the longest one of all."""
    if rows.dim() > 3 or rows.device.type != "cpu" or DeferredChecks.active():
        return embed(rows, valid)
    num_groups = len(rows) // _GROUPED_ROWS
    if num_groups < 2:
        return embed(rows, valid)
    longest = rows.shape[1]
    order = length.argsort(stable=True)
    groups: list[Tensor] = []
    for group in order.tensor_split(num_groups):
        most = max(1, min(longest, int(length[group[-1]])))
        embedded = embed(rows[:, :most].index_select(0, group), valid[:, :most].index_select(0, group))
        groups.append(functional.pad(embedded, (0, 0, 0, longest - most)))
    return torch.cat(groups).index_select(0, order.argsort())


def with_flags(rows: Tensor, part: Entities) -> Tensor:
    """The features of entities, with the type and each category one-hot, because their numbers have no order."""
    numbers = range(rows.shape[-1] - len(part.categories), rows.shape[-1])
    columns = [as_float(rows[..., bool(part.types) : numbers.start])]
    if part.types:
        columns.insert(0, _flags(rows[..., 0], part.types))
    columns += [_flags(rows[..., number], size) for number, size in zip(numbers, part.categories, strict=True)]
    return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


def _flags(numbers: Tensor, size: int) -> Tensor:
    options = torch.arange(size, device=numbers.device)
    return (numbers.long().clamp(0, size - 1).unsqueeze(-1) == options).float()  # `one_hot` waits for the device


class ConvTower(nn.Module):
    """3x3 convolutions over planes, each of which halves the map or keeps its size, as `strides` say, and residual
    blocks after them."""

    def __init__(self, channels: int, places: tuple[int, int], strides: Sequence[int], sizes: EncoderSizes) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[sizes.activation]
        self.layers = nn.ModuleList()
        self.channels, (self.height, self.width) = channels, places
        for out_channels, stride in zip(sizes.channels, strides, strict=True):
            self.layers.append(Conv2d(self.channels, out_channels, stride=stride))
            self.channels = out_channels
            self.height, self.width = -(-self.height // stride), -(-self.width // stride)
        count = sizes.residual_blocks
        self.blocks = nn.ModuleList(ResidualConv(self.channels, num_blocks=count) for _ in range(count))
        self.size = self.channels * self.height * self.width

    def forward(self, planes: Tensor) -> Tensor:
        if planes.dim() == 4:
            planes = planes.contiguous(memory_format=torch.channels_last)
        elif len(planes) == 1:
            planes = planes[0].contiguous(memory_format=torch.channels_last).unsqueeze(0)
        for layer in self.layers:
            planes = self.activation(layer(planes))
        for block in self.blocks:
            planes = block(planes)
        return torch.relu(planes) if self.blocks else planes


def planes_encoder(part: Planes, sizes: EncoderSizes) -> ConvTower:
    """A tower that halves large planes."""
    longest, strides = max(part.height, part.width), []
    for _ in sizes.channels:
        strides.append(2 if longest > _LARGE_PLANE else 1)
        longest = -(-longest // strides[-1])
    return ConvTower(part.channels, (part.height, part.width), strides, sizes)


class EntitiesEncoder(nn.Module):
    """One block of masked self-attention. The embedding of the list is the mean of those of its entities."""

    def __init__(self, part: Entities, sizes: EncoderSizes) -> None:
        super().__init__()
        size = sizes.entity_size
        self.maximum = part.maximum
        self.size = size
        self.part = part
        plain = part.features - bool(part.types) - len(part.categories)
        self.inputs = MLP(plain + part.types + sum(part.categories), (size,), sizes.activation)
        self.attention_norm = LayerNorm(size)
        self.attention = Attention(size, sizes.entity_heads)
        self.mix_norm = LayerNorm(size)
        self.mix = MLP(size, (size,), sizes.activation)
        self.outputs = LayerNorm(size)

    def forward(self, entities: Tensor, length: Tensor) -> tuple[Tensor, EncodedEntities]:
        rows, valid = crop_entities(entities, length, self.maximum)
        embedding = embed_by_length(rows, valid, length, self._embed)
        pooled = embedding.sum(-2) / length.clamp(1, self.maximum).unsqueeze(-1)
        return pooled, EncodedEntities(embedding, valid)

    def _embed(self, rows: Tensor, valid: Tensor) -> Tensor:
        hidden = self.inputs(with_flags(rows, self.part))
        hidden = hidden + self.attention(self.attention_norm(hidden), valid)
        hidden = hidden + self.mix(self.mix_norm(hidden))
        embedding: Tensor = self.outputs(hidden)
        return embedding.masked_fill(~valid.unsqueeze(-1), 0.0)


class Encoder(nn.Module):
    """Encodes all parts of an observation; vectors are passed through."""

    def __init__(self, parts: Mapping[str, Part], sizes: EncoderSizes) -> None:
        super().__init__()
        self.vectors = tuple(name for name, part in parts.items() if isinstance(part, Vector))
        planes = {name: part for name, part in parts.items() if isinstance(part, Planes)}
        entities = {name: part for name, part in parts.items() if isinstance(part, Entities)}
        self.plane_names, self.entity_names = tuple(planes), tuple(entities)
        self.planes = nn.ModuleList(planes_encoder(part, sizes) for part in planes.values())
        self.entities = nn.ModuleList(EntitiesEncoder(part, sizes) for part in entities.values())
        self.array_names = tuple(array for name, part in parts.items() for array in part.arrays(name))
        self.size = sum(part.size for part in parts.values() if isinstance(part, Vector))
        self.size += sum(encoder.size for encoder in (*self.planes, *self.entities))

    def forward(self, observation: Mapping[str, Tensor]) -> Encoded:
        features = [as_float(observation[name]) for name in self.vectors]
        for name, planes in zip(self.plane_names, self.planes, strict=True):
            features.append(planes(as_float(observation[name])).flatten(-3))
        embedded: dict[str, EncodedEntities] = {}
        for name, entities in zip(self.entity_names, self.entities, strict=True):
            pooled, embedded[name] = entities(observation[name], observation[length_name(name)])
            features.append(pooled)
        return Encoded(features[0] if len(features) == 1 else torch.cat(features, -1), embedded)


def check_vocabulary(name: str, numbers: tuple[int, ...], size: int) -> None:
    """Raise unless there is at least one number, all are in [0, size) and none is repeated."""
    if not numbers:
        raise ValueError(f"{name} is empty; leave it out to know all {size}")
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ValueError(f"{name} names {twice} twice")
    wrong = [number for number in numbers if not 0 <= number < size]
    if wrong:
        raise ValueError(f"{name} must be numbers from 0 to {size - 1}, got {wrong[0]}")


class KnownTypes(nn.Module):
    """Maps entity types to indices of an embedding. Index 0 stands for all unknown types."""

    place: Tensor

    def __init__(self, types: int, known: tuple[int, ...] | None) -> None:
        super().__init__()
        numbers = torch.arange(types) if known is None else torch.tensor([n for n in known if n < types])
        self.num_places = len(numbers) + 1
        place = torch.zeros(types + 1, dtype=torch.int64)  # the last one is for numbers out of range
        place[numbers] = torch.arange(1, self.num_places)
        self.register_buffer("place", place)

    def forward(self, numbers: Tensor) -> Tensor:
        types = self.place.shape[-1] - 1
        index = numbers.long()
        index = torch.where((index >= 0) & (index < types), index, types)
        if self.place.dim() == 1:
            return self.place[index]
        return self.place.gather(1, index.flatten(1)).reshape(index.shape)


class KnownActions(nn.Module):
    """A choice among `num` options of which only known ones are chosen, unless no known one is legal."""

    number: Tensor

    def __init__(self, num: int, known: tuple[int, ...]) -> None:
        super().__init__()
        self.num = num
        self.register_buffer("number", torch.tensor(sorted(known)))

    def decide(
        self, name: str, scores: Tensor, legal: Tensor | None, in_use: Tensor | None, chooser: Chooser
    ) -> Decision:
        """`scores` [..., known] are the logits of the known options."""
        number = self.number if self.number.dim() == 1 else self.number.unsqueeze(-2)
        number = number.expand(scores.shape)
        logits = scores.new_full((*scores.shape[:-1], self.num), LOWEST).scatter(-1, number, scores)
        known = torch.zeros_like(logits).scatter(-1, number, 1.0) > 0.0
        if legal is not None:
            known = known & legal
            nothing_known = ~known.any(-1, keepdim=True)
            logits = torch.where(nothing_known, 0.0, logits)
            known = known | (nothing_known & legal)
        try:
            return decide(name, logits, known, in_use, chooser)
        except ValueError as error:
            known_of_all = f"{scores.shape[-1]} of {self.num}"
            raise ValueError(f"{error} (the network knows {known_of_all} options)") from None
