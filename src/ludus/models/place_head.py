"""Chooses a place on a map from the features that a tower kept: gated residual blocks, then up-sampling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ludus.data.specs import Point
from ludus.models.alphastar_encoder import AlphaStarEncoder
from ludus.models.decisions import Decision, decide
from ludus.models.heads import Question
from ludus.models.operators import Conv2d, ConvTranspose2d, Linear
from ludus.models.residual import ResidualConv
from ludus.models.spatial_encoder import SpatialTower

_HEAD_GAIN = 0.01
"""Small, so that a fresh policy is close to uniform."""


class PlaceHead(nn.Module):
    """Scores all places. The embedding of the situation is added at every cell and gates each block (FiLM);
    the blocks take in the tower's features from the last to the first."""

    def __init__(self, spec: Point, tower: SpatialTower, embedding_size: int, up: tuple[int, ...]) -> None:
        super().__init__()
        self.places = (spec.height, spec.width)
        channels, num_blocks = tower.channels, max(1, len(tower.blocks))
        self.inputs = Conv2d(channels, channels, kernel=1, padding=0)
        self.context = Linear(embedding_size, channels, bias=False)
        self.blocks = nn.ModuleList(
            ResidualConv(channels, num_blocks=num_blocks, context_size=embedding_size)
            for _ in range(num_blocks)
        )
        doublings = _doublings(spec, tower)
        assert doublings is not None
        self.up = nn.ModuleList()
        for out_channels in _channels_between(up, channels, doublings - 1):
            self.up.append(ConvTranspose2d(channels, out_channels))
            channels = out_channels
        self.scores = (
            ConvTranspose2d(channels, 1, gain=_HEAD_GAIN)
            if doublings
            else Conv2d(channels, 1, kernel=1, padding=0, gain=_HEAD_GAIN)
        )

    def forward(self, question: Question) -> Decision:
        context = self.context(question.features)[..., None, None]
        hidden: Tensor = torch.relu(self.inputs(torch.relu(question.maps[-1])) + context)
        for block, skip in zip(self.blocks, reversed(question.maps), strict=True):
            hidden = block(hidden + skip, question.features)
        hidden = torch.relu(hidden)
        for layer in self.up:
            hidden = torch.relu(layer(hidden))
        height, width = self.places
        logits = question.tempered(self.scores(hidden).squeeze(-3)[..., :height, :width].flatten(-2))
        return decide(question.name, logits, question.legal, question.in_use, question.chooser)


def map_for(spec: Point, encoder: AlphaStarEncoder) -> str | None:
    """The map whose cells become the head's places when they are halved so many times: the finest one."""
    fitting = [name for name in encoder.planes_of_map if _doublings(spec, encoder.tower_of(name)) is not None]
    return max(fitting, key=lambda name: encoder.tower_of(name).places, default=None)


def _doublings(spec: Point, tower: SpatialTower) -> int | None:
    """How often the tower's cells must be halved to be the head's places; None if they never are."""
    for doublings in range(tower.halvings + 8):
        # Cells of the map are counted up, so compare what each side would be without that.
        sides = zip(tower.places, (spec.height, spec.width), strict=True)
        if all(side << doublings == places << tower.halvings for side, places in sides):
            return doublings
    return None


def _channels_between(up: tuple[int, ...], inputs: int, number: int) -> tuple[int, ...]:
    """The last `number` of `up`, with its first as often as there are too few."""
    if number <= 0:
        return ()
    up = up or (inputs,)
    return (up[0],) * (number - len(up)) + up[max(0, len(up) - number) :]
