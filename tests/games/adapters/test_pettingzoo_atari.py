"""Atari with two to four players: promises, preprocessing, and agreement with PettingZoo's environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="needs `pip install -e '.[multi-atari]'`")
pytest.importorskip("multi_agent_ale_py", reason="needs `pip install -e '.[multi-atari]'`")
pytest.importorskip("ale_py", reason="needs `pip install -e '.[multi-atari]'`")

from ludus.data.specs import Planes, Vector
from ludus.games.adapters.pettingzoo import PettingZoo
from ludus.games.adapters.pettingzoo_atari import MultiAtari
from ludus.games.adapters.pettingzoo_library import make_env
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import GameBatch, HasPicture, allocate_actions
from ludus.games.lift import LiftedBatch
from ludus.games.pictures import averaging
from ludus.recipes import pong


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        MultiAtari(game="pong_v3", size=42, max_length=60),
        MultiAtari(game="pong_v3", options={"num_players": 4}, size=42, max_length=40),
        MultiAtari(game="boxing_v2", size=42, max_length=40),
        MultiAtari(game="warlords_v3", size=21, stack=1, frame_skip=16),
        MultiAtari(game="entombed_competitive_v3", size=21, frame_skip=8, agent_indicator=False),
        PettingZoo(env_name="atari.pong_v3", max_length=30),
        PettingZoo(env_name="atari.warlords_v3", api="aec", max_length=30),
    ],
    ids=repr,
)
def test_games_keep_their_promises(source: Any) -> None:
    report = check_game(source, episodes=1, tables=2, max_steps=100, bot_seconds=0.2)
    assert report.ok, str(report)


def test_four_players_of_pong_are_two_teams() -> None:
    spec = resolve("multi_atari:pong_v3", options={"num_players": 4}).spec
    assert (spec.num_seats, spec.teams, spec.zero_sum) == (4, (0, 1, 0, 1), False)
    assert spec.kinds[0].observation.parts == {
        "screen": Planes(channels=4, height=84, width=84, dtype="uint8"),
        "seat": Vector(size=4),
    }


def test_points_are_those_of_the_environment_and_a_restart_forgets_everything() -> None:
    source = MultiAtari(game="pong_v3", size=21, stack=1, sticky=0.0, no_ops=0)
    batch = source.tables(1)
    env = make_env("atari.pong_v3", "parallel", {})
    env.reset(seed=1)
    env.step({})  # ours plays one frame before it shows anything
    rng = np.random.default_rng(0)
    plan = rng.integers(0, 6, (100, 2))
    paid = np.zeros(2)
    for moves in plan:
        for _ in range(4):
            rewards = env.step(dict(zip(env.possible_agents, moves.tolist(), strict=True)))[1]
            paid += list(rewards.values())
    assert paid.any()
    for seed in (3, 4):  # without sticky actions and no-ops, an episode does not depend on its seed
        batch.reset(np.arange(1), np.array([seed], np.uint64))
        assert _play(batch, plan).tolist() == paid.tolist()


def test_an_episode_can_follow_one_that_was_played_to_its_end() -> None:
    source = MultiAtari(game="entombed_competitive_v3", size=10, stack=1, frame_skip=16, no_ops=0)
    batch = source.tables(1)
    first = []
    for _ in range(2):
        batch.reset(np.arange(1), np.zeros(1, np.uint64))
        first.append(batch.view.observation[0]["screen"].copy())
        while not batch.view.over[0]:
            batch.step(allocate_actions(batch.spec, 1))
    np.testing.assert_array_equal(*first)


def test_the_picture_is_the_screen_made_small() -> None:
    source = MultiAtari(game="pong_v3", size=40, rows=(34, 194), stack=2, no_ops=0, flipped=("second_0",))
    batch = source.tables(1)
    batch.reset(np.arange(1), np.zeros(1, np.uint64))
    for _ in range(30):
        batch.step(allocate_actions(batch.spec, 1))
    screen = batch.view.observation[0]["screen"][0]
    np.testing.assert_array_equal(screen[0], screen[1, :, :, ::-1])
    assert isinstance(batch, HasPicture)
    picture = batch.render(0)
    assert picture.shape == (210, 160, 3)
    shape = picture[34:194].mean(axis=2).reshape(40, 4, 40, 4).mean(axis=(1, 3))
    assert np.corrcoef(shape.ravel(), screen[0, -1].ravel())[0, 1] > 0.9


def test_pixels_are_means_of_what_they_cover() -> None:
    np.testing.assert_allclose(averaging(5, 2), [[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]], atol=1e-6)
    np.testing.assert_allclose(averaging(210, 84).sum(axis=1), 1.0, rtol=1e-5)


def test_sticky_actions_depend_on_the_seed() -> None:
    batch = MultiAtari(game="pong_v3", size=21, stack=1, no_ops=0, sticky=0.5).tables(2)
    plan = np.random.default_rng(0).integers(0, 6, (20, 2))
    seen = []
    for seeds in ([1, 2], [2, 1]):
        batch.reset(np.arange(2), np.array(seeds, np.uint64))
        _play(batch, plan)
        seen.append(batch.view.observation[0]["screen"][:, 0].copy())
    np.testing.assert_array_equal(seen[0], seen[1][::-1])
    assert (seen[0][0] != seen[0][1]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"sticky": 1.0}, r"sticky must be in \[0, 1\), got 1"),
        ({"rows": (0, 300)}, "rows must lie within 0 to 210, got 0 to 300"),
        ({"flipped": ("third_0",)}, "flipped: no agent 'third_0'; there are first_0, second_0"),
        ({"game": "pongg_v3"}, "did you mean 'atari.pong_v3'"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiAtari(**{"game": "pong_v3", **options}).tables(1)


def test_the_recipe_has_a_game_that_fits_its_network() -> None:
    experiment = pong.experiment()
    (kind,) = experiment.game.spec.kinds
    assert experiment.model.build(kind, 0) is not None
    assert isinstance(experiment.game.tables(1), LiftedBatch)


def _play(batch: GameBatch, plan: Any) -> Any:
    """Plays these moves at all tables; what was paid at the first."""
    paid = np.zeros(2)
    for moves in plan:
        actions = allocate_actions(batch.spec, batch.num_tables)
        actions[0]["move"][:] = moves
        batch.step(actions)
        paid += batch.view.reward[0]
    return paid
