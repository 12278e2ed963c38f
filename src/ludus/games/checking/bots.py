"""Lets a game's bots play and checks that what they do is legal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ludus.data.specs import Pointer
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import Rows, head_counts
from ludus.games.checking.episodes import draw_seeds
from ludus.games.checking.play import WatchedTables
from ludus.games.checking.report import Evidence
from ludus.games.game import Bot, GameBatch, GameSource


def check_bots(
    source: GameSource, evidence: Evidence, rng: np.random.Generator, *, num_tables: int, seconds: float
) -> None:
    """Every bot plays all seats of one episode per table, or for about `seconds`."""
    bots = source.bots()
    evidence.expect("bots", "random" in bots, "bots()", 0, f"no bot 'random' among {sorted(bots)}")
    for name, bot in bots.items():
        with evidence.calls(f"bot {name!r}"):
            batch = source.tables(num_tables)
            try:
                _play(name, bot, WatchedTables(batch, evidence), rng, seconds)
            finally:
                batch.close()


def _play(name: str, bot: Bot, tables: WatchedTables, rng: np.random.Generator, seconds: float) -> None:
    num_tables = tables.batch.num_tables
    tables.reset(np.arange(num_tables), draw_seeds(rng, num_tables))
    watched = _WatchedBot(name, bot, tables)
    stop_at = time.monotonic() + seconds
    while not (tables.ended | tables.broken).all() and time.monotonic() < stop_at:
        tables.step(tables.choose(watched, rng))


@dataclass(frozen=True, slots=True)
class _WatchedBot:
    """A bot whose actions are checked before they are played."""

    name: str
    bot: Bot
    tables: WatchedTables

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        actions = self.bot.act(game, tables, seats, rng)
        wrong = _first_wrong(Rows.of(game, tables, seats), actions)
        row, seen = wrong or (0, "")
        where = f"bot {self.name!r}, table {tables[row]}, seat {seats[row]}"
        step = int(self.tables.steps[tables[row]])
        if not self.tables.evidence.expect("bots", wrong is None, where, step, seen):
            raise ValueError(f"bot {self.name!r} cannot go on after an illegal action")
        return actions


def _first_wrong(rows: Rows, actions: Tree) -> tuple[int, str] | None:
    """The first row with a wrong action, and what is wrong with it."""
    heads = rows.kind.action.heads
    if set(actions) != set(heads):
        return 0, f"gives heads {sorted(actions)}, expected {sorted(heads)}"
    for name, head in heads.items():
        array, shape = actions[name], (len(rows), *rows.kind.action.arrays[name].shape)
        if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
            return 0, f"head {name!r} is {array.dtype}{list(array.shape)}, expected int32{list(shape)}"
        mask, counts = rows.mask(name), head_counts(rows.kind, name, actions, len(rows))
        for row, value in enumerate(array.tolist()):
            if not counts[row]:
                continue
            picks = value if isinstance(value, list) else [value]
            if isinstance(head, Pointer) and head.picks > 1:
                picks = picks[: picks.index(-1)] if -1 in picks else picks
                ended = all(pick == -1 for pick in value[len(picks) :])
                if not picks or not ended or len(set(picks)) < len(picks):
                    return row, f"head {name!r} picks {value}: needs different rows, then only -1"
            illegal = [pick for pick in picks if not (0 <= pick < mask.shape[1] and mask[row, pick])]
            if illegal:
                legal = np.flatnonzero(mask[row]).tolist()
                return row, f"head {name!r} takes {illegal[0]}, but legal are {legal}"
    return None
