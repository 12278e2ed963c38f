"""A scripted player whose decisions come from another program, in any language, by lines of JSON on its
standard input and output. The protocol is in docs/bots.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import finalize, ref

import numpy as np

from ludus.data.kind_json import spec_to_json
from ludus.data.specs import CRITIC_PREFIX, GameSpec, Pointer
from ludus.data.trees import Array, IntArray, Tree, put
from ludus.games.bots import RandomBot, Rows, first_illegal
from ludus.games.counted_tables import CountedTables
from ludus.games.game import GameBatch
from ludus.games.program import Program, ProgramLost

PROTOCOL = 1
START_LIMIT_S = 40.0
"""For the answer to `hello`: a program may load a model first. Below `Supervision.hung_after_s`, after which
an actor that waits would be taken for one that hangs."""
TIME_LIMIT_S = 10.0
"""For an answer to `act`, unless the program asks for more in its `hello`."""
LONGEST_TIME_LIMIT_S = 3600.0
MOST_LOSSES = 3
"""Losses in a row, without an answer between them, after which a program is not started again."""
_SAFE_INTEGERS = 2**53
"""Below this, integers are exact in languages whose numbers are all floats."""


class ProgramBot:
    """A `Bot`. Its program is started when it first acts, once per process.

    A program that crashes, hangs or answers nonsense loses the tables at which it plays, and is started
    again for the next. At tables that cannot be lost, or after `MOST_LOSSES` in a row, it raises
    `ProgramLost`."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command = tuple(command)
        self._program: Program | None = None
        self._end: Callable[[], Any] | None = None
        self._time_limit_s = TIME_LIMIT_S
        self._spec: GameSpec | None = None
        self._tables: ref[GameBatch] | None = None
        self._episodes: dict[tuple[int, int], int] = {}
        """(table, seat) -> number of the episode that it plays there."""
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
        # Nothing comes of what is done at a table that was lost in this very step, but it must be legal.
        whole = RandomBot().act(game, tables, seats, rng)
        put(whole, (np.flatnonzero(going_on),), actions)
        return whole

    def close(self) -> None:
        """End the program; it would be started again."""
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
            hello = {
                "type": "hello",
                "protocol": PROTOCOL,
                "name": self.name,
                "game": spec_to_json(game.spec),
            }
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
            name: array.tolist()
            for name, array in rows.observation.items()
            if not name.startswith(CRITIC_PREFIX)
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
        """What it has played and is over since it was last asked; forgotten here."""
        ended = []
        for (table, seat), number in list(self._episodes.items()):
            if game.episodes[table] != number or game.view.over[table] or game.view.truncated[table]:
                del self._episodes[table, seat]
                ended.append({"table": table, "seat": seat, "score": game.final_score(table, number)})
        return ended

    def _lose(
        self,
        game: GameBatch,
        tables: IntArray,
        seats: IntArray,
        rng: np.random.Generator,
        error: ProgramLost,
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
    heads = rows.kind.action.heads
    arrays = rows.kind.action.arrays
    actions: Tree = {
        name: np.full((len(rows), *spec.shape), -1 if spec.shape else 0, np.int32)
        for name, spec in arrays.items()
    }
    for row, action in enumerate(given):
        by_head = action if isinstance(action, dict) else {next(iter(heads)): action}
        for name, value in by_head.items():
            if name not in heads or (len(heads) > 1 and not isinstance(action, dict)):
                raise ProgramLost(f"answered action {action!r}; heads are {', '.join(heads)}")
            _write(actions[name], row, name, value)
    return actions


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
