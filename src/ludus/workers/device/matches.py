"""Matches at the blocks of an engine: who plays there, with which weights, and what came out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ludus.data.records import Match, ModelId, Pair, Result
from ludus.data.trees import Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Bot
from ludus.games.tables import InnerBot
from ludus.workers.device.engine import Engine
from ludus.workers.device.played import Tally
from ludus.workers.worker import IDLE, Progress, TrainingFailed


def plays_uniformly(bot: Bot) -> bool:
    """Whether it is the bot that the engine plays in every game. Others need a twin in torch, see `TensorBots`."""
    while isinstance(bot, InnerBot):  # of a wrapper that only shows more
        bot = bot.bot
    return isinstance(bot, RandomBot)


class TrainingClient(Protocol):
    """Where blocks get their matches: the controller."""

    def next_trainings(self, tables: int, players: Sequence[str]) -> list[Match]: ...
    def report_all(self, results: Sequence[Result]) -> None: ...
    def void_match(self, match_id: int, reason: str) -> None: ...
    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]: ...


@dataclass(frozen=True, slots=True)
class _Held:
    match: Match
    first_models: tuple[str, ...]


class BlockMatches:
    """Gives every block of tables a match of its learning player, and reports its result once each table has played its
    quota. Tables that are done sooner go on with the same players; those episodes train, but belong to no match, so
    that no match counts the quick games only.

    `step` looks at the tables between two rounds of the engine, `turn_over` does the rest while the engine computes.
    """

    name = "actor"

    def __init__(
        self, engine: Engine, client: TrainingClient, *, bots: Mapping[str, Bot], models_in_memory: int
    ) -> None:
        self._engine, self._client, self._bots = engine, client, bots
        self._players = [player.player for player in engine.players]
        self._held: dict[int, _Held] = {}
        """By block; empty before the first step."""
        self._tally: NDArray[np.float64]
        self._models: list[str]
        """What the matches came to by the latest step, and the models of the learning players then."""
        self._finished = 0
        """Matches that were reported since the latest step."""
        self._frozen: OrderedDict[str, tuple[ModelId, Tree]] = OrderedDict()
        self._capacity = max(models_in_memory, engine.layout.num_blocks * (engine.layout.sides - 1))
        self._columns = Tally.of(engine.layout.sides)

    def step(self) -> Progress:
        """Look what the matches have come to; begin the first ones."""
        engine, layout = self._engine, self._engine.layout
        if not self._held:
            self._begin(range(layout.num_blocks))
        self._tally, self._models = engine.tally(), [str(player.model) for player in engine.players]
        trained = np.array([self._num_trained(self._held[block]) for block in range(layout.num_blocks)])
        engine.expect(trained.reshape(layout.learners, -1).sum(1).tolist())
        finished, self._finished = self._finished, 0
        return Progress(count=finished) if finished else IDLE

    def turn_over(self) -> None:
        """Report the matches that were complete at the latest step, and seat those that begin with the next round."""
        episodes = self._tally[:, self._columns.episodes]
        complete = [block for block, held in self._held.items() if episodes[block] >= held.match.episodes]
        if complete:
            self._client.report_all([self._result(self._held[block], self._tally[block]) for block in complete])
            self._finished += len(complete)
            self._begin(complete)

    def close(self) -> None:
        """The engine's memory goes with it."""

    def _begin(self, blocks: Sequence[int]) -> None:
        learners = [self._players[block // self._engine.layout.blocks] for block in blocks]
        for block, match in zip(blocks, self._client.next_trainings(self._engine.layout.tables, learners), strict=True):
            self._held[block] = self._seat(block, match)

    def _seat(self, block: int, match: Match) -> _Held:
        engine = self._engine
        rows, models, trains, bots = [], [], [], []
        for side, one in enumerate(match.sides):
            player = one.players[0]
            self._require_playable(match, one.players)
            if player in self._players:
                number = self._players.index(player)
                rows.append(number)
                models.append(str(engine.players[number].model))
            else:
                rows.append(engine.row_of_opponent(block, side))
                models.append(
                    self._load(rows[-1], player) if player not in self._bots else self._load_uniform(rows[-1])
                )
            trains.append(bool(one.trainees))
            bots.append(engine.bots.index(player) if player in engine.bots else -1)
        engine.seat(block, rows, trains, match.episodes_per_table, bots)
        return _Held(match, tuple(models))

    def _require_playable(self, match: Match, players: Sequence[str]) -> None:
        wrong = ""
        if len(set(players)) > 1:
            wrong = f"a team of several players ({', '.join(players)})"
        elif players[0] in self._bots and not self._plays(players[0]):
            wrong = f"the bot {players[0]!r} as an opponent in training"
        if wrong:
            reason = f"the device runtime cannot play {wrong}"
            self._client.void_match(match.id, reason)
            raise TrainingFailed(f"{reason}: change the matchmaking of the role, or train with --runtime local")

    def _plays(self, bot: str) -> bool:
        return bot in self._engine.bots or plays_uniformly(self._bots[bot])

    def _load(self, row: int, player: str) -> str:
        """Put a frozen player into a row of the engine's weights; returns the id of its model."""
        if player not in self._frozen:
            self._frozen[player] = self._client.fetch_frozen(player)
        self._frozen.move_to_end(player)
        while len(self._frozen) > self._capacity:
            self._frozen.popitem(last=False)
        model, weights = self._frozen[player]
        self._engine.load_opponent(row, weights)
        return str(model)

    def _load_uniform(self, row: int) -> str:
        """Let a row play as `RandomBot` does: a network whose weights are all 0 gives every legal option the same
        probability. Where another bot plays, it computes in vain. A bot has no model."""
        self._engine.weights[row].zero_()
        return ""

    def _num_trained(self, held: _Held) -> int:
        return sum(bool(side.trainees) for side in held.match.sides)

    def _last_models(self, held: _Held) -> tuple[str, ...]:
        """Learning players have moved on since."""
        return tuple(
            self._models[self._players.index(side.players[0])] if side.players[0] in self._players else model
            for side, model in zip(held.match.sides, held.first_models, strict=True)
        )

    def _result(self, held: _Held, tally: NDArray[np.float64]) -> Result:
        columns, sides = self._columns, self._engine.layout.sides
        wins, draws = (
            tally[part].reshape(sides, sides).round().astype(int).tolist() for part in (columns.wins, columns.draws)
        )
        score = tuple(tally[columns.score].tolist())
        return Result(
            match_id=held.match.id,
            episodes=round(tally[columns.episodes]),
            steps=round(tally[columns.steps]),
            decisions=tuple(tally[columns.decisions].round().astype(int).tolist()),
            pairs=tuple(
                Pair(one, other, wins[one][other], draws[one][other], wins[other][one])
                for one, other in combinations(range(sides), 2)
            ),
            score_sum=score,
            score_square_sum=tuple(tally[columns.square].tolist()),
            first_models=held.first_models,
            last_models=self._last_models(held),
            reward_sum=score,
        )
