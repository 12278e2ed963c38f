"""Writes the positions of connect four's yardstick, with the exact score of every move in them.

    python tools/connect_four_yardstick.py            about ten minutes on one core
    python tools/connect_four_yardstick.py --check 50 solves some of the stored positions again

Half of each set comes from games of uniformly random play. The other half comes from games between the bots `rules`,
`alpha_beta_2`, `alpha_beta_4` and `uct_100`, drawn anew for every game and seat, after 0 to 6 random moves. A game
gives at most one position to a set. Its stone count is drawn first, and its outcome plays no part, so that a set shows
what such games pass through. Positions are distinct, mirror images counted as the same, and nobody has won in them.

A C compiler (`cc`, or the variable CC) is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ludus.games.builtin.connect_four import COLUMNS, POSITIONS, STAGES, ConnectFour, ConnectFourState
from ludus.games.game import allocate_actions

SOURCE = Path(__file__).with_name("connect_four_solver.c")
FULL_COLUMN = -128
POSITIONS_PER_SOURCE = 150
GAMES = {"random": 6_000, "bots": 900}
BOTS = ("rules", "alpha_beta_2", "alpha_beta_4", "uct_100")
MOST_RANDOM_MOVES = 6
SEED = 20


class Solver:
    """The C solver, compiled into a temporary folder. Its transposition table stays between calls."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "solver.so"
            compiler = os.environ.get("CC", "cc")
            program = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
            subprocess.run(program, check=True)
            self._library = ctypes.CDLL(str(library))

    def scores(self, state: ConnectFourState) -> tuple[int | None, ...]:
        """Of each column; None where it is full."""
        found = (ctypes.c_int8 * COLUMNS)()
        self._library.column_scores(ctypes.c_uint64(state.mover), ctypes.c_uint64(state.other), found)
        return tuple(None if score == FULL_COLUMN else score for score in found)


def position(moves: Sequence[int]) -> ConnectFourState:
    state = ConnectFourState(0, 0)
    for move in moves:
        state = state.child(move)
    return state


def played_games(source: str, count: int, rng: np.random.Generator) -> list[list[int]]:
    """The moves of so many games, played side by side."""
    game = ConnectFour()
    bots = game.bots()
    names = ["random"] if source == "random" else list(BOTS)
    player = rng.integers(len(names), size=(count, 2))
    random_moves = rng.integers(MOST_RANDOM_MOVES + 1, size=count) if source == "bots" else np.zeros(count, int)
    tables, actions = game.tables(count), allocate_actions(game.spec, count)
    tables.reset(np.arange(count), np.zeros(count, np.uint64))
    moves: list[list[int]] = [[] for _ in range(count)]
    for ply in range(game.spec.max_length):
        seat = ply % 2
        playing = np.flatnonzero(~tables.view.over)
        acting = np.where(random_moves[playing] > ply, -1, player[playing, seat])
        for number in np.unique(acting):
            rows = playing[acting == number]
            bot = bots["random" if number < 0 else names[number]]
            actions[0]["move"][rows, seat] = bot.act(tables, rows, np.full(len(rows), seat), rng)["move"]
        for table in playing.tolist():
            moves[table].append(int(actions[0]["move"][table, seat]))
        tables.step(actions)
    return moves


def chosen_positions(
    games: list[list[int]], stage: range, seen: set[tuple[int, int]], rng: np.random.Generator
) -> Iterator[list[int]]:
    """Positions of one stage, in random order of the games; a game that ends before the drawn count gives none."""
    for number in rng.permutation(len(games)).tolist():
        stones = int(rng.integers(stage.start, stage.stop))
        moves = games[number][:stones]
        if len(games[number]) <= stones:
            continue
        states = position(moves), position([COLUMNS - 1 - move for move in moves])
        keys = {(state.mover, state.other) for state in states}
        if not keys & seen:
            seen |= keys
            yield moves


def make(path: Path) -> None:
    rng, solver = np.random.default_rng(SEED), Solver()
    games = {source: played_games(source, count, rng) for source, count in GAMES.items()}
    lines: list[str] = []
    seen: set[tuple[int, int]] = set()
    for stage in STAGES:
        before = time.monotonic()
        for source, played in games.items():
            found = chosen_positions(played, stage, seen, rng)
            kept = [moves for moves, _ in zip(found, range(POSITIONS_PER_SOURCE), strict=False)]
            if len(kept) < POSITIONS_PER_SOURCE:
                raise SystemExit(f"{source}, {stage}: only {len(kept)} positions; play more games")
            lines += [written(moves, source, solver) for moves in kept]
        print(f"{stage.start}-{stage.stop - 1} stones: {time.monotonic() - before:.1f} s", flush=True)
    head = "# Made by tools/connect_four_yardstick.py: columns played, where the game comes from, score of each column."
    path.write_text("\n".join([head, *lines]) + "\n")


def written(moves: Sequence[int], source: str, solver: Solver) -> str:
    scores = ["x" if score is None else str(score) for score in solver.scores(position(moves))]
    return f"{''.join(map(str, moves))} {source} {' '.join(scores)}"


def check(path: Path, count: int) -> None:
    """Solve stored positions again, evenly spread over the file."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    solver = Solver()
    picked = lines[:: max(1, len(lines) // count)]
    for line in picked:
        moves, source, _ = line.split(" ", 2)
        again = written([int(move) for move in moves], source, solver)
        if again != line:
            raise SystemExit(f"stored: {line}\nsolved: {again}")
    print(f"{len(picked)} positions solved again: the same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=int, metavar="N", help="solve N stored positions again and write nothing")
    chosen = parser.parse_args()
    if chosen.check is not None:
        check(POSITIONS, chosen.check)
    else:
        make(POSITIONS)


if __name__ == "__main__":
    main()
