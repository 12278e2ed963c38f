"""Another program that is asked and answers, a line of JSON each."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.game import Actions, GameBatch, Seat, StrategyView, TableView, lost_tables
from ludus.games.seat_rows import GameError

_GUARD = Path(__file__).with_name("program_guard.py")
_LAST_LINES = 5
"""Of what it wrote to its standard error, told when it is lost."""
_LONGEST_LINE = 2**26
"""Bytes of an answer."""
_ENDING_S = 1.0
"""How long the exit code of a program that has closed its output is waited for."""
_CLOSING_S = 3.0
"""How long the guard may take to end everything."""


class ProgramLost(GameError):  # noqa: N818 - what has happened, as in `CanLoseTables.lost`
    """A program crashed, hung or answered nonsense."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again
        """Whether it may go better when it is started again."""


class Program:
    """One run of a program. What it writes to its standard error goes to ours, line by line."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        guarded, self._life = os.pipe()
        try:
            # The guard is in a session of its own, so that Ctrl-C reaches the owner alone.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(guarded), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(guarded,),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(guarded)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        for pipe in (self._to, self._from):
            os.set_blocking(pipe.fileno(), False)
        self._read = bytearray()
        self._closed = False
        self._log = threading.Thread(target=self._keep_log, daemon=True)
        self._log.start()

    def ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to a message; raises `ProgramLost`."""
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
                    waiting = waiting[os.write(self._to.fileno(), waiting[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    raise self._gone() from None
            if readable:
                self._read_some()
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return self._parse(line)

    def close(self) -> None:
        """End it and all that it has started."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._to.close()
        os.close(self._life)
        try:
            self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._log.join(_CLOSING_S)

    def _read_some(self) -> None:
        found = os.read(self._from.fileno(), 2**16)
        if not found:
            raise self._gone()
        self._read += found
        if len(self._read) > _LONGEST_LINE:
            raise ProgramLost(f"writes a line longer than {_LONGEST_LINE:,} bytes")

    def _parse(self, line: bytes) -> dict[str, Any]:
        shown = line[:80].decode(errors="replace")
        try:
            answer = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise ProgramLost(f"answered {shown!r}, which is no JSON: {error}") from None
        if not isinstance(answer, dict):
            raise ProgramLost(f"answered {shown!r}, which is no JSON object")
        if "error" in answer:
            raise ProgramLost(f"says: {answer['error']}")
        return answer

    def _gone(self) -> ProgramLost:
        """It has closed its output or input: with a code if it has ended."""
        try:
            code = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return ProgramLost("closed its standard input or output")
        self._log.join(_CLOSING_S)
        words = f"; its last words: {' | '.join(self._last)}" if self._last else ""
        return ProgramLost(f"has ended with exit code {code}{words}", again=code != 127)

    def _keep_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._last.append(text)
                with suppress(ValueError, OSError):
                    print(f"[{self._name}] {text}", file=sys.stderr, flush=True)


class CountedTables:
    """A `GameBatch`: another one's tables. What else those can do, these can too."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    tree_state: Callable[[int], TreeState]
    bot_act: Callable[[str, IntArray, IntArray, int], Tree]
    strategy: StrategyView

    def __init__(self, game: GameBatch) -> None:
        self.game = game
        self.spec: GameSpec = game.spec
        self.num_tables: int = game.num_tables
        self.episodes = np.zeros(game.num_tables, np.int64)
        """[tables]: how many episodes have begun there."""
        self._scores: dict[int, tuple[int, list[float]]] = {}
        """Table -> number and final score of the latest episode that was played to its end."""
        self._lost: dict[int, str] = {}
        for name in ("render", "tree_state", "bot_act", "strategy"):
            if hasattr(game, name):
                setattr(self, name, getattr(game, name))
        own = TableView.allocate(game.spec, game.num_tables)
        # A lost table shows other ends and rewards than the game, which has gone on for one more step.
        self.view: TableView = replace(
            game.view,
            to_act=own.to_act,
            reward=own.reward,
            over=own.over,
            truncated=own.truncated,
            rewards=own.rewards,
        )

    @property
    def lost(self) -> dict[int, str]:
        return {**lost_tables(self.game), **self._lost}

    def lose(self, tables: Iterable[int], reason: str) -> None:
        """Give these tables up after the present step; `reset` brings them back."""
        self._lost.update((table, reason) for table in tables)

    def final_score(self, table: int, episode: int) -> list[float] | None:
        """Of that episode, the latest one that was played to its end; None: it was broken off."""
        number, score = self._scores.get(table, (0, []))
        return score if number == episode else None

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        self.episodes[tables] += 1
        for table in tables.tolist():
            self._lost.pop(table, None)
        self._show()

    def step(self, actions: Actions) -> None:
        self.game.step(actions)
        self._show()
        for table in np.flatnonzero(self.view.over | self.view.truncated).tolist():
            self._scores[table] = (int(self.episodes[table]), self.view.score[table].tolist())

    def close(self) -> None:
        self.game.close()

    def _show(self) -> None:
        shown, inner = self.view, self.game.view
        pairs: list[tuple[Any, Any]] = [
            (shown.to_act, inner.to_act),
            (shown.reward, inner.reward),
            (shown.over, inner.over),
            (shown.truncated, inner.truncated),
            *zip(shown.rewards, inner.rewards, strict=True),
        ]
        lost = list(self._lost)
        for own, theirs in pairs:
            own[...] = theirs
            if lost:
                own[lost] = 0
