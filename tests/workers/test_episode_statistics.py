"""What learning players get out of episodes: by hand, and by a game whose rewards are known."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.data.records import Match, Pair, Result, Side
from ludus.workers.controller import EpisodeStatistics


def ended(match: Match, score: tuple[float, ...], reward: tuple[float, ...], **other: Any) -> Result:
    sides = len(match.sides)
    fields: dict[str, Any] = {
        "match_id": match.id,
        "episodes": match.episodes,
        "steps": 6 * match.episodes,
        "decisions": (1,) * sides,
        "pairs": (Pair(0, 1, 0, match.episodes, 0),),
        "score_sum": score,
        "score_square_sum": score,
        "first_models": ("",) * sides,
        "last_models": ("",) * sides,
        "reward_sum": reward,
    }
    return Result(**fields | other)


def match(number: int, first: Side, second: Side, episodes: int) -> Match:
    return Match(number, "training", (first, second), tables=1, episodes_per_table=episodes)


def test_means_are_over_the_episodes_of_the_side_that_learns() -> None:
    learner, opponent = Side(("main",), ("main",)), Side(("main.1",), ())
    statistics = EpisodeStatistics()
    one, two = match(0, learner, opponent, 2), match(1, opponent, learner, 6)
    statistics.note(one, ended(one, (2.0, -2.0), (4.0, -4.0)))
    statistics.note(two, ended(two, (0.0, 6.0), (1.0, 12.0), steps=100))
    assert statistics.take() == {
        "main/episode_score": pytest.approx(8 / 8),
        "main/episode_reward": pytest.approx(16 / 8),
        "main/episode_length": pytest.approx((12 + 100) / 8),
    }
    assert statistics.take() == {}


def test_a_result_without_rewards_still_has_scores() -> None:
    learner = Side(("main",), ("main",))
    statistics = EpisodeStatistics()
    one = match(0, learner, learner, 2)
    statistics.note(one, ended(one, (1.0, -1.0), ()))
    assert statistics.take() == {"main/episode_score": 0.0, "main/episode_length": 6.0}
