"""SlimeVolley in torch: the same game as the library's to the last bit, and a training with it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Ludus
from torch._dynamo.testing import CompileCounter
from whole_runs import check_ledger

from ludus.data.records import MatchFinished, MatchIssued
from ludus.games.adapters.slimevolley import SlimeVolley
from ludus.games.bots import act_among
from ludus.games.check import check_game
from ludus.games.device import twin_check
from ludus.games.device.slimevolley import TensorSlimeVolley
from ludus.games.device.tensor_game import tensor_game_of
from ludus.games.device.twin_check import fixed_shape_faults, twin_differences
from ludus.games.game import allocate_actions
from ludus.games.isolation.isolated import Isolated
from ludus.store.run_folder import read_metrics

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("slimevolleygym") is None,
    reason="slimevolleygym is not installed; pip install -e '.[slimevolley]' adds it",
)


def twin(**options: int) -> TensorSlimeVolley:
    game = tensor_game_of(SlimeVolley(**options))
    assert isinstance(game, TensorSlimeVolley)
    return game


@pytest.fixture
def exactly(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Comparisons are of all bits. Returns how many rows were true in each of the comparisons of ends."""
    ends: list[int] = []

    def equal(one: Any, other: Any) -> bool:
        if one.dtype == np.bool_ and one.ndim == 1:
            ends.append(int(other.sum()))
        return np.array_equal(one, other)

    monkeypatch.setattr(twin_check, "_equal", equal)
    return ends


@needs_library
def test_random_episodes_equal_the_librarys_to_the_last_bit(exactly: list[int]) -> None:
    source = SlimeVolley(max_length=650)
    assert twin_differences(twin(max_length=650), source, steps=1_400, seed=0, tables=24) == []
    over, truncated = sum(exactly[::2]), sum(exactly[1::2])
    assert over > 5
    assert truncated > 5


@needs_library
@pytest.mark.slow
def test_whole_episodes_of_its_own_player_equal_the_librarys_to_the_last_bit() -> None:
    """It keeps the ball in play for 3,000 frames; a side that moves at random now and then loses points."""
    source, game, count = SlimeVolley(), twin(), 24
    there, here, rng = source.tables(count), game.tables(count), np.random.default_rng(2)
    for tables in (there, here):
        tables.reset(np.arange(count), np.arange(count, dtype=np.uint64))
    bots, points = source.bots(), 0.0
    strays = np.linspace(0.0, 0.2, count)[:, None] * [1.0, 0.5]
    for _ in range(3_000):
        actions = allocate_actions(source.spec, count)
        stray = rng.random((count, 2)) < strays
        act_among(bots["baseline"], there, ~stray, rng, actions)
        act_among(bots["random"], there, stray, rng, actions)
        for tables in (there, here):
            tables.step(actions)
        for name in ("to_act", "reward", "over", "truncated", "score"):
            playing = slice(None) if name != "score" else there.view.over | there.view.truncated
            np.testing.assert_array_equal(getattr(here.view, name)[playing], getattr(there.view, name)[playing])
        np.testing.assert_array_equal(here.view.observation[0]["court"], there.view.observation[0]["court"])
        points += float(abs(there.view.reward[:, 0]).sum())
    assert points > 60
    assert there.view.over.sum() > 4
    assert there.view.truncated.sum() > 4
    assert not there.view.to_act.any()


@needs_library
def test_it_trains_on_the_device_and_counts_episodes_that_are_cut_off(ludus: Ludus, tmp_path: Path) -> None:
    given = {
        "learner.device": "cpu",
        "budget": "16000",
        "game.max_length": "40",
        "model.hidden": "16",
        "actor.num_tables": "32",
        "actor.matches": "4",
        "learner.batch_size": "2048",
        "learner.minibatch_size": "256",
        "learner.epochs": "1",
        "league.roles.main.promotion.every": "4000",
        "evaluation.episodes": "4",
    }
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    shown = ludus("train", "slimevolley_device", "--run", "run", "--quiet", *options)
    assert shown.code == 0, shown.err
    events = check_ledger(tmp_path / "run")
    matches = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    results = [event.result for event in events if isinstance(event, MatchFinished)]
    trained = [one for one in results if matches[one.match_id].purpose == "training"]
    assert len(trained) > 4
    assert all(one.steps == 40 * one.episodes for one in trained)  # no point ends a game of 40 frames
    rows, _ = read_metrics(tmp_path / "run" / "metrics" / "train.jsonl")
    last = rows[-1]
    assert last["decisions"] >= 16_000
    # One of 40 decisions is the bootstrap of the one before it.
    assert 0 < last["main/unused"] < 0.05 * last["decisions"]


def test_it_needs_no_library_and_its_shapes_are_fixed() -> None:
    assert fixed_shape_faults(twin(), rows=8) == []


def test_a_step_is_one_graph() -> None:
    game, counter = twin(), CompileCounter()
    state = game.start(torch.rand(4, game.start_draws))
    moves, nothing = torch.tensor([[0, 1], [2, 3], [4, 5], [1, 1]]), torch.zeros(4, 0)
    torch._dynamo.reset()
    played = torch.compile(game.step, dynamic=False, backend=counter)(state, moves, nothing)
    torch.testing.assert_close(played, game.step(state, moves, nothing))
    assert counter.frame_count == 1


def test_serves_are_drawn_from_the_seeds_numbers() -> None:
    game = twin()
    seeds = np.array([3, 2**63], np.uint64)
    numbers = np.stack([np.random.default_rng(seed).random(18) for seed in seeds.tolist()]).reshape(2, 9, 2)
    serves = game.start(torch.from_numpy(game.draws(seeds, -1)))["serves"].numpy()
    np.testing.assert_array_equal(serves, numbers * [40.0, 15.0] + [-20.0, 10.0])
    assert game.draws(seeds, 7).shape == (2, 0)


def test_a_library_in_an_environment_of_its_own_is_no_hindrance() -> None:
    """As `ludus games --install slimevolley` makes one. A game that a user isolates is not taken out of its process."""
    game = Isolated("slimevolley", python="/elsewhere/bin/python")
    game.__dict__["spec"] = SlimeVolley(max_length=50).spec  # which its process would tell
    found = tensor_game_of(game)
    assert isinstance(found, TensorSlimeVolley)
    assert found.spec.max_length == 50
    assert tensor_game_of(Isolated("slimevolley")) is None
    assert tensor_game_of(Isolated("connect_four", python="/elsewhere/bin/python")) is None


@needs_library
def test_the_check_compares_it_with_a_library_in_an_environment_of_its_own() -> None:
    report = check_game(Isolated("slimevolley", python=sys.executable), episodes=1, max_steps=20)
    [found] = [one for one in report.verdicts if one.promise == "tensor_twin"]
    assert found.times == 1
    assert found.ok
