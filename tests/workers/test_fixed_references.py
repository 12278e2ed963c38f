"""A fixed reference is what the player first started from, whatever happens to the player later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table_play import GAMES, self_play

from ludus.algorithms.algorithm import Reference
from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.data.batch import Batch
from ludus.data.trees import Tree
from ludus.models.network_policy import ActorCritic
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer

CONFIG = LearnerConfig(batch_size=64, minibatch_size=32, epochs=1, buffer_size=64, learning_rate=0.01)
MODEL = ActorCritic(hidden=(8,), memory=4)


def played() -> dict[int, Batch]:
    play = self_play(GAMES["connect_four"], model=MODEL).run(20)
    return {0: play.joined(0)}


def new_player(seed: int, algorithm: Any = None) -> TrainedPlayer:
    play = self_play(GAMES["connect_four"], model=MODEL)
    return TrainedPlayer("main", play.build(seed), algorithm or AlphaStarGradient(), CONFIG, seed=5)


def teacher_of(player: TrainedPlayer) -> Tree:
    arrays, _ = player.save()
    kind = player.policies[0].kind.name
    return {
        name.replace("reference.teacher.0.", f"{kind}/"): array
        for name, array in arrays.items()
        if name.startswith("reference.teacher.")
    }


def equal(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_it_stays_through_updates_resets_and_value_only_training() -> None:
    main = new_player(1)
    first, other = main.weights(), new_player(2).weights()
    main.update(played(), 0.0)
    assert not equal(main.weights(), first)
    assert equal(teacher_of(main), first)
    main.reset(other, 1, value_only=10**9)
    assert equal(main.weights(), other)
    assert equal(teacher_of(main), first)
    main.update(played(), 0.1)
    assert equal(teacher_of(main), first)


def test_a_player_that_begins_with_given_weights_has_them_as_its_teacher() -> None:
    main, start = new_player(1), new_player(2).weights()
    main.begin_from(start)
    assert equal(teacher_of(main), start)


def test_it_survives_a_stop() -> None:
    main, start = new_player(1), new_player(2).weights()
    main.begin_from(start)
    main.update(played(), 0.0)
    main.reset(new_player(3).weights(), 1)
    again = new_player(4)
    again.load(*main.save())
    assert equal(teacher_of(again), start)
    assert equal(again.weights(), main.weights())
    again.reset(new_player(5).weights(), 2)
    assert equal(teacher_of(again), start)


def test_other_references_begin_anew_with_a_reset() -> None:
    main = new_player(1, MagnetPolicyGradient(magnet=Reference(decay=0.9)))
    other = new_player(2).weights()
    main.reset(other, 1)
    arrays, _ = main.save()
    kind = main.policies[0].kind.name
    for name, array in other.items():
        np.testing.assert_array_equal(arrays["reference.magnet.0." + name.removeprefix(f"{kind}/")], array, name)


def test_what_is_fixed_cannot_follow() -> None:
    with pytest.raises(ValueError, match=r"fixed.*copy_every=3"):
        Reference(fixed=True, copy_every=3)
