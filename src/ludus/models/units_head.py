"""Picks one or several entities by attention: a query from the situation against a key of each entity."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.data.specs import Pointer
from ludus.models.decisions import Decision, decide, decide_several
from ludus.models.heads import Question
from ludus.models.operators import LOWEST, LSTM, Linear

_HEAD_GAIN = 0.01
"""Small, so that a fresh policy is close to uniform."""


class UnitsHead(nn.Module):
    """Scores entities by how well their keys answer a query. With several picks, a small LSTM makes the
    next query from the embedding and the mean key of those picked so far."""

    def __init__(
        self,
        spec: Pointer,
        maximum: int,
        *,
        entity_size: int,
        embedding_size: int,
        hidden: int,
        key_size: int,
    ) -> None:
        super().__init__()
        self.maximum = maximum
        self.picks = spec.picks
        self.scale = 1.0 / math.sqrt(key_size)
        self.keys = Linear(entity_size, key_size, gain=1.0)
        self.hidden = Linear(embedding_size, hidden)
        if spec.picks > 1:
            self.picked = Linear(key_size, hidden, gain=1.0, bias=False)
            self.reduce = Linear(hidden, key_size, gain=1.0)
            self.lstm = LSTM(key_size, key_size)
            self.end = Linear(key_size, 1, gain=1.0)
        query_inputs = key_size if spec.picks > 1 else hidden
        self.query = Linear(query_inputs, key_size, gain=_HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        entities = question.entities
        assert entities is not None
        keys = self.keys(entities.embedding)
        seen = entities.valid.shape[-1]
        legal = functional.pad(entities.valid, (0, self.maximum - seen))
        if question.legal is not None:
            legal = legal & question.legal
        scale = self.scale / question.temperature
        hidden = self.hidden(question.features)

        def scores(query: Tensor) -> Tensor:
            """[..., maximum]: the cropped entities are not valid, so they get the lowest score."""
            found = (keys @ (query * scale).unsqueeze(-1)).squeeze(-1)
            return functional.pad(found, (0, self.maximum - seen), value=LOWEST)

        if self.picks == 1:
            logits = scores(self.query(torch.relu(hidden)))
            return decide(question.name, logits, legal, question.in_use, question.chooser)
        state = keys.new_zeros(2, *hidden.shape[:-1], keys.shape[-1]).unbind(0)

        def scores_given(chosen: Tensor) -> Tensor:
            """Called once for each pick, in order."""
            nonlocal state
            weights = chosen[..., :seen].to(keys.dtype)
            mean = _weighted_mean(keys, weights)
            inputs = self.reduce(torch.relu(hidden + self.picked(mean)))
            state = self.lstm.step(self.lstm.project(inputs), *state)
            query = self.query(state[0])
            return torch.cat((scores(query), question.tempered(self.end(query))), -1)

        return decide_several(
            question.name, scores_given, self.picks, legal, question.in_use, question.chooser
        )


class UnitsEmbedding(nn.Module):
    """What later heads see of a pointer: the mean of the entities that it picked."""

    def __init__(self, spec: Pointer, entity_size: int, embedding_size: int) -> None:
        super().__init__()
        self.several = spec.picks > 1
        self.outputs = Linear(entity_size, embedding_size, gain=1.0)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        entities = question.entities
        assert entities is not None
        picks = action if self.several else action.unsqueeze(-1)
        seen = entities.valid.shape[-1]
        picks = torch.where((picks < 0) | (picks >= seen), seen, picks)
        chosen = entities.embedding.new_zeros(*picks.shape[:-1], seen + 1).scatter(-1, picks, 1.0)
        embedded: Tensor = self.outputs(_weighted_mean(entities.embedding, chosen[..., :seen]))
        return embedded


def _weighted_mean(vectors: Tensor, weights: Tensor) -> Tensor:
    """[..., N, size] and [..., N] to [..., size]; zero where all weights are."""
    total = weights.sum(-1, keepdim=True).clamp(min=1.0)
    return ((weights / total).unsqueeze(-2) @ vectors).squeeze(-2)
