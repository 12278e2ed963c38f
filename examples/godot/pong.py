"""Pong in Godot: the engine plays the tables, Ludus trains the league.

ludus check examples/godot/pong.py:game
ludus train examples/godot/pong.py:experiment
"""

from __future__ import annotations

from pathlib import Path

from ludus import ActorConfig, ActorCritic, BySteps, EvaluationConfig, Experiment, LeagueRules, LearnerConfig, Role
from ludus.games import Engine
from ludus.league import PFSP, Mixture, SelfPlay

PROJECT = Path(__file__).resolve().parent


def game() -> Engine:
    """`--fixed-fps` advances the engine as fast as it can, by the same time in every frame."""
    command = ("godot3-server", "--path", str(PROJECT), "--fixed-fps", "60")
    return Engine(command=command, environment={"LANG": "en_US.UTF-8"})  # Godot warns of the locale C


def experiment() -> Experiment:
    matchmaking = Mixture(branches=((0.7, SelfPlay()), (0.3, PFSP(weighting="squared"))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=100_000))
    return Experiment(
        name="godot_pong",
        game=game(),
        budget=400_000,
        model=ActorCritic(hidden=(64, 64)),  # small: the engine evaluates it in GDScript
        actor=ActorConfig(num_tables=64),
        learner=LearnerConfig(batch_size=4_096, minibatch_size=1_024, epochs=4, learning_rate=1e-3),
        league=LeagueRules(roles={"main": main}, bots=("random", "chase")),
        evaluation=EvaluationConfig(opponents=("random", "chase")),
    )
