"""Random episodes, kept and played again elsewhere: an episode depends on its seed and actions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, Pointer
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.bots import RandomBot
from ludus.games.checking.play import WatchedTables
from ludus.games.checking.report import Evidence
from ludus.games.checking.showing import difference, shown
from ludus.games.game import Actions, GameSource

KEPT_STEPS = 100
"""Steps kept per episode: enough to see a difference, bounded for games with large observations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
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
) -> list[Episode]:
    """Watch random play; returns each table's first episode."""
    batch = source.tables(num_tables)
    try:
        tables = WatchedTables(batch, evidence)
        seeds = draw_seeds(rng, num_tables)
        tables.reset(np.arange(num_tables), seeds)
        episodes = [Episode(seed=int(seed)) for seed in seeds]
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


def _keep_showings(tables: WatchedTables, episodes: Sequence[Episode], which: IntArray) -> None:
    for table in which.tolist():
        episodes[table].showings.append(shown(tables.spec, tables.view, table, tables.acted[table]))


def _tables_to_reset(
    tables: WatchedTables, first: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Ended tables sooner or later, so that some are stepped over; now and then one in mid-episode."""
    waiting = tables.ended & (rng.random(len(first)) < 0.5)
    interrupted = ~first & (rng.random(len(first)) < 0.02)
    return np.flatnonzero(waiting | interrupted | tables.broken)


def replay(
    source: GameSource,
    evidence: Evidence,
    rng: np.random.Generator,
    episodes: Sequence[Episode],
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
    evidence: Evidence, promise: str, tables: WatchedTables, place: int, episode: Episode, step: int
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
