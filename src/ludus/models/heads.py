"""Action heads, which decide in order: each reads the features and the decisions of earlier heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.data.specs import Box, Choice, Head, Point, Pointer, SeatKind
from ludus.models.continuous import BoxDistribution, Numbers
from ludus.models.decisions import (
    Chooser,
    Decision,
    Decisions,
    decide,
    decide_numbers,
    decide_several,
    head_in_use,
    num_draws,
)
from ludus.models.encoders import Encoded, EncodedEntities
from ludus.models.operators import ACTIVATIONS, LOWEST, Activation, Embedding, Linear

HEAD_GAIN = 0.01
"""Small, so that a fresh policy is close to uniform."""
_FLAT_POINTS = 256
"""Maps with more places than this are scored as a product of rows and columns."""
_POINT_RANK = 8
_KEY_SIZE = 32


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a head."""

    name: str
    features: Tensor
    entities: EncodedEntities | None
    legal: Tensor | None
    in_use: Tensor | None
    chooser: Chooser
    context: Tensor | None = None
    maps: tuple[Tensor, ...] = ()
    temperature: float = 1.0

    def tempered(self, logits: Tensor) -> Tensor:
        return logits if self.temperature == 1.0 else logits / self.temperature

    def at(self, rows: Tensor) -> Question:
        """The input for some rows, all of which use the head."""
        seen = self.entities
        return replace(
            self,
            features=self.features[rows],
            entities=None if seen is None else EncodedEntities(seen.embedding[rows], seen.valid[rows]),
            legal=None if self.legal is None else self.legal[rows],
            in_use=None,
            chooser=self.chooser.at(rows),
            context=None if self.context is None else self.context[rows],
            maps=tuple(features[rows] for features in self.maps),
        )


class ChoiceHead(nn.Module):
    """A score for each option."""

    def __init__(self, spec: Choice, size: int) -> None:
        super().__init__()
        self.scores = Linear(size, spec.num, gain=HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        logits = self.scores(question.features)
        return decide(question.name, logits, question.legal, question.in_use, question.chooser)


class ChoiceEmbedding(nn.Module):
    """The input of later heads from a choice."""

    def __init__(self, spec: Choice, size: int) -> None:
        super().__init__()
        self.options = Embedding(spec.num, size)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.options(action)
        return embedded


class PointHead(nn.Module):
    """A score for each place: separate on small maps, a low-rank product of rows and columns on large ones."""

    def __init__(self, spec: Point, size: int) -> None:
        super().__init__()
        self.factored = spec.height * spec.width > _FLAT_POINTS
        if self.factored:
            gain = math.sqrt(HEAD_GAIN)
            self.rows = Linear(size, _POINT_RANK * spec.height, gain=gain)
            self.columns = Linear(size, _POINT_RANK * spec.width, gain=gain)
        else:
            self.scores = Linear(size, spec.height * spec.width, gain=HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        if self.factored:
            shape = (*question.features.shape[:-1], _POINT_RANK, -1)
            rows = self.rows(question.features).reshape(*shape)
            columns = self.columns(question.features).reshape(*shape)
            logits = (rows.transpose(-1, -2) @ columns).flatten(-2)
        else:
            logits = self.scores(question.features)
        logits = question.tempered(logits)
        return decide(question.name, logits, question.legal, question.in_use, question.chooser)


class PointEmbedding(nn.Module):
    """The input of later heads from a place: embeddings of its row and column."""

    def __init__(self, spec: Point, size: int) -> None:
        super().__init__()
        self.width = spec.width
        self.rows = Embedding(spec.height, size)
        self.columns = Embedding(spec.width, size)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.rows(action // self.width) + self.columns(action % self.width)
        return embedded


class PointerHead(nn.Module):
    """Scores entities by their keys and a query made from the features and, with several picks, from earlier picks."""

    def __init__(self, spec: Pointer, maximum: int, size: int, entity_size: int, activation: Activation) -> None:
        super().__init__()
        self.maximum = maximum
        self.picks = spec.picks
        self.query = Linear(size, _KEY_SIZE, gain=HEAD_GAIN)
        self.keys = Linear(entity_size, _KEY_SIZE, gain=1.0)
        if spec.picks > 1:
            self.activation = ACTIVATIONS[activation]
            self.picked = Linear(entity_size, size, gain=1.0)
            self.mix = Linear(size, size)
            self.end = Linear(_KEY_SIZE, 1, gain=1.0)

    def forward(self, question: Question) -> Decision:
        entities = question.entities
        assert entities is not None
        keys = self.keys(entities.embedding)
        cropped = self.maximum - entities.valid.shape[-1]
        legal = functional.pad(entities.valid, (0, cropped))
        if question.legal is not None:
            legal = legal & question.legal

        def scores(query: Tensor) -> Tensor:
            """[..., maximum]: cropped entities are not valid and get the lowest score."""
            found = (keys @ query.unsqueeze(-1)).squeeze(-1) / math.sqrt(_KEY_SIZE)
            return functional.pad(found, (0, cropped), value=LOWEST)

        def scores_given(chosen: Tensor) -> Tensor:
            context = question.features + self.picked(_sum_of(entities, chosen))
            query = self.query(self.activation(self.mix(context)))
            return torch.cat((scores(query), self.end(query)), -1)

        if self.picks == 1:
            logits = scores(self.query(question.features))
            return decide(question.name, logits, legal, question.in_use, question.chooser)
        return decide_several(question.name, scores_given, self.picks, legal, question.in_use, question.chooser)


class PointerEmbedding(nn.Module):
    """The input of later heads from a pointer: the sum of the entities that it picked."""

    def __init__(self, spec: Pointer, maximum: int, size: int, entity_size: int) -> None:
        super().__init__()
        self.maximum = maximum
        self.several = spec.picks > 1
        self.picked = Linear(entity_size, size, gain=1.0)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        assert question.entities is not None
        picks = action if self.several else action.unsqueeze(-1)
        picks = torch.where(picks < 0, self.maximum, picks)
        chosen = functional.one_hot(picks, self.maximum + 1).sum(-2)[..., : self.maximum]
        embedded: Tensor = self.picked(_sum_of(question.entities, chosen))
        return embedded


class BoxHead(nn.Module):
    """Two parameters for each number of a `Box`."""

    def __init__(self, spec: Box, size: int, distribution: BoxDistribution = "clipped") -> None:
        super().__init__()
        self.numbers = Numbers(spec, distribution)
        self.outputs = Linear(size, 2 * spec.size, gain=HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        parameters = self.outputs(question.features)
        parameters = parameters.reshape(*parameters.shape[:-1], self.numbers.size, 2)
        return decide_numbers(question.name, self.numbers, parameters, question.in_use, question.chooser)


class BoxEmbedding(nn.Module):
    """The input of later heads from numbers: a linear layer of their places between the bounds."""

    def __init__(self, spec: Box, size: int) -> None:
        super().__init__()
        self.numbers = Numbers(spec)
        self.places = Linear(spec.size, size, gain=1.0)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.places(self.numbers.place(action))
        return embedded


def _sum_of(entities: EncodedEntities, chosen: Tensor) -> Tensor:
    """[..., size]: the sum of the chosen embeddings. `chosen` also covers the cropped entities."""
    weights = chosen[..., : entities.valid.shape[-1]].to(entities.embedding.dtype)
    return (weights.unsqueeze(-2) @ entities.embedding).squeeze(-2)


class ActionHeads(nn.Module):
    """All heads of a kind of seat. Each later head reads the features and earlier decisions through its own layer."""

    def __init__(
        self,
        kind: SeatKind,
        size: int,
        entity_size: int,
        activation: Activation,
        box_distribution: BoxDistribution = "clipped",
    ) -> None:
        super().__init__()
        self.specs = dict(kind.action.heads)
        self.activation = ACTIVATIONS[activation]
        self.heads = nn.ModuleList()
        self.embeddings = nn.ModuleList()
        self.mixes = nn.ModuleList(Linear(size, size) for _ in range(len(self.specs) - 1))
        for name, spec in self.specs.items():
            maximum = kind.num_options(name)
            if isinstance(spec, Box):
                self.heads.append(BoxHead(spec, size, box_distribution))
            else:
                self.heads.append(_head(spec, maximum, size, entity_size, activation))
            if len(self.embeddings) < len(self.mixes):
                self.embeddings.append(_embedding(spec, maximum, size, entity_size))

    @property
    def num_draws(self) -> int:
        return num_draws(self.specs)

    @property
    def numbers(self) -> dict[str, Numbers]:
        return numbers_of_heads(self.specs, self.heads)

    def decide(self, features: Tensor, encoded: Encoded, legal: Mapping[str, Tensor], chooser: Chooser) -> Decisions:
        decided: dict[str, Decision] = {}
        in_use: dict[str, Tensor | None] = {}
        context = seen = features
        for index, (name, spec) in enumerate(self.specs.items()):
            if index:
                seen = self.activation(self.mixes[index - 1](context))
            entities = encoded.entities[spec.into] if isinstance(spec, Pointer) else None
            used = in_use[name] = head_in_use(spec, decided, in_use)
            question = Question(name, seen, entities, legal.get(name), used, chooser)
            decision: Decision = self.heads[index](question)
            decided[name] = decision
            if index < len(self.embeddings):
                embedded: Tensor = self.embeddings[index](decision.action, question)
                context = context + (embedded if used is None else embedded * used.unsqueeze(-1))
        return Decisions(decided, in_use)


def numbers_of_heads(specs: Iterable[str], heads: Iterable[nn.Module]) -> dict[str, Numbers]:
    """The distributions of the heads that decide numbers, by name."""
    pairs = zip(specs, heads, strict=True)
    return {name: head.numbers for name, head in pairs if isinstance(head, BoxHead)}


def _head(
    spec: Choice | Point | Pointer, maximum: int, size: int, entity_size: int, activation: Activation
) -> nn.Module:
    if isinstance(spec, Choice):
        return ChoiceHead(spec, size)
    if isinstance(spec, Point):
        return PointHead(spec, size)
    return PointerHead(spec, maximum, size, entity_size, activation)


def _embedding(spec: Head, maximum: int, size: int, entity_size: int) -> nn.Module:
    if isinstance(spec, Choice):
        return ChoiceEmbedding(spec, size)
    if isinstance(spec, Point):
        return PointEmbedding(spec, size)
    if isinstance(spec, Box):
        return BoxEmbedding(spec, size)
    return PointerEmbedding(spec, maximum, size, entity_size)
