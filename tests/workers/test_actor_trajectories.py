"""What the actor hands over, row by row, against a log of the episodes that were played."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from stamped_games import Episode, number_of
from table_play import GAMES, SMALL, HandedOver, Play, self_play

from ludus.algorithms.returns import advantage_columns
from ludus.data.batch import Batch
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import load_weights

WITH_MEMORY = ActorCritic(hidden=(16,), channels=(4,), entity_size=8, memory=16)
STEPS = 70
SCHEDULES: dict[str, dict[str, Any]] = {
    "full slots only": {},
    "hand-overs": {"hand_over_after": 37, "new_weights": True},
}


@pytest.fixture(params=[(game, schedule) for game in GAMES for schedule in SCHEDULES], ids=" ".join, scope="module")
def play(request: pytest.FixtureRequest) -> Play:
    game, schedule = request.param
    return self_play(GAMES[game], **SCHEDULES[schedule]).run(STEPS)


class Log:
    """Finds the place of every decision."""

    def __init__(self, episodes: list[Episode]) -> None:
        self.place = {
            made.stamp: (episode, index)
            for episode in episodes
            for decisions in episode.decisions.values()
            for index, made in enumerate(decisions)
        }

    def expected(self, stamp: int, *, timed: bool) -> dict[str, Any]:
        episode, index = self.place[stamp]
        seat = next(seat for seat, made in episode.decisions.items() if any(d.stamp == stamp for d in made))
        decisions = episode.decisions[seat]
        made = decisions[index]
        is_last = index + 1 == len(decisions)
        next_clock = episode.last_clock if is_last else decisions[index + 1].clock
        over = is_last and episode.over
        return {
            "action": made.action,
            "reward": made.reward,
            "elapsed": next_clock - made.clock if timed and not over else 1,
            "over": over,
            "first": index == 0,
            "next": episode.last_stamp[seat] if is_last else decisions[index + 1].stamp,
            "next_is_decision": not is_last,
        }


def columns(handed: HandedOver) -> Any:
    for column in range(len(handed.length)):
        yield handed.batch.columns(np.array([column])), int(handed.length[column])


def test_every_decision_is_handed_over_once(play: Play) -> None:
    for kind in range(len(play.spec.kinds)):
        made = [
            made.stamp
            for episode in play.tables.log
            for decisions in episode.decisions.values()
            for made in decisions
            if play.spec.seats[made.seat] == kind
        ]
        # with a hand-over due, the actor has chosen actions that are not played yet
        unplayed = [stamp for stamp in play.held(kind) if stamp not in set(made)]
        assert Counter(play.trained(kind) + play.held(kind)) == Counter(made + unplayed)
        assert len(play.trained(kind)) > len(made) / 2
        assert bool(unplayed) <= (play.hand_over_after is not None)


def test_rows_are_what_was_played(play: Play) -> None:
    log = Log(play.tables.log)
    for handed in play.handed:
        for batch, length in columns(handed):
            assert 1 <= length <= play.unroll_length
            stamps = number_of(batch.observation["stamp"][:, 0, 0]).tolist()
            for row in np.flatnonzero(batch.valid[:, 0]).tolist():
                wanted = log.expected(stamps[row], timed=play.spec.timed)
                for head, action in wanted["action"].items():
                    assert np.array_equal(batch.action[head][row, 0], action)
                assert batch.reward[row, 0] == pytest.approx(wanted["reward"], abs=1e-6)
                assert batch.first[row, 0] == wanted["first"]
                assert batch.over[row, 0] == wanted["over"]
                if not wanted["over"]:
                    assert stamps[row + 1] == wanted["next"], "the row after is not what came after"
                    assert batch.elapsed[row, 0] == wanted["elapsed"]
                assert batch.follows[row, 0] == (wanted["next_is_decision"] and row + 1 < length)
            assert not batch.valid[length:].any()


def test_reward_before_the_first_decision_is_dropped_and_counted(play: Play) -> None:
    early = sum(episode.early_reward for episode in play.tables.log)
    assert play.actor.recorder.dropped_reward == pytest.approx(early)


def slow_advantages(batch: Batch, length: int, log: Log, *, timed: bool, gamma: float, lambda_: float) -> Any:
    """GAE of one slot: rewards, ends and times from the log; values from the slot."""
    stamps = number_of(batch.observation["stamp"][:, 0, 0]).tolist()
    value: dict[int, float] = {}
    for row, stamp in enumerate(stamps[: length + 1]):
        value.setdefault(stamp, float(batch.value[row, 0]))  # after an over row an old one may lie around
    inside = {stamps[row] for row in np.flatnonzero(batch.valid[:, 0])}

    def advantage(stamp: int) -> float:
        wanted = log.expected(stamp, timed=timed)
        if wanted["over"]:
            return float(wanted["reward"]) - value[stamp]
        discount = gamma ** wanted["elapsed"]
        error = wanted["reward"] + discount * value[wanted["next"]] - value[stamp]
        later = advantage(wanted["next"]) if wanted["next"] in inside else 0.0
        return float(error + discount * lambda_ * later)

    return {row: advantage(stamps[row]) for row in np.flatnonzero(batch.valid[:, 0]).tolist()}


def test_advantages_are_those_of_the_log(play: Play) -> None:
    log = Log(play.tables.log)
    policy = play.build()[0]
    for handed in play.handed:
        tensors = handed.batch.map(torch.from_numpy)
        fast = advantage_columns(policy, tensors, gamma=0.9, lambda_=0.8, normalise=False)["advantage"]
        for column, (batch, length) in enumerate(columns(handed)):
            slow = slow_advantages(batch, length, log, timed=play.spec.timed, gamma=0.9, lambda_=0.8)
            for row, advantage in slow.items():
                assert float(fast[row, column]) == pytest.approx(advantage, abs=1e-5)


def unrolled_by_version(play: Play, handed: HandedOver, policies: Any) -> dict[int, Any]:
    """What each of the weights that made these trajectories says about all their rows."""
    tensors = handed.batch.map(torch.from_numpy)
    unrolled = {}
    for version in np.unique(handed.batch.version[handed.batch.valid]).tolist():
        load_weights(policies, play.by_model[f"{handed.player}:0:{version}"])
        with torch.no_grad():
            unrolled[version] = policies[handed.kind].unroll(tensors)
    return unrolled


def check_unroll(play: Play, handed: HandedOver, policies: Any) -> tuple[int, int]:
    """The numbers written while acting against those of the whole slot unrolled; counts what was compared."""
    compared = in_the_middle = 0
    by_version = unrolled_by_version(play, handed, policies)
    for column, (batch, length) in enumerate(columns(handed)):
        made, version_of = batch.valid[:, 0], batch.version[:, 0]
        goes_on = made[:length] & ~batch.over[:length, 0]
        bootstraps = np.flatnonzero(goes_on & ~made[1 : length + 1]) + 1
        rows = np.flatnonzero(made)
        valued = np.append(rows, bootstraps)
        if play.model.memory and len(set(version_of[valued])) > 1:
            continue  # other weights have remembered
        for row in valued.tolist():
            if (unrolled := by_version.get(int(version_of[row]))) is not None:
                assert float(unrolled.value[row, column]) == pytest.approx(batch.value[row, 0], abs=1e-5)
        for row in rows.tolist():
            log_prob = by_version[int(version_of[row])].log_prob[row, column]
            assert log_prob.tolist() == pytest.approx(batch.log_prob[row, 0].tolist(), abs=1e-5)
        compared += len(rows)
        in_the_middle += int(not batch.first[0, 0])
    return compared, in_the_middle


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", [SMALL, WITH_MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("game", GAMES)
def test_acting_and_unrolling_agree(game: str, model: ActorCritic, schedule: str) -> None:
    play = self_play(GAMES[game], model=model, **SCHEDULES[schedule]).run(STEPS)
    policies = play.build()
    compared, in_the_middle = np.sum([check_unroll(play, handed, policies) for handed in play.handed], axis=0)
    assert compared > sum(len(play.trained(kind)) for kind in range(len(play.pools))) / 3
    assert in_the_middle, "no slot began in the middle of an episode"
    assert (len(play.by_model) > 3) == play.new_weights


def test_memory_of_a_slot_is_what_the_seat_remembered() -> None:
    """Zero where an episode begins, not zero in the middle of one."""
    play = self_play(GAMES["connect_four"], model=WITH_MEMORY, hand_over_after=30).run(STEPS)
    for handed in play.handed:
        remembered = (handed.batch.state["h"] != 0).any(1)
        assert np.array_equal(remembered, ~handed.batch.first[0])
    assert any((~handed.batch.first[0]).any() for handed in play.handed)
