"""Small runs whose players a person can play against."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.config import encode
from ludus.evaluation.play.house import Opponents
from ludus.experiment import Experiment
from ludus.games.game import GameSource
from ludus.league.league import League
from ludus.league.rules import EvaluationConfig
from ludus.models.alphastar import AlphaStar
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_experiment, new_league
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig

TINY: dict[type, dict[str, Any]] = {
    ActorCritic: {"hidden": (8,)},
    AlphaStar: {
        **dict.fromkeys(("scalar_size", "entity_size", "entity_hidden", "spatial_size"), 8),
        **dict.fromkeys(("action_size", "head_hidden", "embedding_size", "value_size"), 8),
        **dict.fromkeys(("scatter_channels", "map_channels", "key_size"), 4),
        **{"down": (4, 4), "up": (4,), "hidden": (8,)},
    },
}


def small(found: Experiment, game: GameSource | None = None) -> Experiment:
    """As the recipe is, but with a tiny network and a few updates, in which nothing is learned."""
    model: Any = found.model
    return replace(
        found,
        runtime="serial",
        game=game or found.game,
        budget=128,
        model=replace(model, **TINY[type(model)]),
        actor=ActorConfig(num_tables=4, matches=2, episodes_per_table=2, unroll_length=8),
        learner=replace(found.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0, episodes=1),
    )


def trained(path: Path, experiment: Experiment) -> RunFolder:
    """A finished run."""
    folder = RunFolder.create(path, encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        training.run()
    return folder


def folded(folder: RunFolder) -> League:
    """The league as the ledger has it now."""
    league = new_league(load_experiment(folder))
    with folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    return league


def opponents_of(folder: RunFolder, *, greedy: bool = False) -> Opponents:
    experiment = load_experiment(folder)
    return Opponents(experiment, folder, folded(folder), weights="average", greedy=greedy)
