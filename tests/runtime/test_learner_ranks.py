"""A learner of several ranks: they learn as one, and end and start again as one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.main import main
from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import CHECKPOINT
from ludus.runtime.coordinator import Coordinator, Training
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig, Supervision

BATCH = 1_000


def experiment(*, ranks: int = 2, budget: int = 12 * BATCH, **learner: Any) -> Experiment:
    return Experiment(
        name="ranked",
        game=Kuhn(),
        budget=budget,
        model=ActorCritic(hidden=(16,)),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(
            **{
                "batch_size": BATCH,
                "minibatch_size": BATCH // 2,
                "epochs": 2,
                "buffer_size": 8 * BATCH,
                "ranks": ranks,
                **learner,
            }
        ),
        league=LeagueRules(
            roles={"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=4 * BATCH))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(episodes=32),
        checkpoint_every=3 * BATCH,
        runtime="local",
        supervision=Supervision(hung_after_s=4.0, back_off_s=0.05),
    )


@contextmanager
def local(path: Path, described: Experiment, num_actors: int = 2) -> Iterator[Coordinator[ProcessWorkers]]:
    folder = (
        RunFolder.open(path).with_experiment(encode(described))
        if path.exists()
        else RunFolder.create(path, encode(described), seed=0, command=())
    )
    with folder.lock(), closing(local_training(described, folder, num_actors)) as training:
        yield training


def check_ledger(path: Path) -> None:
    """Every match has one end."""
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    ends = [event.result.match_id for event in events if isinstance(event, MatchFinished)]
    ends += [event.match_id for event in events if isinstance(event, MatchVoid)]
    assert sorted(issued) == sorted(ends)


def rank_pids(training: Coordinator[ProcessWorkers]) -> list[int]:
    return [training.workers.learner_pid, *(follower.pid for follower in training.workers.group.followers)]


@pytest.mark.parametrize(
    ("schedule", "num_actors"),
    [pytest.param({"schedule": "sync"}, 2, marks=pytest.mark.slow), ({"schedule": "async", "max_lag": 2}, 3)],
)
def test_ranks_learn_within_the_lag(tmp_path: Path, schedule: dict[str, Any], num_actors: int) -> None:
    described = experiment(**schedule)
    path = tmp_path / "run"
    with local(path, described, num_actors) as training:
        assert len(rank_pids(training)) == 2
        assert training.run() == FINISHED, training.faults.counts
        assert training.restarts == 0
    check_ledger(path)
    records, _ = read_metrics(path / "metrics" / "train.jsonl")
    assert len(records) >= 6
    assert max(record["main/max_lag"] for record in records) <= described.learner.lag
    # A pass is cut into as many pieces as one learner would cut the batches of both ranks.
    sizes = [after - before for before, after in pairwise([0, *(one["decisions"] for one in records)])]
    if "main/nash_conv" in records[-1] and not sizes[-1]:
        sizes.pop()  # the last snapshot was measured after the last update
    for size, record in zip(sizes, records, strict=False):
        assert record["main/gradient_steps"] == 2 * max(1, round(size / (BATCH // 2)))
    assert min(sizes) >= 0.8 * BATCH, "both ranks' actors count"


def once(act: Any) -> Any:
    done: list[Coordinator[ProcessWorkers]] = []

    def watch(training: Training) -> None:
        assert isinstance(training.workers, ProcessWorkers)
        if not done and training.numbers()["decisions"] >= 4 * BATCH:
            done.append(training)
            act(training)

    return watch


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_all_and_all_go_on_from_the_checkpoint(tmp_path: Path, victim: int) -> None:
    path = tmp_path / "run"
    killed: list[int] = []

    def kill(training: Coordinator[ProcessWorkers]) -> None:
        killed.extend(rank_pids(training))
        os.kill(killed[victim], signal.SIGKILL)

    with local(path, experiment()) as training:
        assert training.run(once(kill)) == FINISHED
        assert training.faults.counts == {"killed": 1}
        assert training.restarts == 1
        assert not set(killed) & set(rank_pids(training))
    check_ledger(path)
    fault = read_metrics(path / "metrics" / "faults.jsonl")[0][0]
    name = "learner" if victim == 0 else "learner-1"
    assert fault["reason"] == f"{name} was ended by SIGKILL"
    assert fault["then"] == "all started again from the checkpoint"


@pytest.mark.slow
def test_a_rank_that_stands_still_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def stop(training: Coordinator[ProcessWorkers]) -> None:
        os.kill(rank_pids(training)[1], signal.SIGSTOP)

    with local(path, experiment()) as training:
        assert training.run(once(stop)) == FINISHED
        assert training.faults.counts == {"worker_hang": 1}
    check_ledger(path)
    fault = read_metrics(path / "metrics" / "faults.jsonl")[0][0]
    assert fault["reason"] == "learner-1: no sign of life for 4 s"


FAILING = """
from dataclasses import dataclass
from pathlib import Path
from ludus.algorithms.ppo import PPO

@dataclass(frozen=True, kw_only=True, slots=True)
class Failing(PPO):
    mark: str = ""

    def prepare(self, policy, references, batch):
        import sys
        is_follower = '"index":18' in sys.argv[1]
        if is_follower and not Path(self.mark).exists():
            Path(self.mark).touch()
            raise ValueError("this rank has had enough")
        return PPO.prepare(self, policy, references, batch)
"""


@pytest.mark.slow
def test_an_error_in_one_rank_is_the_learners(tmp_path: Path) -> None:
    file, path = tmp_path / "failing.py", tmp_path / "run"
    file.write_text(FAILING)
    algorithm = load_address(f"{file}:Failing")(mark=str(tmp_path / "mark"))
    with local(path, replace(experiment(budget=4 * BATCH), algorithm=algorithm)) as training:
        assert training.run() == FINISHED
        assert training.faults.counts == {"worker_crash": 1}
    fault = read_metrics(path / "metrics" / "faults.jsonl")[0][0]
    assert fault["reason"] == "learner-1: ValueError: this rank has had enough"


@pytest.mark.slow
def test_the_number_of_ranks_may_change_between_stop_and_resume(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for number, ranks in enumerate((1, 3, 2), 1):
        with local(path, experiment(ranks=ranks, budget=number * 4 * BATCH), 3) as training:
            assert len(rank_pids(training)) == ranks
            assert training.run() == FINISHED
            assert training.faults.counts == {}
        checkpoint = RunFolder.open(path).checkpoints(CHECKPOINT).load_latest()
        assert checkpoint is not None
        assert checkpoint.facts["learner"]["main"]["decisions"] >= number * 4 * BATCH
    check_ledger(path)


def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(*settings: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["train", "kuhn", *(word for setting in settings for word in ("--set", setting))])
        assert end.value.code == 2
        assert not list(tmp_path.iterdir()), "nothing was begun"
        return " ".join(capsys.readouterr().err.split())

    assert "there is no interface 'eth99' here; there are lo" in refused("cluster.network_interface=eth99")
    assert "learner.ranks=2 is for runtime local" in refused("learner.ranks=2", "runtime=serial")
    assert "actors (2) must be at least learner.ranks (3)" in refused("learner.ranks=3", "actors=2")
    assert "ranks must be at least 1, got 0" in refused("learner.ranks=0")
    assert "stacked=on is for one rank" in refused("learner.ranks=2", "learner.stacked=on")


@pytest.mark.slow
def test_train_says_how_many_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("learner.ranks=2", "learner.batch_size=1000", "budget=3000", "actor.num_tables=32")
    words = [word for setting in settings for word in ("--set", setting)]
    with pytest.raises(SystemExit) as end:
        main(["train", "kuhn", *words])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 actors and a learner of 2 ranks" in shown
