"""The conformance check: `print(check_game(MySource()))` plays a game in many ways and reports on its promises."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.addresses import load_address
from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.data.specs import Box, Choice, GameSpec, Point, Pointer
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games import checked_play
from ludus.games.bots import RandomBot, Rows, draw_within, first_illegal, head_counts
from ludus.games.catalog import resolve
from ludus.games.game import Actions, Bot, Game, GameBatch, GameSource, HasTrees, lost_tables
from ludus.games.isolation.isolated import Isolated
from ludus.games.lift import Lifted
from ludus.games.outside_bots import WithBots
from ludus.games.recording import innermost

KEPT_STEPS = 100  # steps kept per episode, bounded for games with large observations

WALKS = 50  # random histories to walk in the game tree
NEIGHBOURS = 2  # tables in addition to those of repeated episodes
BOUND_STEPS = 100  # steps with numbers at their bounds, and until a head counts
TWIN_STEPS = 100  # steps that a game and its tensor twin play side by side
_TWIN_CHECK = "ludus.games.device.twin_check:tensor_faults"  # needs PyTorch, so it is loaded only for such games


def check_game(
    game: GameSource | type[GameSource] | type[Game] | str,
    *,
    episodes: int = 64,
    tables: int = 4,
    seed: int = 0,
    max_steps: int = 1_000,
    bot_seconds: float = 2.0,
    **options: Any,
) -> checked_play.Report:
    """Whether a game keeps the promises that training relies on.

        print(ludus.check_game("my_game.py:MyGame"))

    `game` is an address (`tic_tac_toe`, `openspiel:hex`, `my_game.py:MyGame`), a `GameSource`, or a class;
    `options` are those of an address or a class. An error of the game is a failure of the report; only a game
    that does not exist raises a ValueError.

    Plays `episodes` random episodes at `tables` tables (at most `max_steps` steps), repeats some of them at other
    tables, then plays each bot for one episode per table or about `bot_seconds`.
    """
    source = _source_of(game, options)
    evidence = checked_play.Evidence()
    name = type(source).__name__
    with suppress(checked_play.GameHung), evidence.calls("spec"):
        with checked_play.time_limit("spec"):
            name = source.spec.name
        check = _Check(source, evidence, seed, tables)
        if check.specs():
            check.play(episodes, max_steps)
            rest = _Check(source, evidence, seed, tables)  # its draws do not depend on the length of play
            with evidence.calls("bots"):
                rest.bots(bot_seconds)
            rest.bounds(max_steps)
            rest.tree()
            rest.tensor_twin(max_steps)
    return evidence.report(name)


def _source_of(game: GameSource | type | str, options: Mapping[str, Any]) -> GameSource:
    if isinstance(game, str):
        return resolve(game, **options)
    if isinstance(game, type):
        return game(**options) if hasattr(game, "tables") else Lifted(partial(game, **options))
    if options:
        raise ValueError(f"{type(game).__name__} is made already: its options cannot change here")
    return game


def most_tables(source: GameSource, tables: int) -> int:
    """The most tables that are open at the same time in a check with `tables` tables."""
    return tables + NEIGHBOURS if source.spec.repeatable else max(tables, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedEpisode:
    """The actions at one table, and what it showed after reset and after each step."""

    seed: int
    actions: list[tuple[Tree, ...]] = field(default_factory=list)
    showings: list[Tree] = field(default_factory=list)


class _Check:
    """The parts of a check, which share the game, the evidence and the random generator."""

    def __init__(self, source: GameSource, evidence: checked_play.Evidence, seed: int, num_tables: int) -> None:
        self.source = source
        self.spec = source.spec
        self.evidence = evidence
        self.rng = np.random.default_rng(seed)
        self.num_tables = num_tables

    def _tables(self, num_tables: int) -> GameBatch:
        with checked_play.time_limit("tables"):
            return self.source.tables(num_tables)

    def specs(self) -> bool:
        """Whether the game can be played at all."""
        spec, evidence = self.spec, self.evidence
        if not evidence.expect("spec", isinstance(spec, GameSpec), "source", 0, f"spec is {spec!r}"):
            return False
        evidence.expect("spec", spec == self.source.spec, "source", 0, "spec differs from one call to the next")
        names = [kind.name for kind in spec.kinds]
        evidence.expect("spec", len(set(names)) == len(names), "kinds", 0, f"two kinds have one name: {names}")
        for kind in spec.kinds:
            where, observation = f"kind {kind.name!r}", kind.observation
            evidence.expect("spec", bool(observation.parts), where, 0, "its observation has no parts")
            parts = [*observation.parts.items(), *observation.critic.items()]
            num_arrays = sum(len(part.arrays(name)) for name, part in parts)
            seen = f"{num_arrays} arrays share the names {sorted(observation.arrays)}"
            evidence.expect("spec", num_arrays == len(observation.arrays), where, 0, seen)
        with closing(self._tables(self.num_tables)) as batch:
            evidence.expect("spec", batch.spec == spec, "tables", 0, "their spec differs from the source's")
            seen = f"{batch.num_tables} tables, not {self.num_tables}"
            right = evidence.expect("spec", batch.num_tables == self.num_tables, "tables", 0, seen)
            return right and checked_play.check_shapes(batch, evidence)

    def play(self, num_episodes: int, max_steps: int) -> None:
        """Check random play, and the same episodes again in other batches."""
        calls, num_tables = self.evidence.calls, self.num_tables
        kept: list[PlayedEpisode] = []
        with calls("random play"):
            kept = self._play_random_episodes(num_episodes, max_steps)
        if not kept or not self.spec.repeatable:
            return
        here, reverse = range(num_tables), range(num_tables, 0, -1)
        with calls("replay in a new batch"):
            self._replay("same_again", kept, here, num_tables)
        with calls("replay with random actions for idle seats"):
            self._replay("idle_actions", kept, here, num_tables, noise=True)
        with calls("replay in another order among neighbours"):
            self._replay("same_elsewhere", kept, reverse, num_tables + NEIGHBOURS)
        with calls("replay at a single table"):
            self._replay("same_elsewhere", kept[:1], [0], 1)

    def bots(self, seconds: float) -> None:
        """Let every bot play all seats of one episode per table, or for about `seconds`."""
        bots = self.source.bots()
        outside = self.source.addresses if isinstance(self.source, WithBots) else {}
        self.evidence.expect("bots", "random" in bots, "bots()", 0, f"no bot 'random' among {sorted(bots)}")
        for name, bot in bots.items():
            with self.evidence.calls(f"bot {name!r}"), closing(self._tables(self.num_tables)) as batch:
                tables = checked_play.WatchedTables(batch, self.evidence)
                watched = _WatchedBot(name=name, bot=bot, tables=tables, from_outside=name in outside)
                with suppress(_BotFailedError):
                    tables.reset(np.arange(self.num_tables), self._draw_seeds(self.num_tables))
                    stop_at = time.monotonic() + seconds
                    while not (tables.ended | tables.broken).all() and time.monotonic() < stop_at:
                        tables.step(tables.choose(watched, self.rng))

    def bounds(self, max_steps: int) -> None:
        """Play numbers at their bounds, and offer the game some that are beyond them or NaN."""
        heads = [(number, name) for number, kind in enumerate(self.spec.kinds) for name in kind.action.boxes]
        if not heads:
            return
        with self.evidence.calls("play at the bounds"), closing(self._tables(self.num_tables)) as batch:
            tables = checked_play.WatchedTables(batch, self.evidence)
            tables.reset(np.arange(self.num_tables), self._draw_seeds(self.num_tables))
            for _ in range(min(max_steps, BOUND_STEPS)):
                if (tables.ended | tables.broken).all():
                    break
                tables.step(tables.choose(_AtBounds(), self.rng))
        for kind, head in heads:
            for beyond in (True, False):
                with self.evidence.calls("a number beyond its bounds"):
                    self._offer(kind, head, beyond)

    def _offer(self, kind: int, head: str, beyond: bool) -> None:
        """A number that is beyond its bounds, or NaN, at the first decision in which the head counts."""
        box = self.spec.kinds[kind].action.boxes[head]
        seats = list(self.spec.seats_of_kind[kind])
        with closing(self._tables(1)) as batch:
            tables = checked_play.WatchedTables(batch, checked_play.Evidence())
            tables.reset(np.array([0]), self._draw_seeds(1))
            for step in range(BOUND_STEPS):
                if (tables.ended | tables.broken).all():
                    return
                actions = tables.choose(RandomBot(), self.rng)
                acting = tables.view.to_act[:, seats]
                counts = acting & head_counts(self.spec.kinds[kind], head, actions[kind], acting.shape)
                if not counts.any():
                    tables.step(actions)
                    continue
                number = int(self.rng.integers(box.size))
                low, high = (bound[number] for bound in box.bounds)
                wrong = 2 * high - low if beyond else np.nan
                column = np.flatnonzero(counts[0])[0]
                actions[kind][head][0, column, number] = wrong
                said = ""
                try:
                    tables.step(actions)
                except checked_play.GameHung:
                    raise
                except Exception as error:
                    said = str(error)
                shown = f"head {head!r} was {box.refusal(wrong, number)}; the game"
                seen = f"{shown} said {said!r}, without the name of the head" if said else f"{shown} played it"
                self.evidence.expect("bounds", head in said, f"table 0, seat {seats[column]}", step, seen)
                return

    def tree(self) -> None:
        with self.evidence.calls("tree"):
            with checked_play.time_limit("tree"):
                root = self.source.tree()
            if root is not None:
                for _ in range(WALKS):
                    with checked_play.time_limit("a walk through the tree"):
                        self._walk(root, "tree")
        with self.evidence.calls("tree beside tables"):
            self._compare_with_tables(num_tables=2, max_steps=WALKS)

    def tensor_twin(self, max_steps: int) -> None:
        """Compare with the game's tensor twin, if it has one and PyTorch is installed."""
        inner = innermost(self.source)
        may_have_one = hasattr(type(inner), "TENSOR_TWIN") or isinstance(inner, Isolated)
        if find_spec("torch") is None or not may_have_one:
            return
        with self.evidence.calls("tensor twin"):
            seed, compare = int(self._draw_seeds(1)[0] >> np.uint64(1)), load_address(_TWIN_CHECK)
            found = compare(self.source, steps=min(max_steps, TWIN_STEPS), seed=seed)
            for fault in () if found is None else found or ("",):
                self.evidence.expect("tensor_twin", not fault, "tensor game", 0, fault)

    def _draw_seeds(self, number: int) -> NDArray[np.uint64]:
        return self.rng.integers(0, 2**64, number, np.uint64)

    def _play_random_episodes(self, num_episodes: int, max_steps: int) -> list[PlayedEpisode]:
        """Each table's first episode."""
        with closing(self._tables(self.num_tables)) as batch:
            tables = checked_play.WatchedTables(batch, self.evidence)
            seeds = self._draw_seeds(self.num_tables)
            tables.reset(np.arange(self.num_tables), seeds)
            episodes = [PlayedEpisode(seed=int(seed)) for seed in seeds]
            for table, episode in enumerate(episodes):
                episode.showings.append(tables.showing(table))
            first = np.ones(self.num_tables, np.bool_)
            finished = 0
            for _ in range(max_steps):
                running = ~tables.ended
                actions = tables.choose(RandomBot(), self.rng)
                watched = np.flatnonzero(first & running & (tables.steps < KEPT_STEPS)).tolist()
                for table in watched:
                    episodes[table].actions.append(tuple(take(tree, table) for tree in actions))
                tables.step(actions)
                for table in watched:
                    episodes[table].showings.append(tables.showing(table))
                finished += int((running & tables.ended).sum())
                if finished >= num_episodes and tables.ended.all():
                    break
                # Ended tables wait for a random time, so that some are stepped; a few are reset in mid-episode.
                waiting = tables.ended & (self.rng.random(len(first)) < 0.5)
                interrupted = ~first & (self.rng.random(len(first)) < 0.02)
                fresh = np.flatnonzero(waiting | interrupted | tables.broken)
                if len(fresh):
                    tables.reset(fresh, self._draw_seeds(len(fresh)))
                    first[fresh] = False
            tables.step(tables.choose(RandomBot(), self.rng))
            seen = "no seat had to act: every episode ended at reset"
            self.evidence.expect("someone_acts", tables.has_decided, "random play", 0, seen)
            return episodes

    def _replay(
        self,
        promise: str,
        episodes: Sequence[PlayedEpisode],
        places: Sequence[int],
        num_tables: int,
        noise: bool = False,
    ) -> None:
        """Repeat episode i at table `places[i]` and compare. `noise`: rows that are not to act get random actions."""

        def unchanged(episode: PlayedEpisode, place: int, step: int) -> bool:
            changed = checked_play.difference(episode.showings[step], tables.showing(place))
            where = f"table {place} of {num_tables}, seed {episode.seed}"
            return self.evidence.expect(promise, changed is None, where, step, changed)

        with closing(self._tables(num_tables)) as batch:
            # Replays are compared with tables that were inspected before, so they are not inspected again.
            tables = checked_play.WatchedTables(batch, checked_play.Evidence())
            seeds = self._draw_seeds(num_tables)
            seeds[list(places)] = [episode.seed for episode in episodes]
            tables.reset(np.arange(num_tables), seeds)
            neighbours = ~np.isin(np.arange(num_tables), places)
            same = [unchanged(episode, place, 0) for place, episode in zip(places, episodes, strict=True)]
            for step in range(max(len(episode.actions) for episode in episodes)):
                actions = tables.choose(RandomBot(), self.rng, neighbours)
                idle = ~tables.view.to_act
                running = [i for i, episode in enumerate(episodes) if same[i] and step < len(episode.actions)]
                for i in running:
                    for tree, row in zip(actions, episodes[i].actions[step], strict=True):
                        put(tree, places[i], row)
                if noise:
                    self._disturb(actions, idle)
                self.evidence.step = step + 1
                tables.step(actions)
                for i in running:
                    same[i] = unchanged(episodes[i], places[i], step + 1)
                restart = np.flatnonzero(neighbours & (tables.ended | (self.rng.random(num_tables) < 0.2)))
                if len(restart):
                    tables.reset(restart, self._draw_seeds(len(restart)))

    def _disturb(self, actions: Actions, idle: NDArray[np.bool_]) -> None:
        """Write random values within range into the rows of seats that are not to act."""
        for index, kind in enumerate(self.spec.kinds):
            rows = np.nonzero(idle[:, list(self.spec.seats_of_kind[index])])
            for name, head in kind.action.heads.items():
                if isinstance(head, Box):
                    actions[index][name][rows] = draw_within(head, len(rows[0]), self.rng)
                    continue
                lowest = -1 if isinstance(head, Pointer) and head.picks > 1 else 0
                shape = (len(rows[0]), *actions[index][name].shape[2:])
                actions[index][name][rows] = self.rng.integers(lowest, kind.num_options(name), shape)

    def _walk(self, state: TreeState, where: str) -> None:
        """Check one random history from `state` to its end."""
        spec, expect = self.spec, partial(self.evidence.expect, "tree")
        decisions = step = 0
        while state.seat() != OVER:
            seat = state.seat()
            if seat == CHANCE:
                action = self._draw_chance(state, where, step)
            else:
                if not expect(0 <= seat < spec.num_seats, where, step, f"seat {seat} of {spec.num_seats}"):
                    return
                decisions += 1
                action = self._decide(state, f"{where}, seat {seat}", step)
            within = decisions <= spec.max_length * spec.num_seats
            if action is None or not expect(within, where, step, f"no end after {decisions} decisions"):
                return
            child = state.child(action)
            expect(state.seat() == seat, where, step, f"child() changed the seat to {state.seat()}")
            state, step = child, step + 1
        returns = list(state.returns())
        right = len(returns) == spec.num_seats and bool(np.isfinite(returns).all())
        expect(right, where, step, f"returns {returns} for {spec.num_seats} seats")
        if right and spec.zero_sum:
            total = sum(float(np.mean([returns[seat] for seat in seats])) for seats in spec.seats_of_team)
            expect(abs(total) < checked_play.TOLERANCE, where, step, f"returns {returns} are not zero-sum")

    def _draw_chance(self, state: TreeState, where: str, step: int) -> int | None:
        outcomes = list(state.chance_outcomes())
        weights = [float(weight) for _, weight in outcomes]
        total = sum(weights)
        right = bool(outcomes) and abs(total - 1) < 1e-6 and min(weights) > 0
        seen = f"chance outcomes {outcomes[:8]} sum to {total:g}"
        if not self.evidence.expect("tree", right, where, step, seen):
            return None
        return outcomes[self.rng.choice(len(outcomes), p=np.array(weights) / total)][0]

    def _decide(self, state: TreeState, where: str, step: int) -> int | None:
        expect = partial(self.evidence.expect, "tree")
        legal = list(state.legal_actions())
        ascending = bool(legal) and legal == sorted(set(legal))
        expect(ascending, where, step, f"legal actions {legal}: needs some, ascending")
        key, again = state.information_state(), state.information_state()
        stable = key == again and hash(key) == hash(again)
        expect(stable, where, step, f"information state {key!r}, then {again!r}")
        kind, observation = self.spec.kinds[self.spec.seats[state.seat()]], state.observation()
        for name, want in kind.observation.arrays.items():
            have = observation.get(name)
            right = have is not None and (np.shape(have), np.asarray(have).dtype) == (want.shape, want.dtype)
            seen = f"observation {name!r} is {have!r}, expected {want.dtype}{list(want.shape)}"
            if not expect(right, where, step, seen):
                return None
        return int(self.rng.choice(legal)) if legal else None

    def _compare_with_tables(self, num_tables: int, max_steps: int) -> None:
        """Step tables and their tree states side by side, if the tables can be searched."""
        with closing(self._tables(num_tables)) as batch:
            if not isinstance(batch, HasTrees):
                return
            tables = checked_play.WatchedTables(batch, self.evidence)
            tables.reset(np.arange(num_tables), self._draw_seeds(num_tables))
            for _ in range(max_steps):
                running = np.flatnonzero(~(tables.ended | tables.broken)).tolist()
                if not running:
                    return
                states = {table: batch.tree_state(table) for table in running}
                for table, state in states.items():
                    self._compare(state, tables, table)
                    self._walk(state, f"tree of table {table}")
                actions = tables.choose(RandomBot(), self.rng)
                after = {table: self._successor(state, tables, actions, table) for table, state in states.items()}
                tables.step(actions)
                for table, successor in after.items():
                    if successor is not None and successor.seat() != CHANCE and not tables.view.truncated[table]:
                        self._compare(successor, tables, table)

    def _compare(self, state: TreeState, tables: checked_play.WatchedTables, table: int) -> None:
        spec, view, seat = self.spec, tables.view, state.seat()
        where, step = f"tree of table {table}, seat {seat}", int(tables.steps[table])
        expect = partial(self.evidence.expect, "tree")
        if seat == OVER or view.over[table]:
            both = seat == OVER and bool(view.over[table])
            expect(both, where, step, f"the tree says {seat}, over is {view.over[table]}")
            if both:
                total, returns = tables.total[table], np.asarray(state.returns(), np.float64)
                seen = f"returns {returns.tolist()}, but total reward {total.tolist()}"
                expect(np.allclose(total, returns, atol=checked_play.TOLERANCE), where, step, seen)
            return
        to_act = np.flatnonzero(view.to_act[table]).tolist()
        if not expect(seat in to_act, where, step, f"the table waits for seats {to_act}"):
            return
        in_tree = {name: np.asarray(array) for name, array in state.observation().items()}
        cropped = checked_play.crop(spec.kinds[spec.seats[seat]], in_tree)
        changed = checked_play.difference(tables.observation(table, seat), cropped)
        expect(changed is None, where, step, f"table, then tree: {changed}")
        masks = list(tables.legal(table, seat).values())
        if len(masks) == 1 and self._has_single_number(seat):
            legal, allowed = list(state.legal_actions()), np.flatnonzero(masks[0]).tolist()
            expect(legal == allowed, where, step, f"legal {legal}, but the mask has {allowed}")

    def _successor(
        self, state: TreeState, tables: checked_play.WatchedTables, actions: Actions, table: int
    ) -> TreeState | None:
        """The state after all seats to act have acted; None if their actions are not single numbers."""
        waiting: Sequence[int] = np.flatnonzero(tables.view.to_act[table]).tolist()
        for _ in waiting:
            seat = state.seat()
            if seat not in waiting or not self._has_single_number(seat):
                return None
            (chosen,) = actions[self.spec.seats[seat]].values()
            state = state.child(int(chosen[table, self.spec.column_of_seat[seat]]))
        return state

    def _has_single_number(self, seat: int) -> bool:
        heads = list(self.spec.kinds[self.spec.seats[seat]].action.heads.values())
        return len(heads) == 1 and isinstance(heads[0], (Choice, Point))


class _AtBounds:
    """Plays at random, and every number at its lower or upper bound."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        actions = RandomBot().act(game, tables, seats, rng)
        for name, box in game.spec.kinds[game.spec.seats[int(seats[0])]].action.boxes.items():
            low, high = np.array(box.bounds, np.float32)
            actions[name] = np.where(rng.random((len(tables), box.size)) < 0.5, low, high)
        return actions


class _BotFailedError(Exception):
    """A bot cannot continue. The failure is already recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _WatchedBot:
    """A bot whose actions are checked before they are played."""

    name: str
    bot: Bot
    tables: checked_play.WatchedTables
    from_outside: bool

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        try:
            with checked_play.time_limit(f"the choice of bot {self.name!r}"):
                actions = self.bot.act(game, tables, seats, rng)
        except Exception as error:
            raise self._failed("", self.tables.evidence.step, checked_play.described(error)) from error
        for table, reason in lost_tables(game).items():
            if self.from_outside:  # the bot is a program of its own
                raise self._failed(f", table {table}", int(self.tables.steps[table]), reason)
            raise checked_play.TableLost(table, int(self.tables.steps[table]), reason)
        wrong = first_illegal(Rows.of(game, tables, seats), actions)
        if wrong is not None:
            row, seen = wrong
            step = int(self.tables.steps[tables[row]])
            raise self._failed(f", table {tables[row]}, seat {seats[row]}", step, seen)
        self.tables.evidence.expect("bots", True, f"bot {self.name!r}", 0, "")
        return actions

    def _failed(self, place: str, step: int, seen: str) -> _BotFailedError:
        where, blamed = f"bot {self.name!r}{place}", self.name if self.from_outside else ""
        self.tables.evidence.expect("bots", False, where, step, seen, bot=blamed)
        return _BotFailedError(where)
