"""The local runtime: the same league as processes; whatever is killed, nothing is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import exit_code

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid, ModelId
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.league import League
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_experiment, new_league
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig


def experiment(*, budget: int = 20_000, max_lag: int = 1, reuse: int = 1) -> Experiment:
    opponents = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    return Experiment(
        name="tiny",
        game=Kuhn(),
        budget=budget,
        model=ActorCritic(hidden=(16,)),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(
            batch_size=1_000,
            minibatch_size=1_000,
            epochs=1,
            buffer_size=8_000,
            schedule="async" if max_lag else "sync",
            max_lag=max_lag,
            reuse=reuse,
        ),
        league=LeagueRules(
            roles={"main": Role(matchmaking=opponents, promotion=BySteps(every=4_000))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=32),
        checkpoint_every=3_000,
        runtime="local",
    )


@contextmanager
def local(path: Path, described: Experiment, num_actors: int = 1) -> Iterator[Coordinator[ProcessWorkers]]:
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with folder.lock(), closing(local_training(described, folder, num_actors)) as training:
        yield training


def check_run(path: Path) -> League:
    """Every issued match has one end or is open, the fold works, every frozen model opens."""
    folder = RunFolder.open(path)
    league = new_league(load_experiment(folder))
    issued: set[int] = set()
    ends: Counter[int] = Counter()
    with folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
            if isinstance(event, MatchIssued):
                issued.add(event.match.id)
            elif isinstance(event, MatchFinished):
                ends[event.result.match_id] += 1
            elif isinstance(event, MatchVoid):
                ends[event.match_id] += 1
    assert set(ends) <= issued
    assert issued - set(ends) == set(league.matches.open_matches)
    assert set(ends.values()) <= {1}
    for player in league.players.values():
        if player.frozen:
            assert player.model is not None
            folder.models.fetch(ModelId.parse(player.model), player.weights)
    return league


@pytest.mark.parametrize(("max_lag", "num_actors", "reuse"), [(0, 2, 1), (1, 2, 1), (3, 1, 2)])
def test_it_learns_within_the_lag(tmp_path: Path, max_lag: int, num_actors: int, reuse: int) -> None:
    with local(tmp_path / "run", experiment(max_lag=max_lag, reuse=reuse), num_actors) as training:
        assert training.run() == FINISHED
        assert training.restarts == 0
    league = check_run(tmp_path / "run")
    assert league.standings["main"].decisions >= 20_000
    assert len(league.candidates.frozen()) >= 5
    assert league.payoffs.evaluation.games(league.candidates.frozen()[-1], "random") >= 32
    records, _ = read_metrics(tmp_path / "run" / "metrics" / "train.jsonl")
    lags = [record["main/max_lag"] for record in records]
    assert max(lags) <= max_lag
    assert all(record["queue_wait"] >= 0 and 0 <= record["actor_wait"] <= 1 for record in records)
    assert len(lags) >= 10


MIDDLEWARE = """
from ludus.workers.worker import StopTraining

def stop(worker, step):
    if worker.name.startswith({role!r}) and worker.{what} > 2_000:
        raise StopTraining("far enough")
    return step()
"""


@pytest.mark.parametrize(("role", "what"), [("learner", "decisions"), ("actor", "episodes")])
def test_middleware_runs_in_the_workers_and_can_stop_the_run(tmp_path: Path, role: str, what: str) -> None:
    file = tmp_path / "stopping.py"
    file.write_text(MIDDLEWARE.format(role=role, what=what))
    described = replace(experiment(budget=10**9), middleware=(load_address(f"{file}:stop"),))
    with local(tmp_path / "run", described) as training:
        assert training.run() == "far enough"
        assert training.numbers()["decisions"] > 0


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    """Worker processes read the changed experiment, not the one before."""
    path = tmp_path / "run"
    RunFolder.create(path, encode(experiment(budget=2_000)), seed=0, command=())
    for more in ([], ["--set", "budget=5000"]):
        assert exit_code("train", "--run", str(path), "--resume", "--quiet", *more) == 0
    league = check_run(path)
    assert league.standings["main"].decisions >= 5_000
    assert not league.matches.open_matches
