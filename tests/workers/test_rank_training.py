"""Ranks of a learner: together they do what one learner does with all their batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock

import numpy as np
import pytest
from rank_threads import in_ranks
from table_play import GAMES, Play, self_play

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm, Loss
from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import Teacher
from ludus.data.batch import Batch
from ludus.data.trees import Tree
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy
from ludus.workers.config import LearnerConfig
from ludus.workers.ranks import ALONE, Ranks
from ludus.workers.trained_player import TrainedPlayer

CONFIG = LearnerConfig(
    batch_size=64, minibatch_size=40, epochs=3, buffer_size=64, learning_rate=0.01, max_gradient_norm=0.1
)
MODEL = ActorCritic(hidden=(8,), channels=(4,), entity_size=4, value_normalisation=True)
REMEMBERING = replace(MODEL, memory=4)
UPDATES = 3


def part_of(batch: Batch, columns: Sequence[int]) -> Batch:
    return batch.columns(np.array(columns, np.int64))


def nothing_of(batch: Batch) -> Batch:
    one = part_of(batch, [0])
    return replace(one, valid=one.valid & False)


def split(batch: Batch, shares: Sequence[float]) -> list[Batch]:
    """One after the other, as large as `shares` say, which add up to 1."""
    ends = np.round(np.cumsum([0, *shares]) * batch.valid.shape[1]).astype(int)
    return [part_of(batch, range(*pair)) for pair in pairwise(ends)]


def plays(game: str, model: ActorCritic) -> list[Play]:
    """What the updates train on."""
    return [self_play(GAMES[game], model=model, seed=seed).run(60) for seed in range(UPDATES)]


def batches_of(play: Play) -> dict[int, Batch]:
    return {kind: play.joined(kind) for kind in range(len(play.pools))}


_building = Lock()
"""Networks draw their first weights from a source that all threads share."""


def new_player(play: Play, algorithm: Algorithm, ranks: Ranks = ALONE) -> TrainedPlayer:
    with _building:
        return TrainedPlayer("main", play.build(3), algorithm, CONFIG, seed=5, ranks=ranks)


def assert_close(one: Tree, other: Tree) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert np.abs(one[name] - other[name]).max(initial=0.0) < 1e-5, name


def assert_together_as_alone(algorithm: Algorithm, game: str, model: ActorCritic, shares: Sequence[float]) -> None:
    played = plays(game, model)
    alone = new_player(played[0], algorithm)
    before = alone.weights()
    expected = [alone.update(batches_of(play), 0.1) for play in played]

    def train(ranks: Ranks) -> tuple[TrainedPlayer, list[dict[str, float]]]:
        player = new_player(played[0], algorithm, ranks)
        measured = []
        for play in played:
            own = {kind: split(batch, shares)[ranks.rank] for kind, batch in batches_of(play).items()}
            measured.append(player.update(own, 0.1))
        return player, measured

    trained = in_ranks(len(shares), train)
    saved = [player.save() for player, _ in trained]
    for arrays, facts in saved[1:]:
        assert facts == saved[0][1]
        assert all(np.array_equal(saved[0][0][name], array) for name, array in arrays.items()), "same bits"
    player, measured = trained[0]
    assert any(np.abs(before[name] - array).max() > 0.01 for name, array in alone.weights().items())
    assert_close(alone.weights(), player.weights())
    assert_close(alone.average_weights(), player.average_weights())
    arrays, facts = alone.save()
    assert facts == saved[0][1], "counters, and the chances of what comes next"
    assert_close(arrays, saved[0][0])
    for one, other in zip(expected, measured, strict=True):
        # A rank without rows cannot tell whether a policy is constant.
        assert one.keys() - {"constant_policy"} == other.keys() - {"constant_policy"}
        # Some are of each rank's own rows, which is another thing: how well values fit them, and means over
        # those that use a head.
        by_head = {name for name in one if name.startswith("entropy.")}
        for name in one.keys() - {"explained_variance", "constant_policy"} - by_head:
            assert other[name] == pytest.approx(one[name], abs=2e-4), name


ALGORITHMS: Mapping[str, Algorithm] = {
    "ppo": PPO(value_clip=0.2, recompute_values=True),
    "ppo with a teacher": PPO(teacher=Teacher(weight=0.1)),
    "a2c": A2C(normalise_advantage=True),
    "magnet": MagnetPolicyGradient(),
    "impala": Impala(upgo_weight=0.5),
    "alphastar": AlphaStarGradient(),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_ranks_are_one_with_both_batches(algorithm: str) -> None:
    assert_together_as_alone(ALGORITHMS[algorithm], "connect_four", MODEL, (0.5, 0.5))


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_a_policy_that_remembers(algorithm: str) -> None:
    assert_together_as_alone(ALGORITHMS[algorithm], "leduc", REMEMBERING, (0.4, 0.6))


@pytest.mark.parametrize("shares", [(0.9, 0.1), (1.0, 0.0), (0.0, 1.0), (0.3, 0.02, 0.68)])
def test_shares_may_be_as_unequal_as_they_like(shares: Sequence[float]) -> None:
    assert_together_as_alone(PPO(), "connect_four", MODEL, shares)


def test_kinds_of_seat_count_the_same_however_they_are_spread() -> None:
    assert_together_as_alone(PPO(), "siege", MODEL, (0.25, 0.75))


def test_a_kind_of_seat_that_only_another_rank_has() -> None:
    played = plays("siege", MODEL)
    alone = new_player(played[0], PPO())
    for play in played:
        alone.update(batches_of(play), 0.1)

    def train(ranks: Ranks) -> TrainedPlayer:
        player = new_player(played[0], PPO(), ranks)
        for play in played:
            batches = batches_of(play)
            other = 1 - ranks.rank
            player.update({ranks.rank: batches[ranks.rank]}, 0.1, {other: nothing_of(batches[other])})
        return player

    for player in in_ranks(2, train):
        assert_close(alone.weights(), player.weights())
        assert player.decisions == alone.decisions


@dataclass(frozen=True, kw_only=True, slots=True)
class BadWherePaid(PPO):
    """Its loss is no number in minibatches with a decision that was paid too much."""

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        return PPO.prepare(self, policy, references, batch).with_extra(paid=batch.reward)

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        loss = PPO.loss(self, policy, batch)
        bad = bool((batch.extra["paid"] > 100).any())
        return replace(loss, total=loss.total * (float("nan") if bad else 1.0))


def test_a_loss_that_is_no_number_in_one_rank_is_skipped_in_all() -> None:
    play = plays("connect_four", MODEL)[0]
    good = split(batches_of(play)[0], (0.5, 0.5))
    reward = good[1].reward.copy()
    reward[0, 0] = 1000.0
    bad = [good[0], replace(good[1], reward=reward)]

    def train(ranks: Ranks) -> tuple[TrainedPlayer, list[dict[str, float]]]:
        player = new_player(play, BadWherePaid(), ranks)
        return player, [player.update({0: parts[ranks.rank]}, 0.1) for parts in (good, bad)]

    (one, measured), (other, _) = in_ranks(2, train)
    assert one.skipped == other.skipped == CONFIG.epochs, "one minibatch of every pass"
    assert measured[1]["gradient_steps"] == measured[0]["gradient_steps"] - CONFIG.epochs > 0
    assert all(np.array_equal(array, other.weights()[name]) for name, array in one.weights().items())
    assert all(np.isfinite(array).all() for array in one.weights().values())


def test_all_of_a_batch_too_old_teaches_nothing_in_any_rank() -> None:
    play = plays("connect_four", MODEL)[0]
    batch = batches_of(play)[0]
    old = replace(batch, valid=batch.valid & False)

    def train(ranks: Ranks) -> TrainedPlayer:
        player = new_player(play, PPO(), ranks)
        player.update({0: old}, 0.0)
        return player

    fresh = new_player(play, PPO()).weights()
    for player in in_ranks(2, train):
        assert (player.decisions, player.step, player.skipped) == (0, 1, 0)
        assert all(np.array_equal(fresh[name], array) for name, array in player.weights().items())
