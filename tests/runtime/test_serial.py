"""The serial runtime: order of the workers, and the ways in which a run ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest

from ludus.data.records import ModelId
from ludus.runtime.rounds import FINISHED, INTERRUPTED, STOPPED, run_serial
from ludus.workers.player_cache import LocalWeights
from ludus.workers.worker import Progress, StopTraining, Worker


class Noted:
    """A worker that notes its turns; `act` may do something in one of them."""

    def __init__(self, name: str, turns: list[str], act: Callable[[int], None] = lambda turn: None) -> None:
        self.name = name
        self._turns = turns
        self._act = act
        self.steps = 0

    def step(self) -> Progress:
        self.steps += 1
        self._turns.append(self.name)
        self._act(self.steps)
        return Progress(count=self.steps)

    def close(self) -> None:
        pass


def ignore(progress: dict[str, Progress]) -> None:
    pass


def test_workers_take_turns_until_it_is_finished() -> None:
    turns: list[str] = []
    rounds: list[dict[str, Progress]] = []
    workers = [Noted("a", turns), Noted("b", turns)]
    reason = run_serial(workers, finished=lambda: len(rounds) == 3, after_round=rounds.append)
    assert reason == FINISHED
    assert turns == ["a", "b"] * 3
    assert [{name: p.count for name, p in done.items()} for done in rounds] == [
        {"a": count, "b": count} for count in (1, 2, 3)
    ]


def test_nothing_runs_when_it_is_finished_already() -> None:
    turns: list[str] = []
    assert run_serial([Noted("a", turns)], finished=lambda: True, after_round=ignore) == FINISHED
    assert turns == []


@pytest.mark.parametrize(("message", "reason"), [("target reached", "target reached"), ("", STOPPED)])
def test_middleware_sees_every_step_and_can_stop(message: str, reason: str) -> None:
    turns: list[str] = []
    seen: list[str] = []

    def middleware(worker: Worker, step: Callable[[], Progress]) -> Progress:
        seen.append(worker.name)
        if len(seen) == 6:
            raise StopTraining(message)
        return step()

    workers = [Noted("a", turns), Noted("b", turns)]
    ended = run_serial(workers, middleware=(middleware,), finished=lambda: False, after_round=ignore)
    assert ended == reason
    assert seen == ["a", "b"] * 3
    assert turns == ["a", "b", "a", "b", "a"]


def test_whoever_looks_on_can_stop_it_too() -> None:
    def enough(progress: dict[str, Progress]) -> None:
        raise StopTraining("seen enough")

    assert run_serial([Noted("a", [])], finished=lambda: False, after_round=enough) == "seen enough"


def test_errors_are_not_hidden() -> None:
    def fail(turn: int) -> None:
        raise RuntimeError("broken worker")

    with pytest.raises(RuntimeError, match="broken worker"):
        run_serial([Noted("a", [], fail)], finished=lambda: False, after_round=ignore)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_round_end(number: int) -> None:
    before = signal.getsignal(number)
    turns: list[str] = []
    workers = [Noted("a", turns, lambda turn: os.kill(os.getpid(), number) if turn == 2 else None), Noted("b", turns)]
    assert run_serial(workers, finished=lambda: False, after_round=ignore) == INTERRUPTED
    assert turns == ["a", "b", "a", "b"]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_it_at_once(first: int) -> None:
    def twice(turn: int) -> None:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)

    turns: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_serial([Noted("a", turns, twice), Noted("b", turns)], finished=lambda: False, after_round=ignore)
    assert turns == ["a"]


def test_a_scheduler_may_say_it_twice() -> None:
    def twice(turn: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    turns: list[str] = []
    workers = [Noted("a", turns, twice), Noted("b", turns)]
    assert run_serial(workers, finished=lambda: False, after_round=ignore) == INTERRUPTED
    assert turns == ["a", "b"]


def test_it_runs_in_a_thread_where_signals_cannot_be_caught() -> None:
    reasons: list[str] = []
    workers = [Noted("a", [])]

    def run() -> None:
        reasons.append(run_serial(workers, finished=lambda: workers[0].steps == 2, after_round=ignore))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert reasons == [FINISHED]


def test_the_board_keeps_a_copy_of_the_newest_weights() -> None:
    board = LocalWeights()
    assert board.newest("main") is None
    weights = {"w": np.ones(2)}
    board.publish(ModelId("main", 0, 1), weights)
    weights["w"][:] = 5.0
    assert board.newest("main") == ModelId("main", 0, 1)
    assert board.fetch("main")[1]["w"].tolist() == [1.0, 1.0]
    board.publish(ModelId("main", 1, 0), weights)
    assert board.fetch("main")[0] == ModelId("main", 1, 0)
    with pytest.raises(KeyError):
        board.fetch("nobody")
