"""The encoders of AlphaStar side by side: scalars, entities and maps become one vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ludus.data.specs import Entities, Part, Planes, Vector, length_name
from ludus.models.encoders import Encoded, EncodedEntities
from ludus.models.entity_transformer import EntityTransformer
from ludus.models.operators import Linear
from ludus.models.spatial_encoder import Scatter, ScatterConnection, SpatialSizes, SpatialTower
from ludus.models.tensors import as_float


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaStarSizes:
    """How large the encoders are."""

    scalar_size: int
    entity_size: int
    entity_layers: int
    entity_heads: int
    entity_hidden: int
    spatial: SpatialSizes


class AlphaStarEncoder(nn.Module):
    """Each vector has a linear layer, each list of entities a transformer, all planes of a size one tower."""

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
        self.in_context = tuple(name in context for name in vectors)
        self.context_size = sizes.scalar_size * sum(self.in_context)
        self.vectors = nn.ModuleList(Linear(part.size, sizes.scalar_size) for part in vectors.values())
        self.entities = nn.ModuleList(
            EntityTransformer(
                part,
                size=sizes.entity_size,
                layers=sizes.entity_layers,
                num_heads=sizes.entity_heads,
                hidden=sizes.entity_hidden,
                known_types=known_types,
            )
            for part in entities.values()
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
                    extra = sizes.spatial.scatter_channels
                    self.scatters.append(ScatterConnection(spec, places, sizes.entity_size, extra))
                    channels += extra
            self.towers.append(SpatialTower(channels, places, sizes.spatial))
        self.size = sizes.scalar_size * len(vectors) + sizes.entity_size * len(entities)
        self.size += sizes.spatial.size * len(self.towers)

    def tower_of(self, name: str) -> SpatialTower:
        """The tower whose features are in `Encoded.maps` under this name."""
        tower = self.towers[list(self.planes_of_map).index(name)]
        assert isinstance(tower, SpatialTower)
        return tower

    def forward(self, observation: Mapping[str, Tensor]) -> Encoded:
        features: list[Tensor] = []
        context: list[Tensor] = []
        for name, vector, gates in zip(self.vector_names, self.vectors, self.in_context, strict=True):
            features.append(torch.relu(vector(as_float(observation[name]))))
            if gates:
                context.append(features[-1])
        embedded: dict[str, EncodedEntities] = {}
        for name, transformer in zip(self.entity_names, self.entities, strict=True):
            whole, embedded[name] = transformer(observation[name], observation[length_name(name)])
            features.append(whole)
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
    """The names of planes of the same size, under the first of them."""
    maps: dict[tuple[int, int], tuple[str, ...]] = {}
    for name, part in parts.items():
        if isinstance(part, Planes):
            size = (part.height, part.width)
            maps[size] = (*maps.get(size, ()), name)
    return {names[0]: names for names in maps.values()}


def _joined(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)
