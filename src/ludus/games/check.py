"""The conformance check: plays a game in many ways and reports which of its promises it keeps.

Run it on your own game: `print(check_game(MySource()))`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import Choice, GameSpec, Point, Pointer
from ludus.data.tree import CHANCE, OVER, TreeState
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.bots import RandomBot, Rows, first_illegal
from ludus.games.check_report import PROMISES, Evidence, Failure, Report, TableLost, Verdict, described
from ludus.games.checked_play import (
    TOLERANCE,
    WatchedTables,
    check_shapes,
    crop,
    difference,
    seat_legal,
    seat_observation,
    shown,
)
from ludus.games.game import Actions, Bot, GameBatch, GameSource, HasTrees, lost_tables
from ludus.games.outside_bots import WithBots

KEPT_STEPS = 100
"""Steps kept per episode: enough to see a difference, bounded for games with large observations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedEpisode:
    """What was done at one table, and what it showed after reset and after each step."""

    seed: int
    actions: list[tuple[Tree, ...]] = field(default_factory=list)
    showings: list[Tree] = field(default_factory=list)


def draw_seeds(rng: np.random.Generator, number: int) -> NDArray[np.uint64]:
    return rng.integers(0, 2**64, number, np.uint64)


def play_random_episodes(
    source: GameSource,
    evidence: Evidence,
    rng: np.random.Generator,
    *,
    num_tables: int,
    num_episodes: int,
    max_steps: int,
) -> list[PlayedEpisode]:
    """Watch random play; returns each table's first episode."""
    batch = source.tables(num_tables)
    try:
        tables = WatchedTables(batch, evidence)
        seeds = draw_seeds(rng, num_tables)
        tables.reset(np.arange(num_tables), seeds)
        episodes = [PlayedEpisode(seed=int(seed)) for seed in seeds]
        _keep_showings(tables, episodes, np.arange(num_tables))
        first = np.ones(num_tables, np.bool_)
        finished = 0
        for _ in range(max_steps):
            running = ~tables.ended
            actions = tables.choose(RandomBot(), rng)
            watched = np.flatnonzero(first & running & (tables.steps < KEPT_STEPS))
            for table in watched.tolist():
                episodes[table].actions.append(tuple(take(tree, table) for tree in actions))
            tables.step(actions)
            _keep_showings(tables, episodes, watched)
            finished += int((running & tables.ended).sum())
            if finished >= num_episodes and tables.ended.all():
                break
            fresh = _tables_to_reset(tables, first, rng)
            if len(fresh):
                tables.reset(fresh, draw_seeds(rng, len(fresh)))
                first[fresh] = False
        tables.step(tables.choose(RandomBot(), rng))
        return episodes
    finally:
        batch.close()


def _keep_showings(tables: WatchedTables, episodes: Sequence[PlayedEpisode], which: IntArray) -> None:
    for table in which.tolist():
        episodes[table].showings.append(shown(tables.spec, tables.view, table, tables.acted[table]))


def _tables_to_reset(tables: WatchedTables, first: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Ended tables sooner or later, so that some are stepped over; now and then one in mid-episode."""
    waiting = tables.ended & (rng.random(len(first)) < 0.5)
    interrupted = ~first & (rng.random(len(first)) < 0.02)
    return np.flatnonzero(waiting | interrupted | tables.broken)


def replay(
    source: GameSource,
    evidence: Evidence,
    rng: np.random.Generator,
    episodes: Sequence[PlayedEpisode],
    *,
    promise: str,
    places: Sequence[int],
    num_tables: int,
    noise: bool = False,
) -> None:
    """Play episode i again at table `places[i]` and compare; other tables play, and restart, at random.

    With `noise`, rows that are not to act get random actions instead of zeros.
    """
    batch = source.tables(num_tables)
    try:
        # What replays show is compared with what was inspected before, so it is not inspected again.
        tables = WatchedTables(batch, Evidence())
        seeds = draw_seeds(rng, num_tables)
        seeds[list(places)] = [episode.seed for episode in episodes]
        tables.reset(np.arange(num_tables), seeds)
        neighbours = ~np.isin(np.arange(num_tables), places)
        same = [_compare(evidence, promise, tables, *pair, 0) for pair in zip(places, episodes, strict=True)]
        for step in range(max(len(episode.actions) for episode in episodes)):
            actions = tables.choose(RandomBot(), rng, neighbours)
            idle = ~tables.view.to_act
            running = [same[i] and step < len(episode.actions) for i, episode in enumerate(episodes)]
            for place, episode, goes_on in zip(places, episodes, running, strict=True):
                if goes_on:
                    for tree, row in zip(actions, episode.actions[step], strict=True):
                        put(tree, place, row)
            if noise:
                _disturb(tables.spec, actions, idle, rng)
            evidence.step = step + 1
            tables.step(actions)
            for i, goes_on in enumerate(running):
                if goes_on:
                    same[i] = _compare(evidence, promise, tables, places[i], episodes[i], step + 1)
            restart = np.flatnonzero(neighbours & (tables.ended | (rng.random(num_tables) < 0.2)))
            if len(restart):
                tables.reset(restart, draw_seeds(rng, len(restart)))
    finally:
        batch.close()


def _compare(
    evidence: Evidence, promise: str, tables: WatchedTables, place: int, episode: PlayedEpisode, step: int
) -> bool:
    now = shown(tables.spec, tables.view, place, tables.acted[place])
    changed = difference(episode.showings[step], now)
    where = f"table {place} of {tables.batch.num_tables}, seed {episode.seed}"
    return evidence.expect(promise, changed is None, where, step, changed)


def _disturb(spec: GameSpec, actions: Actions, idle: NDArray[np.bool_], rng: np.random.Generator) -> None:
    """Random values, within range, in the rows of seats that are not to act."""
    for index, kind in enumerate(spec.kinds):
        rows = np.nonzero(idle[:, list(spec.seats_of_kind[index])])
        for name, head in kind.action.heads.items():
            lowest = -1 if isinstance(head, Pointer) and head.picks > 1 else 0
            shape = (len(rows[0]), *actions[index][name].shape[2:])
            actions[index][name][rows] = rng.integers(lowest, kind.num_options(name), shape)


class _BotFailedError(Exception):
    """A bot cannot go on. What it did is told already."""


def check_bots(
    source: GameSource, evidence: Evidence, rng: np.random.Generator, *, num_tables: int, seconds: float
) -> None:
    """Every bot plays all seats of one episode per table, or for about `seconds`."""
    bots = source.bots()
    outside = source.addresses if isinstance(source, WithBots) else {}
    evidence.expect("bots", "random" in bots, "bots()", 0, f"no bot 'random' among {sorted(bots)}")
    for name, bot in bots.items():
        with evidence.calls(f"bot {name!r}"):
            batch = source.tables(num_tables)
            try:
                tables = WatchedTables(batch, evidence)
                watched = _WatchedBot(name=name, bot=bot, tables=tables, from_outside=name in outside)
                with suppress(_BotFailedError):
                    _play(watched, tables, rng, seconds)
            finally:
                batch.close()


def _play(bot: Bot, tables: WatchedTables, rng: np.random.Generator, seconds: float) -> None:
    num_tables = tables.batch.num_tables
    tables.reset(np.arange(num_tables), draw_seeds(rng, num_tables))
    stop_at = time.monotonic() + seconds
    while not (tables.ended | tables.broken).all() and time.monotonic() < stop_at:
        tables.step(tables.choose(bot, rng))


@dataclass(frozen=True, kw_only=True, slots=True)
class _WatchedBot:
    """A bot whose actions are checked before they are played."""

    name: str
    bot: Bot
    tables: WatchedTables
    from_outside: bool

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        try:
            actions = self.bot.act(game, tables, seats, rng)
        except Exception as error:
            raise self._failed("", self.tables.evidence.step, described(error)) from error
        for table, reason in lost_tables(game).items():
            if self.from_outside:  # it is a program of its own
                raise self._failed(f", table {table}", int(self.tables.steps[table]), reason)
            raise TableLost(table, int(self.tables.steps[table]), reason)
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


def walk(state: TreeState, spec: GameSpec, evidence: Evidence, rng: np.random.Generator, where: str) -> None:
    """One random history from `state` to its end, checked on the way."""
    decisions = step = 0
    while state.seat() != OVER:
        seat = state.seat()
        if seat == CHANCE:
            action = _chance(state, evidence, rng, where, step)
        else:
            known = 0 <= seat < spec.num_seats
            if not evidence.expect("tree", known, where, step, f"seat {seat} of {spec.num_seats}"):
                return
            decisions += 1
            action = _decision(state, spec, evidence, rng, f"{where}, seat {seat}", step)
        limit = spec.max_length * spec.num_seats
        if action is None or not evidence.expect(
            "tree", decisions <= limit, where, step, f"no end after {decisions} decisions"
        ):
            return
        child = state.child(action)
        same = state.seat() == seat
        evidence.expect("tree", same, where, step, f"child() changed the seat to {state.seat()}")
        state, step = child, step + 1
    returns = list(state.returns())
    right = len(returns) == spec.num_seats and bool(np.isfinite(returns).all())
    evidence.expect("tree", right, where, step, f"returns {returns} for {spec.num_seats} seats")
    if right and spec.zero_sum:
        total = sum(float(np.mean([returns[seat] for seat in seats])) for seats in spec.seats_of_team)
        evidence.expect("tree", abs(total) < TOLERANCE, where, step, f"returns {returns} are not zero-sum")


def _chance(state: TreeState, evidence: Evidence, rng: np.random.Generator, where: str, step: int) -> int | None:
    outcomes = list(state.chance_outcomes())
    weights = [float(weight) for _, weight in outcomes]
    total = sum(weights)
    right = bool(outcomes) and abs(total - 1) < 1e-6 and min(weights) > 0
    if not evidence.expect("tree", right, where, step, f"chance outcomes {outcomes[:8]} sum to {total:g}"):
        return None
    return outcomes[rng.choice(len(outcomes), p=np.array(weights) / total)][0]


def _decision(
    state: TreeState,
    spec: GameSpec,
    evidence: Evidence,
    rng: np.random.Generator,
    where: str,
    step: int,
) -> int | None:
    legal = list(state.legal_actions())
    ascending = bool(legal) and legal == sorted(set(legal))
    evidence.expect("tree", ascending, where, step, f"legal actions {legal}: needs some, ascending")
    key, again = state.information_state(), state.information_state()
    stable = key == again and hash(key) == hash(again)
    evidence.expect("tree", stable, where, step, f"information state {key!r}, then {again!r}")
    kind, observation = spec.kinds[spec.seats[state.seat()]], state.observation()
    for name, want in kind.observation.arrays.items():
        have = observation.get(name)
        right = have is not None and (np.shape(have), np.asarray(have).dtype) == (want.shape, want.dtype)
        seen = f"observation {name!r} is {have!r}, expected {want.dtype}{list(want.shape)}"
        if not evidence.expect("tree", right, where, step, seen):
            return None
    return int(rng.choice(legal)) if legal else None


def compare_with_tables(
    source: GameSource, evidence: Evidence, rng: np.random.Generator, *, num_tables: int, max_steps: int
) -> None:
    """Step tables and their tree states side by side, where the tables can be searched."""
    batch = source.tables(num_tables)
    try:
        if not isinstance(batch, HasTrees):
            return
        tables = WatchedTables(batch, evidence)
        tables.reset(np.arange(num_tables), draw_seeds(rng, num_tables))
        for _ in range(max_steps):
            running = np.flatnonzero(~(tables.ended | tables.broken)).tolist()
            if not running:
                return
            states = {table: batch.tree_state(table) for table in running}
            for table, state in states.items():
                _tree_compare(state, tables, evidence, table)
                walk(state, tables.spec, evidence, rng, f"tree of table {table}")
            actions = tables.choose(RandomBot(), rng)
            after = {table: _successor(state, tables, actions, table) for table, state in states.items()}
            tables.step(actions)
            for table, successor in after.items():
                if successor is not None and successor.seat() != CHANCE and not tables.view.truncated[table]:
                    _tree_compare(successor, tables, evidence, table)
    finally:
        batch.close()


def _tree_compare(state: TreeState, tables: WatchedTables, evidence: Evidence, table: int) -> None:
    spec, view, step, seat = tables.spec, tables.view, int(tables.steps[table]), state.seat()
    where = f"tree of table {table}, seat {seat}"
    if seat == OVER or view.over[table]:
        both = seat == OVER and bool(view.over[table])
        evidence.expect("tree", both, where, step, f"the tree says {seat}, over is {view.over[table]}")
        if both:
            total, returns = tables.total[table], np.asarray(state.returns(), np.float64)
            seen = f"returns {returns.tolist()}, but total reward {total.tolist()}"
            evidence.expect("tree", np.allclose(total, returns, atol=TOLERANCE), where, step, seen)
        return
    to_act = np.flatnonzero(view.to_act[table]).tolist()
    if not evidence.expect("tree", seat in to_act, where, step, f"the table waits for seats {to_act}"):
        return
    kind = spec.kinds[spec.seats[seat]]
    in_tree = {name: np.asarray(array) for name, array in state.observation().items()}
    changed = difference(seat_observation(spec, view, table, seat), crop(kind, in_tree))
    evidence.expect("tree", changed is None, where, step, f"table, then tree: {changed}")
    masks = list(seat_legal(spec, view, table, seat).values())
    if len(masks) == 1 and _single_number(spec, seat):
        legal, allowed = list(state.legal_actions()), np.flatnonzero(masks[0]).tolist()
        evidence.expect("tree", legal == allowed, where, step, f"legal {legal}, but the mask has {allowed}")


def _successor(state: TreeState, tables: WatchedTables, actions: Actions, table: int) -> TreeState | None:
    """The state after all seats to act have acted; None if their actions are not single numbers."""
    spec = tables.spec
    waiting: Sequence[int] = np.flatnonzero(tables.view.to_act[table]).tolist()
    for _ in waiting:
        seat = state.seat()
        if seat not in waiting or not _single_number(spec, seat):
            return None
        (chosen,) = actions[spec.seats[seat]].values()
        state = state.child(int(chosen[table, spec.column_of_seat[seat]]))
    return state


def _single_number(spec: GameSpec, seat: int) -> bool:
    heads = list(spec.kinds[spec.seats[seat]].action.heads.values())
    return len(heads) == 1 and isinstance(heads[0], (Choice, Point))


__all__ = ["PROMISES", "Failure", "Report", "Verdict", "check_game"]

WALKS = 50
"""Random histories walked in the game tree."""
NEIGHBOURS = 2
"""Tables beside those of episodes that are played again."""


def check_game(
    source: GameSource,
    *,
    episodes: int = 64,
    tables: int = 4,
    seed: int = 0,
    max_steps: int = 1_000,
    bot_seconds: float = 2.0,
) -> Report:
    """Whether a game keeps its promises; raises nothing, an error of the game is a failure too.

    Plays `episodes` random episodes at `tables` tables (at most `max_steps` steps), some of them again at
    other tables, then each bot for one episode per table or about `bot_seconds`.
    """
    evidence = Evidence()
    name = type(source).__name__
    with evidence.calls("spec"):
        name = source.spec.name
        if _check_spec(source, evidence, tables):
            _check_play(source, evidence, np.random.default_rng(seed), episodes, tables, max_steps)
            _check_rest(source, evidence, np.random.default_rng(seed), tables, bot_seconds)
    return evidence.report(name)


def most_tables(source: GameSource, tables: int) -> int:
    """How many are open at the same time in a check with `tables` tables."""
    return tables + NEIGHBOURS if source.spec.repeatable else max(tables, 2)


def _check_spec(source: GameSource, evidence: Evidence, num_tables: int) -> bool:
    """Whether the game can be played at all."""
    spec = source.spec
    if not evidence.expect("spec", isinstance(spec, GameSpec), "source", 0, f"spec is {spec!r}"):
        return False
    evidence.expect("spec", spec == source.spec, "source", 0, "spec differs from one call to the next")
    names = [kind.name for kind in spec.kinds]
    evidence.expect("spec", len(set(names)) == len(names), "kinds", 0, f"two kinds have one name: {names}")
    for kind in spec.kinds:
        parts = kind.observation.parts
        evidence.expect("spec", bool(parts), f"kind {kind.name!r}", 0, "its observation has no parts")
        num_arrays = sum(len(part.arrays(name)) for name, part in [*parts.items(), *kind.observation.critic.items()])
        seen = f"{num_arrays} arrays share the names {sorted(kind.observation.arrays)}"
        evidence.expect("spec", num_arrays == len(kind.observation.arrays), f"kind {kind.name!r}", 0, seen)
    batch = source.tables(num_tables)
    try:
        evidence.expect("spec", batch.spec == spec, "tables", 0, "their spec differs from the source's")
        given = batch.num_tables
        right = evidence.expect("spec", given == num_tables, "tables", 0, f"{given} tables, not {num_tables}")
        return right and check_shapes(batch, evidence)
    finally:
        batch.close()


def _check_play(
    source: GameSource,
    evidence: Evidence,
    rng: np.random.Generator,
    num_episodes: int,
    num_tables: int,
    max_steps: int,
) -> None:
    kept: list[PlayedEpisode] = []
    with evidence.calls("random play"):
        kept = play_random_episodes(
            source, evidence, rng, num_tables=num_tables, num_episodes=num_episodes, max_steps=max_steps
        )
    if not kept or not source.spec.repeatable:
        return
    here, reverse = range(num_tables), range(num_tables, 0, -1)
    with evidence.calls("replay in a new batch"):
        replay(source, evidence, rng, kept, promise="same_again", places=here, num_tables=num_tables)
    with evidence.calls("replay with random actions for idle seats"):
        replay(
            source,
            evidence,
            rng,
            kept,
            promise="idle_actions",
            places=here,
            num_tables=num_tables,
            noise=True,
        )
    with evidence.calls("replay in another order among neighbours"):
        replay(
            source,
            evidence,
            rng,
            kept,
            promise="same_elsewhere",
            places=reverse,
            num_tables=num_tables + NEIGHBOURS,
        )
    with evidence.calls("replay at a single table"):
        replay(source, evidence, rng, kept[:1], promise="same_elsewhere", places=[0], num_tables=1)


def _check_rest(
    source: GameSource, evidence: Evidence, rng: np.random.Generator, num_tables: int, bot_seconds: float
) -> None:
    with evidence.calls("bots"):
        check_bots(source, evidence, rng, num_tables=num_tables, seconds=bot_seconds)
    with evidence.calls("tree"):
        root = source.tree()
        if root is not None:
            for _ in range(WALKS):
                walk(root, source.spec, evidence, rng, "tree")
    with evidence.calls("tree beside tables"):
        compare_with_tables(source, evidence, rng, num_tables=2, max_steps=WALKS)
