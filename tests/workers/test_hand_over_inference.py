"""How often an actor runs its policies around a hand-over."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from table_play import GAMES, Play, self_play

from ludus.data.trees import IntArray
from ludus.runtime.actor_process import RingTrajectoryClient
from ludus.workers.inference import ActingRows, InferenceResult

STEPS = 60


class Counted:
    """Counts the calls of the actor to its policies."""

    def __init__(self, play: Play, *, on_policy: bool) -> None:
        self.calls = 0
        self._act_all = play.inline.act_all
        play.inline.act_all = self.act_all  # type: ignore[method-assign]
        play.actor._learner_goes_first = lambda: on_policy

    def act_all(self, requests: Sequence[ActingRows]) -> Sequence[InferenceResult]:
        self.calls += 1
        return self._act_all(requests)


@pytest.mark.parametrize("game", ["rock_paper_scissors", "connect_four"])
def test_an_asynchronous_hand_over_costs_no_inference(game: str) -> None:
    play = self_play(GAMES[game], hand_over_after=16, new_weights=True)
    counted = Counted(play, on_policy=False)
    progress = [play.actor.step().count for _ in range(STEPS)]
    assert len(play.completed) > 5
    assert counted.calls == STEPS, "one call for each step of the tables, with or without a hand-over"
    assert all(progress), "the tables are stepped in every step"


@pytest.mark.parametrize("game", ["rock_paper_scissors", "connect_four"])
def test_a_synchronous_hand_over_lets_the_new_weights_choose_again(game: str) -> None:
    play = self_play(GAMES[game], hand_over_after=16, new_weights=True)
    counted = Counted(play, on_policy=True)
    progress = [play.actor.step().count for _ in range(STEPS)]
    assert counted.calls == STEPS
    assert progress.count(0) == len(play.completed) > 5, "a step that hands over plays nothing"


def test_nothing_is_lost_or_trained_on_twice_between_two_slots() -> None:
    """The decision at which a trajectory was cut is the first of the next one, with the weights that made it."""
    play = self_play(GAMES["rock_paper_scissors"], hand_over_after=16, new_weights=True)
    Counted(play, on_policy=False)
    decisions = sum(play.actor.step().count for _ in range(STEPS))
    handed = sum(int(one.batch.valid.sum()) for one in play.handed)
    writers = play.actor.recorder.writers
    waiting = sum(int((writer.row[writer.slot >= 0] + 1).sum()) for writer in writers)
    assert handed + waiting == decisions
    versions = np.concatenate([one.batch.version[one.batch.valid] for one in play.handed])
    assert set(versions.tolist()) == set(range(len(play.completed))), "rows keep the version that chose them"


class SlowLearner:
    """Trains on the oldest batch only when the actor waits for it, as a learner that is the bottleneck does."""

    def __init__(self, play: Play, max_lag: int) -> None:
        self._play = play
        self._used = np.zeros((1, 1), np.int64)
        parts: Any = SimpleNamespace(
            players=["main"],
            pools=play.pools,
            used=self._used,
            ready=[[SimpleNamespace(put=lambda codes: None)]],
            free=[[SimpleNamespace(take=lambda: np.zeros(0, np.int64))]],
            slots_per_actor=[pool.num_slots for pool in play.pools],
            channel_of=lambda player: 0,
            mark=lambda player: -1 - player,
            code=lambda player, kind, slots: slots,
        )
        signal: Any = SimpleNamespace(notify=lambda: None)
        self.ring = RingTrajectoryClient(parts, 0, [signal], [max_lag])
        self._put, self._complete = play.put, play.complete
        play.put, play.complete = self.put, self.complete  # type: ignore[method-assign]
        play.actor._learner_goes_first = self.ring.learner_goes_first
        self._batches: list[IntArray] = []
        self.lags: list[int] = []

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        self.ring.put(player, kind, slots)
        self._put(player, kind, slots)

    def complete(self, player: str) -> None:
        self.ring.complete(player)
        self._complete(player)
        self._batches.append(np.concatenate([one.batch.version[one.batch.valid] for one in self._play.handed]))
        self._play.handed.clear()

    def train(self) -> None:
        versions = self._batches.pop(0)
        self.lags.append(len(self.lags) - int(versions.min()))
        self._play.publish("main", len(self.lags), self._play.fresh(len(self.lags)))
        self._used += len(versions)


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_an_actor_that_waits_for_the_learner_chooses_with_weights_that_are_new_enough(max_lag: int) -> None:
    play = self_play(GAMES["rock_paper_scissors"], hand_over_after=16)
    learner = SlowLearner(play, max_lag)
    for _ in range(3 * STEPS):
        if learner.ring.is_too_far_ahead():
            learner.train()
        else:
            play.actor.step()
    assert len(learner.lags) > 10
    assert max(learner.lags[max_lag + 1 :]) == max_lag
