"""Lets a game's bots play and checks that what they do is legal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ludus.data.trees import IntArray, Tree
from ludus.games.bots import Rows, first_illegal
from ludus.games.checking.episodes import draw_seeds
from ludus.games.checking.play import WatchedTables
from ludus.games.checking.report import Evidence
from ludus.games.game import Bot, GameBatch, GameSource, lost_tables


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
        if reasons := lost_tables(game):  # by a bot that is a program of its own
            table, seen = next(iter(reasons.items()))
            self.tables.evidence.expect("bots", False, f"table {table}", int(self.tables.steps[table]), seen)
            raise ValueError(seen)
        wrong = first_illegal(Rows.of(game, tables, seats), actions)
        row, seen = wrong or (0, "")
        where = f"bot {self.name!r}, table {tables[row]}, seat {seats[row]}"
        step = int(self.tables.steps[tables[row]])
        if not self.tables.evidence.expect("bots", wrong is None, where, step, seen):
            raise ValueError(f"bot {self.name!r} cannot go on after an illegal action")
        return actions
