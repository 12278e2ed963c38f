"""Skirmish with three heroes a side: one policy for all seats, and a critic that sees both sides (MAPPO)."""

from __future__ import annotations

from ludus import ActorConfig, ActorCritic, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.algorithms import mappo
from ludus.games import Skirmish
from ludus.games.builtin.skirmish_bots import HERO_STRATEGIES
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay


def experiment() -> Experiment:
    bots = tuple(HERO_STRATEGIES)
    matchmaking = Mixture(branches=((0.3, SelfPlay()), (0.7, PFSP(weighting="squared", include_scripted=True))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=500_000), snapshot_weights="average")
    return Experiment(
        name="skirmish_3v3",
        game=Skirmish(mode="3v3"),
        budget=6_000_000,
        model=ActorCritic(
            hidden=(128, 64),
            activation="relu",
            channels=(4, 8),
            entity_size=32,
            central_critic=True,
            value_normalisation=True,
        ),
        algorithm=mappo(gamma=0.999, entropy=0.01),
        actor=ActorConfig(num_tables=64, matches=4, episodes_per_table=2, unroll_length=16),
        learner=LearnerConfig(
            batch_size=8_192,
            minibatch_size=2_048,
            epochs=2,
            learning_rate=Linear(start=1e-3, end=5e-5),
            average_decay=0.95,
            buffer_size=32_768,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}, bots=bots),
        evaluation=EvaluationConfig(opponents=bots, past=0, ladder=0, episodes=64),
        checkpoint_every=250_000,
    )
