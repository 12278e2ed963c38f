"""Skirmish: how often each scripted strategy beats the next of the cycle, and what a decision costs.

python benchmarks/skirmish.py                        200 games an edge, half of them with seats swapped
python benchmarks/skirmish.py --games 20 --all       every pair, to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import math
import time

import numpy as np
from _report import parser, write

from ludus.data.trees import put
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.skirmish_bots import CYCLE
from ludus.games.game import Bot, GameBatch, GameSource, allocate_actions

QUOTED_GAMES = 200
STEPS = 200


def step(game: GameBatch, bots: list[Bot], rng: np.random.Generator) -> int:
    """One step, seat i played by bots[i]; returns the number of decisions."""
    actions = allocate_actions(game.spec, game.num_tables)
    decisions = 0
    for bot in {id(bot): bot for bot in bots}.values():
        mine = np.array([each is bot for each in bots])
        tables, seats = np.nonzero(game.view.to_act & mine)
        if len(tables):
            put(actions[0], (tables, seats), bot.act(game, tables, seats, rng))
            decisions += len(tables)
    game.step(actions)
    return decisions


def win_rate(source: GameSource, first: str, second: str, games: int) -> tuple[float, float]:
    """Of `first`, a draw counting half, and the share of draws; half the games with seats swapped."""
    bots, places = source.bots(), source.spec.num_seats // 2
    wins, draws = 0.0, 0
    for swapped in (False, True):
        sides = (second, first) if swapped else (first, second)
        game = source.tables(games // 2)
        game.reset(np.arange(games // 2), np.arange(games // 2, dtype=np.uint64))
        rng = np.random.default_rng(swapped)
        seated = [bots[sides[0]]] * places + [bots[sides[1]]] * places
        while game.view.to_act.any():
            step(game, seated, rng)
        score = game.view.score[:, int(swapped)]
        draws += int((score == 0).sum())
        wins += float((score > 0).sum() + 0.5 * (score == 0).sum())
    return wins / (games // 2 * 2), draws / (games // 2 * 2)


def decisions_per_second(source: GameSource, num_tables: int) -> float:
    """Random play; the time of the random player counts, resets do too."""
    game, rng, random = source.tables(num_tables), np.random.default_rng(0), source.bots()["random"]
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    decisions, started = 0, time.process_time()
    for _ in range(STEPS):
        decisions += step(game, [random] * game.spec.num_seats, rng)
        ended = np.flatnonzero(game.view.over)
        game.reset(ended, rng.integers(0, 2**64, len(ended), np.uint64))
    return decisions / (time.process_time() - started)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--games", type=int, default=QUOTED_GAMES)
    options.add_argument("--all", action="store_true", help="every pair of strategies, not only the cycle")
    options.add_argument("--mode", choices=("1v1", "3v3", "5v5"), default="1v1")
    chosen = options.parse_args()
    source = Skirmish(mode=chosen.mode)
    pairs = list(zip(CYCLE, (*CYCLE[1:], CYCLE[0]), strict=True))
    if chosen.all or chosen.mode != "1v1":
        pairs = list(itertools.combinations(source.bots(), 2))
    edges = []
    for first, second in pairs:
        rate, draws = win_rate(source, first, second, chosen.games)
        error = math.sqrt(rate * (1 - rate) / chosen.games)
        edges.append([first, second, f"{100 * rate:.1f} % ± {100 * error:.1f}", f"{100 * draws:.1f} %"])
        print(*edges[-1], flush=True)
    speed = [[str(num), f"{decisions_per_second(source, num):,.0f}"] for num in (16, 128)]
    write(
        "skirmish",
        f"Skirmish {chosen.mode}",
        [
            ("Who beats whom", ("strategy", "against", "wins (a draw counts half)", "draws"), edges),
            ("Random play in one process", ("tables", "decisions / CPU second"), speed),
        ],
        facts={"games per pair": str(chosen.games)},
        keep=chosen.games >= QUOTED_GAMES and chosen.mode == "1v1" and not chosen.all,
    )


if __name__ == "__main__":
    main()
