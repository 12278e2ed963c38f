"""Several players in one backward pass end where they would have ended one after another."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from table_play import GAMES, self_play, side
from taught_play import TaughtPlay

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm, Reference
from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import Teacher
from ludus.data.batch import Batch
from ludus.data.schedules import Linear, Schedule
from ludus.data.specs import Planes
from ludus.games.game import GameSource
from ludus.models.network_policy import ActorCritic
from ludus.workers.config import LearnerConfig
from ludus.workers.stacked_training import MOST_PLAYERS, groups, update_stacked
from ludus.workers.trained_player import TrainedPlayer

CONFIG = LearnerConfig(
    batch_size=64, minibatch_size=24, epochs=2, buffer_size=64, adam_epsilon=1e-3, stacked="on", device="cpu"
)
MODEL = ActorCritic(hidden=(8,), channels=(4,), entity_size=4, value_normalisation=True)
MEMORY = ActorCritic(hidden=(8,), entity_size=4, memory=6)
LENGTHS = (20, 12, 31)
"""Steps of play that each player learns from: batches of different sizes."""
RATES: tuple[Schedule, ...] = (0.003, 0.001, Linear(start=0.005, end=0.0))


def new_players(
    game: str, algorithm: Algorithm, model: ActorCritic, count: int = 3, **changes: Any
) -> list[TrainedPlayer]:
    play = self_play(GAMES[game], model=model)
    return [
        TrainedPlayer(f"p{index}", play.build(index), algorithm, replace(CONFIG, **changes), seed=index)
        for index in range(count)
    ]


@cache
def played(game: str, model: ActorCritic, steps: int) -> dict[int, Batch]:
    play = self_play(GAMES[game], model=model).run(steps)
    return {kind: play.joined(kind) for kind in range(len(play.pools))}


def spoil(batches: dict[int, Batch]) -> dict[int, Batch]:
    return {kind: replace(batch, reward=batch.reward * np.nan) for kind, batch in batches.items()}


def saved(player: TrainedPlayer) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays, facts = player.save()
    return dict(arrays), facts


def has_planes(game: GameSource) -> bool:
    parts = (part for kind in game.spec.kinds for part in kind.observation.parts.values())
    return any(isinstance(part, Planes) for part in parts)


def assert_alike(stacked: TrainedPlayer, alone: TrainedPlayer) -> None:
    """Weights, average, references, moments, counters and the state of chance."""
    (arrays, facts), (others, other_facts) = saved(stacked), saved(alone)
    assert facts == other_facts
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=1e-4, atol=1e-5, err_msg=name)


def assert_same_numbers(one: dict[str, float], other: dict[str, float]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value == pytest.approx(other[name], rel=1e-3, abs=1e-4), name


CASES: dict[str, tuple[str, Algorithm, ActorCritic]] = {
    "ppo": ("connect_four", PPO(), MODEL),
    "ppo with all options": (
        "connect_four",
        PPO(ratio="per_head", value_clip=0.2, dual_clip=3.0, huber=1.0, recompute_values=True),
        MODEL,
    ),
    "a2c": ("kuhn", A2C(entropy=Linear(start=0.1, end=0.01), normalise_advantage=True), MODEL),
    "impala": ("connect_four", Impala(upgo_weight=0.5), MODEL),
    "impala per head": ("siege", Impala(ratio="per_head"), MODEL),
    "magnet": ("leduc", MagnetPolicyGradient(magnet=Reference(copy_every=2), clip=0.2), MODEL),
    "uniform magnet": ("kuhn", MagnetPolicyGradient(step_weight=0.0), MODEL),
    "kinds of seat, entities": ("siege", PPO(), MODEL),
    "planes": ("hills", PPO(), MODEL),
    "memory": ("connect_four", PPO(), MEMORY),
    "memory and impala": ("connect_four", Impala(), MEMORY),
    "alphastar": ("siege", AlphaStarGradient(entropy=0.01, teacher=Teacher(weight=0.1)), MODEL),
    "teacher": ("siege", PPO(teacher=Teacher(weight=Linear(start=0.5, end=0.1))), MODEL),
    "memory and teacher": ("connect_four", PPO(teacher=Teacher(weight=0.5)), MEMORY),
    "memory and alphastar": ("connect_four", AlphaStarGradient(teacher=Teacher(weight=0.1)), MEMORY),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_as_if_they_were_trained_one_after_another(case: str) -> None:
    game, algorithm, model = CASES[case]
    stacked, alone = new_players(game, algorithm, model), new_players(game, algorithm, model)
    for players in (stacked, alone):
        for player, rate in zip(players, RATES, strict=True):
            player.configure(algorithm, replace(player.config, learning_rate=rate))
    assert groups(stacked) == [stacked]
    batches = [played(game, model, steps) for steps in LENGTHS]
    for update in range(2):
        measured = update_stacked(stacked, batches, update / 2)
        for one, other, own, numbers in zip(stacked, alone, batches, measured, strict=True):
            assert_same_numbers(numbers, other.update(own, update / 2))
            assert_alike(one, other)
    assert all(player.skipped == 0 and player.step == 2 for player in stacked)


@pytest.mark.parametrize("case", ["ppo", "kinds of seat, entities", "memory"])
def test_a_player_whose_numbers_are_not_finite_is_skipped_alone(case: str) -> None:
    game, algorithm, model = CASES[case]
    stacked, alone = new_players(game, algorithm, model), new_players(game, algorithm, model)
    before = stacked[1].weights()
    batches = [played(game, model, steps) for steps in LENGTHS]
    batches[1] = spoil(batches[1])
    measured = update_stacked(stacked, batches, 0.0)
    for one, other, own, numbers in zip(stacked, alone, batches, measured, strict=True):
        assert_same_numbers(numbers, other.update(own, 0.0))
        assert_alike(one, other)
    assert [player.skipped > 0 for player in stacked] == [False, True, False]
    trained = stacked[1].weights()
    assert all(np.array_equal(before[name], trained[name]) for name in before if "value_scale" not in name)


def test_a_player_without_a_batch_of_some_kind_keeps_the_policy_of_that_kind() -> None:
    stacked, alone = new_players("siege", PPO(), MODEL), new_players("siege", PPO(), MODEL)
    batches = [played("siege", MODEL, steps) for steps in LENGTHS]
    batches[0] = {1: batches[0][1]}
    batches[2] = {0: batches[2][0]}
    for _ in range(2):
        measured = update_stacked(stacked, batches, 0.0)
        for one, other, own, numbers in zip(stacked, alone, batches, measured, strict=True):
            assert_same_numbers(numbers, other.update(own, 0.0))
            assert_alike(one, other)


@pytest.mark.parametrize("case", ["ppo", "memory", "magnet", "teacher", "memory and teacher"])
@pytest.mark.parametrize("old", [{1}, {0, 1, 2}])
def test_a_batch_that_is_too_old_changes_nothing_but_counters(case: str, old: set[int]) -> None:
    game, algorithm, model = CASES[case]
    stacked, alone = new_players(game, algorithm, model), new_players(game, algorithm, model)
    batches = [played(game, model, steps) for steps in LENGTHS]
    for index in old:
        batches[index] = {
            kind: replace(batch, valid=np.zeros_like(batch.valid)) for kind, batch in batches[index].items()
        }
    measured = update_stacked(stacked, batches, 0.0)
    for one, other, own, numbers in zip(stacked, alone, batches, measured, strict=True):
        assert_same_numbers(numbers, other.update(own, 0.0))
        assert_alike(one, other)


def test_one_that_trains_its_value_alone_and_one_that_was_reset_are_no_concern_of_the_others() -> None:
    stacked, alone = new_players("connect_four", PPO(), MODEL), new_players("connect_four", PPO(), MODEL)
    batches = [played("connect_four", MODEL, steps) for steps in LENGTHS]
    for update in range(3):
        for players in (stacked, alone):
            if update == 1:
                players[0].reset(players[2].weights(), 1, value_only=10**6)
                players[1].reset(players[2].weights(), 1)
        measured = update_stacked(stacked, batches, 0.0)
        for one, other, own, numbers in zip(stacked, alone, batches, measured, strict=True):
            assert_same_numbers(numbers, other.update(own, 0.0))
            assert_alike(one, other)
    assert measured[0]["value_only"] == 1.0
    assert "value_only" not in measured[1]


def test_what_was_stacked_goes_on_alone_and_survives_a_stop() -> None:
    stacked, alone = new_players("connect_four", PPO(), MODEL), new_players("connect_four", PPO(), MODEL)
    batches = [played("connect_four", MODEL, steps) for steps in LENGTHS]
    update_stacked(stacked, batches, 0.0)
    resumed = new_players("connect_four", PPO(), MODEL)
    for player, one in zip(resumed, stacked, strict=True):
        player.load(*saved(one))
        player.update(batches[0], 0.0)
    for player, other, own in zip(resumed, alone, batches, strict=True):
        other.update(own, 0.0)
        other.update(batches[0], 0.0)
        assert_alike(player, other)


def test_only_players_that_fit_are_grouped() -> None:
    def one(algorithm: Algorithm | None = None, model: ActorCritic = MODEL, **changes: Any) -> TrainedPlayer:
        return new_players("connect_four", algorithm or PPO(), model, 1, **changes)[0]

    first = one()
    fitting = [one(), one(learning_rate=0.5), one(minibatch_size=16), one(average_decay=0.5)]
    others = [
        one(PPO(clip=0.1)),
        one(model=replace(MODEL, hidden=(9,))),
        one(epochs=5),
        one(max_gradient_norm=1.0),
        one(stacked="off"),
        one(stacked="off"),
        one(stacked="auto"),
    ]
    assert groups([first, *others, *fitting]) == [[first, *fitting], *([other] for other in others)]
    many = new_players("kuhn", PPO(), ActorCritic(hidden=(2,)), MOST_PLAYERS + 1)
    assert [len(group) for group in groups(many)] == [MOST_PLAYERS, 1]


def test_by_itself_it_is_done_where_it_was_measured_to_pay() -> None:
    def sizes(game: str, count: int, device: str) -> list[int]:
        players = new_players(game, PPO(), MODEL, count, stacked="auto")
        for player in players:
            player.device = torch.device(device)
        return [len(group) for group in groups(players)]

    assert sizes("connect_four", 3, "cpu") == [1, 1, 1]
    assert sizes("connect_four", 3, "cuda") == [3]
    convolutions = next(name for name, game in GAMES.items() if has_planes(game))
    assert sizes(convolutions, 7, "cuda") == [1] * 7
    assert sizes(convolutions, 8, "cuda") == [8]


def test_an_algorithm_that_does_not_say_so_is_not_stacked() -> None:
    class Own(PPO):
        @property
        def stackable(self) -> bool:
            return False

    players = new_players("connect_four", Own(), MODEL)
    assert groups(players) == [[player] for player in players]


def test_the_learner_trains_together_who_is_ready_together() -> None:
    """Two players at the same tables, with and without stacking: equal weights, all slots free again."""
    plays = []
    for stacked in ("on", "off"):
        config = replace(CONFIG, stacked=stacked, schedule="async", max_lag=3, buffer_size=10_000)
        line_ups = tuple((side(name, trains=True), side(name, trains=True)) for name in ("a", "b"))
        play = TaughtPlay(GAMES["connect_four"], line_ups, config=config, episodes_per_table=4, matches=2)
        for _ in range(40):
            play.actor.step()
        said = [play.learner.step() for _ in range(3)]
        assert {"a/policy_loss", "b/policy_loss"} <= said[0].statistics.keys()
        plays.append(play)
    for name in ("a", "b"):
        one, other = (play.learner.players[name] for play in plays)
        assert one.step > 0
        assert (one.step, one.decisions) == (other.step, other.decisions)
        for key, array in one.weights().items():
            np.testing.assert_allclose(array, other.weights()[key], rtol=1e-4, atol=1e-5, err_msg=key)
        assert plays[0].board.newest(name) == one.model
