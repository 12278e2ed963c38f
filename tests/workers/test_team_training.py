"""MAPPO on the team game: a critic that sees what its seat does not, values in normalised units."""

from __future__ import annotations

from pathlib import Path

from ludus.algorithms.ppo import mappo
from ludus.config import encode
from ludus.experiment import Experiment
from ludus.games.builtin.hills import Hills
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def test_a_team_learns_to_beat_random_play(tmp_path: Path) -> None:
    experiment = Experiment(
        name="hills",
        game=Hills(),
        budget=80_000,
        model=ActorCritic(hidden=(64, 64), channels=(8,), central_critic=True, value_normalisation=True),
        algorithm=mappo(),
        actor=ActorConfig(num_tables=64, matches=2, episodes_per_table=2, unroll_length=16),
        learner=LearnerConfig(batch_size=4_096, minibatch_size=1_024, epochs=4, learning_rate=2e-3),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=1_000_000))}),
        evaluation=EvaluationConfig(opponents=("random",), past=0, episodes=512),
    )
    training = serial_training(experiment, RunFolder.create(tmp_path, encode(experiment), seed=0))
    training.run()
    payoff = training.league.payoffs.view("evaluation")
    first, last = training.league.candidates.frozen()
    training.close()
    assert payoff.win_rate(first, "random") < 0.55
    assert payoff.win_rate(last, "random") > 0.6
