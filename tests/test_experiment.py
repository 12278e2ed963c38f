"""An experiment refuses what cannot work, naming the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ludus.config import apply_overrides, decode, encode
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.isolation.isolated import Isolated, Isolation
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.recipes.kuhn import experiment
from ludus.workers.config import Supervision


@pytest.mark.parametrize("game", ["kuhn", Kuhn, None])
def test_a_game_that_is_none_is_named(game: Any) -> None:
    with pytest.raises(ValueError, match=r"game must be a game such as Kuhn\(\)"):
        Experiment(name="mine", game=game, budget=10)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget": 0}, "budget"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"runtime": "cluster"}, "runtime is 'cluster', not one of .'auto', 'serial', 'local'"),
        ({"policies": "per_sea"}, "policies must be one of shared, per_seat"),
        ({"policies": {"seat0": "a"}}, "policies for kuhn: no pattern fits team1/seat0"),
        (
            {"isolation": Isolation(step_seconds=40.0)},
            r"isolation.step_seconds \(40\) and isolation.start_seconds \(30\) together must be below "
            r"supervision.hung_after_s \(60\)",
        ),
        (
            {"game": Isolated("kuhn", {"critic_state": True}, start_seconds=40.0)},
            r"game.step_seconds \(20\) and game.start_seconds",
        ),
        ({"model": ActorCritic()}, "algorithm.all_actions needs .* set model.action_values=true"),
    ],
)
def test_impossible_values_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(experiment(), **change)


@pytest.mark.parametrize(
    "change", [{"runtime": "serial"}, {"supervision": Supervision(hung_after_s=71.0)}], ids=["serial", "local"]
)
def test_a_slow_game_may_be_waited_for_where_nobody_takes_that_for_a_hang(change: dict[str, Any]) -> None:
    replace(experiment(), isolation=Isolation(step_seconds=40.0), **change)


def test_policies_are_a_setting_like_any_other() -> None:
    changed = apply_overrides(experiment(), {"policies": "{seat1: second, '*': first}"})
    assert changed.policies == {"seat1": "second", "*": "first"}
    assert [kind.name for kind in changed.grouped_game.spec.kinds] == ["first", "second"]
    assert decode(encode(changed)) == changed
    assert apply_overrides(experiment(), {"policies": "per_place"}).policies == "per_place"


@pytest.mark.parametrize(
    ("line_up", "named"),
    [
        ({"seat1": "self", "*": "random"}, "league.roles.main.line_up: 'seat1' fits no seat"),
        ({"*": "randm"}, "league.roles.main.line_up: no seat is left to the player itself"),
    ],
)
def test_a_line_up_that_does_not_fit_the_game_is_named(line_up: dict[str, Any], named: str) -> None:
    rules = LeagueRules(roles={"main": Role(line_up=line_up)}, bots=("random",))
    with pytest.raises(ValueError, match=named):
        replace(experiment(), league=rules)
