"""What goes between the learner's node and another: in order, in bounds, and never late from the dead."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
from small_runs import parts_in_memory, play

from ludus.data.records import ModelId
from ludus.runtime.ray.transfer import (
    ArrayMessage,
    Counters,
    NodeUpdate,
    TrajectoryDelivery,
    TrajectoryReceiver,
    TrajectorySender,
    pack_slots,
)
from ludus.system.shared_memory import Signal


class Post:
    """Both ways between two nodes of this process; what was sent arrives when `arrive` is called."""

    def __init__(self, ranks: int = 1) -> None:
        """The last rank is `there`; a rank before it is `here`."""
        self.here, self.there = (parts_in_memory(ranks=ranks) for _ in range(2))
        signals = [[Signal.create() for _ in self.here.heartbeats] for _ in range(2)]
        self.outlet = TrajectorySender(self.here, signals[0], {ranks - 1: self}, compress="none", in_flight=2)
        self.inlet = TrajectoryReceiver(self.there, signals[1], lambda _: self, ["there"] if ranks > 1 else ())
        self.on_the_way: deque[tuple[Any, ...]] = deque()
        self.damage = False

    def deliver(self, delivery: TrajectoryDelivery, parcel: ArrayMessage) -> Any:
        return self._send(lambda: self.inlet.deliver(delivery, parcel))

    def update(self, update: NodeUpdate, weights: Any) -> Any:
        return self._send(lambda: self.outlet.take_in(update, weights))

    def share(self, parcel: ArrayMessage) -> Any:
        body = parcel.body.copy()
        body[0] ^= self.damage
        return msgspec.structs.replace(parcel, body=body)

    def _send(self, call: Any) -> Any:
        sent: Future[bool] = Future()
        self.on_the_way.append((call, sent))
        return sent

    def arrive(self) -> list[Any]:
        answers = []
        while self.on_the_way:
            call, sent = self.on_the_way.popleft()
            sent.set_result(call())
            answers.append(sent.result())
        return answers

    def start(self, actor: int, epoch: int) -> None:
        self.inlet.admit(actor, epoch, "there")
        self.outlet.open(actor, epoch)

    def hand_over(self, actor: int, count: int = 2) -> Any:
        codes = self.here.code(0, 0, play(self.here, actor, np.random.default_rng(actor), count))
        self.here.ready[actor][0].put(codes)
        return codes


def test_slots_come_back_when_the_learner_has_used_them() -> None:
    post = Post()
    post.start(1, epoch=7)
    codes = post.hand_over(1)
    post.outlet.step()
    assert post.arrive() == [True]
    assert np.array_equal(post.there.ready[1][0].take(), codes)
    post.there.free[1][0].put(codes)
    post.there.used[1] = 5
    post.inlet.step()
    post.arrive()
    assert np.array_equal(post.here.free[1][0].take(), codes)
    assert post.here.used[1].tolist() == [5]


def test_no_more_is_on_its_way_than_allowed() -> None:
    post = Post()
    post.start(0, epoch=1)
    for _ in range(3):
        post.hand_over(0)
        post.outlet.step()
    assert len(post.on_the_way) == 2
    assert post.outlet.is_full
    assert len(post.here.ready[0][0]) == 2, "the rest waits where it is"
    post.arrive()
    post.outlet.step()
    assert len(post.on_the_way) == 1
    assert not post.outlet.is_full


def test_what_a_dead_actor_has_sent_does_not_come_in_late() -> None:
    post = Post()
    post.start(2, epoch=1)
    post.hand_over(2)
    post.outlet.step()
    post.inlet.refuse(2)
    assert post.arrive() == [False]
    assert len(post.there.ready[2][0]) == 0
    post.start(2, epoch=2)
    post.hand_over(2)
    post.outlet.step()
    assert post.arrive() == [True], "the next one in its place is welcome"
    late = TrajectoryDelivery(2, 1, True, [0.0] * 4)
    assert not post.inlet.deliver(late, post.share(_parcel(post)))


def test_news_of_an_actor_before_are_not_taken_for_its_successor() -> None:
    post = Post()
    post.start(0, epoch=1)
    post.there.used[0] = 9
    post.inlet.step()
    post.start(0, epoch=2)
    post.arrive()
    assert post.here.used[0].tolist() == [0]


def test_weights_arrive_with_their_name_and_are_sent_again_when_damaged() -> None:
    post = Post()
    post.start(0, epoch=1)
    weights = {name: np.full_like(array[0], 3) for name, array in post.there.weights._copies["main"].items()}
    post.there.weights.publish(ModelId("main", 0, 4), weights)
    post.damage = True
    post.inlet.step()
    assert post.arrive() == [False]
    assert post.here.weights.newest("main") is None
    post.damage = False
    post.inlet._shared = None
    post.inlet.step()
    assert post.arrive() == [True]
    model, arrived = post.here.weights.fetch("main")
    assert model == ModelId("main", 0, 4)
    assert all(np.array_equal(arrived[name], array) for name, array in weights.items())
    post.inlet.step()
    assert not post.on_the_way, "nothing new, nothing sent"


def test_who_may_go_on_finds_the_weights_that_came_along() -> None:
    """Where acting and learning take turns, a step with the old weights would be played in vain."""
    post = Post()
    post.start(0, epoch=1)
    weights = {name: np.zeros_like(array[0]) for name, array in post.there.weights._copies["main"].items()}
    post.there.weights.publish(ModelId("main", 0, 4), weights)
    post.there.used[0] = 9
    seen: list[ModelId | None] = []
    woken = post.outlet._signals[0]
    woken.notify = lambda: seen.append(post.here.weights.newest("main"))  # type: ignore[method-assign]
    post.inlet.step()
    post.arrive()
    assert seen == [ModelId("main", 0, 4)]


def test_actors_play_for_ranks_on_different_nodes() -> None:
    post = Post(ranks=2)
    post.start(0, epoch=1)
    post.hand_over(0)
    post.outlet.step()
    assert not post.on_the_way, "rank 0 is here"
    assert len(post.here.ready[0][0]) == 2
    post.start(1, epoch=2)
    codes = post.hand_over(1)
    post.outlet.step()
    post.arrive()
    assert np.array_equal(post.there.ready[1][0].take(), codes)
    assert post.outlet.woken_by == [post.outlet._signals[post.here.learners[1]]], "those of rank 0 are its own"


def test_who_waits_for_two_ranks_goes_on_with_the_weights_of_the_one_that_is_here() -> None:
    """One process publishes the weights of a node: its own rank, which may be a moment behind the other."""
    post = Post(ranks=2)
    post.start(1, epoch=1)
    weights = {name: np.zeros_like(array[0]) for name, array in post.there.weights._copies["main"].items()}
    post.there.weights.publish(ModelId("main", 0, 4), weights)
    post.there.used[1] = 9
    post.inlet.step()
    assert post.on_the_way, "no arrays, but the news"
    post.arrive()
    assert post.here.weights.newest("main") is None
    post.outlet.step()
    assert post.here.used[1].tolist() == [0]
    assert post.outlet.is_full, "it looks again soon"
    post.here.weights.publish(ModelId("main", 0, 3), weights)
    post.outlet.step()
    assert post.here.used[1].tolist() == [0]
    post.here.weights.publish(ModelId("main", 0, 5), weights)
    post.outlet.step()
    assert post.here.used[1].tolist() == [9]
    assert not post.outlet.is_full


def test_older_weights_that_come_late_replace_nothing() -> None:
    post = Post()
    post.start(0, epoch=1)
    weights = {name: np.zeros_like(array[0]) for name, array in post.there.weights._copies["main"].items()}
    post.here.weights.publish(ModelId("main", 0, 5), weights)
    post.there.weights.publish(ModelId("main", 0, 4), weights)
    post.inlet.step()
    post.arrive()
    assert post.here.weights.newest("main") == ModelId("main", 0, 5)


def test_what_is_refused_of_an_actor_that_lives_shows_that_the_way_is_cut_off() -> None:
    post = Post()
    post.start(1, epoch=1)
    post.hand_over(1)
    post.outlet.step()
    post.inlet.refuse(1)
    post.arrive()
    assert not post.outlet.cut_off
    post.outlet.step()
    assert post.outlet.cut_off


def test_a_site_gets_its_first_weights_before_anybody_is_there() -> None:
    post = Post()
    post.inlet.know("there")
    weights = {name: np.zeros_like(array[0]) for name, array in post.there.weights._copies["main"].items()}
    post.there.weights.publish(ModelId("main", 0, 0), weights)
    post.inlet.step()
    assert post.inlet.is_full is False
    post.inlet.step()
    assert post.inlet.is_full, "it has not taken them yet"
    post.arrive()
    assert post.here.weights.newest("main") == ModelId("main", 0, 0)
    post.there.weights.publish(ModelId("main", 0, 1), weights)
    post.inlet.step()
    assert not post.on_the_way, "newer ones only once somebody plays with them"
    post.start(0, epoch=1)
    post.inlet.step()
    post.arrive()
    assert post.here.weights.newest("main") == ModelId("main", 0, 1)


def test_that_an_actor_is_there_is_told_without_trajectories() -> None:
    post = Post()
    post.start(1, epoch=1)
    post.here.present[1] = True
    post.here.actor_times[1] = [1, 2, 3, 4]
    post.outlet.step()
    post.arrive()
    assert post.there.present[1]
    assert post.there.actor_times[1].tolist() == [1, 2, 3, 4]


def test_counts_that_begin_again_add_what_they_have() -> None:
    counters = Counters()
    assert counters.since("a", [3.0]).tolist() == [3.0]
    assert counters.since("a", [5.0]).tolist() == [2.0]
    assert counters.since("a", [1.0]).tolist() == [1.0]


def _parcel(post: Post) -> ArrayMessage:
    return pack_slots(post.here, np.array([-1]), "none")
