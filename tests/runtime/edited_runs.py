"""Tiny runs in this process, and edits that reach them through their folder as a command's would."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.config import encode
from ludus.data.records import AnyEdit, AnyEvent
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.league import League
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_experiment, new_league
from ludus.runtime.coordinator import Coordinator, Training
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_control import Asked, EditAnswer
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.worker import StopTraining


def tiny(**changes: Any) -> Experiment:
    mixed = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    settings: dict[str, Any] = {
        "name": "tiny",
        "game": Kuhn(),
        "budget": 3_000,
        "model": ActorCritic(hidden=(8,)),
        "actor": ActorConfig(num_tables=16, matches=2, episodes_per_table=8, unroll_length=4),
        "learner": LearnerConfig(batch_size=200, minibatch_size=200, epochs=1, buffer_size=1_000),
        "league": LeagueRules(
            roles={"main": Role(matchmaking=mixed, promotion=BySteps(every=1_000))}, bots=("random",)
        ),
        "evaluation": EvaluationConfig(opponents=("random",), past=1, ladder=0, episodes=8),
        "checkpoint_every": 500,
        "runtime": "serial",
    }
    return Experiment(**(settings | changes))


@dataclass
class Asker:
    """A watcher that asks for one edit after the other, each as soon as so many decisions are learned and the
    one before it is answered; `stop_at`: ends the run then."""

    edits: Sequence[tuple[int, AnyEdit]] = ()
    stop_at: int | None = None
    answers: list[EditAnswer] = field(default_factory=list)
    _waiting: Asked | None = None

    def __call__(self, training: Training) -> None:
        if self._waiting is not None and (answer := self._waiting.answer()) is not None:
            self.answers.append(answer)
            self._waiting = None
        decisions = training.numbers()["decisions"]
        index = len(self.answers)
        if self._waiting is None and index < len(self.edits) and decisions >= self.edits[index][0]:
            self._waiting = Asked(training.folder.requests, self.edits[index][1])
        if self.stop_at is not None and decisions >= self.stop_at:
            raise StopTraining("far enough")

    @property
    def refusals(self) -> list[str]:
        return [answer.refused for answer in self.answers if answer.refused is not None]


def folder_of(path: Path, described: Experiment | None = None) -> RunFolder:
    if described is not None and not path.exists():
        RunFolder.create(path, encode(described), seed=described.seed, command=())
    return RunFolder.open(path)


def train(path: Path, described: Experiment | None, asker: Asker) -> Coordinator[SerialWorkers]:
    """A new run or, without an experiment, one that goes on."""
    folder = folder_of(path, described)
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        training.run(asker)
        return training


def events_of(path: Path) -> list[AnyEvent]:
    with folder_of(path).ledger(read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


def replayed(path: Path) -> League:
    league = new_league(load_experiment(folder_of(path)))
    for event in events_of(path):
        league.apply(event)
    return league


def metrics_of(path: Path) -> list[dict[str, Any]]:
    return read_metrics(path / "metrics" / "train.jsonl")[0]
