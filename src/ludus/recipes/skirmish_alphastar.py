"""The strategy game skirmish by AlphaStar's network, losses and league, from a cloned player.

Every player starts from the same clone, which is its teacher too:

    ludus clone data skirmish_alphastar --run runs/clone
    ludus train skirmish_alphastar --set league.roles.*.start=runs/clone#main@best

docs/skirmish.md has the whole way, and which of the published settings were changed and why.
"""

from __future__ import annotations

from dataclasses import replace

from ludus import AlphaStar, AlphaStarGradient, Experiment, Linear
from ludus.algorithms import Teacher
from ludus.games import Skirmish, WithStrategies
from ludus.league import LeagueRules
from ludus.league.presets import alphastar
from ludus.recipes import skirmish

VALUE_ONLY = 32_768
"""Decisions on which a player that starts from the clone trains only its values: the clone has seen winners alone, so
it expects to win every game."""


def experiment() -> Experiment:
    base = skirmish.experiment()
    model = base.model
    assert isinstance(model, AlphaStar)
    return replace(
        base,
        name="skirmish_alphastar",
        game=WithStrategies(game=Skirmish(), strategies="skirmish", types=5, fade=(128, 256, 384), shown=0.5),
        budget=6_000_000,
        model=replace(model, memory=128),
        algorithm=AlphaStarGradient(teacher=Teacher()),
        actor=replace(base.actor, unroll_length=32),
        learner=replace(
            base.learner, learning_rate=Linear(start=2e-4, end=2e-5), adam_beta1=0.0, adam_beta2=0.99, epochs=1
        ),
        league=_league(base.league.bots),
    )


def _league(bots: tuple[str, ...]) -> LeagueRules:
    """One main player, one main exploiter and one league exploiter; the main player meets the bots as well."""
    league = alphastar(
        period=250_000,
        league_exploiters=1,
        value_only_after_reset=VALUE_ONLY,
        bots=bots,
        meet_bots=True,
        snapshot_weights="average",
    )
    roles = {name: replace(role, value_only_at_start=VALUE_ONLY) for name, role in league.roles.items()}
    return replace(league, roles=roles)
