"""Lets a game's bots play and checks that what they do is legal."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ludus.data.trees import IntArray, Tree
from ludus.games.bots import Rows, first_illegal
from ludus.games.checking.episodes import draw_seeds
from ludus.games.checking.play import WatchedTables
from ludus.games.checking.report import Evidence, TableLost, described
from ludus.games.game import Bot, GameBatch, GameSource, lost_tables
from ludus.games.with_bots import WithBots


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
