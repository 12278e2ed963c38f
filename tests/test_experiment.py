"""An experiment refuses what cannot work, naming the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.recipes.kuhn import experiment


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
        ({"runtime": "cluster"}, "serial, local"),
    ],
)
def test_impossible_values_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(experiment(), **change)
