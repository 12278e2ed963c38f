"""One training of the league benchmark: trains, and writes the strategies of all its snapshots as tables.

Called by league.py, one process per training.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import encode
from ludus.data.records import ModelId, PlayerAdded
from ludus.data.schedules import Exponential
from ludus.experiment import Experiment
from ludus.games import resolve
from ludus.games.builtin.blotto import Blotto
from ludus.games.builtin.leduc import Leduc
from ludus.games.game import GameSource
from ludus.league import presets
from ludus.league.rules import EvaluationConfig, LeagueRules
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import load_weights
from ludus.runtime.assemble import new_league
from ludus.runtime.networks import build_policies
from ludus.runtime.serial import serial_training
from ludus.store.model_pool import VARIANTS
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.exploitability import ExactGame


@dataclass(frozen=True)
class Setting:
    """What is the same for every preset and algorithm on a game."""

    game: GameSource
    budget: int
    """Decisions that all learning players of a league train on together."""
    hidden: tuple[int, ...]
    batch_size: int
    minibatch_size: int
    epochs: int
    learning_rate: float
    reward_scale: float = 1.0


SETTINGS = {
    "leduc": Setting(Leduc(), 1_500_000, (64, 64), 4_096, 1_024, 4, 1e-3, reward_scale=0.25),
    "blotto": Setting(Blotto(), 500_000, (32,), 1_024, 256, 2, 2e-3),
    "blotto_4": Setting(Blotto(soldiers=10, fields=4), 1_000_000, (64,), 1_024, 256, 2, 2e-3),
    "goofspiel": Setting(
        resolve("openspiel:goofspiel(num_cards=5,imp_info=True,points_order=descending)", from_tree=True),
        2_000_000,
        (64, 64),
        4_096,
        1_024,
        4,
        1e-3,
    ),
}
"""The settings of Blotto with 4 fields and of Goofspiel are those of Blotto and Leduc: nothing was tried on them."""
SNAPSHOTS = 25
"""Of a league with one learning player: one more after every such share of the budget."""


def algorithm(name: str, game: str) -> Algorithm:
    if name == "ppo":
        return PPO(gamma=1.0, lambda_=0.95, entropy=0.01)
    return MagnetPolicyGradient(
        magnet_weight=Exponential(start=0.3, end=0.05),
        step_weight=1.0,
        lambda_=0.95,
        reward_scale=SETTINGS[game].reward_scale,
    )


FRESH = {"self_play": 0.0, "reset_probability": 1.0}
GOING_ON = {"self_play": 0.5, "reset_probability": 0.0}


def response(game: str, algorithm_name: str) -> dict[str, float]:
    """How `fsp`, `pfsp` and `psro` learn a response to their snapshots.

    From fresh weights, where one that goes on from the last gets too sure of itself to find what beats it:
    that is so for PPO, and in Blotto for the magnet too. In Leduc a period is short for learning poker from
    nothing, and the magnet keeps a player from being sure: there it goes on, with half of the matches against
    itself.
    """
    return GOING_ON if (game, algorithm_name) == ("leduc", "magnet") else FRESH


def rules(preset: str, game: str, algorithm_name: str, budget: int) -> LeagueRules:
    """The preset, with periods that fit the budget."""
    period = budget // SNAPSHOTS
    if preset == "self_play":
        return presets.self_play(period=period)
    if preset == "alphastar":
        return presets.alphastar(period=period // 2, league_exploiters=1)
    make = {"fsp": presets.fsp, "pfsp": presets.pfsp, "psro": presets.psro}[preset]
    league: LeagueRules = make(period=period, **response(game, algorithm_name))
    return league


def experiment(game: str, algorithm_name: str, preset: str, seed: int, budget: int) -> Experiment:
    setting = SETTINGS[game]
    return Experiment(
        name=f"{game}-{algorithm_name}-{preset}-{seed}-{budget}",
        game=setting.game,
        budget=budget,
        model=ActorCritic(hidden=setting.hidden),
        algorithm=algorithm(algorithm_name, game),
        actor=ActorConfig(num_tables=256, matches=4, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(
            batch_size=setting.batch_size,
            minibatch_size=setting.minibatch_size,
            epochs=setting.epochs,
            learning_rate=setting.learning_rate,
            max_gradient_norm=5.0,
            average_decay=0.99,
        ),
        league=rules(preset, game, algorithm_name, budget),
        evaluation=EvaluationConfig(opponents=(), episodes=256, past=0, ladder=0),
        checkpoint_every=10**9,
        runtime="serial",
        seed=seed,
    )


def train(described: Experiment, folder: Path, extra: dict[str, Any]) -> None:
    run = RunFolder.create(folder / described.name, encode(described), seed=described.seed, command=sys.argv)
    began, cpu = time.monotonic(), time.process_time()
    training = serial_training(described, run)
    training.run()
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    training.close()
    strategies(described, run, folder, {**extra, "seconds": seconds, "cpu": cpu})


def strategies(described: Experiment, run: RunFolder, folder: Path, facts: dict[str, Any]) -> None:
    """Every snapshot's action probabilities, live and averaged, and when it was made."""
    root = described.game.tree()
    assert root is not None
    exact = ExactGame(root)
    (policy,) = build_policies(described, 0)
    league = new_league(described)
    snapshots: list[dict[str, Any]] = []
    tables: dict[str, list[Any]] = {variant: [] for variant in VARIANTS}
    with run.ledger(read_only=True) as ledger:
        for _, event in ledger.replay(0):
            league.apply(event)
            if not isinstance(event, PlayerAdded) or event.role != "frozen":
                continue
            spent = sum(standing.decisions for standing in league.standings.values())
            snapshots.append({"player": event.player, "parent": event.parent, "decisions": spent})
            for variant in VARIANTS:
                load_weights((policy,), run.models.fetch(ModelId.parse(event.model or ""), variant))
                tables[variant].append(exact.probabilities(policy))
    arrays = {variant: np.stack(found) for variant, found in tables.items()}
    np.savez_compressed(folder / f"{described.name}.npz", **arrays)
    described_as = {**facts, "snapshots": snapshots}
    (folder / f"{described.name}.json").write_text(json.dumps(described_as))  # last: it is complete


def main() -> None:
    given = json.loads(sys.argv[1])
    described = experiment(given["game"], given["algorithm"], given["preset"], given["seed"], given["budget"])
    train(described, Path(given["folder"]), given)


if __name__ == "__main__":
    main()
