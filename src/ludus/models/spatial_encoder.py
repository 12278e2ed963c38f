"""Maps through down-sampling convolutions and residual blocks, with entities scattered onto their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.models.encoders import EncodedEntities
from ludus.models.operators import Conv2d, Linear
from ludus.models.residual import ResidualConv

_SMALLEST_SIDE = 8
"""Maps with a shorter side are not halved any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """Put what is known of each entity onto the map, at its place."""

    entities: str
    """The `Entities` part."""
    onto: str
    """The `Planes` part."""
    x: int
    """The column of the entity's features that holds its x; a type counts as the first column."""
    y: int
    scale: float = 1.0
    """Coordinates run from 0 up to this."""

    def __post_init__(self) -> None:
        if self.x < 0 or self.y < 0:
            raise ValueError(f"Scatter: x and y must be columns from 0 on, got {min(self.x, self.y)}")
        if not self.scale > 0.0:
            raise ValueError(f"Scatter.scale must be above 0, got {self.scale}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpatialSizes:
    """How large the tower over a map is."""

    scatter_channels: int
    inputs: int
    """Channels at the map's own resolution."""
    down: tuple[int, ...]
    """Channels of the convolutions that halve the map."""
    blocks: int
    size: int
    """Length of the embedding of the whole map."""


class ScatterConnection(nn.Module):
    """Reduces the embeddings of entities and adds them up at their places."""

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
        cells = values.new_zeros(len(values), height * width, values.shape[-1]).scatter_add(1, index, values)
        return cells.mT.reshape(*valid.shape[:-1], -1, height, width)

    def _cell(self, coordinate: Tensor, valid: Tensor, cells: int) -> Tensor:
        share = coordinate.masked_fill(~valid, 0).float() / self.scale
        return (share * cells).long().clamp(0, cells - 1)


class SpatialTower(nn.Module):
    """Planes of one size: a 1x1 projection, convolutions that halve the map while it is large, residual
    blocks; an embedding of the whole, and the blocks' outputs for heads that choose a place."""

    def __init__(self, in_channels: int, places: tuple[int, int], sizes: SpatialSizes) -> None:
        super().__init__()
        self.places = places
        self.inputs = Conv2d(in_channels, sizes.inputs, kernel=1, padding=0)
        self.down = nn.ModuleList()
        self.halvings = 0
        self.channels, (height, width) = sizes.inputs, places
        for channels in sizes.down:
            if min(height, width) >= _SMALLEST_SIDE:
                self.down.append(Conv2d(self.channels, channels, kernel=4, stride=2))
                self.halvings += 1
                height, width = -(-height // 2), -(-width // 2)
            else:
                self.down.append(Conv2d(self.channels, channels))
            self.channels = channels
        self.cells = (height, width)
        self.blocks = nn.ModuleList(
            ResidualConv(self.channels, num_blocks=sizes.blocks) for _ in range(sizes.blocks)
        )
        self.whole = Linear(self.channels * height * width, sizes.size)

    def forward(self, planes: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """[..., channels, height, width] to [..., size] and the features of the map at `cells`."""
        if planes.dim() == 4:
            planes = planes.contiguous(memory_format=torch.channels_last)
        planes = torch.relu(self.inputs(planes))
        for index, layer in enumerate(self.down):
            if index < self.halvings:  # an odd side gets a cell more, so that a cell is always two places
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
