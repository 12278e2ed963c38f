"""Rewards beside the main one: from a game to the batch that is trained on, and the values of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from table_play import self_play

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Vector
from ludus.games.check import check_game
from ludus.games.game import Turn
from ludus.games.lift import Lifted
from ludus.games.seat_groups import group_seats
from ludus.models.network_policy import ActorCritic, stack_policies

_KIND = SeatKind(
    name="player",
    observation=ObservationSpec(parts={"seen": Vector(size=1)}),
    action=ActionSpec(heads={"act": Choice(num=3, masked=False)}),
    rewards=("tenfold", "steps"),
)


class Purse:
    """Seats take turns; each step pays both, so that rewards come between a seat's decisions too."""

    spec = GameSpec(name="purse", kinds=(_KIND,), seats=(0, 0), teams=(0, 1), max_length=7, zero_sum=False)
    rewards_of = staticmethod(lambda pay: (10.0 * pay, 1.0))

    def reset(self, seed: int) -> Turn:
        self.rng = np.random.default_rng(seed)
        self.steps = 0
        return Turn(observations={0: [0.0]})

    def step(self, actions: Mapping[int, int]) -> Turn:
        self.steps += 1
        pays = self.rng.integers(0, 2, 2).astype(float).tolist()
        rewards = {seat: self.rewards_of(pay) for seat, pay in enumerate(pays)}
        over = self.steps == 7
        shown = {} if over else {self.steps % 2: [float(self.steps)]}
        return Turn(observations=shown, reward=pays, rewards=rewards, over=over)


class Wrong(Purse):
    rewards_of = staticmethod(lambda pay: (pay,))


def test_they_are_credited_to_the_same_decisions_as_the_main_reward() -> None:
    play = self_play(Lifted(Purse), model=ActorCritic(hidden=(8,))).run(60)
    batch = play.joined(0)
    valid = batch.valid
    assert valid.sum() > 40
    assert batch.reward[valid].any()
    np.testing.assert_allclose(batch.rewards[valid][:, 0], 10 * batch.reward[valid])
    # Two steps from one decision of a seat to its next, one if it made the last.
    steps = batch.rewards[valid][:, 1]
    assert set(np.unique(steps)) == {1.0, 2.0}
    assert (steps[batch.over[valid]] <= 2).all()


def test_they_survive_a_split_into_policies_and_the_check() -> None:
    game = group_seats(Lifted(Purse), "per_seat")
    assert [kind.rewards for kind in game.spec.kinds] == [_KIND.rewards] * 2
    assert check_game(game).ok
    tables = game.tables(2)
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    tables.step(tuple({"act": np.zeros((2, 1), np.int32)} for _ in range(2)))
    for seat, rewards in enumerate(tables.view.rewards):
        np.testing.assert_allclose(rewards[:, 0, 0], 10 * tables.view.reward[:, seat])
        np.testing.assert_allclose(rewards[:, 0, 1], 1.0)


@pytest.mark.parametrize("separate", [True, False])
def test_each_has_a_value_of_its_own(separate: bool) -> None:
    model = ActorCritic(hidden=(8,), separate_critic=separate, memory=4)
    play = self_play(Lifted(Purse), model=model).run(30)
    batch = play.joined(0)
    policies = [model.build(_KIND, seed) for seed in (1, 2)]
    alone = [policy.unroll(batch) for policy in policies]
    assert alone[0].values is not None
    assert alone[0].values.shape == (*batch.valid.shape, 2)
    columns = [alone[0].value, alone[0].values[..., 0], alone[0].values[..., 1]]
    assert all(not one.allclose(other) for one, other in pairwise(columns))
    both = batch.map(lambda array: np.stack([array, array]))
    stacked = stack_policies(policies).unroll(both).values
    assert stacked is not None
    for index, one in enumerate(alone):
        assert stacked[index].allclose(one.values, atol=1e-6)


def test_a_wrong_number_of_them_is_named() -> None:
    with pytest.raises(ValueError, match=r"rewards of seat 0 are \[.*\], but it has \['tenfold', 'steps'\]"):
        self_play(Lifted(Wrong), model=ActorCritic(hidden=(8,))).run(3)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'player' names a reward twice: gold, gold"):
        SeatKind(name="player", observation=_KIND.observation, action=_KIND.action, rewards=("gold", "gold"))
