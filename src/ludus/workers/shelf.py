"""The players that an actor has in memory: policies of learning and frozen players, and bots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ludus.data.records import ModelId
from ludus.data.trees import Tree
from ludus.games.game import Bot
from ludus.models.network_policy import can_stack
from ludus.models.policy import Policy, convolves
from ludus.models.tensors import few_sizes
from ludus.models.weights import architecture_digest, load_weights
from ludus.runtime.weight_board import WeightBoard


class Players(Protocol):
    """Where an actor finds its players. `Shelf` while training."""

    def get(self, player: str) -> SeatedPlayer: ...
    def bot(self, player: str) -> Bot | None:
        """The bot of this name; None if the player has a policy. Loads nothing."""

    def refresh(self) -> None:
        """Take newer weights, if there are any."""

    def model_name(self, player: str) -> str:
        """The id of its present weights; "" for a bot."""


class FrozenModels(Protocol):
    """Where the pinned weights of frozen players come from."""

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]: ...


@dataclass(slots=True)
class SeatedPlayer:
    """One player in memory: a bot, or one policy per kind of seat."""

    bot: Bot | None = None
    policies: tuple[Policy, ...] = ()
    model: ModelId | None = None
    greedy: bool = False
    """Always the most probable action."""
    pinned: bool = False
    """Its weights never change: it may join a stack."""
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

    def num_rows(self, rows: int) -> int:
        """How many to give to its policies when there are so many: with convolutions, one of a few sizes."""
        if self._convolves is None:
            self._convolves = any(map(convolves, self.policies))
        return few_sizes(rows) if self._convolves else rows

    @property
    def model_name(self) -> str:
        return "" if self.model is None else str(self.model)


class Shelf:
    """Finds the policy or bot of a player. Learning players are renewed from the board; of frozen ones
    the least recently used leave memory when there are more than `capacity`."""

    def __init__(
        self,
        build: Callable[[], tuple[Policy, ...]],
        board: WeightBoard,
        frozen: FrozenModels,
        bots: Mapping[str, Bot],
        capacity: int,
    ) -> None:
        self._build = build
        self._board = board
        self._frozen = frozen
        self._bots = bots
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

    def refresh(self) -> None:
        """Take the newest weights of the learning players in memory."""
        for player, seated in self._learning.items():
            if self._board.newest(player) != seated.model:
                seated.model, weights = self._board.fetch(player)
                load_weights(seated.policies, weights)

    def model_name(self, player: str) -> str:
        return self.get(player).model_name

    def _load(self, player: str) -> SeatedPlayer:
        if player in self._bots:
            seated = SeatedPlayer(bot=self._bots[player])
        elif self._board.newest(player) is not None:
            model, weights = self._board.fetch(player)
            seated = SeatedPlayer(policies=self._build(), model=model)
            load_weights(seated.policies, weights)
            self._learning[player] = seated
            return seated
        else:
            model, weights = self._frozen.fetch_frozen(player)
            seated = SeatedPlayer(policies=self._build(), model=model, pinned=True)
            load_weights(seated.policies, weights)
        self._others[player] = seated
        while len(self._others) > self._capacity:
            self._others.popitem(last=False)
        return seated


class FixedPlayers:
    """Players that are all known beforehand and never change: for evaluation."""

    def __init__(self, players: Mapping[str, SeatedPlayer]) -> None:
        self._players = players

    def get(self, player: str) -> SeatedPlayer:
        return self._players[player]

    def bot(self, player: str) -> Bot | None:
        return self._players[player].bot

    def refresh(self) -> None:
        """Nothing here ever changes."""

    def model_name(self, player: str) -> str:
        return self._players[player].model_name
