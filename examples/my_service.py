"""Your own service: processes beside the workers that any worker may call by name.

    ludus train examples/my_service.py:experiment

Two processes of `Adviser` (services/adviser.py) choose the moves of a scripted player: its actors
send them the boards of a step and get the moves back. A large model on a GPU, a solver, or another program
works the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
    Progress,
    Role,
    Solver,
    UserService,
    Worker,
)
from ludus.games import IntArray, Rows, TicTacToe, Tree

HERE = Path(__file__).parent


@cache
def adviser() -> Solver:
    """The solver of this process, created on first use."""
    return Solver("adviser")


class Advised:
    """The scripted player; the service chooses its moves."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        request = {"board": rows.observation["board"], "legal": rows.mask("move"), "seed": int(rng.integers(2**31))}
        return {"move": adviser().solve("choose", request).astype(np.int32)}


def tell_adviser(worker: Worker, step: Callable[[], Progress]) -> Progress:
    """Middleware that sends the entropy of the player to the service after every update."""
    progress = step()
    if "main/entropy" in progress.statistics:
        adviser().solve("note", worker.name, progress.statistics["main/entropy"])
    return progress


def experiment() -> Experiment:
    main = Role(matchmaking=PFSP(include_scripted=True), promotion=BySteps(every=20_000))
    return Experiment(
        name="my_service",
        game=TicTacToe(),
        budget=60_000,
        bots={"advised": f"{__file__}:Advised"},
        services={
            "adviser": UserService(
                address=f"{HERE / 'services' / 'adviser.py'}:Adviser", count=2, options={"blocks": 1.0}
            )
        },
        middleware=(tell_adviser,),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8),
        learner=LearnerConfig(batch_size=1024, learning_rate=2e-3),
        league=LeagueRules(roles={"main": main}, bots=("random", "advised")),
        evaluation=EvaluationConfig(opponents=("random", "advised"), episodes=64),
    )
