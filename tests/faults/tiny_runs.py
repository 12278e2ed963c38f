"""A run that starts in seconds, in this process or by the command line, and a look at its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ludus.config import encode
from ludus.data.addresses import load_address
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import GameSource
from ludus.games.lift import Lifted
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.coordinator import Coordinator, Training
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig, Supervision

BATCH = 1_000
RAY = pytest.param(
    "ray", marks=[pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="pip install -e '.[ray]'")]
)
LOCAL = pytest.param("local", marks=pytest.mark.slow)
"""For tests that take their time on either."""
QUICK = Supervision(hung_after_s=4.0, back_off_s=0.05)
"""For tests in which something hangs."""


def tiny(game: GameSource | None = None, **changes: Any) -> Experiment:
    opponents = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    described = Experiment(
        name="tiny",
        game=Kuhn() if game is None else game,
        budget=12_000,
        model=ActorCritic(hidden=(16,)),
        actor=ActorConfig(num_tables=32, matches=2, episodes_per_table=8, unroll_length=8),
        learner=LearnerConfig(batch_size=BATCH, minibatch_size=BATCH, epochs=1, buffer_size=8 * BATCH),
        league=LeagueRules(
            roles={"main": Role(matchmaking=opponents, promotion=BySteps(every=4_000))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=32),
        checkpoint_every=3_000,
        runtime="local",
        supervision=Supervision(back_off_s=0.05),
    )
    return replace(described, **changes)


def bad_game(marks: Path, **how: Any) -> GameSource:
    """By address, so that worker processes find it too."""
    marks.mkdir(exist_ok=True)
    game: GameSource = load_address(f"{Path(__file__).with_name('bad_games.py')}:BadKuhn")(marks=str(marks), **how)
    return game


def pennies(name: str = "Pennies") -> GameSource:
    """A game of `bad_games.py`, by address."""
    return Lifted(load_address(f"{Path(__file__).with_name('bad_games.py')}:{name}"))


@contextmanager
def local(path: Path, described: Experiment, num_actors: int = 1) -> Iterator[Coordinator[ProcessWorkers]]:
    """A run whose controller is this process; `described.runtime` says where its workers are."""
    folder = RunFolder.create(path, encode(described), seed=0, command=())
    with (
        patch.dict(os.environ),  # Ray is told by it where its token is
        folder.lock(),
        ExitStack() as stack,
        closing(_new_training(described, folder, num_actors, stack)) as training,
    ):
        yield training


def _new_training(
    described: Experiment, folder: RunFolder, num_actors: int, stack: ExitStack
) -> Coordinator[ProcessWorkers]:
    if described.runtime != "ray":
        return local_training(described, folder, num_actors)
    from ludus.runtime.ray.connection import join  # Ray is imported once its environment is set

    stack.callback(join(None, num_actors))
    from ludus.runtime.ray.launcher import ray_training

    return ray_training(described, folder, num_actors=num_actors)


def once(
    when: Callable[[Coordinator[ProcessWorkers]], bool], act: Callable[[Coordinator[ProcessWorkers]], None]
) -> Any:
    """A watcher that acts the first time it is due, and tells so by its `done`."""

    class Once:
        done = False

        def __call__(self, training: Training) -> None:
            assert isinstance(training.workers, ProcessWorkers)
            if not self.done and when(training):
                self.done = True
                act(training)

    return Once()


def learned(count: int) -> Callable[[Coordinator[ProcessWorkers]], bool]:
    return lambda training: training.numbers()["decisions"] >= count


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def kill_all(pids: Iterable[int]) -> None:
    """As in a power cut; some may have ended with the ones before them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            kill(pid)


def faults_of(path: Path) -> list[dict[str, Any]]:
    return read_metrics(path / "metrics" / "faults.jsonl")[0]


# --- by the command line ---


def create(path: Path, described: Experiment) -> None:
    RunFolder.create(path, encode(described), seed=0, command=())


@contextmanager
def started(path: Path) -> Iterator[subprocess.Popen[str]]:
    """`ludus train --resume`, from its first numbers on; killed at the end if it still runs."""
    program = [sys.executable, "-m", "ludus.cli.main", "train", "--run", str(path), "--resume", "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        try:
            assert training.stdout is not None
            line = training.stdout.readline()
            if not line:
                raise AssertionError(training.communicate()[1])
            assert "decisions" in json.loads(line)
            yield training
        finally:
            training.kill()


def stop(training: subprocess.Popen[str]) -> str:
    """Ends it in good order; gives its last line."""
    training.send_signal(signal.SIGTERM)
    out, err = training.communicate(timeout=60)
    assert training.returncode == 130, err
    return out.splitlines()[-1]
