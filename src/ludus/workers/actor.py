"""The actor: plays matches at its tables and writes the learning seats' trajectories into slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ludus.data.trajectory import SlotPool, TrajectoryWriter
from ludus.data.trees import Array, IntArray, Tree, put, take, under
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.seeding import mix
from ludus.models.policy import Acted, Policy
from ludus.runtime.program import IDLE, Progress
from ludus.workers.seat_memory import SeatMemory
from ludus.workers.seating import MatchDesk, Seating
from ludus.workers.shelf import Players, SeatedPlayer
from ludus.workers.streams import StreamNumbers
from ludus.workers.table_history import TableHistory


class TrajectoryDesk(Protocol):
    """Where trajectories go: the learner that hosts the player, or a way to it."""

    def put(self, player: str, kind: int, slots: IntArray) -> None: ...
    def complete(self, player: str) -> None:
        """All that the synchronous schedule asked for has been put."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorConfig:
    """How many tables an actor plays at, and how it cuts play into trajectories."""

    num_tables: int = 512
    """Tables stepped together. More: larger inference batches, older data."""
    matches: int = 4
    """Matches held at once, each on an equal block of the tables."""
    episodes_per_table: int = 4
    """Episodes that each table of a match plays: a multiple of the number of teams, so that seats swap."""
    unroll_length: int = 16
    """Decisions in a trajectory."""
    models_in_memory: int = 32
    """Frozen players kept loaded."""

    def __post_init__(self) -> None:
        for name in ("num_tables", "matches", "episodes_per_table", "unroll_length", "models_in_memory"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Actor:
    """Plays. `hand_over_after` decisions of a learning player, all its trajectories go to the learner at
    once (the synchronous schedule); with None each goes when it is full."""

    def __init__(
        self,
        *,
        name: str,
        game: GameBatch,
        config: ActorConfig,
        desk: MatchDesk,
        players: Players,
        pools: tuple[SlotPool, ...],
        trajectories: TrajectoryDesk,
        hand_over_after: int | None,
        seed: int,
        slots: Sequence[range] | None = None,
    ) -> None:
        """`slots`: per kind, the trajectory slots that this actor may use; None: all."""
        self.name = name
        self._game = game
        self._spec = game.spec
        self._players = players
        self._seed = np.uint64(seed)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self.seating = Seating(game.spec, config.num_tables, config.matches, desk)
        self._seats = tuple(np.array(seats) for seats in game.spec.seats_of_kind)
        self._column_of_seat = np.array(game.spec.column_of_seat)
        self._streams = StreamNumbers(game.spec, config.num_tables)
        self.pools = pools
        self.writers = tuple(
            TrajectoryWriter(
                pool,
                self._streams.count(kind),
                self._handing_over(kind),
                None if slots is None else slots[kind],
            )
            for kind, pool in enumerate(pools)
        )
        self._trajectories = trajectories
        self._hand_over_after = hand_over_after
        self._collected: dict[int, int] = {}
        """Decisions of each learning player (by number) since its last hand-over."""
        self._actions = allocate_actions(game.spec, config.num_tables)
        self._memory = SeatMemory(
            [
                (pool.layout.state, (config.num_tables, len(seats)))
                for pool, seats in zip(pools, self._seats, strict=True)
            ]
        )
        self._history = TableHistory(game.spec, config.num_tables)
        self._acted = False
        """Actions were made, but a hand-over came before they were played: they are made again."""
        self._started = False
        self.episodes = 0

    def step(self) -> Progress:
        """Choose an action for every seat that must act, and play them.

        consumes:     matches from the desk, the newest weights from the board
        waits for:    nothing
        produces:     trajectories (slot numbers), results; in the synchronous schedule it stops short of
                      playing when a hand-over is due, so that the learner can go first
        """
        if not self._started:
            self._begin()
        self._players.refresh()
        decisions = self._act()
        if self._hand_over_due():
            self._acted = True
            return IDLE
        self._acted = False
        self.seating.count_step(self._players.model_name)
        self._history.played(self._actions)
        self._game.step(self._actions)
        self._memory.commit()
        self._after_step()
        return Progress(count=decisions)

    @property
    def dropped_reward(self) -> float:
        """Sum of |reward| that came before a learning seat's first decision of an episode."""
        return sum(writer.dropped_reward for writer in self.writers)

    def close(self) -> None:
        self._game.close()

    def free(self, kind: int, slots: IntArray) -> None:
        """The learner has used these slots."""
        self.writers[kind].free(slots)

    # --- acting ---

    def _begin(self) -> None:
        tables = np.arange(self._game.num_tables)
        self.seating.start(tables)
        self._reset(tables)
        self._started = True

    def _act(self) -> int:
        view = self._game.view
        self._memory.forget_made()
        total = 0
        for kind, seats_of_kind in enumerate(self._seats):
            tables, columns = np.nonzero(view.to_act[:, seats_of_kind])
            if not len(tables):
                continue
            seats = seats_of_kind[columns]
            if not self._acted:
                self.seating.count_decisions(tables, seats)
            total += len(tables)
            players = self.seating.player_of_seat[tables, seats]
            for rows in _groups(players):
                player = self.seating.player_ids[players[rows[0]]]
                self._act_as(self._players.get(player), kind, tables[rows], columns[rows], seats[rows])
        return total

    def _act_as(
        self, seated: SeatedPlayer, kind: int, tables: IntArray, columns: IntArray, seats: IntArray
    ) -> None:
        at = (tables, columns)
        if seated.bot is not None:
            put(self._actions[kind], at, seated.bot.act(self._game, tables, seats, self._rng))
            return
        policy = seated.policies[kind]
        observation, legal = self._look(kind, tables, columns)
        state = self._memory.read(kind, tables, columns)
        owners = self.seating.owner_of_seat[tables, seats]
        trains = owners >= 0
        uniforms = self._rng.random((len(tables), policy.num_draws), dtype=np.float32)
        acted = _act_on_finite(
            policy, observation, legal, state, uniforms, greedy=seated.greedy, want_value=bool(trains.any())
        )
        put(self._actions[kind], at, acted.action)
        self._memory.made(kind, tables, columns, acted.state)
        if not trains.any():
            return
        columns_of_row = _columns(seated, observation, legal, acted)
        if not trains.all():
            columns_of_row, state = take(columns_of_row, trains), take(state, trains)
            tables, seats, owners = tables[trains], seats[trains], owners[trains]
        streams = self._streams.of(kind, tables, seats, self.seating.side_of_seat[tables, seats])
        self.writers[kind].record(streams, columns_of_row, state, self._clock(tables), replace=self._acted)
        if not self._acted:
            owner = int(owners[0])
            self._collected[owner] = self._collected.get(owner, 0) + len(owners)

    def _look(self, kind: int, tables: IntArray, columns: IntArray) -> tuple[Tree, Tree]:
        at = (tables, columns)
        return take(self._game.view.observation[kind], at), take(self._game.view.legal[kind], at)

    def _clock(self, tables: IntArray) -> IntArray | None:
        return self._game.view.clock[tables] if self._spec.timed else None

    # --- handing over ---

    def _handing_over(self, kind: int) -> Callable[[int, IntArray], None]:
        return lambda owner, slots: self._trajectories.put(self.seating.player_ids[owner], kind, slots)

    def _hand_over_due(self) -> bool:
        if self._hand_over_after is None:
            return False
        due = [owner for owner, count in self._collected.items() if count >= self._hand_over_after]
        for owner in due:
            for kind, writer in enumerate(self.writers):
                self._flush(kind, np.nonzero(writer.owner == owner)[0])
            self._collected[owner] = 0
            self._trajectories.complete(self.seating.player_ids[owner])
        return bool(due)

    def _flush(self, kind: int, streams: IntArray) -> None:
        tables, seats = self._streams.places(kind, streams, self.seating.side_of_seat)
        columns = self._column_of_seat[seats]
        to_act = self._game.view.to_act[tables, seats]
        state = self._memory.before_decision(kind, tables, columns, to_act)
        self.writers[kind].flush(streams, state)

    # --- after a step ---

    def _after_step(self) -> None:
        view = self._game.view
        trains = self.seating.owner_of_seat >= 0
        for kind, seats_of_kind in enumerate(self._seats):
            tables, columns = np.nonzero(trains[:, seats_of_kind] & (view.reward[:, seats_of_kind] != 0))
            if len(tables):
                seats = seats_of_kind[columns]
                streams = self._streams.of(kind, tables, seats, self.seating.side_of_seat[tables, seats])
                self.writers[kind].credit(streams, view.reward[tables, seats])
        ended = np.nonzero(view.over | view.truncated)[0]
        if not len(ended):
            return
        self._end_trajectories(ended, trains)
        self.episodes += len(ended)
        free = self.seating.finish_episodes(ended, view.score[ended], self._players.model_name)
        if len(free):
            self.seating.start(free)
        self._reset(ended)

    def _end_trajectories(self, ended: IntArray, trains: NDArray[np.bool_]) -> None:
        view = self._game.view
        for kind, seats_of_kind in enumerate(self._seats):
            rows, columns = np.nonzero(trains[ended][:, seats_of_kind])
            if not len(rows):
                continue
            tables, seats = ended[rows], seats_of_kind[columns]
            streams = self._streams.of(kind, tables, seats, self.seating.side_of_seat[tables, seats])
            over = view.over[tables]
            self.writers[kind].end(streams[over])
            cut = ~over & self.writers[kind].open[streams]
            if cut.any():
                self._bootstrap(kind, streams[cut], tables[cut], columns[cut], seats[cut])

    def _bootstrap(
        self, kind: int, streams: IntArray, tables: IntArray, columns: IntArray, seats: IntArray
    ) -> None:
        """Truncated episodes: the value of the last observation stands for the future that was cut."""
        players = self.seating.player_of_seat[tables, seats]
        for rows in _groups(players):
            seated = self._players.get(self.seating.player_ids[players[rows[0]]])
            policy = seated.policies[kind]
            observation, legal = self._look(kind, tables[rows], columns[rows])
            for mask in legal.values():
                mask[~mask.any(-1)] = True  # nobody acts here: any action will do, only the value counts
            state = self._memory.read(kind, tables[rows], columns[rows])
            uniforms = np.zeros((len(rows), policy.num_draws), np.float32)
            acted = _act_on_finite(policy, observation, legal, state, uniforms)
            columns_of_row = _columns(seated, observation, legal, acted)
            self.writers[kind].truncate(streams[rows], columns_of_row, self._clock(tables[rows]))

    def _reset(self, tables: IntArray) -> None:
        """Start the next episode at these tables; streams that change hands are handed over first."""
        for kind, seats_of_kind in enumerate(self._seats):
            writer = self.writers[kind]
            here = np.repeat(tables, len(seats_of_kind))
            seats = np.tile(seats_of_kind, len(tables))
            streams = self._streams.of(kind, here, seats, self.seating.side_of_seat[here, seats])
            owners = self.seating.owner_of_seat[here, seats]
            changed = writer.owner[streams] != owners
            if changed.any():
                writer.flush(streams[changed], {})  # between episodes nothing is open: no memory is needed
                writer.owner[streams[changed]] = owners[changed]
        self._memory.reset(tables)
        names = self.seating.episode_seeds(tables)
        seeds = np.full(len(tables), self._seed, np.uint64)
        for part in names.T:
            seeds = mix(seeds, part)
        self._history.begin(tables, seeds)
        self._game.reset(tables, seeds)

    # --- what survives a stop ---

    def save(self) -> tuple[Tree, dict[str, Any]]:
        """All that is needed to go on exactly here, given the same game."""
        arrays, facts = self.seating.save()
        saved = {f"seating.{name}": array for name, array in arrays.items()}
        for kind, (writer, pool) in enumerate(zip(self.writers, self.pools, strict=True)):
            saved |= {f"writer.{kind}.{name}": array for name, array in writer.save().items()}
            saved |= {f"rows.{kind}.{name}": array for name, array in pool.rows.items()}
            saved |= {f"slots.{kind}.{name}": array for name, array in pool.slots.items()}
        saved |= self._memory.save()
        saved |= self._history.save()
        return saved, {
            "seating": facts,
            "rng": self._rng.bit_generator.state,
            "collected": {str(owner): count for owner, count in self._collected.items()},
            "acted": self._acted,
            "started": self._started,
            "episodes": self.episodes,
        }

    def load(self, saved: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self.seating.load(under("seating.", saved), facts["seating"])
        for kind, (writer, pool) in enumerate(zip(self.writers, self.pools, strict=True)):
            writer.load(under(f"writer.{kind}.", saved))
            put(pool.rows, ..., under(f"rows.{kind}.", saved))
            put(pool.slots, ..., under(f"slots.{kind}.", saved))
        self._memory.load(saved)
        self._history.load(saved)
        self._rng.bit_generator.state = facts["rng"]
        self._collected = {int(owner): count for owner, count in facts["collected"].items()}
        self._acted = facts["acted"]
        self._started = facts["started"]
        self.episodes = facts["episodes"]
        if self._started:
            self._history.replay(self._game, self.seating.steps)


def _act_on_finite(
    policy: Policy, observation: Tree, legal: Tree, state: Tree, uniforms: Array, **how: bool
) -> Acted:
    """`policy.act`. Where a game shows NaN or infinity, it goes on as if it had shown 0: the trajectory
    keeps what was shown, and the learner refuses it."""
    try:
        return policy.act(observation, legal, state, uniforms, **how)
    except ValueError:
        if all(np.isfinite(array).all() for array in observation.values()):
            raise
        finite = {n: np.nan_to_num(a, posinf=0.0, neginf=0.0) for n, a in observation.items()}
        return policy.act(finite, legal, state, uniforms, **how)


def _columns(seated: SeatedPlayer, observation: Tree, legal: Tree, acted: Acted) -> Tree:
    """What a trajectory keeps of each row."""
    assert seated.model is not None
    return {
        **{f"observation.{name}": array for name, array in observation.items()},
        **{f"legal.{name}": array for name, array in legal.items()},
        **{f"action.{name}": array for name, array in acted.action.items()},
        "log_prob": acted.log_prob,
        "value": acted.value,
        "version": np.full(len(acted.value), seated.model.step, np.int64),
    }


def _groups(players: IntArray) -> list[IntArray]:
    """Row numbers by player, in order of the player's number."""
    if (players == players[0]).all():
        return [np.arange(len(players))]
    order = np.argsort(players, kind="stable")
    cuts = np.nonzero(np.diff(players[order]))[0] + 1
    return np.split(order, cuts)
