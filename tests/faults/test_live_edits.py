"""Edits of a league that trains as processes: in force, kept whatever is killed, and nothing lost by them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest
from invariants import check_run
from processes import descendants
from tiny_runs import create, faults_of, kill_all, local, started, stop, tiny

from ludus.cli.control import ask
from ludus.data.records import AddPlayer, AnyEdit, AnyEvent, ChangeSettings, FreezePlayer, MatchVoid, RemovePlayer
from ludus.runtime.assemble import load_experiment
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import local_training
from ludus.runtime.rounds import INTERRUPTED
from ludus.runtime.settings import effective
from ludus.store import run_control as requests
from ludus.store.run_control import Asked, EditAnswer
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.worker import StopTraining

RATE = ChangeSettings(settings={"learner.learning_rate": "0.001"})
SECOND = AddPlayer(player="second", role="main", source="main", settings={"learner.learning_rate": "0.002"})


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 0.0)


class Sequence:
    """A watcher that asks for edits one after the other; the next once `decisions` more are learned."""

    def __init__(self, edits: list[AnyEdit], decisions: int) -> None:
        self._edits = iter(edits)
        self._decisions = self._next_at = decisions
        self._waiting: Asked | None = None
        self.answers: list[EditAnswer] = []

    def __call__(self, training: Training) -> None:
        if self._waiting is not None:
            answer = self._waiting.answer()
            if answer is None:
                return
            self.answers.append(answer)
            self._waiting = None
            self._next_at = int(training.numbers()["decisions"]) + self._decisions
        elif training.numbers()["decisions"] >= self._next_at:
            edit = next(self._edits, None)
            if edit is not None:
                self._waiting = Asked(training.folder.requests, edit)


class Stop:
    """A watcher that ends the run."""

    def __init__(self, decisions: int) -> None:
        self._decisions = decisions

    def __call__(self, training: Training) -> None:
        if training.numbers()["decisions"] >= self._decisions:
            raise StopTraining("far enough")


def events_of(path: Path) -> list[AnyEvent]:
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


@pytest.mark.slow
def test_players_join_and_leave_while_it_trains(tmp_path: Path) -> None:
    path = tmp_path / "run"
    edits: list[AnyEdit] = [RATE, SECOND, FreezePlayer(player="second"), RemovePlayer(player="main")]
    watch = Sequence(edits, 2_500)
    with local(path, tiny(budget=16_000), num_actors=2) as training:
        training.run(watch)
        assert [answer.refused for answer in watch.answers] == [None] * 4
        assert training.restarts == 0
        check_run(path, live=training.league)
        assert list(training.league.standings) == ["second"]
        assert training.numbers()["decisions"] >= 16_000
        assert training.league.standings["second"].decisions >= 4_000
    rows = read_metrics(path / "metrics" / "train.jsonl")[0]
    rates = {player: [row[name] for row in rows if (name := f"{player}/learning_rate") in row]
             for player in ("main", "second")}  # fmt: skip
    assert rates["main"][0] == 3e-4
    assert rates["main"][-1] == 0.001
    assert set(rates["second"]) == {0.002}
    decisions = [row["decisions"] for row in rows]
    assert decisions == sorted(decisions), "nothing is learned twice"
    reasons = {event.reason for event in events_of(path) if isinstance(event, MatchVoid)}
    assert reasons <= {"league edited", "stopped"}


def test_settings_change_while_it_trains(tmp_path: Path) -> None:
    path = tmp_path / "run"
    watch = Sequence([ChangeSettings(settings={**RATE.settings, "budget": "6000"})], 2_000)
    with local(path, tiny(budget=10**9)) as training:
        training.run(watch)
        assert watch.answers[0].refused is None
        assert training.experiment.budget == 6_000
        check_run(path, live=training.league)
    rates = [row["main/learning_rate"] for row in read_metrics(path / "metrics" / "train.jsonl")[0]]
    assert (rates[0], rates[-1]) == (3e-4, 0.001)


@pytest.mark.slow
def test_a_stop_while_the_workers_start_again_for_an_edit_is_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with local(path, tiny(budget=10**9)) as training:
        end = training.workers.group.kill_all

        def end_and_stop() -> None:
            end()
            os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(training.workers.group, "kill_all", end_and_stop)
        watch = Sequence([SECOND], 2_000)
        assert training.run(watch) == INTERRUPTED
        decisions = training.numbers()["decisions"]
        monkeypatch.undo()
    assert list(check_run(path).standings) == ["main", "second"]
    folder = RunFolder.open(path)
    with folder.lock(), closing(local_training(load_experiment(folder), folder, 1)) as again:
        assert again.numbers()["decisions"] == decisions, "nothing is lost"
    assert faults_of(path) == []


@pytest.mark.slow
def test_edits_survive_a_power_cut(tmp_path: Path) -> None:
    """Killed right after the answer: the ledger has the edit, and a resume has it in force."""
    path = tmp_path / "run"
    create(path, tiny(budget=10**9))
    folder = RunFolder.open(path)
    with started(path) as training:
        for edit in (RATE, SECOND):
            answer, is_training = ask(folder, edit)
            assert (answer.refused, is_training) == (None, True)
        kill_all((training.pid, *descendants(training.pid)))
        training.wait()
    league = check_run(path, open_matches=True)
    promised = effective(load_experiment(folder), league)
    assert promised.learner.learning_rate == 0.001
    assert list(league.standings) == ["main", "second"]
    with folder.lock(), closing(local_training(load_experiment(folder), folder, 1)) as again:
        assert again.experiment == promised
        again.run(Stop(int(again.numbers()["decisions"]) + 4_000))
    league = check_run(path)
    latest: dict[str, float] = {}
    for row in read_metrics(path / "metrics" / "train.jsonl")[0]:
        latest |= row
    assert (latest["main/learning_rate"], latest["second/learning_rate"]) == (0.001, 0.002)
    assert league.standings["second"].decisions > 0


def test_a_request_to_a_run_that_is_just_ending_is_done_or_done_after_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path, tiny(budget=10**9))
    folder = RunFolder.open(path)
    with started(path) as training:
        found: list[tuple[EditAnswer, bool]] = []
        asking = threading.Thread(target=lambda: found.append(ask(folder, RATE)))
        training.terminate()
        asking.start()
        training.communicate(timeout=60)
        asking.join(timeout=60)
    assert found[0][0].refused is None
    assert check_run(path).settings == {"learner.learning_rate": 0.001}
    assert not list(folder.requests.glob("*"))


def test_two_commands_at_once_are_both_done(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path, tiny(budget=10**9))
    folder = RunFolder.open(path)
    edits = [ChangeSettings(settings={f"learner.{name}": "0.5"}) for name in ("adam_beta1", "adam_beta2")]
    with started(path) as training:
        answers: list[EditAnswer] = []

        def do(edit: AnyEdit) -> None:
            answers.append(ask(folder, edit)[0])

        asking = [threading.Thread(target=do, args=(edit,)) for edit in edits]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(timeout=60)
        stop(training)
    assert [answer.refused for answer in answers] == [None, None]
    assert check_run(path).settings == {"learner.adam_beta1": 0.5, "learner.adam_beta2": 0.5}
