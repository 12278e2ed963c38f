"""The recipes of Honor of Kings: what they play with and without a gamecore server, and that they train."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.config import encode
from ludus.games.adapters.gamecore import Gamecore
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.recipes import hok_1v1, hok_3v3
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig


@pytest.mark.parametrize("recipe", [hok_1v1, hok_3v3])
def test_plays_on_the_stand_in_unless_a_server_is_named(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAMECORE_SERVER_ADDR", raising=False)
    game = recipe.experiment().game
    assert isinstance(game, Gamecore)
    assert game.stands_in
    monkeypatch.setenv("GAMECORE_SERVER_ADDR", "10.0.0.1:23432")
    named = recipe.experiment().game
    assert named.server_address == "10.0.0.1:23432"
    assert named.spec.kinds[0].observation.arrays["features"].shape == ({"1v1": 725, "3v3": 4586}[named.mode],)


@pytest.mark.parametrize("recipe", [hok_1v1, hok_3v3])
def test_trains_against_common_ai_and_measures_itself_against_it(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GAMECORE_SERVER_ADDR", raising=False)
    whole = recipe.experiment()
    short = replace(
        whole,
        runtime="serial",
        game=replace(whole.game, max_frames=60),
        budget=1_000,
        model=ActorCritic(hidden=(8,), central_critic=True),
        actor=ActorConfig(num_tables=8, matches=4, episodes_per_table=2, unroll_length=8),
        learner=replace(whole.learner, batch_size=256, minibatch_size=128, buffer_size=1_024),
        evaluation=EvaluationConfig(opponents=("common_ai",), past=0, ladder=0, episodes=2),
    )
    folder = RunFolder.create(tmp_path / "run", encode(short), seed=short.seed, command=())
    with closing(serial_training(short, folder)) as training:
        assert training.run() == FINISHED
    with folder.ledger(read_only=True) as ledger:
        ends = [
            (match.purpose, tuple(side.players for side in match.sides)) for _, match, void in ledger.ends() if not void
        ]
    assert ("training", (("main",), ("common_ai",))) in ends
    assert any(purpose == "evaluation" and ("common_ai",) in sides for purpose, sides in ends)
