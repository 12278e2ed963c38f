"""Names of players, tags and models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ludus.data.records import LearnerProgress, ModelId, PlayerAdded, RunStarted
from ludus.league.league import League
from ludus.league.players import BEST_VALIDATION
from ludus.league.rules import LeagueRules, Role
from ludus.store.model_pool import ModelPool, UnknownModel
from ludus.workers.player_cache import resolve_player


@pytest.fixture
def pool(tmp_path: Path) -> ModelPool:
    made = ModelPool(tmp_path)
    for step in (1, 2, 3):
        made.publish(ModelId("main", 0, step), {"w": np.full(1, step)}, parent=None, facts={})
    made.tag("best", ModelId("main", 0, 1))  # which the league does not say
    return made


@pytest.fixture
def league() -> League:
    made = League(LeagueRules(roles={"main": Role()}, bots=("bot",)), num_teams=2, seats_per_team=(1, 1), seed=0)
    for event in (RunStarted(0), *made.initial_events(), LearnerProgress("main", 0, 3, 9)):
        made.apply(event)
    for step in (1, 2):
        made.apply(
            PlayerAdded(
                player=f"main.{step}",
                role="frozen",
                parent="main",
                model=f"main:0:{step}",
                weights="average" if step == 2 else "live",
                reason=BEST_VALIDATION if step == 2 else "",
            )
        )
    return made


@pytest.mark.parametrize(
    ("text", "step", "weights"),
    [
        ("main.1", 1, "live"),
        ("main.2", 2, "average"),
        ("main@best", 2, "average"),
        ("main@latest", 3, "live"),
        ("main", 3, "live"),
        ("main:0:2", 2, "average"),
        ("main:0:3", 3, "live"),
    ],
)
def test_a_name_means_a_model_and_the_weights_that_its_snapshot_pins(
    text: str, step: int, weights: str, league: League, pool: ModelPool
) -> None:
    assert resolve_player(league, pool, text) == (ModelId("main", 0, step), weights)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bot", "'bot' is a bot and has no model"),
        ("mian@best", "did you mean 'main'"),
        ("main@bst", "did you mean 'best'"),
        ("main:0:9", "no model main:0:9"),
    ],
)
def test_a_wrong_name_is_an_error_with_the_nearest(text: str, message: str, league: League, pool: ModelPool) -> None:
    with pytest.raises(UnknownModel, match=message):
        resolve_player(league, pool, text)
