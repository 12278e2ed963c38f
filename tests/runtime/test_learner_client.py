"""The client of the learner process: its news and its answers come through the same connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

from ludus.data.records import LearnerProgress
from ludus.runtime.learner_client import LearnerGone, RemoteLearner, RemoteLearners
from ludus.system.process import receive, send
from ludus.workers.messages import Done, Forget, Learned, ToLearner


class Process:
    """A learner process that is alive as long as its end of the connection is open."""

    pid = 7
    name = "learner"
    lost = None

    def __init__(self, control: Connection) -> None:
        self.control = control
        self.exit_code: int | None = None

    def wait_end(self, _: float) -> int | None:
        return self.exit_code


def never() -> bool:
    return False


@pytest.fixture
def connected() -> Iterator[tuple[RemoteLearner, Connection]]:
    here, there = Pipe()
    process: Any = Process(here)
    with here, there:
        yield RemoteLearner(process, never), there


def learned(step: int) -> Learned:
    return Learned((LearnerProgress("main", 0, step, 100 * step),), {"main/loss": 0.5})


def test_news_that_came_before_an_answer_are_not_waited_for_again(connected: tuple[RemoteLearner, Connection]) -> None:
    """An actor has died just when the learner sent its news: replacing the actor takes them in."""
    learner, peer = connected
    send(peer, learned(1))
    send(peer, Done())
    assert learner.ask(Forget(3)) == Done()
    assert receive(peer, ToLearner) == Forget(3)
    assert learner.take_news(), "the controller has yet to note them"
    assert [decisions for decisions, _ in learner.updates] == [100]
    assert not learner.take_news(), "a learner that is silent for a moment is no fault"


def test_an_answer_is_waited_for_as_long_as_the_learner_shows_life() -> None:
    here, there = Pipe()
    looks = 0

    def answers_at_the_second_look() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            send(there, Done())
        return looks > 4

    process: Any = Process(here)
    with here, there:
        learner = RemoteLearner(process, answers_at_the_second_look)
        assert learner.ask(Forget(3)) == Done()
        with pytest.raises(LearnerGone, match="worker_hang: the learner did not answer for 1 s"):
            learner.ask(Forget(3))
        assert looks == 5
        with pytest.raises(LearnerGone, match="worker_hang"):
            learner.ask(Forget(3), patience_s=0.0)
        assert looks == 5, "a limit of the request itself counts alone"


def test_all_news_are_taken_at_once(connected: tuple[RemoteLearner, Connection]) -> None:
    learner, peer = connected
    for step in (1, 2):
        send(peer, learned(step))
    assert learner.take_news()
    assert learner.report("main").step == 2
    assert [decisions for decisions, _ in learner.updates] == [100, 200]


def test_a_learner_that_is_gone_is_noticed(connected: tuple[RemoteLearner, Connection]) -> None:
    learner, peer = connected
    peer.close()
    with pytest.raises(LearnerGone, match="learner closed its connection") as gone:
        learner.take_news()
    assert gone.value.pid == 7


def test_an_answer_that_nobody_asked_for_is_a_fault(connected: tuple[RemoteLearner, Connection]) -> None:
    learner, peer = connected
    send(peer, Done())
    with pytest.raises(LearnerGone, match="the learner answers what nobody asked"):
        learner.take_news()


def test_learners_of_single_players_do_as_asked_although_one_is_gone() -> None:
    """Otherwise the others would keep the trajectories of an actor that is dead, or leave an answer for later."""
    pipes = {player: Pipe() for player in ("first", "second", "third")}
    processes: dict[str, Any] = {player: Process(here) for player, (here, _) in pipes.items()}
    members = {player: RemoteLearner(one, never, player=player) for player, one in processes.items()}
    for player, (_, there) in pipes.items():
        send(there, Learned((LearnerProgress(player, 0, 1, 100),), {}))
    learners = RemoteLearners(members, spent=0)
    learners.take_news()
    for player in ("second", "third"):
        send(pipes[player][1], Done())
    pipes["first"][1].close()
    with pytest.raises(LearnerGone) as gone:
        learners.ask(Forget(3))
    assert gone.value.player == "first"
    for player in ("second", "third"):
        there = pipes[player][1]
        assert there.poll(0), "it was asked"
        assert receive(there, ToLearner) == Forget(3)
        send(there, Learned((LearnerProgress(player, 0, 2, 200),), {}))
        members[player].take_news()  # and not "answers what nobody asked"
        assert learners.report(player).step == 2
    for here, there in pipes.values():
        here.close()
        there.close()


def test_a_learner_that_starts_again_is_not_waited_for_to_forget_an_actor() -> None:
    """Its start takes seconds, in which nobody would serve the actors."""
    pipes = {player: Pipe() for player in ("first", "second")}
    processes: dict[str, Any] = {player: Process(here) for player, (here, _) in pipes.items()}
    members = {player: RemoteLearner(one, never, player=player) for player, one in processes.items()}
    learners = RemoteLearners(members, spent=0)
    first, second = (there for _, there in pipes.values())
    send(first, Learned((LearnerProgress("first", 0, 1, 100),), {}))
    learners.take_news()
    send(first, Done())
    learners.ask(Forget(3))
    assert receive(first, ToLearner) == Forget(3)
    assert not learners.is_ready
    assert learners.unforgotten == {3}, "no other actor may take its place yet"
    assert not second.poll(0)

    def answer() -> None:
        assert receive(second, ToLearner) == Forget(3)
        send(second, Done())

    send(second, Learned((LearnerProgress("second", 0, 1, 100),), {}))
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        learners.take_news()
        answered.result(timeout=10)
    assert learners.is_ready
    assert learners.unforgotten == frozenset()
    for here, there in pipes.values():
        here.close()
        there.close()
