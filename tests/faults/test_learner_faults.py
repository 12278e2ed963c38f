"""Rows of the fault reference that befall the learner, or what it learns from."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invariants import check_nothing_left, check_run
from processes import is_gone
from tiny_runs import BATCH, LOCAL, QUICK, RAY, bad_game, faults_of, kill, learned, local, once, tiny

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.data.records import SettingsChanged
from ludus.experiment import Experiment
from ludus.runtime.assemble import CHECKPOINT
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.checkpoints import read_tensors
from ludus.store.run_folder import RunFolder
from ludus.workers.config import LearnerConfig, Supervision
from ludus.workers.worker import Diverged, StopTraining, TrainingFailed

HERE = Path(__file__).parent


def algorithm(name: str, **options: Any) -> Any:
    return load_address(f"{HERE / 'bad_algorithms.py'}:{name}")(**options)


def serial(path: Path, described: Experiment) -> Coordinator[SerialWorkers]:
    return serial_training(described, RunFolder.create(path, encode(described), seed=0, command=()))


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_04_kill_the_learner_in_the_middle_of_a_gradient_step(tmp_path: Path, runtime: str) -> None:
    path = tmp_path / "run"
    dying = algorithm("DyingPPO", marks=str(tmp_path), at=(0, 5))
    with local(path, tiny(algorithm=dying, runtime=runtime)) as training:
        assert training.run() == FINISHED
        assert training.faults.counts == {"killed": 2}
        league = check_run(path, live=training.league)
    assert league.standings["main"].incarnation == 2, "no model id means two contents"
    assert [fault["worker"] for fault in faults_of(path)] == ["learner", "learner"]
    check_nothing_left(path, ())


@pytest.mark.parametrize("work", ["save", "publish", "append"])
def test_row_05_kill_at_every_call_of_a_write(tmp_path: Path, work: str) -> None:
    """A process per place is killed there while it writes its second checkpoint, model or ledger rows; the
    first is whole, and the second is whole or absent."""
    program = [sys.executable, str(HERE / "dying_writer.py"), work, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.slow
def test_row_12_a_learner_that_stands_still_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Actors are as far ahead as the lag allows and then wait; in the end the learner is given up."""
    path = tmp_path / "run"
    sizes: list[int] = []

    def resident(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096

    def stop_learner(training: Coordinator[ProcessWorkers]) -> None:
        sizes.append(resident(training.workers.actor_pids[0]))
        kill(training.workers.learner_pid, signal.SIGSTOP)
        stopped.append((training.workers.learner_pid, training.workers.actor_pids[0]))

    def measure(training: Any) -> None:
        watch(training)
        if stopped and not is_gone(stopped[0][1]) and training.workers.learner_pid == stopped[0][0]:
            sizes.append(resident(stopped[0][1]))

    stopped: list[tuple[int, int]] = []
    watch = once(learned(3 * BATCH), stop_learner)
    with local(path, tiny(budget=8 * BATCH, supervision=QUICK)) as training:
        assert training.run(measure) == FINISHED
        assert training.faults.counts == {"worker_hang": 1}
        check_run(path, live=training.league)
    assert len(sizes) > 5
    assert max(sizes) < sizes[0] + 32 * 2**20


def weights_after_updates(training: Coordinator[SerialWorkers]) -> Callable[[Any], None]:
    """A watcher that keeps the weights after each update in `training.seen`."""
    seen: dict[int, tuple[int, bytes]] = {}
    training.seen = seen  # type: ignore[attr-defined]

    def watch(_: Any) -> None:
        trained = training.learner.players["main"]
        weights = b"".join(array.tobytes() for _, array in sorted(trained.weights().items()))
        seen[trained.step] = (trained.skipped, weights)

    return watch


def test_row_24_a_loss_that_is_no_number_leaves_the_weights_alone(tmp_path: Path) -> None:
    """Whatever was learned before stays bit for bit, so that there is nothing to roll back."""
    described = tiny(algorithm=algorithm("NanPPO", first=3, last=5), runtime="serial", budget=10 * BATCH)
    with closing(serial(tmp_path / "run", described)) as training:
        assert training.run(weights_after_updates(training)) == FINISHED
        seen = training.seen  # type: ignore[attr-defined]
        steps = sorted(seen)
        changed = [seen[a][1] != seen[b][1] for a, b in pairwise(steps)]
        refused = [seen[a][0] != seen[b][0] for a, b in pairwise(steps)]
        assert refused.count(True) == 3
        assert [not one for one in changed] == refused
        assert training.learner.players["main"].skipped == 3
    check_run(tmp_path / "run", open_matches=True)


def test_row_24_a_loss_that_is_never_a_number_ends_the_run_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    nan = algorithm("NanPPO", first=2, last=10**9)
    described = tiny(algorithm=nan, runtime="serial", budget=10**9, supervision=Supervision(most_refused=4))
    with closing(serial(path, described)) as training:
        with pytest.raises(TrainingFailed, match=r"4 updates in a row of main were refused: .*\(4 gradient steps"):
            training.run()
        assert all(np.isfinite(array).all() for array in training.learner.players["main"].weights().values())
    assert RunFolder.open(path).checkpoints(CHECKPOINT).load_latest() is not None, "saved"


@pytest.mark.parametrize(("act", "times"), [("show NaN", 20), ("pay NaN", 20)])
def test_row_25_trajectories_with_nan_are_refused_and_counted(tmp_path: Path, act: str, times: int) -> None:
    game = bad_game(tmp_path / "marks", act=act, times=times)
    with closing(serial(tmp_path / "run", tiny(game, runtime="serial", budget=8 * BATCH))) as training:
        assert training.run() == FINISHED
        trained = training.learner.players["main"]
        assert trained.refused > 0
        assert trained.skipped == 0, "nothing of it reached the loss"
        assert all(np.isfinite(array).all() for array in trained.weights().values())
    check_run(tmp_path / "run", open_matches=True)


@pytest.mark.slow
def test_row_25_a_game_that_shows_nothing_but_nan_ends_the_run_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    game = bad_game(tmp_path / "marks", act="show NaN", times=10**9, after=0)
    with local(path, tiny(game, supervision=Supervision(most_refused=3))) as training:
        with pytest.raises(TrainingFailed, match="3 updates in a row of main were refused: the game shows"):
            training.run()
        assert training.learner.decisions == 0
    check_run(path)
    check_nothing_left(path, ())


def test_learning_that_one_death_costs_is_bounded_by_time(tmp_path: Path) -> None:
    """A checkpoint is written long before its decisions are reached, and the next learner goes on from there."""
    path, saved = tmp_path / "run", [0]
    described = tiny(budget=10**9, checkpoint_every=10**9, checkpoint_seconds=0.01)

    def watch(training: Coordinator[ProcessWorkers]) -> None:
        if saved == [0] and (latest := RunFolder.open(path).checkpoints(CHECKPOINT).load_latest()) is not None:
            saved[0] = latest.step
            kill(training.workers.learner_pid)
        elif training.restarts:
            assert training.learner.decisions >= saved[0] > 0
            raise StopTraining("seen")

    with local(path, described) as training:
        assert training.run(watch) == "seen"
        assert training.faults.counts == {"killed": 1}


EXPLODING = LearnerConfig(batch_size=BATCH, minibatch_size=BATCH, epochs=1, buffer_size=8 * BATCH, learning_rate=1e-3)


@pytest.mark.parametrize("runtime", ["serial", LOCAL])
def test_a_learning_rate_that_explodes_leaves_what_was_learned_before(tmp_path: Path, runtime: str) -> None:
    """The run ends by name, every checkpoint and model on disk is from before, and a lower rate goes on from there."""
    path = tmp_path / "run"
    described = tiny(budget=10**9, runtime=runtime, learner=EXPLODING, checkpoint_every=2 * BATCH)
    exploded: list[bool] = []

    def explode(training: Coordinator[Any]) -> None:
        if not exploded and training.learner.decisions >= 5 * BATCH:
            exploded.append(True)
            training.controller.edit([SettingsChanged({"learner.learning_rate": 1e6})])

    with training_of(path, described) as training:
        with pytest.raises(
            Diverged, match=r"with learning rate 1e\+06 from .* Go on from [456],\d+ decisions"
        ) as raised:
            training.run(explode)
        assert f"ludus train --run {path} --resume --set learner.learning_rate=RATE" in str(raised.value)
    folder = RunFolder.open(path)
    largest = max(float(np.abs(array).max()) for array in weights_on_disk(folder))
    assert largest < 10.0
    with closing(serial_training(replace(described, budget=8 * BATCH), folder)) as again:
        again.controller.edit([SettingsChanged({"learner.learning_rate": 1e-3})])
        assert again.learner.decisions >= 4 * BATCH
        assert again.run() == FINISHED


@contextmanager
def training_of(path: Path, described: Experiment) -> Iterator[Coordinator[Any]]:
    if described.runtime == "local":
        with local(path, described) as training:
            yield training
    else:
        with closing(serial(path, described)) as training:
            yield training


def weights_on_disk(folder: RunFolder) -> Iterator[Any]:
    for file in sorted(folder.checkpoints(CHECKPOINT).folder.glob("*.safetensors")):
        arrays, _ = read_tensors(file)
        yield from (array for name, array in arrays.items() if "/live." in name or "/average." in name)
    for entry in folder.models.entries():
        yield from folder.models.fetch(entry.model, entry.variant).values()
