"""The actor: plays matches at its tables and writes the learning seats' trajectories into slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in, require_one_of
from ludus.data.specs import GameSpec
from ludus.data.trajectory import SlotPool
from ludus.data.trees import Array, IntArray, Tree, put, take, under
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, GameBatch, allocate_actions, lost_tables
from ludus.games.network_search import NetworkSearch
from ludus.games.seat_rows import GameError
from ludus.games.seeding import mix, uniform
from ludus.models.policy import Acted, require_device_name
from ludus.workers.config import Openings
from ludus.workers.inference import ActingRows, Group, Inference, InferenceResult
from ludus.workers.seat_recorder import CutShort, SeatMemory, SeatRecorder, TrajectoryClient
from ludus.workers.seating import MatchClient, Seating
from ludus.workers.worker import IDLE, Progress

_IS_OPENING, _OPENING_LENGTH = 2**62, 2**62 + 1
"""Numbers of the draws, of an episode's seed, that decide on its opening; games count theirs from 0."""
_NO_OPENINGS = Openings()
_LEAST_PROBABILITY = 1e-9
"""Of a move that a search made, to have a finite logarithm."""


class TableHistory:
    """The seeds and actions of the tables, from which they can be played again: no game has to save itself."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self._blank = allocate_actions(spec, num_tables)
        self._actions: deque[Actions] = deque(maxlen=spec.max_length)
        self._seeds = np.zeros(num_tables, np.uint64)

    def begin(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        """New episodes start at these tables."""
        self._seeds[tables] = seeds

    def played(self, actions: Actions) -> None:
        """All tables are stepped with these actions."""
        self._actions.append(tuple({name: array.copy() for name, array in tree.items()} for tree in actions))

    def replay(self, game: GameBatch, steps: IntArray) -> None:
        """Play every table again, `steps[table]` steps from its reset. Tables with fewer steps start later."""
        num_steps = int(steps.max(initial=0))
        for ago in range(num_steps, -1, -1):
            starting = np.nonzero(steps == ago)[0]
            if len(starting):
                game.reset(starting, self._seeds[starting])
            if ago:
                game.step(self._actions[-ago])

    def save(self) -> Tree:
        saved = {"table_seeds": self._seeds}
        for kind, tree in enumerate(self._blank):
            for head, blank in tree.items():
                played = [actions[kind][head] for actions in self._actions]
                saved[f"history.{kind}.{head}"] = np.stack(played) if played else blank[None][:0]
        return saved

    def load(self, saved: Mapping[str, Array]) -> None:
        self._seeds[...] = saved["table_seeds"]
        history = tuple(under(f"history.{kind}.", saved) for kind in range(len(self._blank)))
        num_steps = len(next(iter(history[0].values())))
        self._actions.clear()
        self._actions.extend(tuple(take(tree, step) for tree in history) for step in range(num_steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorConfig:
    """How many tables an actor plays at, and how it cuts play into trajectories."""

    num_tables: int = 512
    """Tables stepped together. More: larger inference batches, older data."""
    matches: int = 4
    """Matches held at once, each on an equal block of the tables."""
    episodes_per_table: int = 4
    """Episodes of a match per table of its block: a multiple of the number of teams, so that seats swap."""
    unroll_length: int = 16
    """Decisions in a trajectory."""
    models_in_memory: int = 32
    """Frozen players kept loaded."""
    inference: Literal["inline", "worker"] = "inline"
    """Who runs the policies: each actor itself, or in the local runtime one policy worker for all actors."""
    inference_delay_ms: float = 2.0
    """How long the policy worker lets a request wait for those of other actors."""
    inference_device: str = "auto"
    """Where the policy worker computes: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", num_tables=self.num_tables, matches=self.matches, unroll_length=self.unroll_length)
        require_in(self, "[1, inf]", episodes_per_table=self.episodes_per_table, models_in_memory=self.models_in_memory)
        require_in(self, "[0, inf)", inference_delay_ms=self.inference_delay_ms)
        require_one_of(self, ("inline", "worker"), inference=self.inference)
        require_device_name("inference_device", self.inference_device)
        if self.inference == "inline" and self.inference_device.startswith("cuda"):
            raise ValueError(
                f"inference_device is {self.inference_device!r}, but actors that run the policies themselves "
                "do so on the CPU: set inference=worker too"
            )


@dataclass(slots=True)
class StepTimes:
    """Seconds that steps took; whoever notes them sets them to 0."""

    game: float = 0.0
    inference: float = 0.0


class Actor:
    """Plays matches. A player's trajectories go to the learner after `hand_over_after` decisions, or when full."""

    def __init__(
        self,
        *,
        name: str,
        game: GameBatch,
        config: ActorConfig,
        client: MatchClient,
        inference: Inference,
        pools: tuple[SlotPool, ...],
        trajectories: TrajectoryClient,
        hand_over_after: int | Mapping[str, int] | None,
        seed: int,
        learner_goes_first: Callable[[], bool] = lambda: True,
        slots: Sequence[range] | None = None,
        watch: Callable[[GameBatch, Seating], None] | None = None,
        openings: Openings = _NO_OPENINGS,
        searches: Mapping[str, NetworkSearch] = MappingProxyType({}),
    ) -> None:
        """`hand_over_after`: decisions, the same for all players or by player. `learner_goes_first` is asked after a
        hand-over: if so, the actor waits and chooses again with newer weights. `slots`: per kind, the trajectory
        slots of this actor; None: all. `watch` sees the tables after every reset and step. `searches`: by player that
        searches where it trains, its search."""
        self.name = name
        self._game = game
        self._inference = inference
        self._seed = np.uint64(seed)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self.seating = Seating(game.spec, config.num_tables, config.matches, client)
        self._seats = tuple(np.array(seats) for seats in game.spec.seats_of_kind)
        self.recorder = SeatRecorder(game.spec, self.seating, pools, trajectories, slots)
        self.hand_over_after = hand_over_after
        """May be changed between steps."""
        self._actions = allocate_actions(game.spec, config.num_tables)
        self._memory = SeatMemory(
            [
                (pool.layout.state, (config.num_tables, len(seats)))
                for pool, seats in zip(pools, self._seats, strict=True)
            ]
        )
        self._history = TableHistory(game.spec, config.num_tables)
        self._ranks = np.zeros(0, np.int64)
        self._acted = False
        """Actions were chosen, but a hand-over came before they were played: policies choose again."""
        self._bots_acted = False
        """Bots do not: each is asked once for an action, since it may remember what it did."""
        self._learner_goes_first = learner_goes_first
        self._started = False
        self._watch = watch
        self._openings = openings
        self._searches = searches
        self._opening = np.zeros(config.num_tables, np.int64)
        """Steps with random moves that are left at each table, before its players begin."""
        self.episodes = 0
        self.times = StepTimes()

    def step(self) -> Progress:
        """Choose an action for every seat that must act, and play them. It produces trajectories (slot numbers) and
        results. A hand-over comes in between: the value of the row that was just chosen is the bootstrap of its
        trajectory. The actor stops there if the learner goes first."""
        if not self._started:
            self._begin()
        began = monotonic()
        self._inference.refresh()
        self.times.inference += monotonic() - began
        decisions = self._act()
        after, view = self.hand_over_after, self._game.view
        handed_over = after is not None and self.recorder.hand_over(after, self._memory, view)
        self._acted = self._bots_acted = handed_over and self._learner_goes_first()
        if self._acted:
            return IDLE
        self.seating.count_step(self._inference.model_name)
        self._history.played(self._actions)
        began = monotonic()
        self._game.step(self._actions)
        self.times.game += monotonic() - began
        self._memory.commit()
        self._show()
        self._after_step()
        return Progress(count=decisions)

    def close(self) -> None:
        self._game.close()

    def _begin(self) -> None:
        tables = np.arange(self._game.num_tables)
        self.seating.start(tables)
        self._reset(tables)
        self._replace_lost()
        self._started = True

    def _act(self) -> int:
        view = self._game.view
        self._memory.forget_made()
        total = 0
        asked: list[tuple[ActingRows, IntArray, IntArray]] = []
        for kind, seats_of_kind in enumerate(self._seats):
            tables, columns = np.nonzero(view.to_act[:, seats_of_kind])
            total += len(tables)
            if self._openings.moves:
                tables, columns = self._play_openings(kind, tables, columns)
            if not len(tables):
                continue
            if not self._acted:
                self.seating.count_decisions(tables, seats_of_kind[columns])
            asked += self._act_for(kind, tables, columns)
        answers = self._decide([rows for rows, _, _ in asked]) if asked else ()
        for (rows, tables, columns), decided in zip(asked, answers, strict=True):
            answer = self._search(rows, decided, tables) if self._searches else decided
            put(self._actions[rows.kind], (tables, columns), answer.acted.action)
            self._memory.made(rows.kind, tables, columns, answer.acted.state)
            self.recorder.record(rows, answer, tables, columns, view, again=self._acted)
        return total

    def _play_openings(self, kind: int, tables: IntArray, columns: IntArray) -> tuple[IntArray, IntArray]:
        """Choose random moves where the players have not begun yet; returns the other rows."""
        opening = self._opening[tables] > 0
        if opening.any() and not self._bots_acted:
            at = tables[opening], columns[opening]
            put(self._actions[kind], at, RandomBot().act(self._game, at[0], self._seats[kind][at[1]], self._rng))
        return tables[~opening], columns[~opening]

    def _decide(self, requests: Sequence[ActingRows]) -> Sequence[InferenceResult]:
        began = monotonic()
        answers = self._inference.act_all(requests)
        self.times.inference += monotonic() - began
        return answers

    def _search(self, rows: ActingRows, answer: InferenceResult, tables: IntArray) -> InferenceResult:
        """The answer with decisions of a search where players that search train."""
        groups = [group for group in rows.groups if group.want_value and group.player in self._searches]
        if not groups:
            return answer
        began = monotonic()
        (head,) = self._game.spec.kinds[rows.kind].action.heads
        count = len(answer.version)
        action, value, log_prob = (
            np.array(a) for a in (answer.acted.action[head], answer.acted.value, answer.acted.log_prob)
        )
        policy = np.zeros((count, self._game.spec.kinds[rows.kind].num_options(head)), np.float32)
        for group in groups:
            here = slice(group.start, group.stop)
            found = self._searches[group.player].search(self._game, tables[here], self._rng)
            action[here], value[here], policy[here] = found.action, found.value, found.policy
            chosen = np.take_along_axis(found.policy, found.action[:, None].astype(np.int64), 1)
            log_prob[here] = np.log(np.maximum(chosen, _LEAST_PROBABILITY))
        self.times.inference += monotonic() - began
        acted = Acted(action={head: action}, log_prob=log_prob, value=value, state=answer.acted.state)
        return InferenceResult(acted=acted, version=answer.version, search_policy=policy)

    def _act_for(self, kind: int, tables: IntArray, columns: IntArray) -> list[tuple[ActingRows, IntArray, IntArray]]:
        """Let the bots act; returns the rows that policies decide on, with their tables and columns, if any."""
        order, groups, bots = self._by_player(kind, tables, columns)
        if order is not None:
            tables, columns = tables[order], columns[order]
        num_rows = groups[-1].stop if groups else 0
        asked = []
        if num_rows:
            uniforms = self._rng.random((num_rows, self._inference.num_draws(kind)), dtype=np.float32)
            by_policy = tables[:num_rows], columns[:num_rows]
            asked.append((self._rows(kind, groups, *by_policy, uniforms), *by_policy))
        for bot in () if self._bots_acted else bots:
            at = (tables[bot.start : bot.stop], columns[bot.start : bot.stop])
            put(self._actions[kind], at, self._ask_bot(bot.player, at[0], self._seats[kind][at[1]]))
        return asked

    def _ask_bot(self, name: str, tables: IntArray, seats: IntArray) -> Tree:
        bot = self._inference.bot(name)
        assert bot is not None
        try:
            return bot.act(self._game, tables, seats, self._rng)
        except (GameError, OSError):  # of a game or a program elsewhere, which says who it is
            raise
        except Exception as error:
            raise GameError(f"bot {name!r} raised {type(error).__name__}: {error}") from error

    def _by_player(
        self, kind: int, tables: IntArray, columns: IntArray
    ) -> tuple[IntArray | None, tuple[Group, ...], tuple[Group, ...]]:
        """An order that groups rows by player (None: they are), and the groups: players with a policy, then bots."""
        seats = self._seats[kind][columns]
        players = self.seating.player_of_seat[tables, seats]
        trains = self.seating.owner_of_seat[tables, seats] >= 0
        order = None
        if players[0] != players[-1] or (players != players[0]).any():
            order = np.argsort(self._rank()[players], kind="stable")
            players, trains = players[order], trains[order]
        starts = [0, *(np.flatnonzero(np.diff(players)) + 1).tolist(), len(players)]
        wanted = np.logical_or.reduceat(trains, starts[:-1]).tolist()
        groups = [
            Group(self.seating.player_ids[number], start, stop, want_value)
            for number, start, stop, want_value in zip(
                players[starts[:-1]].tolist(), starts, starts[1:], wanted, strict=False
            )
        ]
        with_policy = [group for group in groups if self._inference.bot(group.player) is None]
        return order, tuple(with_policy), tuple(groups[len(with_policy) :])

    def _rank(self) -> IntArray:
        """By player number: players with a policy come before bots."""
        names = self.seating.player_ids
        if len(self._ranks) != len(names):
            is_bot = np.array([self._inference.bot(name) is not None for name in names])
            self._ranks = np.arange(len(names)) + len(names) * is_bot
        return self._ranks

    def _rows(
        self, kind: int, groups: tuple[Group, ...], tables: IntArray, columns: IntArray, uniforms: Array
    ) -> ActingRows:
        view, at = self._game.view, (tables, columns)
        return ActingRows(
            kind=kind,
            groups=groups,
            observation=take(view.observation[kind], at),
            legal=take(view.legal[kind], at),
            state=self._memory.read(kind, tables, columns),
            uniforms=uniforms,
        )

    def _after_step(self) -> None:
        view = self._game.view
        if self._openings.moves:
            for reward in (view.reward, *view.rewards):
                reward[self._opening > 0] = 0.0  # of moves that no player made
        self.seating.reward += view.reward
        self.recorder.credit(view)
        ended = np.nonzero(view.over | view.truncated)[0]
        if self._openings.moves:
            ended = self._after_openings(ended)
        if len(ended):
            for cut in self.recorder.end(ended, view):
                self._bootstrap(cut)
            self.episodes += len(ended)
            free = self.seating.finish_episodes(ended, view.score[ended], self._inference.model_name)
            if len(free):
                self.seating.start(free)
            self._reset(ended)
        self._replace_lost()

    def _after_openings(self, ended: IntArray) -> IntArray:
        """Count a step of the openings. Episodes that ended in one begin again, without; returns the others."""
        was_opening = self._opening > 0
        self._opening -= was_opening
        early = ended[was_opening[ended]]
        if len(early):
            self.seating.begin_again(early)
            self._reset(early, opening=False)
        return ended[~was_opening[ended]]

    def _replace_lost(self) -> None:
        """Void the matches at lost tables and at those whose episode is longer than the game promises, drop their open
        trajectories, and give the tables other matches."""
        while lost := {**self._overlong(), **lost_tables(self._game)}:
            self._bots_acted = False  # not in the episodes that begin here
            tables = self.seating.void(lost)
            self.recorder.drop(tables)
            self.seating.start(tables)
            self._reset(tables)

    def _overlong(self) -> dict[int, str]:
        """Tables whose episode should have ended. It may never end, and a table is rebuilt from so many steps only."""
        most = self._game.spec.max_length
        late = np.flatnonzero(self.seating.steps >= most).tolist()
        return dict.fromkeys(late, f"an episode has not ended after {most:,} steps, the max_length of the game")

    def _bootstrap(self, cut: CutShort) -> None:
        """Truncated episodes: the value of the last observation stands for the future that was cut."""
        kind = cut.kind
        order, groups, _ = self._by_player(kind, cut.tables, cut.columns)
        if order is not None:
            cut = CutShort(kind, cut.streams[order], cut.tables[order], cut.columns[order])
        uniforms = np.zeros((len(cut.tables), self._inference.num_draws(kind)), np.float32)
        rows = self._rows(kind, groups, cut.tables, cut.columns, uniforms)
        for mask in rows.legal.values():
            mask[~mask.any(-1)] = True  # nobody acts here: any action will do, only the value counts
        [answer] = self._decide([rows])
        self.recorder.truncate(cut, rows, answer, self._game.view)

    def _reset(self, tables: IntArray, *, opening: bool = True) -> None:
        """Start the next episode at these tables; streams that change hands are handed over first."""
        self.recorder.renew_owners(tables)
        self._memory.reset(tables)
        names = self.seating.episode_seeds(tables)
        seeds = np.full(len(tables), self._seed, np.uint64)
        for part in names.T:
            seeds = mix(seeds, part)
        self._history.begin(tables, seeds)
        if self._openings.moves:
            trains = (self.seating.owner_of_seat[tables] >= 0).any(1)
            lengths = self._openings.lengths(uniform(seeds, _IS_OPENING), uniform(seeds, _OPENING_LENGTH))
            self._opening[tables] = lengths * (trains & opening)
        began = monotonic()
        self._game.reset(tables, seeds)
        self.times.game += monotonic() - began
        self._show()

    def _show(self) -> None:
        if self._watch is not None:
            self._watch(self._game, self.seating)

    def save(self) -> tuple[Tree, dict[str, Any]]:
        """All that is needed to go on exactly here, given the same game."""
        arrays, facts = self.seating.save()
        saved = {f"seating.{name}": array for name, array in arrays.items()}
        recorded, collected = self.recorder.save()
        saved |= recorded
        for kind, actions in enumerate(self._actions):
            saved |= {f"actions.{kind}.{name}": array for name, array in actions.items()}
        saved |= self._memory.save()
        saved |= self._history.save()
        if self._openings.moves:
            saved["opening"] = self._opening
        return saved, {
            "seating": facts,
            "rng": self._rng.bit_generator.state,
            "collected": collected,
            "acted": self._acted,
            "started": self._started,
            "episodes": self.episodes,
        }

    def load(self, saved: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self.seating.load(under("seating.", saved), facts["seating"])
        self.recorder.load(saved, facts["collected"])
        self._memory.load(saved)
        self._history.load(saved)
        if "opening" in saved:
            self._opening[...] = saved["opening"]
        self._rng.bit_generator.state = facts["rng"]
        self._acted = self._bots_acted = facts["acted"]
        for kind, actions in enumerate(self._actions):
            put(actions, ..., under(f"actions.{kind}.", saved))
        self._started = facts["started"]
        self.episodes = facts["episodes"]
        if self._started:
            self._history.replay(self._game, self.seating.steps)
            self._replace_lost()
