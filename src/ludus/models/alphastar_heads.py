"""AlphaStar's heads, which decide in order and add each decision to an embedding, and its baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ludus.data.specs import Box, Choice, Head, Point, Pointer, SeatKind
from ludus.models.alphastar_encoder import AlphaStarEncoder, AlphaStarSizes, SpatialTower
from ludus.models.continuous import Numbers
from ludus.models.decisions import (
    Chooser,
    Decision,
    Decisions,
    decide,
    decide_several,
    head_in_use,
    nothing_chosen,
    num_draws,
)
from ludus.models.encoders import Encoded, KnownActions
from ludus.models.heads import HEAD_GAIN, BoxEmbedding, BoxHead, PointEmbedding, PointHead, Question, numbers_of_heads
from ludus.models.memory import LSTM
from ludus.models.operators import (
    LOWEST,
    MLP,
    Conv2d,
    ConvTranspose2d,
    Embedding,
    GatedLinear,
    Linear,
    ResidualConv,
    ResidualTower,
)
from ludus.models.tensors import DeferredChecks, round_up_rows


class AlphaStarHeads(nn.Module):
    """All heads of a kind of seat, in the order of the game. The first choice is the action type."""

    def __init__(
        self,
        kind: SeatKind,
        encoder: AlphaStarEncoder,
        in_size: int,
        sizes: AlphaStarSizes,
        *,
        actions: tuple[int, ...] | None,
        temperatures: Mapping[str, float],
    ) -> None:
        super().__init__()
        self.specs = dict(kind.action.heads)
        self.temperatures = {name: temperatures.get(name, 1.0) for name in self.specs}
        specs = list(self.specs.items())
        action_type = next((name for name, spec in specs if isinstance(spec, Choice)), None)
        # If the action type comes first, it reads the memory's output directly.
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
                self.heads.append(self._head(name, spec, kind.num_options(name), encoder, sizes))
            if any(not _exclude_each_other(spec, later) for _, later in specs[index + 1 :]):
                self.embeddings[str(index)] = (
                    ActionTypeEmbedding(spec, encoder.context_size, sizes)
                    if name == action_type and isinstance(spec, Choice)
                    else _embedding(spec, sizes)
                )

    def _head(self, name: str, spec: Head, maximum: int, encoder: AlphaStarEncoder, sizes: AlphaStarSizes) -> nn.Module:
        if isinstance(spec, Choice):
            return OptionHead(spec, sizes)
        if isinstance(spec, Pointer):
            return UnitsHead(spec, maximum, sizes)
        if isinstance(spec, Box):
            return BoxHead(spec, sizes.embedding_size)
        found = map_for(spec, encoder)
        if found is None:
            return PointHead(spec, sizes.embedding_size)
        self.map_names[name] = found
        return PlaceHead(spec, encoder.tower_of(found), sizes.embedding_size, sizes.up)

    @property
    def num_draws(self) -> int:
        return num_draws(self.specs)

    @property
    def numbers(self) -> dict[str, Numbers]:
        return numbers_of_heads(self.specs, self.heads)

    def decide(self, features: Tensor, encoded: Encoded, legal: Mapping[str, Tensor], chooser: Chooser) -> Decisions:
        decided: dict[str, Decision] = {}
        in_use: dict[str, Tensor | None] = {}
        embedding = features if self.start is None else self.start(features, encoded.context)
        for index, (name, spec) in enumerate(self.specs.items()):
            used = in_use[name] = head_in_use(spec, decided, in_use)
            question = Question(
                name=name,
                features=features if index == 0 and self.first_reads_features else embedding,
                entities=encoded.entities[spec.into] if isinstance(spec, Pointer) else None,
                legal=legal.get(name),
                in_use=used,
                chooser=chooser,
                context=encoded.context,
                maps=encoded.maps[self.map_names[name]] if name in self.map_names else (),
                temperature=self.temperatures[name],
            )
            decision = decided[name] = _decide_where_used(self.heads[index], spec, question)
            if str(index) in self.embeddings:
                embedded: Tensor = self.embeddings[str(index)](decision.action, question)
                embedding = embedding + (embedded if used is None else embedded * used.unsqueeze(-1))
        return Decisions(decided, in_use)


def _decide_where_used(head: nn.Module, spec: Head, question: Question) -> Decision:
    """The head's decision, computed only for the rows that use it; a stack and a CUDA graph compute all rows."""
    used = question.in_use
    if used is None or used.dim() > 1 or DeferredChecks.active():
        everywhere: Decision = head(question)
        return everywhere
    nothing = nothing_chosen(spec, len(used), used.device)
    rows = used.nonzero().squeeze(-1)
    if not len(rows) and not question.chooser.evaluates:
        question.chooser.skip(num_draws({question.name: spec}))
        return Decision(nothing, question.features.new_zeros(len(used)), None, None)
    few = len(rows)
    filled = torch.cat((rows, rows[:1].expand(round_up_rows(few) - few)))
    try:
        made: Decision = head(question.at(filled))
    except ValueError:
        head(question)  # raises with the row's number among all rows
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


def _exclude_each_other(one: Head, other: Head) -> bool:
    """Whether no action uses both heads, so that neither needs the other's decision."""
    if one.when is None or other.when is None or one.when.head != other.when.head:
        return False
    return not set(one.when.values) & set(other.when.values)


def _embedding(spec: Head, sizes: AlphaStarSizes) -> nn.Module:
    if isinstance(spec, Choice):
        return OptionEmbedding(spec, sizes)
    if isinstance(spec, Point):
        return PointEmbedding(spec, sizes.embedding_size)
    if isinstance(spec, Box):
        return BoxEmbedding(spec, sizes.embedding_size)
    return UnitsEmbedding(spec, sizes)


class ActionTypeHead(nn.Module):
    """A deep tower, then a score for each known option, gated by the context."""

    def __init__(
        self, spec: Choice, in_size: int, context_size: int, sizes: AlphaStarSizes, known: tuple[int, ...] | None
    ) -> None:
        super().__init__()
        self.known = None if known is None else KnownActions(spec.num, known)
        self.tower = ResidualTower(in_size, sizes.action_size, sizes.action_blocks)
        num = spec.num if known is None else len(known)
        self.scores = GatedLinear(sizes.action_size, context_size, num, gain=HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        scores = question.tempered(self.scores(self.tower(question.features), question.context))
        decide_among = decide if self.known is None else self.known.decide
        return decide_among(question.name, scores, question.legal, question.in_use, question.chooser)


class ActionTypeEmbedding(nn.Module):
    """The input of later heads from the action type, gated by the context."""

    def __init__(self, spec: Choice, context_size: int, sizes: AlphaStarSizes) -> None:
        super().__init__()
        self.options = Embedding(spec.num, sizes.head_hidden)
        self.outputs = GatedLinear(sizes.head_hidden, context_size, sizes.embedding_size)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.outputs(torch.relu(self.options(action)), question.context)
        return embedded


class OptionHead(nn.Module):
    """A score for each option of any other choice, such as a delay."""

    def __init__(self, spec: Choice, sizes: AlphaStarSizes) -> None:
        super().__init__()
        self.hidden = MLP(sizes.embedding_size, (sizes.head_hidden, sizes.head_hidden), "relu")
        self.scores = Linear(sizes.head_hidden, spec.num, gain=HEAD_GAIN)

    def forward(self, question: Question) -> Decision:
        logits = question.tempered(self.scores(self.hidden(question.features)))
        return decide(question.name, logits, question.legal, question.in_use, question.chooser)


class OptionEmbedding(nn.Module):
    def __init__(self, spec: Choice, sizes: AlphaStarSizes) -> None:
        super().__init__()
        self.options = Embedding(spec.num, sizes.head_hidden)
        self.outputs = Linear(sizes.head_hidden, sizes.embedding_size, gain=1.0)

    def forward(self, action: Tensor, question: Question) -> Tensor:
        embedded: Tensor = self.outputs(torch.relu(self.options(action)))
        return embedded


class UnitsHead(nn.Module):
    """Scores entities by their keys and a query; with several picks, a small LSTM makes the next query."""

    def __init__(self, spec: Pointer, maximum: int, sizes: AlphaStarSizes) -> None:
        super().__init__()
        hidden, key_size = sizes.head_hidden, sizes.key_size
        self.maximum = maximum
        self.picks = spec.picks
        self.scale = 1.0 / math.sqrt(key_size)
        self.keys = Linear(sizes.entity_size, key_size, gain=1.0)
        self.hidden = Linear(sizes.embedding_size, hidden)
        if spec.picks > 1:
            self.picked = Linear(key_size, hidden, gain=1.0, bias=False)
            self.reduce = Linear(hidden, key_size, gain=1.0)
            self.lstm = LSTM(key_size, key_size)
            self.end = Linear(key_size, 1, gain=1.0)
        query_inputs = key_size if spec.picks > 1 else hidden
        self.query = Linear(query_inputs, key_size, gain=HEAD_GAIN)

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
            """[..., maximum]: cropped entities are not valid and get the lowest score."""
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

        return decide_several(question.name, scores_given, self.picks, legal, question.in_use, question.chooser)


class UnitsEmbedding(nn.Module):
    """The input of later heads from a pointer: the mean of the entities that it picked."""

    def __init__(self, spec: Pointer, sizes: AlphaStarSizes) -> None:
        super().__init__()
        self.several = spec.picks > 1
        self.outputs = Linear(sizes.entity_size, sizes.embedding_size, gain=1.0)

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


class PlaceHead(nn.Module):
    """Scores all places of a map. The embedding is added at every cell and gates each block (FiLM)."""

    def __init__(self, spec: Point, tower: SpatialTower, embedding_size: int, up: tuple[int, ...]) -> None:
        super().__init__()
        self.places = (spec.height, spec.width)
        channels, num_blocks = tower.channels, max(1, len(tower.blocks))
        self.inputs = Conv2d(channels, channels, kernel=1, padding=0)
        self.context = Linear(embedding_size, channels, bias=False)
        self.blocks = nn.ModuleList(
            ResidualConv(channels, num_blocks=num_blocks, context_size=embedding_size) for _ in range(num_blocks)
        )
        doublings = _doublings(spec, tower)
        assert doublings is not None
        self.up = nn.ModuleList()
        for out_channels in _channels_between(up, channels, doublings - 1):
            self.up.append(ConvTranspose2d(channels, out_channels))
            channels = out_channels
        self.scores = (
            ConvTranspose2d(channels, 1, gain=HEAD_GAIN)
            if doublings
            else Conv2d(channels, 1, kernel=1, padding=0, gain=HEAD_GAIN)
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
    """The finest map whose cells, halved some number of times, become the head's places."""
    fitting = [name for name in encoder.planes_of_map if _doublings(spec, encoder.tower_of(name)) is not None]
    return max(fitting, key=lambda name: encoder.tower_of(name).places, default=None)


def _doublings(spec: Point, tower: SpatialTower) -> int | None:
    """How often the tower's cells must be halved to become the head's places; None if they cannot."""
    for doublings in range(tower.halvings + 8):
        # The number of cells is rounded up, so compare the sides before rounding.
        sides = zip(tower.places, (spec.height, spec.width), strict=True)
        if all(side << doublings == places << tower.halvings for side, places in sides):
            return doublings
    return None


def _channels_between(up: tuple[int, ...], inputs: int, number: int) -> tuple[int, ...]:
    """The last `number` of `up`; its first is repeated if there are too few."""
    if number <= 0:
        return ()
    up = up or (inputs,)
    return (up[0],) * (number - len(up)) + up[max(0, len(up) - number) :]


class Baselines(nn.Module):
    """Values of all rewards, the main one first, from the actor's features (with gradient) and its own encoders."""

    def __init__(
        self,
        encoders: Sequence[AlphaStarEncoder],
        feature_size: int,
        *,
        num_values: int,
        size: int,
        blocks: int,
        bounded: bool,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.bounded = bounded
        self.array_names = tuple(name for encoder in encoders for name in encoder.array_names)
        in_size = feature_size + sum(encoder.size for encoder in encoders)
        self.towers = nn.ModuleList(ResidualTower(in_size, size, blocks) for _ in range(num_values))
        self.values = nn.ModuleList(Linear(size, 1, gain=1.0) for _ in range(num_values))

    def forward(self, observation: Mapping[str, Tensor], features: Tensor) -> Tensor:
        read = [encoder(observation).features for encoder in self.encoders]
        features = torch.cat((*read, features), -1) if read else features
        values = [value(tower(features)) for tower, value in zip(self.towers, self.values, strict=True)]
        if self.bounded:
            values[0] = (2.0 / math.pi) * torch.atan((math.pi / 2.0) * values[0])
        return torch.cat(values, -1)
