"""Skirmish: who beats whom, whether both sides are alike, how long games are, and what a decision costs.

python benchmarks/skirmish.py                200 games a pair, half of them with seats swapped (some minutes)
python benchmarks/skirmish.py --games 20     to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from _report import Table, parser, write

from ludus.data.trees import put
from ludus.games.builtin.skirmish import Mode, Skirmish
from ludus.games.builtin.skirmish_bots import CYCLE
from ludus.games.game import Bot, GameBatch, GameSource, allocate_actions
from ludus.league.payoff import wilson_interval

QUOTED_GAMES = 200
STEPS = {16: 400, 128: 200, 512: 100}
"""Of random play, by number of tables."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Of many games between two."""

    wins: float
    """Share of the first, a draw counting half."""
    interval: str
    """Of `wins` in percent, 95 %."""
    draws: float
    ticks: float
    decisions: float
    """Of a seat in a game."""

    def row(self) -> list[str]:
        return [
            f"{100 * self.wins:.1f} %",
            self.interval,
            f"{100 * self.draws:.1f} %",
            f"{self.ticks:.0f}",
            f"{self.decisions:.0f}",
        ]


COLUMNS = ("wins (a draw counts half)", "95 % interval", "draws", "ticks a game", "decisions of a seat")


def step(game: GameBatch, bots: Sequence[Bot], rng: np.random.Generator) -> int:
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


def play(source: GameSource, first: str, second: str, games: int) -> Tally:
    """Half of the games with seats swapped; a bot against itself stays, so that the sides are told apart."""
    bots, places = source.bots(), source.spec.num_seats // 2
    rounds = (0, 1) if first != second else (0, 0)
    score, ticks, decisions = [], [], 0
    for number, swapped in enumerate(rounds):
        sides = (second, first) if swapped else (first, second)
        game = source.tables(games // 2)
        game.reset(np.arange(games // 2), np.arange(games // 2, dtype=np.uint64) + np.uint64(number * games))
        seated = [bots[sides[0]]] * places + [bots[sides[1]]] * places
        rng = np.random.default_rng(number)
        while game.view.to_act.any():
            decisions += step(game, seated, rng)
        score.append(game.view.score[:, swapped])
        ticks.append(game.view.clock)
    scores, num = np.concatenate(score), games // 2 * 2
    wins = float(((scores > 0) + 0.5 * (scores == 0)).mean())
    low, high = wilson_interval(wins * num, num)
    return Tally(
        wins=wins,
        interval=f"{100 * low:.1f} to {100 * high:.1f}",
        draws=float((scores == 0).mean()),
        ticks=float(np.concatenate(ticks).mean()),
        decisions=decisions / num / (2 * places),
    )


def rows(source: GameSource, pairs: Sequence[tuple[str, str]], games: int) -> list[list[str]]:
    found = []
    for first, second in pairs:
        found.append([first, second, *play(source, first, second, games).row()])
        print(source.spec.name, *found[-1], flush=True)
    return found


def decisions_per_second(source: GameSource, num_tables: int) -> tuple[float, float]:
    """Of random play: with the time of the random player, and of the game alone; resets count."""
    game, rng, random = source.tables(num_tables), np.random.default_rng(0), source.bots()["random"]
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    decisions, spent_by_bot, started = 0, 0.0, time.process_time()
    for _ in range(STEPS[num_tables]):
        actions = allocate_actions(game.spec, num_tables)
        tables, seats = np.nonzero(game.view.to_act)
        asked = time.process_time()
        put(actions[0], (tables, seats), random.act(game, tables, seats, rng))
        spent_by_bot += time.process_time() - asked
        decisions += len(tables)
        game.step(actions)
        ended = np.flatnonzero(game.view.over)
        game.reset(ended, rng.integers(0, 2**64, len(ended), np.uint64))
    spent = time.process_time() - started
    return decisions / spent, decisions / (spent - spent_by_bot)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--games", type=int, default=QUOTED_GAMES)
    games = options.parse_args().games
    modes: tuple[Mode, ...] = ("1v1", "3v3", "5v5")
    sources = {mode: Skirmish(mode=mode) for mode in modes}
    speed = [
        [mode, str(num), *(f"{rate:,.0f}" for rate in decisions_per_second(source, num))]
        for mode, source in sources.items()
        for num in STEPS
    ]
    cycle = list(zip(CYCLE, (*CYCLE[1:], CYCLE[0]), strict=True))
    others = [pair for pair in itertools.combinations((*CYCLE, "random"), 2) if not {pair, pair[::-1]} & {*cycle}]
    pair = ("strategy", "against", *COLUMNS)
    tables: list[Table] = [
        ("The cycle of 1v1", pair, rows(sources["1v1"], cycle, games)),
        ("Other pairs of 1v1", pair, rows(sources["1v1"], others, games)),
    ]
    tables += [
        (f"Heroes, {mode}", pair, rows(sources[mode], [*itertools.combinations(sources[mode].bots(), 2)], games))
        for mode in modes[1:]
    ]
    fair = [
        [source.spec.name, *row[:1], *row[2:]]
        for source in sources.values()
        for row in rows(source, [(bot, bot) for bot in source.bots()], games)
    ]
    columns = ("game", "strategy against itself", "wins of side 0 (a draw counts half)", *COLUMNS[1:])
    tables += [
        ("Are the sides alike?", columns, fair),
        ("Random play in one process", ("mode", "tables", "decisions / CPU second", "of the game alone"), speed),
    ]
    write("skirmish", "Skirmish", tables, facts={"games per pair": str(games)}, keep=games >= QUOTED_GAMES)


if __name__ == "__main__":
    main()
