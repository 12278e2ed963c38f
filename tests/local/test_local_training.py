"""The local runtime: the same league as processes; whatever is killed, nothing is lost or counted twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.assemble import Training, load_experiment, new_league
from ludus.config import encode
from ludus.data.files import load_address
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid, ModelId
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.league import League
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.local.training import LocalTraining
from ludus.models.networks import ActorCritic
from ludus.runtime.serial import FINISHED
from ludus.runtime.supervision import TrainingFailed
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.evaluator import EvaluationConfig
from ludus.workers.trained_player import LearnerConfig


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
def local(path: Path, described: Experiment, num_actors: int = 1) -> Iterator[LocalTraining]:
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with folder.lock(), closing(LocalTraining(described, folder, num_actors)) as training:
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


def killing(pick: Callable[[LocalTraining], int], after: int) -> Callable[[Training], None]:
    """A watcher that kills a process once, when so many decisions are trained on."""
    done: list[int] = []

    def watch(training: Training) -> None:
        assert isinstance(training, LocalTraining)
        if not done and training.numbers()["decisions"] >= after:
            done.append(pick(training))
            os.kill(done[0], signal.SIGKILL)

    return watch


def test_an_actor_that_is_killed_is_replaced_and_its_matches_are_void(tmp_path: Path) -> None:
    with local(tmp_path / "run", experiment()) as training:
        assert training.run(killing(lambda t: t.actor_pids[0], after=5_000)) == FINISHED
        assert training.restarts == 1
    league = check_run(tmp_path / "run")
    assert league.matches.void >= 1
    assert league.starts == 1, "the run itself went on"
    assert league.standings["main"].incarnation == 0


def test_a_learner_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with local(tmp_path / "run", experiment()) as training:
        assert training.run(killing(lambda t: t.learner_pid, after=8_000)) == FINISHED
        assert training.restarts == 1
    league = check_run(tmp_path / "run")
    assert league.starts == 2
    assert league.standings["main"].incarnation == 1


MIDDLEWARE = """
from ludus.runtime.program import StopTraining

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


def test_a_game_that_keeps_failing_ends_the_run_with_its_error(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "from ludus.games.builtin.kuhn import Kuhn\n"
        "class Broken(Kuhn):\n"
        "    def tables(self, num_tables):\n"
        "        raise OSError('no licence')\n"
    )
    described = replace(experiment(), game=load_address(f"{file}:Broken")())
    with (
        local(tmp_path / "run", described) as training,
        pytest.raises(
            TrainingFailed, match=r"no actor is left: actor-0 failed 3 times .* OSError: no licence .*actor-0\.log"
        ),
    ):
        training.run()
    check_run(tmp_path / "run")


def start(path: Path, *more: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(path), "--json", *more]
    started = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert "decisions" in json.loads(started.stdout.readline())
    return started


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(child) for child in found.stdout.split()]


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"left behind: {pids}"
        time.sleep(0.05)


def test_random_kills_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    described = experiment(budget=10**9)
    RunFolder.create(tmp_path / "run", encode(described), seed=0, command=())
    rng = random.Random(0)
    decisions = 0
    for victim in ("main", "learner", "actor", "everything", "main"):
        training = start(tmp_path / "run", "--resume")
        time.sleep(rng.uniform(0.0, 3.0))
        workers = children(training.pid)
        roles = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in workers}
        victims = {
            "main": [training.pid],
            "everything": [training.pid, *workers],
            "learner": [pid for pid, text in roles.items() if '"role":"learner"' in text],
            "actor": [pid for pid, text in roles.items() if '"role":"actor"' in text],
        }[victim]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if victim in ("learner", "actor"):
            time.sleep(rng.uniform(0.5, 3.0))
            assert training.poll() is None, "the run goes on"
            training.send_signal(signal.SIGTERM)
            assert training.wait(60) == 130
        workers += children(training.pid)
        training.communicate()
        wait_gone(workers)
        league = check_run(tmp_path / "run")
        assert league.standings["main"].decisions >= decisions - described.checkpoint_every - 2_000
        decisions = league.standings["main"].decisions
    assert decisions > 0


def test_an_interrupted_run_is_saved_and_goes_on(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", encode(experiment(budget=10**9)), seed=0, command=())
    training = start(tmp_path / "run", "--resume")
    workers = children(training.pid)
    training.send_signal(signal.SIGINT)
    out, _ = training.communicate(timeout=60)
    assert training.returncode == 130
    assert json.loads(out.splitlines()[-1])["end"] == "interrupted"
    wait_gone(workers)
    before = check_run(tmp_path / "run").standings["main"].decisions
    again = start(tmp_path / "run", "--resume")
    again.send_signal(signal.SIGTERM)
    assert again.wait(60) == 130
    again.communicate()
    assert check_run(tmp_path / "run").standings["main"].decisions >= before
