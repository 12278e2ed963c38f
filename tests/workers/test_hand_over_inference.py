"""How often an actor runs its policies around a hand-over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from table_play import GAMES, Play, self_play

from ludus.workers.inference import ActingRows, InferenceResult

STEPS = 60


class Counted:
    """Counts the calls of the actor to its policies."""

    def __init__(self, play: Play, *, on_policy: bool) -> None:
        self.calls = 0
        self._act_all = play.inline.act_all
        play.inline.act_all = self.act_all  # type: ignore[method-assign]
        play.actor._on_policy = on_policy

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
