"""Programs of other projects that are asked and answer in lines of JSON, and tables that such a program may lose."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import IntArray, Tree
from ludus.games.game import Actions, GameBatch, HasPositions, TableView, lost_tables
from ludus.games.seat_rows import GameError
from ludus.games.tables import WrappedTables
from ludus.system.guard import NOT_FOUND
from ludus.system.process import PIPE, GuardedProcess, OutputReader
from ludus.system.text import shortened

_LAST_LINES = 5  # lines of its standard error that are reported when it is lost
_LONGEST_LINE = 2**26  # bytes of an answer
_ENDING_S = 1.0  # how long to wait for the exit code of a program that has closed its output
_CLOSING_S = 3.0  # how long the guard may take to end everything


class ProgramLost(GameError):  # noqa: N818 - what has happened, as in `CanLoseTables.lost`
    """A program crashed, hung or answered nonsense."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(shortened(reason))
        self.again = again
        """Whether starting it again may help."""


class Program:
    """One run of a program. Its standard error goes to ours, line by line."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._process = GuardedProcess(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
        self._read = bytearray()
        self._asked = self._closed = False
        self._log = OutputReader(self._process.stderr, self._show, _LAST_LINES)

    def ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to a message; raises `ProgramLost`, also if an earlier answer was never read: it would be taken
        for this one."""
        if self._asked:
            raise ProgramLost("was asked before it had answered: its game was interrupted, or another one shares it")
        self._asked = True
        deadline = time.monotonic() + limit_s
        waiting = memoryview(msgspec.json.encode(message) + b"\n")
        while (end := self._read.find(b"\n")) < 0 or len(waiting):
            left = deadline - time.monotonic()
            writes = [self._to] if len(waiting) else []
            readable, writable, _ = select.select([self._from], writes, [], max(left, 0.0))
            if left <= 0 and not readable:
                raise ProgramLost(f"gave no answer within {limit_s:g} s")
            if writable:
                try:
                    waiting = waiting[os.write(self._to, waiting[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    raise self._gone() from None
            if readable:
                found = os.read(self._from, 2**16)
                if not found:
                    raise self._gone()
                self._read += found
                if len(self._read) > _LONGEST_LINE:
                    raise ProgramLost(f"writes a line longer than {_LONGEST_LINE:,} bytes")
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        self._asked = False
        return self._parse(line)

    def close(self) -> None:
        """End it and everything that it has started."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._process.stdin.close()
        self._process.end(_CLOSING_S)
        self._process.stdout.close()
        self._log.join(_CLOSING_S)

    def _parse(self, line: bytes) -> dict[str, Any]:
        shown = line[:80].decode(errors="replace")
        try:
            answer = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProgramLost(f"answered {shown!r}, which is no JSON: {error}") from None
        if not isinstance(answer, dict):
            raise ProgramLost(f"answered {shown!r}, which is no JSON object")
        if "error" in answer:
            raise ProgramLost(f"says: {answer['error']}")
        return answer

    def _gone(self) -> ProgramLost:
        """The error for a program that has closed its output or input."""
        code = self._process.wait_end(_ENDING_S)
        if code is None:
            return ProgramLost("closed its standard input or output")
        self._log.join(_CLOSING_S)
        words = f"; its last words: {' | '.join(self._log.last_words)}" if self._log.last_words else ""
        return ProgramLost(f"has ended with exit code {code}{words}", again=code != NOT_FOUND)

    def _show(self, line: bytes) -> None:
        with suppress(ValueError, OSError):
            print(f"[{self._name}] {line.decode(errors='replace').rstrip()}", file=sys.stderr, flush=True)


class CountedTables(WrappedTables):
    """A `GameBatch` around another one that counts episodes and can give up tables."""

    def __init__(self, game: GameBatch) -> None:
        super().__init__(game)
        self.episodes = np.zeros(game.num_tables, np.int64)
        """[tables]: how many episodes have begun there."""
        self._scores: dict[int, tuple[int, list[float]]] = {}
        """Table -> number and final score of the latest episode that was played to its end."""
        self._lost: dict[int, str] = {}
        own = TableView.allocate(game.spec, game.num_tables)
        # A lost table shows other ends and rewards than the game, which has gone on for one more step.
        self.view = replace(
            game.view, to_act=own.to_act, reward=own.reward, over=own.over, truncated=own.truncated, rewards=own.rewards
        )
        if isinstance(game, HasPositions):
            self.set_positions = self._set_positions

    @property
    def lost(self) -> dict[int, str]:
        return {**lost_tables(self.game), **self._lost}

    def lose(self, tables: Iterable[int], reason: str) -> None:
        """Give up these tables after the present step; `reset` brings them back."""
        self._lost.update((table, reason) for table in tables)

    def final_score(self, table: int, episode: int) -> list[float] | None:
        """The score of an episode if it was the latest to be played to its end; None: it was broken off."""
        number, score = self._scores.get(table, (0, []))
        return score if number == episode else None

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        self.episodes[tables] += 1
        for table in tables.tolist():
            self._lost.pop(table, None)
        self._show()

    def _set_positions(self, tables: IntArray, positions: Tree) -> None:
        assert isinstance(self.game, HasPositions)
        self.game.set_positions(tables, positions)
        self._show()

    def step(self, actions: Actions) -> None:
        self.game.step(actions)
        self._show()
        for table in np.flatnonzero(self.view.over | self.view.truncated).tolist():
            self._scores[table] = (int(self.episodes[table]), self.view.score[table].tolist())

    def _show(self) -> None:
        for name in ("to_act", "reward", "over", "truncated"):
            getattr(self.view, name)[...] = getattr(self.game.view, name)
        for own, theirs in zip(self.view.rewards, self.game.view.rewards, strict=True):
            own[...] = theirs
        if self._lost:
            self.view.silence([*self._lost])
