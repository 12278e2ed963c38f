"""The heads of AlphaStar: an embedding of the situation grows with each argument that is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ludus.data.specs import Choice, Head, Point, Pointer, SeatKind
from ludus.models.alphastar_encoder import AlphaStarEncoder
from ludus.models.decisions import (
    Chooser,
    Decision,
    Decisions,
    decide,
    head_in_use,
    num_draws,
)
from ludus.models.encoders import Encoded, EncodedEntities
from ludus.models.heads import PointEmbedding, PointHead, Question
from ludus.models.operators import MLP, Embedding, Linear
from ludus.models.place_head import PlaceHead, map_for
from ludus.models.residual import GatedLinear, ResidualTower
from ludus.models.tensors import few_sizes
from ludus.models.units_head import UnitsEmbedding, UnitsHead
from ludus.models.vocabulary import KnownActions

_HEAD_GAIN = 0.01
"""Small, so that a fresh policy is close to uniform."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSizes:
    """How large the heads are."""

    action_size: int
    action_blocks: int
    hidden: int
    """Of the layers of all other heads."""
    key_size: int
    embedding_size: int
    """Of what later heads see of the situation and of earlier heads."""
    up: tuple[int, ...]
    """Channels of the convolutions that double the map."""


class ActionTypeHead(nn.Module):
    """A deep tower, then a score for each known option, gated by the context."""

    def __init__(
        self, spec: Choice, in_size: int, context_size: int, sizes: HeadSizes, known: tuple[int, ...] | None
    ) -> None:
        super().__init__()
        self.known = None if known is None else KnownActions(spec.num, known)
        self.tower = ResidualTower(in_size, sizes.action_size, sizes.action_blocks)
        num = spec.num if known is None else len(known)
        self.scores = GatedLinear(sizes.action_size, context_size, num, gain=_HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        scores = question.tempered(self.scores(self.tower(question.features), question.context))
        decide_among = decide if self.known is None else self.known.decide
        return decide_among(question.name, scores, question.legal, question.in_use, question.chooser)


class ActionTypeEmbedding(nn.Module):
    """What later heads see of the action type, gated by the context."""

    def __init__(self, spec: Choice, context_size: int, sizes: HeadSizes) -> None:
        super().__init__()
        self.options = Embedding(spec.num, sizes.hidden)
        self.outputs = GatedLinear(sizes.hidden, context_size, sizes.embedding_size)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.outputs(torch.relu(self.options(action)), question.context)
        return embedded


class OptionHead(nn.Module):
    """A score for each option of any other choice: a delay, whether to queue."""

    def __init__(self, spec: Choice, sizes: HeadSizes) -> None:
        super().__init__()
        self.hidden = MLP(sizes.embedding_size, (sizes.hidden, sizes.hidden), "relu")
        self.scores = Linear(sizes.hidden, spec.num, gain=_HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        logits = question.tempered(self.scores(self.hidden(question.features)))
        return decide(question.name, logits, question.legal, question.in_use, question.chooser)


class OptionEmbedding(nn.Module):
    def __init__(self, spec: Choice, sizes: HeadSizes) -> None:
        super().__init__()
        self.options = Embedding(spec.num, sizes.hidden)
        self.outputs = Linear(sizes.hidden, sizes.embedding_size, gain=1.0)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.outputs(torch.relu(self.options(action)))
        return embedded


class PlaceEmbedding(PointEmbedding):
    """What later heads see of a place."""

    def forward(self, action: Tensor, question: Question) -> Tensor:  # type: ignore[override]
        return super().forward(action, None)


class AlphaStarHeads(nn.Module):
    """All heads of a kind of seat, in the order of the game. The first choice is the action type."""

    def __init__(
        self,
        kind: SeatKind,
        encoder: AlphaStarEncoder,
        in_size: int,
        sizes: HeadSizes,
        *,
        entity_size: int,
        actions: tuple[int, ...] | None,
        temperatures: Mapping[str, float],
    ) -> None:
        super().__init__()
        self.specs = dict(kind.action.heads)
        self.temperatures = {name: temperatures.get(name, 1.0) for name in self.specs}
        specs = list(self.specs.items())
        action_type = next((name for name, spec in specs if isinstance(spec, Choice)), None)
        # The action type, when it comes first, reads the memory's output itself.
        self.first_reads_features = specs[0][0] == action_type
        self.start: GatedLinear | None = None
        if len(specs) > 1 or not self.first_reads_features:
            self.start = GatedLinear(in_size, encoder.context_size, sizes.embedding_size, gain=1.0)
        self.map_names: dict[str, str] = {}
        self.heads = nn.ModuleList()
        self.embeddings = nn.ModuleDict()
        for index, (name, spec) in enumerate(specs):
            sees = in_size if index == 0 and self.first_reads_features else sizes.embedding_size
            if name == action_type:
                assert isinstance(spec, Choice)
                self.heads.append(ActionTypeHead(spec, sees, encoder.context_size, sizes, actions))
            else:
                maximum = kind.num_options(name)
                self.heads.append(self._head(name, spec, maximum, encoder, entity_size, sizes))
            if any(not _exclude_each_other(spec, later) for _, later in specs[index + 1 :]):
                self.embeddings[str(index)] = (
                    ActionTypeEmbedding(spec, encoder.context_size, sizes)
                    if name == action_type and isinstance(spec, Choice)
                    else _embedding(spec, entity_size, sizes)
                )

    def _head(
        self,
        name: str,
        spec: Head,
        maximum: int,
        encoder: AlphaStarEncoder,
        entity_size: int,
        sizes: HeadSizes,
    ) -> nn.Module:
        if isinstance(spec, Choice):
            return OptionHead(spec, sizes)
        if isinstance(spec, Pointer):
            return UnitsHead(
                spec,
                maximum,
                entity_size=entity_size,
                embedding_size=sizes.embedding_size,
                hidden=sizes.hidden,
                key_size=sizes.key_size,
            )
        found = map_for(spec, encoder)
        if found is None:
            return PointHead(spec, sizes.embedding_size)
        self.map_names[name] = found
        return PlaceHead(spec, encoder.tower_of(found), sizes.embedding_size, sizes.up)

    @property
    def num_draws(self) -> int:
        return num_draws(self.specs)

    def decide(
        self, features: Tensor, encoded: Encoded, legal: Mapping[str, Tensor], chooser: Chooser
    ) -> Decisions:
        decided: dict[str, Decision] = {}
        in_use: dict[str, Tensor | None] = {}
        embedding = features if self.start is None else self.start(features, encoded.context)
        for index, (name, spec) in enumerate(self.specs.items()):
            around: EncodedEntities | None = None
            if isinstance(spec, Pointer):
                around = encoded.entities[spec.into]
            maps = encoded.maps[self.map_names[name]] if name in self.map_names else ()
            used = in_use[name] = head_in_use(spec, decided, in_use)
            question = Question(
                name=name,
                features=features if index == 0 and self.first_reads_features else embedding,
                entities=around,
                legal=legal.get(name),
                in_use=used,
                chooser=chooser,
                context=encoded.context,
                maps=maps,
                temperature=self.temperatures[name],
            )
            decision = decided[name] = _decide_where_used(self.heads[index], spec, question)
            if str(index) in self.embeddings:
                embedded: Tensor = self.embeddings[str(index)](decision.action, question)
                embedding = embedding + (embedded if used is None else embedded * used.unsqueeze(-1))
        return Decisions(decided, in_use)


def _decide_where_used(head: nn.Module, spec: Head, question: Question) -> Decision:
    """What the head decides, without the work for rows that do not use it; a stack works on all rows."""
    used = question.in_use
    if used is None or used.dim() > 1:
        everywhere: Decision = head(question)
        return everywhere
    shape = (len(used), spec.picks) if isinstance(spec, Pointer) and spec.picks > 1 else (len(used),)
    nothing = torch.full(shape, -1 if len(shape) > 1 else 0, device=used.device)
    rows = used.nonzero().squeeze(-1)
    if not len(rows) and not question.chooser.evaluates:
        question.chooser.skip(num_draws({question.name: spec}))
        return Decision(nothing, question.features.new_zeros(len(used)), None, None)
    few = len(rows)
    filled = torch.cat((rows, rows[:1].expand(few_sizes(few) - few)))
    try:
        made: Decision = head(question.at(filled))
    except ValueError:
        head(question)  # says which of all the rows it is
        raise
    question.chooser.skip(num_draws({question.name: spec}))

    def spread(part: Tensor) -> Tensor:
        return part.new_zeros(len(used), *part.shape[1:]).index_copy(0, rows, part[:few])

    return Decision(
        nothing.index_copy(0, rows, made.action[:few]),
        spread(made.log_prob),
        None if made.log_probs is None else spread(made.log_probs),
        None if made.entropy is None else spread(made.entropy),
    )


def _embedding(spec: Head, entity_size: int, sizes: HeadSizes) -> nn.Module:
    if isinstance(spec, Choice):
        return OptionEmbedding(spec, sizes)
    if isinstance(spec, Point):
        return PlaceEmbedding(spec, sizes.embedding_size)
    return UnitsEmbedding(spec, entity_size, sizes.embedding_size)


def _exclude_each_other(one: Head, other: Head) -> bool:
    """No action uses both: what one decides is nothing to the other."""
    if one.when is None or other.when is None or one.when.head != other.when.head:
        return False
    return not set(one.when.values) & set(other.when.values)
