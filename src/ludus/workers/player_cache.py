"""The players that an actor has in memory: policies of learning and frozen players, and bots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ludus.data.records import ModelId
from ludus.data.search import GumbelSearch, split_search
from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, Tree, allocate
from ludus.games.game import Bot, GameSource
from ludus.games.network_search import NetworkSearch
from ludus.league.league import League
from ludus.league.summary import best_snapshot
from ludus.models.network_policy import can_stack
from ludus.models.policy import Policy, architecture_digest, evaluate, load_weights, uses_convolutions
from ludus.models.tensors import round_up_rows
from ludus.store.model_pool import BEST, ModelPool, UnknownModel, Variant


class WeightStore(Protocol):
    """Newest weights by player. Publishing never waits for readers."""

    def publish(self, model: ModelId, weights: Mapping[str, Array]) -> None: ...
    def newest(self, player: str) -> ModelId | None: ...
    def fetch(self, player: str) -> tuple[ModelId, Tree]: ...


class LocalWeights:
    """A `WeightStore` inside one process."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[ModelId, Tree]] = {}

    def publish(self, model: ModelId, weights: Mapping[str, Array]) -> None:
        self._entries[model.player] = (model, {name: np.array(array) for name, array in weights.items()})

    def newest(self, player: str) -> ModelId | None:
        entry = self._entries.get(player)
        return entry[0] if entry else None

    def fetch(self, player: str) -> tuple[ModelId, Tree]:
        return self._entries[player]


class SharedWeights:
    """A `WeightStore` in shared memory with two copies of each player's weights. The publisher fills the older one and
    then says so; a reader whose copy was filled meanwhile reads again."""

    def __init__(
        self, new: Callable[[tuple[int, ...], np.dtype[Any]], Array], weights: Mapping[str, Mapping[str, ArraySpec]]
    ) -> None:
        self._published = {player: new((1,), np.dtype(np.int64)) for player in weights}
        """How often the player was published; copy number published % 2 is the newest."""
        self._filling = {player: new((1,), np.dtype(np.int64)) for player in weights}
        """Number of the publication that is being, or was last, written."""
        self._ids = {player: new((2, 2), np.dtype(np.int64)) for player in weights}
        """[copy, (incarnation, step)]"""
        self._copies = {player: allocate(specs, (2,), new) for player, specs in weights.items()}

    def publish(self, model: ModelId, weights: Mapping[str, Array]) -> None:
        player = model.player
        number = int(self._published[player][0]) + 1
        self._filling[player][0] = number
        for name, array in self._copies[player].items():
            array[number % 2] = weights[name]
        self._ids[player][number % 2] = model.incarnation, model.step
        self._published[player][0] = number

    def newest(self, player: str) -> ModelId | None:
        if player not in self._published or not self._published[player][0]:
            return None
        return self._model(player, int(self._published[player][0]))

    def fetch(self, player: str) -> tuple[ModelId, Tree]:
        while True:
            number = int(self._published[player][0])
            # Not .copy(): of a weight without axes the index gives a number, and its copy is no array.
            weights = {name: np.array(array[number % 2]) for name, array in self._copies[player].items()}
            model = self._model(player, number)
            if self._filling[player][0] <= number + 1:  # our copy is filled again by number + 2 only
                return model, weights

    def _model(self, player: str, number: int) -> ModelId:
        incarnation, step = self._ids[player][number % 2].tolist()
        return ModelId(player, incarnation, step)


class Players(Protocol):
    """Where an actor finds its players. `PlayerCache` while training."""

    def get(self, player: str) -> SeatedPlayer: ...
    def bot(self, player: str) -> Bot | None:
        """The bot of this name; None if the player has a policy. Loads nothing."""

    def refresh(self) -> None:
        """Take newer weights, if there are any."""

    def model_name(self, player: str) -> str:
        """The id of its present weights; "" for a bot."""
        return self.get(player).model_name


class FrozenModels(Protocol):
    """Where the pinned weights of frozen players come from."""

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]: ...


@dataclass(slots=True)
class SeatedPlayer:
    """One player in memory: a bot, or one policy per kind of seat."""

    bot: Bot | None = None
    """Decides instead of the policies: a scripted player, or a search with the policies."""
    policies: tuple[Policy, ...] = ()
    model: ModelId | None = None
    greedy: bool = False
    """Always the most probable action."""
    pinned: bool = False
    """Its weights never change: it may join a stack."""
    simulations: int | None = None
    """Of the search before each decision; None: it does not search."""
    _stack_keys: tuple[str | None, ...] | None = None
    _convolves: bool | None = None

    @property
    def step(self) -> int:
        return 0 if self.model is None else self.model.step

    def stack_key(self, kind: int) -> str | None:
        """Equal for players that one stacked call can run; None for one that has to run alone."""
        if self._stack_keys is None:
            self._stack_keys = tuple(
                f"{architecture_digest(policy)} {self.greedy}" if self.pinned and can_stack(policy) else None
                for policy in self.policies
            )
        return self._stack_keys[kind]

    @property
    def convolves(self) -> bool:
        if self._convolves is None:
            self._convolves = any(map(uses_convolutions, self.policies))
        return self._convolves

    def num_rows(self, rows: int) -> int:
        """How many to give to its policies when there are so many: with convolutions, one of a few sizes."""
        return round_up_rows(rows) if self.convolves else rows

    @property
    def model_name(self) -> str:
        return "" if self.model is None else str(self.model)


class PlayerCache(Players):
    """Policies and bots of players. Learning ones are renewed from `weights`; `capacity` others stay in memory."""

    def __init__(
        self,
        build: Callable[[ModelId, Tree], tuple[Policy, ...]],
        weights: WeightStore,
        frozen: FrozenModels,
        bots: Mapping[str, Bot],
        capacity: int,
        searching: Mapping[str, Callable[[Policies], Bot]] = MappingProxyType({}),
    ) -> None:
        """`build`: the policies for a model and its weights, which are loaded afterwards. `searching`: by frozen player
        that searches, what makes a bot of its policies."""
        self._build = build
        self._weights = weights
        self._frozen = frozen
        found = {player: partial(self._policies_of, player) for player in searching}
        self._bots = {**bots, **{player: make(found[player]) for player, make in searching.items()}}
        self._scripted = bots
        self._capacity = capacity
        self._learning: dict[str, SeatedPlayer] = {}
        self._others: OrderedDict[str, SeatedPlayer] = OrderedDict()

    def get(self, player: str) -> SeatedPlayer:
        seated = self._learning.get(player)
        if seated is not None:
            return seated
        seated = self._others.get(player)
        if seated is not None:
            self._others.move_to_end(player)
            return seated
        return self._load(player)

    def bot(self, player: str) -> Bot | None:
        return self._bots.get(player)

    def _policies_of(self, player: str) -> tuple[Policy, ...]:
        return self.get(player).policies

    def refresh(self) -> None:
        for player, seated in self._learning.items():
            if self._weights.newest(player) != seated.model:
                seated.model, weights = self._weights.fetch(player)
                load_weights(seated.policies, weights)

    def _load(self, player: str) -> SeatedPlayer:
        if player in self._scripted:
            seated = SeatedPlayer(bot=self._scripted[player])
        else:
            learns = self._weights.newest(player) is not None
            model, weights = self._weights.fetch(player) if learns else self._frozen.fetch_frozen(player)
            seated = SeatedPlayer(policies=self._build(model, weights), model=model, pinned=not learns)
            load_weights(seated.policies, weights)
            if learns:
                self._learning[player] = seated
                return seated
        self._others[player] = seated
        while len(self._others) > self._capacity:
            self._others.popitem(last=False)
        return seated


class FixedPlayers(Players):
    """Players that are all known beforehand and never change: for evaluation."""

    def __init__(self, players: Mapping[str, SeatedPlayer]) -> None:
        self._players = players

    def get(self, player: str) -> SeatedPlayer:
        return self._players[player]

    def bot(self, player: str) -> Bot | None:
        return self._players[player].bot

    def refresh(self) -> None:
        """Nothing here ever changes."""


Policies = Callable[[], tuple[Policy, ...]]
"""The policies of a player at this moment, one per kind of seat."""


def search_with(source: GameSource, settings: GumbelSearch, policies: Policies) -> NetworkSearch:
    """A search in a game with the policies of a player. Raises GameError for a game that cannot be searched."""

    def evaluate_rows(kind: int, observation: Tree, legal: Tree) -> tuple[Array, Array]:
        return evaluate(policies()[kind], observation, legal)

    return NetworkSearch(source, settings, evaluate_rows)


def is_model_name(text: str) -> bool:
    """Written as a tag or a model: no player has such an id."""
    return "@" in text or ":" in text


def resolve_player(league: League, pool: ModelPool, text: str) -> tuple[ModelId, Variant]:
    """The model and variant meant by `main.3` (a snapshot), `main@best`, `main@latest`, `main` (the newest snapshot) or
    `main:0:12`: what a snapshot pins, else live weights. Raises `UnknownModel` with the nearest name.

    The best snapshot is the one that the ledger names, whatever the file of its tag says."""
    text, _ = split_search(text)
    learning, at, tag = text.rpartition("@")
    if at and tag == BEST and learning in league.standings:
        if (best := best_snapshot(league, learning)) is None:
            why = f"the ledger has no evaluation of a snapshot of {learning!r} yet"
            raise UnknownModel(f"{text}: {why}; did you mean {learning}@latest?")
        text = best
    player = league.players.get(text)
    if player is not None and player.scripted:
        raise UnknownModel(f"player {text!r} is a bot and has no model")
    if player is not None and player.frozen and player.model is not None:
        return ModelId.parse(player.model), player.weights
    model = pool.resolve(text)
    pinned = [one.weights for one in league.players.values() if one.frozen and one.model == str(model)]
    return model, pinned[-1] if pinned else "live"


def played_weights(league: League, pool: ModelPool, player: str, learning: Variant) -> Variant | None:
    """The weights that a player is loaded with; learning players use `learning`. None for a bot."""
    player, _ = split_search(player)
    entry = league.players.get(player)
    if is_model_name(player):
        return resolve_player(league, pool, player)[1]
    if entry is None or entry.scripted:
        return None
    return learning if entry.learning else entry.weights
