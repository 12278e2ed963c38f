"""Entities through layers of masked self-attention: an embedding for each, and one for the whole list."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ludus.data.specs import Entities
from ludus.models.encoders import EncodedEntities, valid_entities
from ludus.models.operators import Attention, Embedding, LayerNorm, Linear
from ludus.models.tensors import as_float
from ludus.models.vocabulary import KnownTypes


class TransformerLayer(nn.Module):
    """Attention among the valid entities, then two linear layers for each; both are added to what came in."""

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
    """Features and type of each entity, then layers of attention. `known_types` cuts the vocabulary."""

    def __init__(
        self,
        part: Entities,
        *,
        size: int,
        layers: int,
        num_heads: int,
        hidden: int,
        known_types: tuple[int, ...] | None,
    ) -> None:
        super().__init__()
        self.size = size
        self.maximum = part.maximum
        self.typed = part.types > 0
        num_features = part.features - self.typed
        self.inputs = Linear(num_features, size) if num_features else None
        if self.typed:
            self.types = KnownTypes(part.types, known_types)
            self.type_embedding = Embedding(self.types.num_places, size)
        self.layers = nn.ModuleList(TransformerLayer(size, num_heads, hidden) for _ in range(layers))
        self.outputs_norm = LayerNorm(size)
        self.outputs = Linear(size, size)
        self.whole = Linear(size, size)

    def forward(self, entities: Tensor, length: Tensor) -> tuple[Tensor, EncodedEntities]:
        """[..., size] for the list as a whole, and its entities, cropped to the longest list."""
        longest = max(1, min(self.maximum, int(length.max()))) if length.numel() else 1
        valid = valid_entities(length, longest)
        padding = ~valid.unsqueeze(-1)
        # Padding may hold anything, NaN included, so it is replaced rather than multiplied away.
        hidden = self._embedded(entities[..., :longest, :].masked_fill(padding, 0))
        for layer in self.layers:
            hidden = layer(hidden, valid)
        hidden = torch.relu(self.outputs(torch.relu(self.outputs_norm(hidden))))
        embedding = hidden.masked_fill(padding, 0.0)
        mean = embedding.sum(-2) / length.clamp(1, self.maximum).unsqueeze(-1)
        return torch.relu(self.whole(mean)), EncodedEntities(embedding, valid)

    def _embedded(self, rows: Tensor) -> Tensor:
        if not self.typed:
            assert self.inputs is not None
            untyped: Tensor = self.inputs(as_float(rows))
            return untyped
        embedded: Tensor = self.type_embedding(self.types(rows[..., 0]))
        return embedded if self.inputs is None else embedded + self.inputs(as_float(rows[..., 1:]))
