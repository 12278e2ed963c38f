"""The real-time strategy game skirmish: AlphaStar's network without memory, PPO and one player, from a cloned one.

The player meets itself, its snapshots and the scripted players; there are no exploiters. `skirmish_alphastar` has the
published losses and league.

The league starts from fresh weights unless it is told from which:

    ludus train skirmish --set league.roles.main.start=runs/clone#main@best

Its teacher is then the same model. The whole way, from scripted bots on, is in
docs/tutorials/from-replays-to-league.md.
"""

from __future__ import annotations

from ludus import PPO, ActorConfig, AlphaStar, EvaluationConfig, Experiment, LearnerConfig, Linear
from ludus.algorithms import Teacher
from ludus.games import Skirmish
from ludus.games.builtin.skirmish_bots import STRATEGIES
from ludus.games.builtin.skirmish_view import X, Y
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay
from ludus.models import Scatter


def experiment() -> Experiment:
    bots = tuple(STRATEGIES)
    matchmaking = Mixture(branches=((0.35, SelfPlay()), (0.65, PFSP(weighting="squared", include_scripted=True))))
    main = Role(matchmaking=matchmaking, promotion=BySteps(every=500_000), snapshot_weights="average")
    return Experiment(
        name="skirmish",
        game=Skirmish(),
        budget=2_000_000,
        model=AlphaStar(
            scatter=(Scatter(entities="entities", onto="minimap", x=X, y=Y),), memory=0, central_critic=True
        ),
        algorithm=PPO(
            gamma=0.998,
            lambda_=0.95,
            dual_clip=3.0,
            entropy=0.003,
            teacher=Teacher(weight=Linear(start=0.02, end=0.002)),
        ),
        actor=ActorConfig(num_tables=64, matches=4, episodes_per_table=4, unroll_length=16),
        learner=LearnerConfig(
            batch_size=8_192,
            minibatch_size=2_048,
            epochs=2,
            learning_rate=Linear(start=3e-4, end=3e-5),
            average_decay=0.95,
            buffer_size=32_768,
            schedule="async",
        ),
        league=LeagueRules(roles={"main": main}, bots=bots),
        evaluation=EvaluationConfig(opponents=bots, past=0, ladder=0, episodes=64),
        checkpoint_every=200_000,
    )
