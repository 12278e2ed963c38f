"""Small runs in one process, in one piece, stopped or crashed; and what must be the same of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.algorithm import Reference
from ludus.algorithms.gumbel_alphazero import GumbelAlphaZero
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import encode
from ludus.data.records import AnyEvent, MatchFinished, MatchIssued, MatchVoid
from ludus.data.schedules import Linear
from ludus.data.search import GumbelSearch
from ludus.data.trees import Tree
from ludus.experiment import Experiment
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.siege import Siege
from ludus.games.game import GameSource
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.payoff import PayoffRules
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig, Openings
from ludus.workers.worker import Progress, StopTraining, Worker

LEAGUE_PLAY = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))


def tiny(game: GameSource, **changes: Any) -> Experiment:
    """A run of a few updates, with snapshots, opponents from the past and evaluations in it."""
    teams = game.spec.num_teams
    settings: dict[str, Any] = {
        "name": "tiny",
        "game": game,
        "budget": 320,
        "model": ActorCritic(hidden=(8,), entity_size=4),
        "algorithm": PPO(),
        "actor": ActorConfig(num_tables=8, matches=2, episodes_per_table=teams, unroll_length=4),
        "learner": LearnerConfig(
            batch_size=64, minibatch_size=32, buffer_size=256, learning_rate=Linear(start=1e-2, end=1e-3)
        ),
        "league": LeagueRules(
            roles={"main": Role(matchmaking=LEAGUE_PLAY, promotion=BySteps(every=80))},
            bots=("random",),
            payoff=PayoffRules(min_games=2),
        ),
        "evaluation": EvaluationConfig(opponents=("random",), past=1, episodes=8),
        "seed": 3,
    }
    return Experiment(**{**settings, **changes})


MEMORY = ActorCritic(hidden=(8,), entity_size=4, memory=8)
EXPERIMENTS: dict[str, Experiment] = {
    "kuhn": tiny(Kuhn(), algorithm=MagnetPolicyGradient(magnet=Reference(copy_every=3))),
    "connect_four": tiny(ConnectFour()),
    "openings": tiny(ConnectFour(), openings=Openings(moves=6, share=0.7)),
    "siege": tiny(Siege()),
    "memory": tiny(ConnectFour(), model=MEMORY),
    "siege with memory": tiny(Siege(), model=MEMORY),
    "goofspiel": tiny(Goofspiel(num_cards=3)),
    "search": tiny(ConnectFour(), algorithm=GumbelAlphaZero(search=GumbelSearch(simulations=4))),
    "cartpole": tiny(Gymnasium(env_id="CartPole-v1", max_length=20)),
}


def open_training(path: Path, experiment: Experiment) -> Coordinator[SerialWorkers]:
    """Begins a run in the folder, or goes on with the one that is there."""
    if not (path / "run.json").exists():
        RunFolder.create(path, encode(replace(experiment, middleware=())), seed=experiment.seed, command=())
    return serial_training(experiment, RunFolder.open(path))


def events_of(path: Path) -> list[AnyEvent]:
    with Ledger(path / "ledger.db", read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


@dataclass
class Outcome:
    """All of a run that must not depend on how it was cut into pieces."""

    arrays: Tree
    facts: dict[str, Any]
    events: list[AnyEvent]
    digest: str

    @classmethod
    def of(cls, training: Coordinator[SerialWorkers]) -> Outcome:
        arrays, facts = training.learner.save()
        return cls(arrays, facts, events_of(training.folder.path), training.league.state_digest())


def run_whole(path: Path, experiment: Experiment) -> Outcome:
    with closing(open_training(path, experiment)) as training:
        assert training.run() == FINISHED
    return Outcome.of(training)


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.events == other.events
    assert one.facts == other.facts
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name
    assert one.digest == other.digest


class StopAt:
    """Asks for an end at the given step of a worker, before or after it."""

    def __init__(self, step: int, *, after: bool) -> None:
        self._left = step
        self._after = after

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        self._left -= 1
        if self._left > 0:
            return step()
        if self._after:
            step()
        raise StopTraining("stopped for the test")


def run_until(path: Path, experiment: Experiment, stop: StopAt) -> Coordinator[SerialWorkers]:
    with closing(open_training(path, replace(experiment, middleware=(stop,)))) as training:
        training.run()
    return training


def crash(path: Path, experiment: Experiment, decisions: int) -> None:
    """The power fails in the middle of a round, once so many decisions were trained on."""

    def failing(worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        if worker.name == "actor" and training.learner.decisions >= decisions:
            raise RuntimeError("the power failed")
        return progress

    training = open_training(path, replace(experiment, middleware=(failing,)))
    with closing(training), pytest.raises(RuntimeError, match="the power failed"):
        training.run()


def check_ledger(path: Path) -> list[AnyEvent]:
    """Every issued match has one end or is open; nothing ends that was not issued."""
    events = events_of(path)
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    ended = [event.result.match_id for event in events if isinstance(event, MatchFinished)]
    ended += [event.match_id for event in events if isinstance(event, MatchVoid)]
    assert len(issued) == len(set(issued))
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(issued)
    with Ledger(path / "ledger.db", read_only=True) as ledger:
        assert {match.id for match in ledger.open_matches()} == set(issued) - set(ended)
    return events
