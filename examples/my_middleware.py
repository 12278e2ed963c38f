"""Your own middleware: prints the entropy after every update and ends the run when it is low.

    ludus train examples/my_middleware.py:experiment

Against a player that always shows rock, this takes a second and less than a hundredth of the budget. The run
ends because "entropy 0.013 is below 0.05".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ludus import (
    ActorConfig,
    EvaluationConfig,
    Experiment,
    LeagueRules,
    LearnerConfig,
    Progress,
    Role,
    StopTraining,
    UniformPast,
    Worker,
)
from ludus.games import RockPaperScissors


@dataclass(frozen=True, kw_only=True, slots=True)
class StopWhenSettled:
    """Called around every step of every worker; only a learner that made an update reports an entropy."""

    player: str = "main"
    entropy: float = 0.05
    """Mean entropy of the decisions of the latest batch, in nats."""

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        entropy = progress.statistics.get(f"{self.player}/entropy")
        if entropy is not None:
            print(f"{worker.name}: {progress.count} decisions, entropy {entropy:.3f}")
            if entropy < self.entropy:
                raise StopTraining(f"entropy {entropy:.3f} is below {self.entropy}")
        return progress


def experiment() -> Experiment:
    main = Role(matchmaking=UniformPast(over="scripted"))
    return Experiment(
        name="settled",
        game=RockPaperScissors(),
        budget=1_000_000,
        actor=ActorConfig(num_tables=128),
        learner=LearnerConfig(batch_size=1_024, minibatch_size=256, learning_rate=3e-3),
        league=LeagueRules(roles={"main": main}, bots=("rock",)),
        evaluation=EvaluationConfig(opponents=("rock",)),
        middleware=(StopWhenSettled(entropy=0.05),),
    )
