"""What it costs to reach a game through Ludus: PettingZoo beside its own loop, and lifting a plain `Game`.

Both sides play the same recorded moves in turns, CPU time, best of several windows.

python benchmarks/adapters.py                needs `pip install -e '.[pettingzoo]'`
python benchmarks/adapters.py --no-report    only prints
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from _report import Table, parser, write

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.adapters.pettingzoo import PettingZoo
from ludus.games.game import Turn, allocate_actions
from ludus.games.lift import Lifted

WINDOWS = 9
GAMES = 256
"""Of connect four per window."""
TABLES = (32, 64, 256)
"""An actor has 512 unless told otherwise."""
LIFTED_TABLES = 64
LIFTED_STEPS = 100


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--no-report", action="store_true", help="print, write nothing")
    keep = not options.parse_args().no_report
    tables: list[Table] = [
        ("PettingZoo connect four", ("loop", "steps/s", "of `env()`", "of `raw_env()`"), connect_four_rates()),
        ("Lifting a plain Python `Game`", ("what", "us a step"), lift_costs()),
    ]
    write("adapters", "Adapters", tables, keep=keep)


def connect_four_rates() -> list[tuple[str, str, str, str]]:
    """PettingZoo's loop (`last`, `step`, `reset`), with and without its wrappers, beside ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pettingzoo.classic import connect_four_v3
    games = _record(connect_four_v3.env())
    moves = sum(map(len, games))
    loops = {
        "PettingZoo, `env()`": _raw(connect_four_v3.env(), games),
        "PettingZoo, `raw_env()`, without its wrappers": _raw(connect_four_v3.raw_env(), games),
        **{f"Ludus, {tables} tables": _ours(games, tables) for tables in TABLES},
    }
    rates = {name: moves / seconds for name, seconds in _best(loops).items()}
    documented, bare, *_ = rates.values()
    return [(name, f"{rate:,.0f}", f"{rate / documented:.0%}", f"{rate / bare:.0%}") for name, rate in rates.items()]


def lift_costs() -> list[tuple[str, str]]:
    source = Lifted(Repeating)
    batch = source.tables(LIFTED_TABLES)
    batch.reset(np.arange(LIFTED_TABLES), np.arange(LIFTED_TABLES, dtype=np.uint64))
    actions = allocate_actions(source.spec, LIFTED_TABLES)
    game = Repeating()
    game.reset(0)

    def direct() -> None:
        for _ in range(LIFTED_STEPS * LIFTED_TABLES):
            game.step({0: 0})

    def lifted() -> None:
        for _ in range(LIFTED_STEPS):
            batch.step(actions)

    seconds = _best({"direct": direct, "lifted": lifted})
    each = {name: 1e6 * total / (LIFTED_STEPS * LIFTED_TABLES) for name, total in seconds.items()}
    return [
        ("`Game.step`, called directly", f"{each['direct']:.2f}"),
        (f"the same lifted to {LIFTED_TABLES} tables", f"{each['lifted']:.2f}"),
        ("added by lifting", f"{each['lifted'] - each['direct']:.2f}"),
    ]


class Repeating:
    """Two seats in turn, nine numbers to see, nine moves, no rules: lifting is all that costs."""

    spec = GameSpec.symmetric(
        name="repeating",
        num_seats=2,
        observation=ObservationSpec(parts={"board": Vector(size=9)}),
        action=ActionSpec(heads={"move": Choice(num=9)}),
        max_length=10**9,
    )

    def __init__(self) -> None:
        self._board = np.zeros(9, np.float32)
        self._legal = np.ones(9, np.bool_)
        self._seat = 1

    def reset(self, seed: int) -> Turn:
        return self.step({})

    def step(self, actions: Mapping[int, Any]) -> Turn:
        self._seat = seat = 1 - self._seat
        return Turn(observations={seat: self._board}, legal={seat: self._legal})


def _record(env: Any) -> list[list[int]]:
    """The moves of some random games."""
    rng = np.random.default_rng(0)
    games = []
    for _ in range(GAMES):
        env.reset(seed=0)
        moves: list[int] = []
        for _ in env.agent_iter():
            observation, _, over, _, _ = env.last()
            if over:
                break
            moves.append(int(rng.choice(np.flatnonzero(observation["action_mask"]))))
            env.step(moves[-1])
        games.append(moves)
    return games


def _raw(env: Any, games: Sequence[Sequence[int]]) -> Callable[[], None]:
    def play() -> None:
        for moves in games:
            env.reset(seed=0)
            for move in moves:
                env.last()
                env.step(move)
            env.last()

    return play


def _ours(games: Sequence[Sequence[int]], num_tables: int) -> Callable[[], None]:
    """As an actor plays: a table begins its next game as soon as one is over."""
    batch = PettingZoo(env_name="classic.connect_four_v3").tables(num_tables)
    actions = allocate_actions(batch.spec, num_tables)

    def play() -> None:
        waiting = iter(games)
        moves = {table: iter(next(waiting)) for table in range(num_tables)}
        batch.reset(np.arange(num_tables), np.zeros(num_tables, np.uint64))
        while moves:
            actions[0]["move"][list(moves)] = [[next(game)] for game in moves.values()]
            batch.step(actions)
            again = []
            for table in np.flatnonzero(batch.view.over).tolist():
                following = next(waiting, None) if moves.pop(table, None) else None
                if following is not None:
                    moves[table] = iter(following)
                    again.append(table)
            if again:
                batch.reset(np.array(again), np.zeros(len(again), np.uint64))

    return play


def _best(loops: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """CPU seconds of each in its best window; they take turns, so that a busy moment strikes all."""
    best = dict.fromkeys(loops, float("inf"))
    for _ in range(WINDOWS):
        for name, work in loops.items():
            before = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - before)
    return best


if __name__ == "__main__":
    main()
