"""examples/godot in the real engine: a league trains there, and its exported agent plays there as it does in Python."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Ludus

import ludus as front_door
from ludus.data.addresses import load_address
from ludus.games import Engine, allocate_actions
from ludus.games.check import check_game
from ludus.games.game import lost_tables
from ludus.games.seat_rows import GameError
from ludus.models.network_policy import ActorCritic

GODOT = "godot3-server"
PROJECT = Path(__file__).parent.parent / "examples" / "godot"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.ci,
    pytest.mark.skipif(shutil.which(GODOT) is None, reason=f"apt-get install {GODOT} adds the engine"),
]
RALLIES = 20
SMALL: dict[str, Any] = {"actor.num_tables": 16, "learner.batch_size": 512, "learner.minibatch_size": 256}
NETWORKS = {
    "relu and memory": ActorCritic(hidden=(16,), activation="relu", memory=8),
    "silu": ActorCritic(hidden=(16, 16), activation="silu"),
    "elu": ActorCritic(hidden=(16, 16), activation="elu"),
}
UNMEASURED = {"evaluation.opponents": (), "evaluation.past": 0, "evaluation.ladder": 0}


def pong() -> Engine:
    made: Engine = load_address(f"{PROJECT / 'pong.py'}:game")()
    return made


def godot(*arguments: str, project: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """The engine without Ludus."""
    command = [GODOT, "--path", str(project), "--fixed-fps", "60", "--", *arguments]
    environment = {**os.environ, "LANG": "en_US.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.fixture(scope="module", params=["as it comes", *NETWORKS])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A league that trained for a few updates: as it comes in its own processes, or quickly with other networks."""
    experiment = load_address(f"{PROJECT / 'pong.py'}:experiment")()
    how: dict[str, Any] = {"runtime": "local", "evaluation.episodes": 2}
    if request.param in NETWORKS:
        experiment = replace(experiment, model=NETWORKS[request.param])
        how = {"runtime": "serial", **UNMEASURED}
    path = tmp_path_factory.mktemp("godot") / "run"
    front_door.train(experiment, budget=2_000, run=path, quiet=True, **SMALL, **how)
    return path


def floats(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_the_game_keeps_its_promises() -> None:
    report = check_game(pong())
    assert report.ok, str(report)


def test_the_exported_agent_decides_in_the_engine_as_in_python(run: Path, ludus: Ludus, tmp_path: Path) -> None:
    lines = (run / "metrics" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 3, "updates"
    agent_file, record = tmp_path / "agent.json", tmp_path / "decisions.jsonl"
    assert ludus("export", str(run), "main", "--to", str(agent_file)).code == 0
    shown = godot(
        "--left", str(agent_file), "--right", str(agent_file), "--rallies", str(RALLIES), "--record", str(record)
    )
    assert shown.returncode == 0, shown.stderr
    assert f"rallies {RALLIES}," in shown.stdout
    assert "SCRIPT ERROR" not in shown.stderr

    agent = front_door.load_agent(run, "main", greedy=True)
    (policy,) = agent._decider._policies  # type: ignore[attr-defined]
    memory: dict[tuple[int, int], Any] = {}
    decisions = [json.loads(line) for line in record.read_text().splitlines()]
    assert len({one["rally"] for one in decisions}) == RALLIES
    assert {one["seat"] for one in decisions} == {0, 1}
    for one in decisions:
        place, seen, logits = (one["rally"], one["seat"]), floats(one["observation"]), floats(one["logits"])
        before = memory.get(place, policy.initial_state(1))
        acted = policy.act({"field": seen[None]}, {}, before, np.array([[0.5]], np.float32))
        memory[place] = acted.state
        drawn = acted.action["move"][0]
        log_probs = logits - np.log(np.exp(logits).sum())
        assert log_probs[drawn] == pytest.approx(acted.log_prob[0, 0], abs=1e-5)
        greedy, _ = agent.act_batch(seen[None], state=before, seats=[one["seat"]])
        assert one["action"] == greedy[0]


def test_the_engine_refuses_what_is_no_agent_of_its_game(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    kuhn, broken, manifest = tmp_path / "kuhn.json", tmp_path / "broken.json", tmp_path / "manifest.json"
    assert ludus("export", str(trained), "main", "--to", str(kuhn)).code == 0
    broken.write_text("{")
    manifest.write_text("{}")
    for player, said in {
        str(kuhn): "plays kuhn, and this is godot_pong",
        str(broken): "is no JSON object",
        str(manifest): "is no agent of `ludus export --to FILE.json`",
        "missing.json": "missing.json cannot be read",
        "somebody": "no player somebody",
    }.items():
        shown = godot("--left", player)
        assert shown.returncode == 2
        assert said in shown.stderr
    assert "unknown option, or no value: --letf" in godot("--letf", "chase").stderr


def changed(tmp_path: Path, file: str, change: Callable[[str], str]) -> Engine:
    """The game with one file of the project changed."""
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    text = (project / file).read_text()
    assert change(text) != text
    (project / file).write_text(change(text))
    game = pong()
    return replace(game, command=tuple(str(project) if word == str(PROJECT) else word for word in game.command))


def with_real_numbers(text: str) -> str:
    """A number, the second of a head of two, says where the paddles are."""
    text = text.replace(
        '{"move": {"type": "Choice", "num": 3, "when": null, "masked": false}}',
        '{"move": {"type": "Choice", "num": 3, "when": null, "masked": false}, '
        '"by": {"type": "Box", "size": 2, "low": [0, -1], "high": 1, "when": null}}',
    )
    text = text.replace(
        'moves[seat] = action["move"]',
        'moves[seat] = STAY\n\tpaddles[seat].position.y = FIELD.y * (0.5 + 0.25 * action["by"][1])',
    )
    return text.replace('return {"move": STAY}', 'return {"move": STAY, "by": [0.25, -1]}').replace(
        'return {"move": UP if away < 0 else DOWN}', 'return {"move": STAY, "by": [0.25, 1]}'
    )


def test_actions_may_be_real_numbers(tmp_path: Path) -> None:
    game = changed(tmp_path, "pong/table.gd", with_real_numbers)
    report = check_game(game, episodes=4, bot_seconds=0.5)
    assert report.ok, str(report)
    with closing(game.tables(2)) as tables:
        tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
        actions = allocate_actions(tables.spec, 2)
        actions[0]["by"][:, :, 1] = [[0.5, -0.5], [0.25, 1.0]]
        tables.step(actions)
        paddles = tables.view.observation[0]["field"][:, 0, 4:].copy()
        chosen = game.bots()["chase"].act(tables, np.arange(2), np.zeros(2, np.int64), np.random.default_rng(0))
    np.testing.assert_allclose(paddles, [[0.25, -0.25], [0.125, 0.5]], atol=1e-6)
    assert chosen["by"].dtype == np.float32
    assert chosen["by"][:, 0].tolist() == [0.25, 0.25]


def test_a_script_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    game = changed(tmp_path, "pong/table.gd", lambda text: text.replace("func reset(new_seed):", "func reset(:"))
    with pytest.raises(GameError, match=r"did not connect .*Parse Error.*table\.gd"):
        _ = replace(game, start_seconds=5.0).spec


def test_a_spec_that_the_client_cannot_send_is_told(tmp_path: Path) -> None:
    game = changed(tmp_path, "pong/table.gd", lambda text: text.replace('"type": "Choice"', '"type": "Point"'))
    with pytest.raises(GameError, match=r"exit code 1.*head 'move' is neither Choice nor Box"):
        _ = game.spec


def test_unknown_options_are_refused() -> None:
    with pytest.raises(GameError, match="godot_pong has no option 'gravity'"):
        _ = replace(pong(), options={"gravity": 3}).spec


def test_an_engine_that_crashes_loses_its_tables_and_is_started_again(tmp_path: Path) -> None:
    crash = "\tif decisions == 3:\n\t\tOS.kill(OS.get_process_id())\n\tdecisions += 1\n"
    batch = changed(tmp_path, "pong/table.gd", lambda text: text.replace("\tdecisions += 1\n", crash)).tables(2)
    for _ in range(2):
        batch.reset(np.arange(2), np.arange(2, dtype=np.uint64))
        for _ in range(3):
            assert lost_tables(batch) == {}
            batch.step(allocate_actions(batch.spec, 2))
        batch.step(allocate_actions(batch.spec, 2))
        assert [*lost_tables(batch)] == [0, 1]
        assert "engine godot3-server has ended with exit code" in lost_tables(batch)[0]
    batch.close()
