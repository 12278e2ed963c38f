"""A run is told to rest, to go on, to stop: in one process, where every round can be watched."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from edited_runs import Asker, folder_of, replayed, tiny, train

from ludus.data.records import AddPlayer, AnyEdit, ChangeSettings, Continue, Order, Pause, Stop
from ludus.observe.run_state import look_at_run
from ludus.runtime.assemble import load_experiment
from ludus.runtime.coordinator import Training
from ludus.runtime.rounds import FINISHED, INTERRUPTED, TIME_LIMIT
from ludus.runtime.serial import serial_training
from ludus.store.run_control import Asked, RunStatus, read_status
from ludus.workers.worker import StopTraining


def status_of(path: Path) -> RunStatus:
    status = read_status(path / "status.json")
    assert status is not None
    return status


def test_a_pause_stops_play_and_learning_until_it_goes_on(tmp_path: Path) -> None:
    rounds: list[tuple[int, str]] = []
    asked: list[Asked] = []

    def watch(training: Training) -> None:
        decisions = int(training.numbers()["decisions"])
        if not asked and decisions >= 500:
            asked.append(Asked(training.folder.requests, Pause()))
        if training.folder.status.exists():
            rounds.append((decisions, status_of(training.folder.path).state))
        paused = [seen for seen in rounds if seen[1] == "paused"]
        if len(asked) == 1 and len(paused) == 3:
            asked.append(Asked(training.folder.requests, Continue()))

    folder = folder_of(tmp_path / "run", tiny())
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run(watch) == FINISHED
    at = {decisions for decisions, state in rounds if state == "paused"}
    first_paused = next(index for index, (_, state) in enumerate(rounds) if state == "paused")
    assert min(at) >= 500
    assert rounds[first_paused][0] == rounds[first_paused + 2][0], "nothing was learned meanwhile"
    answers = [one.answer() for one in asked]
    assert [answer.done.split(":")[0] for answer in answers if answer] == ["paused", "it goes on"]
    assert status_of(tmp_path / "run").state == "finished"
    assert status_of(tmp_path / "run").decisions >= 3_000


@pytest.mark.parametrize("before", [[], [(500, Pause())]])
def test_a_stop_saves_and_the_run_goes_on_from_there(tmp_path: Path, before: list[tuple[int, AnyEdit | Order]]) -> None:
    path, asker = tmp_path / "run", Asker([*before, (500, Stop())])
    folder = folder_of(path, tiny(budget=10**9))
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run(asker) == INTERRUPTED
    assert status_of(path).state == "stopped"
    reached = status_of(path).decisions
    again = Asker([(0, ChangeSettings(settings={"budget": str(reached + 1_000)}))])
    assert train(path, None, again).learner.decisions >= reached + 1_000, "and it is not paused any more"


def test_a_stop_at_once_does_not_save(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = folder_of(path, tiny(budget=10**9, checkpoint_every=10**9))
    with (
        folder.lock(),
        closing(serial_training(load_experiment(folder), folder)) as training,
        pytest.raises(KeyboardInterrupt),
    ):
        training.run(Asker([(500, Stop(now=True))]))
    assert not list((path / "checkpoints").rglob("*.safetensors"))
    assert status_of(path).state == "stopped"


def test_a_run_that_middleware_ends_is_stopped_and_not_dead(tmp_path: Path) -> None:
    """Its process has ended in good order, so no page may say that it has disappeared."""
    folder = folder_of(tmp_path / "run", tiny(budget=10**9))

    def enough(_: object) -> None:
        raise StopTraining("the rating is good enough")

    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run(enough) == "the rating is good enough"
    status = look_at_run(folder)
    assert status is not None
    assert status.state == "stopped"


def test_the_time_limit_ends_it_and_may_be_changed_while_it_trains(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = folder_of(path, tiny(budget=10**9))
    asker = Asker([(500, ChangeSettings(settings={"time_limit_h": "1e-6"}))])
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run(asker) == TIME_LIMIT
    assert status_of(path).state == TIME_LIMIT
    assert replayed(path).settings == {"time_limit_h": 1e-6}
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run() == TIME_LIMIT, "each process has its own"


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("time_limit_h", 0.0, "above 0"),
        ("time_limit_h", float("nan"), "above 0"),
        ("actors", 0, "at least 1"),
        ("trial", "a/b", "trial"),
    ],
)
def test_bad_values_are_refused(name: str, value: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        tiny(**{name: value})


def test_a_stop_in_the_round_of_an_edit_loses_neither(tmp_path: Path) -> None:
    """The run is stopped before workers for the new player have started."""
    path = tmp_path / "run"
    asked: list[Asked] = []

    def watch(training: Training) -> None:
        if not asked and training.numbers()["decisions"] >= 500:
            both = (Stop(), AddPlayer(player="second", role="main"))
            asked.extend(Asked(training.folder.requests, one) for one in both)

    folder = folder_of(path, tiny(budget=10**9))
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training.run(watch) == INTERRUPTED
        reached = training.learner.decisions
    assert [answer.refused for one in asked if (answer := one.answer())] == [None, None]
    assert "second" in replayed(path).standings
    again = Asker([(0, ChangeSettings(settings={"budget": str(reached + 1_000)}))])
    continued = train(path, None, again)
    assert continued.learner.players.keys() == {"main", "second"}
    assert continued.learner.decisions >= reached + 1_000
