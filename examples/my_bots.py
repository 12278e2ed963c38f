"""Your own bots as players of the league: a class, and programs that exchange lines of JSON.

    ludus train examples/my_bots.py:experiment
    ludus check tic_tac_toe --bot examples/my_bots.py:Blocker --bot program:examples/bots/centre.py

The bots play against the learning player and are rated, but never learn. docs/bots.md has the protocol of programs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ludus import (
    PFSP,
    ActorConfig,
    BySteps,
    EvaluationConfig,
    Experiment,
    GameBatch,
    LeagueRules,
    LearnerConfig,
    RandomBot,
    Role,
)
from ludus.games import TIC_TAC_TOE_CELLS as CELLS, TIC_TAC_TOE_LINES as LINES, IntArray, Rows, TicTacToe, Tree

HERE = Path(__file__).parent
CELLS_OF_LINES = [[cell for cell in range(CELLS) if line >> cell & 1] for line in LINES]


class Blocker:
    """Completes the other's line before the other does, and plays at random until then."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        moves = RandomBot().act(game, tables, seats, rng)
        rows = Rows.of(game, tables, seats)
        theirs = rows.observation["board"][:, CELLS:]
        for row, legal in enumerate(rows.mask("move")):
            for line in CELLS_OF_LINES:
                missing = [cell for cell in line if not theirs[row, cell]]
                if len(missing) == 1 and legal[missing[0]]:
                    moves["move"][row] = missing[0]
        return moves


def experiment() -> Experiment:
    return Experiment(
        name="my_bots",
        game=TicTacToe(),
        budget=40_000,
        bots={"blocker": f"{__file__}:Blocker", "centre": f"program:{HERE / 'bots' / 'centre.py'}"},
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8),
        learner=LearnerConfig(batch_size=1024, learning_rate=2e-3),
        league=LeagueRules(
            roles={"main": Role(matchmaking=PFSP(include_scripted=True), promotion=BySteps(every=20_000))},
            bots=("random", "blocker", "centre"),
        ),
        evaluation=EvaluationConfig(opponents=("random", "blocker", "centre"), episodes=64),
        runtime="serial",
    )
