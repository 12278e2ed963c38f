from __future__ import annotations

from typing import Any

import pytest

from ludus.league.rules import LeagueRules, Role


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roles": {}}, "needs a learning role"),
        ({"roles": {"main": Role(count=0)}}, "role 'main' has count=0"),
        ({"roles": {"main": Role(count=-2)}}, "role 'main' has count=-2"),
        ({"roles": {"frozen": Role()}}, "'frozen' is reserved"),
        ({"roles": {"own": Role()}}, "'own' is reserved"),
        ({"roles": {"a/b": Role()}}, "player id 'a/b'"),
        ({"roles": {"main.1": Role()}}, "must not contain '.'"),
        ({"roles": {"m" * 60: Role()}}, "too long"),
        ({"roles": {"main": Role()}, "bots": ("a:b",)}, "player id 'a:b'"),
        ({"roles": {"main": Role()}, "bots": ("main",)}, "'main' would be given twice"),
        ({"roles": {"main": Role(count=2), "main_1": Role()}}, "'main_1' would be given twice"),
        ({"roles": {"main": Role()}, "decide_on": "trainning"}, "did you mean 'training'"),
    ],
)
def test_impossible_leagues_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeagueRules(**settings)


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_reset_probability_is_a_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="reset_probability"):
        Role(reset_probability=probability)


def test_players_are_numbered_only_when_there_are_several() -> None:
    rules = LeagueRules(roles={"main": Role(), "foe": Role(count=2)})
    assert rules.players_of("main") == ["main"]
    assert rules.players_of("foe") == ["foe_0", "foe_1"]
