"""An actor at stamped tables, with everything that it hands over kept: what the tests of play look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from stamped_games import Stamped, StampedTables, number_of

from ludus.data.batch import Batch
from ludus.data.records import Match, ModelId, Result, Side
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import IntArray, Tree
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.hills import Hills
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.games.builtin.siege import Siege
from ludus.games.game import GameSource
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy
from ludus.workers.actor import Actor, ActorConfig
from ludus.workers.inference import Inference, InlineInference
from ludus.workers.player_cache import LocalWeights, PlayerCache

GAMES: dict[str, GameSource] = {
    "kuhn": Kuhn(),
    "leduc": Leduc(),
    "connect_four": ConnectFour(),
    "rock_paper_scissors": RockPaperScissors(rounds=5),
    "hills": Hills(),
    "siege": Siege(),
    "goofspiel": Goofspiel(),
    "cartpole": Gymnasium(env_id="CartPole-v1", max_length=14),
}
SMALL = ActorCritic(hidden=(16,), channels=(4,), entity_size=8)


def side(*players: str, trains: bool | tuple[str, ...] = False) -> Side:
    return Side(players=players, trains=trains)


class Desk:
    """Issues matches between the line-ups in turn, for ever, and keeps the results."""

    def __init__(self, line_ups: Sequence[tuple[Side, ...]], episodes_per_table: int) -> None:
        self._line_ups = line_ups
        self._episodes_per_table = episodes_per_table
        self.issued: list[Match] = []
        self.results: dict[int, Result] = {}

    def next_match(self, tables: int) -> Match:
        number = len(self.issued)
        sides = self._line_ups[number % len(self._line_ups)]
        trains = any(one.trains for one in sides)
        self.issued.append(
            Match(number + 1, "training" if trains else "evaluation", sides, tables, self._episodes_per_table)
        )
        return self.issued[-1]

    def report(self, result: Result) -> None:
        assert result.match_id not in self.results
        self.results[result.match_id] = result


@dataclass
class HandedOver:
    player: str
    kind: int
    batch: Batch
    length: IntArray


@dataclass
class Play:
    """One actor and its surroundings."""

    game: GameSource
    line_ups: Sequence[tuple[Side, ...]]
    num_tables: int = 4
    matches: int = 2
    episodes_per_table: int = 2
    unroll_length: int = 4
    hand_over_after: int | None = None
    model: ActorCritic = SMALL
    seed: int = 7
    new_weights: bool = False
    """Publish other weights after every synchronous hand-over, as a learner would."""
    inference: Callable[[Play], Inference] | None = None
    """Another way of the actor to the policies."""
    frozen: dict[str, tuple[ModelId, Tree]] = field(default_factory=dict)
    handed: list[HandedOver] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    by_model: dict[str, Tree] = field(default_factory=dict)
    """All weights that a learning player ever had, by model id."""

    def __post_init__(self) -> None:
        self.stamped = Stamped(self.game)
        self.spec = self.stamped.spec
        self.desk = Desk(self.line_ups, self.episodes_per_table)
        self.board = LocalWeights()
        players = {player for sides in self.line_ups for one in sides for player in one.players}
        self.learning = sorted(players - self.frozen.keys() - self.game.bots().keys())
        for index, player in enumerate(self.learning):
            self.publish(player, 0, self.fresh(100 + index))
        policies = self.build()
        self.pools = tuple(
            SlotPool(TrajectoryLayout(kind=one.kind, unroll_length=self.unroll_length, state=one.state_arrays), 2000)
            for one in policies
        )
        self.shelf = PlayerCache(lambda *_: self.build(), self.board, self, self.game.bots(), capacity=2)
        self.inline = InlineInference(self.shelf, [policy.num_draws for policy in policies])
        self.actor = Actor(
            name="actor",
            game=self.stamped.tables(self.num_tables),
            config=ActorConfig(
                num_tables=self.num_tables,
                matches=self.matches,
                episodes_per_table=self.episodes_per_table,
                unroll_length=self.unroll_length,
            ),
            client=self.desk,
            inference=self.inference(self) if self.inference else self.inline,
            pools=self.pools,
            trajectories=self,
            hand_over_after=self.hand_over_after,
            seed=self.seed,
        )

    # --- models ---

    def build(self, seed: int = 1) -> tuple[Policy, ...]:
        return tuple(self.model.build(kind, seed + index) for index, kind in enumerate(self.spec.kinds))

    def fresh(self, seed: int) -> Tree:
        return {
            f"{policy.kind.name}/{name}": tensor.numpy().copy()
            for policy in self.build(seed)
            for name, tensor in policy.state_dict().items()
        }

    def publish(self, player: str, step: int, weights: Tree) -> None:
        model = ModelId(player, 0, step)
        self.by_model[str(model)] = weights
        self.board.publish(model, weights)

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]:
        return self.frozen[player]

    # --- trajectories ---

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        pool = self.pools[kind]
        self.handed.append(HandedOver(player, kind, pool.stack(slots), pool.slots["length"][slots].copy()))
        self.actor.recorder.free(kind, slots)

    def complete(self, player: str) -> None:
        self.completed.append(player)
        if self.new_weights:
            newest = self.board.newest(player)
            assert newest is not None
            self.publish(player, newest.step + 1, self.fresh(1000 + len(self.completed)))

    def run(self, steps: int) -> Play:
        for _ in range(steps):
            self.actor.step()
        return self

    @property
    def tables(self) -> StampedTables:
        return self.stamped.made[0]

    def joined(self, kind: int) -> Batch:
        """All that was handed over of one kind of seat, in one batch."""
        batches = [one.batch for one in self.handed if one.kind == kind]

        def join(arrays: Sequence[Any], axis: int) -> Any:
            if arrays[0] is None:
                return None
            if isinstance(arrays[0], dict):
                return {name: join([array[name] for array in arrays], axis) for name in arrays[0]}
            return np.concatenate(arrays, axis)

        return Batch(
            **{
                spec.name: join([getattr(batch, spec.name) for batch in batches], int(spec.name != "state"))
                for spec in fields(Batch)
                if spec.name not in ("progress", "all_valid", "fixed_shapes", "over_ranks")
            }
        )

    def held(self, kind: int) -> list[int]:
        """Stamps of the decisions that are in slots which were not handed over yet."""
        writer, rows = self.actor.recorder.writers[kind], self.pools[kind].rows
        stamps: list[int] = []
        for slot, last in zip(writer.slot.tolist(), writer.row.tolist(), strict=True):
            made = rows["decision"][slot, : last + 1] if slot >= 0 else np.zeros(0, np.bool_)
            stamps += number_of(rows["observation.stamp"][slot, : last + 1, 0][made]).tolist() if slot >= 0 else []
        return stamps

    def trained(self, kind: int, player: str | None = None) -> list[int]:
        """Stamps of the decisions that were handed over."""
        return [
            stamp
            for one in self.handed
            if one.kind == kind and player in (None, one.player)
            for stamp in number_of(one.batch.observation["stamp"][..., 0][one.batch.valid]).tolist()
        ]


def self_play(game: GameSource, **options: Any) -> Play:
    """All seats are the same learning player."""
    sides = tuple(side("main", trains=True) for _ in range(game.spec.num_teams))
    teams = game.spec.num_teams
    return Play(game, (sides,), **{"episodes_per_table": teams * 2, **options})
