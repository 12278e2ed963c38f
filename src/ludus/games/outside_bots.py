"""Scripted players from outside a game: classes of the user and other programs.

This module turns the address of a bot into a `Bot`:

    my_bots.py:Greedy, package.module:Greedy    a `Bot`, or what gives one when called without arguments
    program:./my_bot.py, program:node bot.js    a command that speaks lines of JSON (docs/bots.md)
    agent.onnx                                  a file of `ludus export` (docs/take-an-agent-out.md)
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize, ref

import numpy as np

from ludus.data.addresses import load_address
from ludus.data.specs import CRITIC_PREFIX, Box, GameSpec, Pointer, spec_to_json
from ludus.data.trees import Array, IntArray, Tree, put, take
from ludus.games.bots import RandomBot, Rows, first_illegal
from ludus.games.exported import SUFFIX, ExportedPlayer
from ludus.games.game import Bot, GameBatch, GameSource
from ludus.games.program import CountedTables, Program, ProgramLost
from ludus.games.seat_rows import GameError
from ludus.games.tables import WrappedGame

PROTOCOL = 1
START_LIMIT_S = 40.0
"""For the answer to `hello`: a program may load a model. Below `Supervision.hung_after_s`, which ends actors."""
TIME_LIMIT_S = 10.0  # for an answer to `act`, unless the program asks for more in its `hello`
LONGEST_TIME_LIMIT_S = 3600.0
MOST_LOSSES = 3  # losses in a row, without an answer between them, after which a program is not started again
_MOST_FLOAT = 2**127  # no integer below is too large for a float
_SAFE_INTEGERS = 2**53  # below this, integers are exact in languages whose numbers are all floats


class ProgramBot:
    """A `Bot`. Its program is started when it first acts, once per process.

    A program that crashes, hangs or answers nonsense loses the tables at which it plays, and is started again. At
    tables that cannot be lost, or after `MOST_LOSSES` in a row, it raises `ProgramLost`."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command = tuple(command)
        self._program: Program | None = None
        self._end: Callable[[], Any] | None = None
        self._time_limit_s = TIME_LIMIT_S
        self._spec: GameSpec | None = None
        self._tables: ref[GameBatch] | None = None
        self._episodes: dict[tuple[int, int], int] = {}  # (table, seat) -> number of the episode that it plays there
        self._requests = 0
        self._losses = 0

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        counted = game if isinstance(game, CountedTables) else None
        going_on = np.array([counted is None or table not in counted.lost for table in tables.tolist()], bool)
        actions: Tree = {}
        if going_on.any():
            actions = self._decide(game, tables[going_on], seats[going_on], rng)
        if going_on.all():
            return actions
        # Actions at a table that was lost in this step have no effect, but must be legal.
        whole = RandomBot().act(game, tables, seats, rng)
        put(whole, (np.flatnonzero(going_on),), actions)
        return whole

    def close(self) -> None:
        """End the program; the next `act` starts it again."""
        if self._end is not None:
            self._end()
        self._program, self._end, self._episodes = None, None, {}

    def _decide(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        seed = int(rng.integers(_SAFE_INTEGERS))
        try:
            program = self._started(game)
            self._requests += 1
            request = self._request(game, rows, tables, seats) | {"id": self._requests, "seed": seed}
            actions = _actions(program.ask(request, self._time_limit_s), self._requests, rows)
            if (wrong := first_illegal(rows, actions)) is not None:
                place = f"table {tables[wrong[0]]}, seat {seats[wrong[0]]}"
                raise ProgramLost(f"answered an action that is not legal at {place}: {wrong[1]}")
        except ProgramLost as error:
            return self._lose(game, tables, seats, rng, error)
        self._losses = 0
        return actions

    def _started(self, game: GameBatch) -> Program:
        if self._spec is not None and self._spec != game.spec:
            self.close()
        if self._tables is None or self._tables() is not game:
            self._episodes = {}
            self._tables = ref(game)
        if self._program is None:
            self._program = Program(self.name, self._command)
            self._end = finalize(self, self._program.close)
            hello = {"type": "hello", "protocol": PROTOCOL, "name": self.name, "game": spec_to_json(game.spec)}
            answer = self._program.ask(hello, START_LIMIT_S)
            if answer.get("protocol") != PROTOCOL:
                said = answer.get("protocol")
                raise ProgramLost(f"speaks protocol {said!r}, and this is protocol {PROTOCOL}", again=False)
            limit = answer.get("time_limit_s", TIME_LIMIT_S)
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not is_number or not 0 < limit <= LONGEST_TIME_LIMIT_S:
                longest = f"{LONGEST_TIME_LIMIT_S:g}"
                raise ProgramLost(f"asks for a time_limit_s of {limit!r}: from 0 to {longest}", again=False)
            self._time_limit_s = float(limit)
            self._spec = game.spec
        return self._program

    def _request(self, game: GameBatch, rows: Rows, tables: IntArray, seats: IntArray) -> dict[str, Any]:
        counted = game if isinstance(game, CountedTables) else None
        numbers = [0 if counted is None else int(counted.episodes[table]) for table in tables.tolist()]
        ended = [] if counted is None else self._ended(counted)
        observation = {
            name: array.tolist() for name, array in rows.observation.items() if not name.startswith(CRITIC_PREFIX)
        }
        legal = {
            name: [np.flatnonzero(mask).tolist() for mask in rows.mask(name)]
            for name, head in rows.kind.action.heads.items()
            if head.masked or isinstance(head, Pointer)
        }
        written = []
        for row, (table, seat) in enumerate(zip(tables.tolist(), seats.tolist(), strict=True)):
            new = (table, seat) not in self._episodes
            self._episodes[table, seat] = numbers[row]
            written.append(
                {
                    "table": table,
                    "seat": seat,
                    "new": new,
                    "observation": {name: values[row] for name, values in observation.items()},
                    "legal": {name: values[row] for name, values in legal.items()},
                }
            )
        return {"type": "act", "kind": rows.kind.name, "ended": ended, "rows": written}

    def _ended(self, game: CountedTables) -> list[dict[str, Any]]:
        """Episodes that have ended since the last request. They are forgotten here."""
        ended = []
        for (table, seat), number in list(self._episodes.items()):
            if game.episodes[table] != number or game.view.over[table] or game.view.truncated[table]:
                del self._episodes[table, seat]
                ended.append({"table": table, "seat": seat, "score": game.final_score(table, number)})
        return ended

    def _lose(
        self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator, error: ProgramLost
    ) -> Tree:
        playing = {table for table, _ in self._episodes} | set(tables.tolist())
        self.close()
        self._losses += 1
        error.args = (f"bot {self.name!r} {error}",)
        if not isinstance(game, CountedTables) or not error.again or self._losses >= MOST_LOSSES:
            raise error
        game.lose(sorted(playing), str(error))
        return RandomBot().act(game, tables, seats, rng)


def _actions(answer: Mapping[str, Any], number: int, rows: Rows) -> Tree:
    """The arrays of an answer: {"id": ..., "actions": [...]}, one action per row."""
    if answer.get("id") != number:
        raise ProgramLost(f"answered request {answer.get('id')!r} when asked request {number}")
    given = answer.get("actions")
    if not isinstance(given, list) or len(given) != len(rows):
        count = f"{len(given)} actions" if isinstance(given, list) else f"actions {given!r}"
        raise ProgramLost(f"answered {count} for {len(rows)} rows")
    heads, boxes = rows.kind.action.heads, rows.kind.action.boxes
    arrays = rows.kind.action.arrays
    actions: Tree = {
        name: np.full((len(rows), *spec.shape), -1 if spec.shape and name not in boxes else 0, spec.dtype)
        for name, spec in arrays.items()
    }
    for row, action in enumerate(given):
        by_head = action if isinstance(action, dict) else {next(iter(heads)): action}
        for name, value in by_head.items():
            if name not in heads or (len(heads) > 1 and not isinstance(action, dict)):
                raise ProgramLost(f"answered action {action!r}; heads are {', '.join(heads)}")
            if (box := boxes.get(name)) is None:
                _write(actions[name], row, name, value)
            else:
                actions[name][row] = _numbers(box, name, value)
    return actions


def _numbers(box: Box, head: str, value: Any) -> list[float]:
    right = isinstance(value, list) and len(value) == box.size
    if not right or not all(type(number) in (int, float) and abs(number) < _MOST_FLOAT for number in value):
        raise ProgramLost(f"answered {value!r} for head {head!r}, which takes a list of {box.size} numbers")
    return [float(number) for number in value]


def _write(array: Array, row: int, head: str, value: Any) -> None:
    picks = value if array.ndim > 1 else [value]
    right = isinstance(picks, list) and all(type(pick) is int and -1 <= pick < 2**31 for pick in picks)
    if not right or (array.ndim > 1 and len(picks) > array.shape[1]):
        wanted = f"a list of up to {array.shape[1]} numbers" if array.ndim > 1 else "a number"
        raise ProgramLost(f"answered {value!r} for head {head!r}, which takes {wanted}")
    if array.ndim > 1:
        array[row, : len(picks)] = picks
    else:
        array[row] = value


class ExportedBot:
    """A `Bot` from a file of `ludus export`. It keeps a memory for each seat at each table, which is empty when
    an episode begins."""

    def __init__(self, name: str, player: ExportedPlayer) -> None:
        self.name = name
        self._player = player
        self._fits: GameSpec | None = None
        self._tables: ref[GameBatch] | None = None
        self._memory: dict[tuple[int, int], tuple[int, Tree]] = {}  # (table, seat) -> number of the episode, memory

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        if self._fits is not game.spec:
            self._player.require_fit(game.spec)
            self._fits = game.spec
        if self._tables is None or self._tables() is not game:
            self._memory = {}
            self._tables = ref(game)
        rows = Rows.of(game, tables, seats)
        policy_of_row = np.array(self._player.played.seats)[seats]
        actions: Tree = {
            name: np.zeros((len(rows), *spec.shape), spec.dtype) for name, spec in rows.kind.action.arrays.items()
        }
        for policy in np.unique(policy_of_row).tolist():
            here = np.flatnonzero(policy_of_row == policy)
            places = list(zip(tables[here].tolist(), seats[here].tolist(), strict=True))
            state = self._remembered(game, policy, places)
            seen, masks = take(rows.observation, here), take(rows.legal, here)
            chosen, after = self._player.decide(policy, seats[here], seen, masks, state, rng)
            put(actions, (here,), chosen)
            if after:
                assert isinstance(game, CountedTables)
                for row, (table, seat) in enumerate(places):
                    self._memory[table, seat] = int(game.episodes[table]), take(after, row)
        if (wrong := first_illegal(rows, actions)) is not None:  # the file may be anybody's
            raise GameError(f"bot {self.name!r} chose an action that is not legal: {wrong[1]}")
        return actions

    def _remembered(self, game: GameBatch, policy: int, places: Sequence[tuple[int, int]]) -> Tree:
        state = self._player.initial_state(policy, len(places))
        if isinstance(game, CountedTables):
            for row, (table, seat) in enumerate(places):
                episode, before = self._memory.get((table, seat), (-1, {}))
                if episode == game.episodes[table]:
                    put(state, row, before)
        elif state:
            raise GameError(f"bot {self.name!r} has a memory, and {type(game).__name__} does not count episodes")
        return state


PROGRAM = "program:"


@dataclass(frozen=True)
class WithBots(WrappedGame):
    """A `GameSource` that wraps another one, with further bots."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    """Name of the bot -> its address."""

    def __post_init__(self) -> None:
        taken = [name for name in self.addresses if name in self.game.bots()]
        if taken:
            raise ValueError(f"bots: {self.game.spec.name} has a bot {taken[0]!r} of its own; give yours another name")

    def tables(self, num_tables: int) -> GameBatch:
        return CountedTables(self.game.tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {**self.game.bots(), **self._outside}

    @cached_property
    def _outside(self) -> dict[str, Bot]:
        return {name: find_bot(name, address) for name, address in self.addresses.items()}


def with_bots(game: GameSource, addresses: Mapping[str, str]) -> GameSource:
    """The game with these bots too; the game itself if there are none."""
    return WithBots(game, addresses) if addresses else game


def find_bot(name: str, address: str) -> Bot:
    """The bot at an address. A program is started when it first acts."""
    if address.startswith(PROGRAM):
        return ProgramBot(name, _run_by(_words(name, address)))
    if address.endswith(SUFFIX):
        return ExportedBot(name, ExportedPlayer(address))
    try:
        found = load_address(address)
        made: Any = found() if isinstance(found, type) or not hasattr(found, "act") else found
    except Exception as error:  # whatever the file that it names may raise
        raise ValueError(f"bots.{name}: {error}") from error
    if not callable(getattr(made, "act", None)):
        raise ValueError(
            f"bots.{name}: {address} gives {made!r}, which is no Bot: it has no method act(game, tables, seats, rng)"
        )
    bot: Bot = made
    return bot


def named_address(text: str) -> tuple[str, str] | None:
    """Name and address of a bot written as `[NAME=]ADDRESS`; None: the text is the name of a player."""
    if named := re.fullmatch(r"([\w.\-]+)=(.*:.*|.*\.onnx)", text):
        return named[1], named[2]
    is_address = text.startswith(PROGRAM) or text.endswith(SUFFIX) or re.search(r"\.py:[A-Za-z_]", text)
    return (_name_from(text), text) if is_address else None


def fixed_addresses(addresses: Mapping[str, str]) -> dict[str, str]:
    """The bots with absolute paths. Raises ValueError if one does not exist."""
    return {name: _fixed(name, address) for name, address in addresses.items()}


def _fixed(name: str, address: str) -> str:
    if address.endswith(SUFFIX) and not address.startswith(PROGRAM):
        if not os.path.isfile(address):
            raise ValueError(f"bots.{name}: there is no file {address!r}")
        return str(Path(address).resolve())
    if not address.startswith(PROGRAM):
        file, colon, attribute = address.rpartition(":")
        return f"{Path(file).resolve()}{colon}{attribute}" if file.endswith(".py") else address
    words = [str(Path(word).resolve()) if os.path.isfile(word) else word for word in _words(name, address)]
    program = _run_by(words)[0]
    if shutil.which(program) is None:
        there = Path(program).exists()
        what = f"{program!r} may not be executed: chmod +x it" if there else f"there is no program {program!r}"
        raise ValueError(f"bots.{name}: {what}")
    if words[0].endswith(".py") and not os.path.isfile(words[0]):
        raise ValueError(f"bots.{name}: there is no file {words[0]!r}")
    return PROGRAM + shlex.join(words)


def _words(name: str, address: str) -> list[str]:
    command = address.removeprefix(PROGRAM)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"bots.{name}: {command!r} is no command: {error}") from None
    if not words:
        raise ValueError(f"bots.{name}: name a program after {PROGRAM!r}, such as 'program:./my_bot.py'")
    return words


def _run_by(words: list[str]) -> list[str]:
    """A Python file is run by this interpreter, so it needs neither a shebang nor permission to execute."""
    return [sys.executable, *words] if words[0].endswith(".py") else words


def _name_from(address: str) -> str:
    """`my_bot` of program:./my_bot.py, `bot` of program:node bots/bot.js, `Greedy` of my_bots.py:Greedy, `agent` of
    agent.onnx."""
    if address.startswith(PROGRAM):
        words = _words("", address)
        files = [word for word in words if os.path.isfile(word)]
        plain = Path((files or words)[0]).stem
    elif address.endswith(SUFFIX):
        plain = Path(address).stem
    else:
        plain = address.rpartition(":")[2].rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9_.\-]", "-", plain).lstrip("-.") or "bot"
