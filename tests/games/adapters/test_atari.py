"""Atari games: promises, the preprocessing, lives, scores, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py", reason="ale-py is not installed: pip install -e '.[atari]'")

from ludus.games.adapters.atari import Atari, AtariTables
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import GameSource, HasPicture, allocate_actions
from ludus.games.pictures import averaging


def tables(num_tables: int = 1, **options: Any) -> AtariTables:
    made = Atari(**options).tables(num_tables)
    assert isinstance(made, AtariTables)
    made.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    return made


def play(batch: AtariTables, steps: int) -> tuple[float, float]:
    """Random moves at one table; the reward and the score of the episode."""
    rng, total = np.random.default_rng(0), 0.0
    for _ in range(steps):
        actions = allocate_actions(batch.spec, 1)
        actions[0]["move"][:] = rng.integers(0, batch.spec.kinds[0].num_options("move"))
        batch.step(actions)
        total += float(batch.view.reward[0, 0])
        if batch.view.over[0] or batch.view.truncated[0]:
            break
    return total, float(batch.view.score[0, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        Atari(game="pong", max_frames=400),
        Atari(game="breakout", max_frames=800),
        Atari(game="breakout", max_frames=800, sticky=0.25, clip_reward=False),
        Atari(game="breakout", max_frames=800, episodic_life=True),
        Atari(game="freeway", max_frames=200, most_no_ops=0),
        Atari(game="ms_pacman", max_frames=200, frame_skip=1, size=42, stack=2, all_actions=True),
        Gymnasium(
            env_id="ale_py.vector_env:AtariVectorEnv",
            options={"game": "breakout", "repeat_action_probability": 0.25},
            max_length=100,
        ),
        Gymnasium(env_id="ale_py:ALE/Pong-v5", max_length=30),
        Gymnasium(env_id="ale_py:ALE/Pong-v5", vectorization="vector", max_length=30),
    ],
    ids=repr,
)
def test_games_keep_the_promises_of_a_game(source: GameSource) -> None:
    report = check_game(source, episodes=4, tables=2, max_steps=250, bot_seconds=0.1)
    assert report.ok, str(report)


def test_a_decision_is_four_frames_and_the_pictures_move_up() -> None:
    batch = tables(game="pong")
    console = batch._consoles[0]
    before, frame = batch.view.observation[0]["screen"][0, 0].copy(), console.getEpisodeFrameNumber()
    assert (before == before[0]).all()  # there was nothing before the first
    batch.step(allocate_actions(batch.spec, 1))
    after = batch.view.observation[0]["screen"][0, 0]
    assert console.getEpisodeFrameNumber() == frame + 4
    assert (after[:-1] == before[1:]).all()
    assert batch.render(0).shape == (210, 160, 3)
    assert isinstance(batch, HasPicture)


def test_places_are_the_mean_of_what_they_cover() -> None:
    halves = averaging(4, 2)
    assert halves.tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]
    assert averaging(5, 2).tolist() == pytest.approx(np.array([[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]]))


def test_pictures_are_those_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    batch = tables(game="pong")
    play(batch, 30)
    brighter = batch._frames[0].max(axis=0)
    theirs = cv2.resize(brighter, (84, 84), interpolation=cv2.INTER_AREA)
    ours = batch.view.observation[0]["screen"][0, 0, -1]
    assert np.abs(ours.astype(np.int64) - theirs).max() <= 1


def test_the_start_differs_by_the_seed_only() -> None:
    batch = tables(8, game="pong")
    frames = [console.getEpisodeFrameNumber() for console in batch._consoles]
    assert len(set(frames)) > 3
    batch.reset(np.array([5]), np.array([2], np.uint64))
    assert batch._consoles[5].getEpisodeFrameNumber() == frames[2]


def test_rewards_are_clipped_and_the_score_is_not() -> None:
    clipped, score = play(tables(game="ms_pacman"), 100)
    plain, same_score = play(tables(game="ms_pacman", clip_reward=False), 100)
    assert score == same_score == plain
    assert score >= 10 * clipped > 0


def test_a_lost_life_ends_an_episode_and_the_next_goes_on() -> None:
    source = Atari(game="breakout", episodic_life=True)
    assert not source.spec.repeatable
    batch = tables(game="breakout", episodic_life=True)
    lives = [batch._consoles[0].lives()]
    for _ in range(5):
        play(batch, 2_000)
        assert batch.view.over[0]
        batch.reset(np.array([0]), np.array([0], np.uint64))
        lives.append(batch._consoles[0].lives())
    assert lives == [5, 4, 3, 2, 1, 5]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no Atari game 'pomg'; did you mean 'pong'"):
        _ = resolve("atari:pomg").spec
    with pytest.raises(ValueError, match=r"pong has no mode 7; there are \[0, 1\]"):
        _ = Atari(game="pong", mode=7).spec
    with pytest.raises(ValueError, match=r"Atari\.sticky must be in \[0, 1\), got 1"):
        Atari(game="pong", sticky=1)
