"""The matches of a server: those that are played and the results of the latest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ludus.games.game import GameSource
from ludus.games.remote.match_table import MatchRefused, MatchTable
from ludus.games.remote.messages import MatchConfig, MatchResult

KEPT = 1_000
"""Ended matches whose results are kept."""
LONGEST_WAIT_S = 30.0
_LONGEST_NAME = 200
_STOPPING_S = 5.0


class UnknownMatch(KeyError):  # noqa: N818 - no error of ours
    """No match has this name."""

    def __str__(self) -> str:
        return str(self.args[0])


class MatchBook:
    """Safe to use from any thread. A match is started once, however often a client says so."""

    def __init__(
        self, game: Callable[[str, Mapping[str, Any]], GameSource], most_at_once: int, kept: int = KEPT
    ) -> None:
        """`game` makes it from its name (empty: the one that is served) and options."""
        self._game = game
        self._most_at_once, self._kept = most_at_once, kept
        self._lock = threading.Lock()
        self._tables: dict[str, MatchTable] = {}

    def start(self, match: str, config: MatchConfig) -> MatchResult:
        """Raises `MatchRefused`."""
        if not match or len(match) > _LONGEST_NAME:
            raise MatchRefused(f"a match has a name of 1 to {_LONGEST_NAME} letters, got {match[:80]!r}")
        with self._lock:
            known = self._tables.get(match)
            if known is not None:
                return _same(known, config)
        try:
            source = self._game("", _options(config))
        except (ValueError, TypeError) as error:
            raise MatchRefused(str(error)) from error
        table = MatchTable(match, config, source)
        with self._lock:
            known = self._tables.get(match)
            if known is not None:
                return _same(known, config)
            going_on = [other for other in self._tables.values() if not other.result.ended]
            if len(going_on) >= self._most_at_once:
                raise MatchRefused(f"{len(going_on)} matches are going on, which is as many as there may be")
            ended = [name for name, other in self._tables.items() if other.result.ended]
            for name in ended[: max(0, len(ended) + 1 - self._kept)]:
                del self._tables[name]
            self._tables[match] = table
            table.start()
        return table.result

    def table(self, match: str) -> MatchTable:
        """Raises `UnknownMatch`."""
        with self._lock:
            if match not in self._tables:
                raise UnknownMatch(f"there is no match {match!r}")
            return self._tables[match]

    def exists(self, match: str) -> bool:
        """Whether it is being played."""
        with self._lock:
            table = self._tables.get(match)
        return table is not None and not table.result.ended

    def stop(self, match: str) -> MatchResult:
        """Waits a little for the end."""
        table = self.table(match)
        table.ask_to_stop("asked for by a client")
        return table.wait_stopped(_STOPPING_S)

    def wait(self, match: str, seconds: float) -> MatchResult:
        """Until it has ended or the seconds are over, be they more or less than allowed."""
        return self.table(match).wait(min(max(seconds, 0.0), LONGEST_WAIT_S))

    def result(self, match: str) -> MatchResult:
        return self.table(match).result

    def all(self) -> tuple[MatchResult, ...]:
        with self._lock:
            return tuple(table.result for table in self._tables.values())

    def close(self) -> None:
        with self._lock:
            playing = [table for table in self._tables.values() if not table.result.ended]
        for table in playing:
            table.ask_to_stop("the server ends")
        until = time.monotonic() + _STOPPING_S
        for table in playing:
            table.wait_stopped(max(0.0, until - time.monotonic()))


def _same(known: MatchTable, config: MatchConfig) -> MatchResult:
    if known.config != config:
        raise MatchRefused(f"there is a match {known.match!r} already, with another configuration")
    return known.result


def _options(config: MatchConfig) -> dict[str, Any]:
    heroes = [list(camp.heroes) for camp in config.camps]
    return {**config.options, **({"heroes": heroes} if any(heroes) else {})}
