"""`ludus export`: its files, what they say, and agents that play from them without PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Ludus, exit_code

import ludus as front_door
from ludus.export.player import spread_evenly
from ludus.games import Siege, Table
from ludus.games.game import allocate_actions
from ludus.games.outside_bots import WithBots

pytest.importorskip("onnx", reason="pip install -e '.[export]' adds onnx")
pytest.importorskip("onnxruntime", reason="pip install -e '.[export]' adds onnxruntime")

BARE = ("numpy", "numpy.libs", "onnxruntime", "flatbuffers", "google", "packaging")
"""What `pip install onnxruntime` installs; not all of it in every version."""


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a game whose seats differ, with a memory."""
    path = tmp_path_factory.mktemp("runs") / "siege"
    settings = {"evaluation.opponents": (), "evaluation.past": 0, "evaluation.ladder": 0, "actor.num_tables": 32}
    front_door.train(
        "siege",
        budget=1,
        run=path,
        runtime="serial",
        quiet=True,
        **{**settings, "model.memory": 16, "model.hidden": (16,), "learner.batch_size": 256},
    )
    return path


@pytest.fixture(scope="module")
def agent_file(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "agent.onnx"
    assert exit_code("export", str(trained), "main@best", "--to", str(path)) == 0
    return path


def test_files_say_what_they_are(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    shown = ludus("export", str(trained), "main@best", "--to", "out/agent.onnx", "--logits")
    assert shown.code == 0
    assert "checked:" in shown.out
    assert "largest difference" in shown.out
    out = tmp_path / "out"
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "agent.json", "agent.onnx"]

    manifest = json.loads((out / "agent.json").read_text())
    (policy,) = manifest["policies"]
    assert policy["sha256"] == hashlib.sha256((out / "agent.onnx").read_bytes()).hexdigest()
    assert [one["name"] for one in policy["inputs"]] == ["observation.information", "legal.move", "uniforms"]
    assert {one["name"] for one in policy["outputs"]} == {"action.move", "log_prob", "logits.move"}
    assert manifest["game"]["name"] == "kuhn"
    assert manifest["parity"]["decisions"] > 1000
    assert max(manifest["parity"]["largest_difference"].values()) <= 1e-5
    (member,) = [one for one in front_door.Run(trained).league().players if "best" in one.tags]
    assert manifest["model"] == member.model
    assert manifest["rating"]["elo"] == pytest.approx(member.elo)

    text = (out / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "ludus"
    assert front["pipeline_tag"] == "reinforcement-learning"
    (index,) = front["model-index"]
    metrics = {one["name"]: one["value"] for one in index["results"][0]["metrics"]}
    assert metrics["Elo above random"] == pytest.approx(member.elo, abs=0.1)
    assert 0.0 <= metrics["win rate against random"] <= 1.0
    assert f"{member.decisions:,}" in text
    assert 'ludus.load_agent("agent.onnx"' in text
    assert str(trained.parent) not in text + json.dumps(manifest)


def test_the_card_tells_exploitability(ludus: Ludus, run: Path) -> None:
    assert ludus("exploit", str(run), "main@best").code == 0
    assert ludus("export", str(run), "main@best", "--to", "out").code == 0
    assert "(exact: the mean score of a best response" in Path("out/README.md").read_text()


def test_a_readme_of_others_is_kept(ludus: Ludus, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My project\n")
    shown = ludus("export", str(trained), "main", "--to", "agent.onnx")
    assert shown.code == 2
    assert "export into a folder of its own" in shown.err
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    assert not (tmp_path / "agent.onnx").exists()
    for _ in range(2):  # a card of ours is replaced
        assert ludus("export", str(trained), "main", "--to", "out").code == 0


def test_a_difference_above_the_tolerance_leaves_no_file(ludus: Ludus, trained: Path) -> None:
    shown = ludus("export", str(trained), "main", "--to", "out/agent.onnx", "--tolerance", "1e-12")
    assert shown.code == 1
    assert "output 'log_prob' differs by" in shown.err
    assert "more than 1e-12" in shown.err
    assert not Path("out").exists()


def test_wrong_use_is_named(ludus: Ludus, trained: Path) -> None:
    shown = ludus("export", str(trained), "random", "--to", "agent.onnx")
    assert shown.code == 2
    assert "'random' is a bot" in shown.err
    assert "say what to write" in ludus("export", str(trained)).err
    assert "name a folder" in ludus("export", str(trained), "--ladder", "--to", "agent.onnx").err
    assert "mian" in ludus("export", str(trained), "mian", "--to", "agent.onnx").err


def test_an_exported_agent_plays_as_the_player_does(trained: Path, agent_file: Path) -> None:
    there = front_door.load_agent(trained, "main@best", greedy=True)
    here = front_door.load_agent(agent_file, greedy=True)
    assert (here.model, here.weights, here.spec) == (there.model, there.weights, there.spec)
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((200, 11)).astype(np.float32)
    legal = np.ones((200, 2), bool)
    legal[:50, 0] = False
    expected, _ = there.act_batch(observations, legal)
    found, _ = here.act_batch(observations, legal)
    assert found.tolist() == expected.tolist()
    assert set(found[:50].tolist()) == {1}
    assert here.act(observations[0], legal[0]) == expected[0]
    drawn = front_door.load_agent(agent_file, seed=1).act_batch(observations)[0]
    assert drawn.tolist() == front_door.load_agent(trained, "main@best", seed=1).act_batch(observations)[0].tolist()
    with pytest.raises(front_door.GameError, match=r"expected float32\[3, 11\], got float32\[3, 12\]"):
        here.act_batch(np.zeros((3, 12), np.float32))
    with pytest.raises(front_door.GameError, match="holds 'main@best' alone, not 'other'"):
        front_door.load_agent(agent_file, "other")
    with pytest.raises(front_door.GameError, match="comes from a file already"):
        here.export("again.onnx")


def test_the_value_goes_along_unless_it_needs_what_only_training_sees(
    ludus: Ludus, trained: Path, siege: Path, tmp_path: Path
) -> None:
    assert ludus("export", str(siege), "main", "--to", "siege.onnx", "--value").code == 0
    for policy in json.loads((tmp_path / "siege.json").read_text())["policies"]:
        assert "value" in {one["name"] for one in policy["outputs"]}
    shown = ludus("export", str(trained), "main", "--to", "kuhn.onnx", "--value")
    assert shown.code != 0
    assert "the value needs 'critic.cards', which exists in training only" in shown.err
    assert not (tmp_path / "kuhn.onnx").exists()


def test_seats_of_several_kinds_have_a_file_each(siege: Path, tmp_path: Path) -> None:
    agent = front_door.load_agent(siege, "main", greedy=True)
    exported = agent.export(tmp_path / "agent.onnx")
    assert sorted(file.name for file in exported.files) == ["agent-attacker.onnx", "agent-defender.onnx"]
    assert exported.parity.worst <= 1e-5
    here = front_door.load_agent(exported.files[1], greedy=True)
    with Table(Siege()) as table:
        for episode in range(3):
            turn = table.reset(seed=episode)
            agent.reset()
            here.reset()
            for _ in range(40):
                if turn.over or turn.truncated:
                    break
                actions = {}
                for seat, seen in turn.observations.items():
                    actions[seat] = agent.act(seen, turn.legal.get(seat), seat=seat)
                    assert here.act(seen, turn.legal.get(seat), seat=seat) == actions[seat]
                turn = table.step(actions)


def test_a_game_without_rules_in_javascript_is_named(ludus: Ludus, siege: Path) -> None:
    shown = ludus("export", str(siege), "main", "--page", "siege.html")
    assert shown.code == 1
    assert "siege has no board page; --page plays ConnectFour, TicTacToe, Kuhn, Leduc with two seats" in shown.err


def test_files_are_players_of_eval_and_play(ludus: Ludus, trained: Path, run: Path, agent_file: Path) -> None:
    shown = ludus("eval", str(run), str(agent_file), "main@best", f"other={agent_file}", "-n", "64", "--json")
    assert shown.code == 0
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["players"] for row in rows] == [["agent", "main@best"], ["agent", "other"]]
    assert all(row["episodes"] >= 64 for row in rows)
    shown = ludus("play", str(run), str(agent_file), "--terminal", "--seat", "0", typed="check\ncall\n")
    assert "against agent" in shown.out
    shown = ludus("eval", str(run), "main", "nowhere.onnx")
    assert shown.code == 2
    assert "there is no file 'nowhere.onnx'" in shown.err


def test_files_enter_a_tournament_that_goes_on(
    ludus: Ludus, trained: Path, run: Path, agent_file: Path, tmp_path: Path
) -> None:
    command = ("tournament", f"{run}#main", "bot:random", "-n", "32", "--tables", "16", "--json", "--into", "all.jsonl")

    def played(*players: str) -> tuple[list[str], int]:
        shown = ludus(*command, *players)
        assert shown.code == 0, shown.err
        names = [one["name"] for one in json.loads(shown.out)["players"]]
        return names, len((tmp_path / "all.jsonl").read_text().splitlines())

    assert played()[1] == 1
    file = tmp_path / "agent.onnx"
    shutil.copy(agent_file, file)
    assert played("agent.onnx") == (["run#main", "random", "agent"], 3)  # the first pair does not play again
    shutil.copy(file, tmp_path / "copy.onnx")
    assert played("old=copy.onnx") == (["run#main", "random", "old"], 3)  # the same player
    front_door.load_agent(trained, "main.1").export(file)
    assert played("agent.onnx") == (["run#main", "random", "agent"], 5)  # another one under the same name
    assert played("old=copy.onnx", "agent.onnx")[1] == 6
    shown = ludus(*command, "one=copy.onnx", f"two={agent_file}")
    assert (shown.code, "are the same player" in shown.err) == (2, True)


def test_a_file_of_another_game_is_refused(ludus: Ludus, run: Path, siege: Path, tmp_path: Path) -> None:
    front_door.load_agent(siege, "main").export(tmp_path / "agent.onnx")
    shown = ludus("eval", str(run), "agent-attacker.onnx", "random", "-n", "8")
    assert shown.code == 1
    assert "plays siege" in shown.err


def test_a_memory_begins_with_the_episode(siege: Path, tmp_path: Path) -> None:
    """A bot from a file plays like the player of the run from the first episode to the last."""
    front_door.load_agent(siege, "main").export(tmp_path / "agent.onnx")
    agent = front_door.load_agent(siege, "main", greedy=True)
    source = WithBots(Siege(), {"agent": str(tmp_path / "agent-attacker.onnx")})
    bot = source.bots()["agent"]
    bot._player.greedy = True  # type: ignore[attr-defined]
    tables = source.tables(2)
    rng = np.random.default_rng(0)
    actions = allocate_actions(tables.spec, 2)
    tables.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    memory: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    for step in range(60):
        for kind, seats in enumerate(tables.spec.seats_of_kind):
            rows, columns = np.nonzero(tables.view.to_act[:, seats])
            if not len(rows):
                continue
            chosen = bot.act(tables, rows, np.asarray(seats)[columns], rng)
            for row, (table, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
                seen = {name: array[table, column][None] for name, array in tables.view.observation[kind].items()}
                seen = {name: array for name, array in seen.items() if not name.startswith("critic.")}
                legal = {name: array[table, column][None] for name, array in tables.view.legal[kind].items()}
                place = table, seats[column]
                expected, memory[place] = agent.act_batch(seen, legal, memory.get(place), seats[column])
                wanted = expected if isinstance(expected, dict) else {next(iter(chosen)): expected}
                for head, array in wanted.items():
                    assert chosen[head][row].tolist() == array[0].tolist()
                    actions[kind][head][table, column] = array[0]
        tables.step(actions)
        ended = np.flatnonzero(tables.view.over | tables.view.truncated)
        if step == 30:  # break one table off
            ended = np.union1d(ended, [0])
        if len(ended):
            tables.reset(ended, ended.astype(np.uint64) + 100 + step)
            memory = {place: state for place, state in memory.items() if place[0] not in ended}


def test_levels_go_from_weak_to_strong(ludus: Ludus, trained: Path) -> None:
    shown = ludus("export", str(trained), "main", "--ladder", "--levels", "3", "--to", "levels", "--json")
    assert shown.code == 0
    document = json.loads(shown.out)
    assert json.loads(Path("levels/ladder.json").read_text()) == document
    ratings = [level["rating"]["elo"] for level in document["levels"]]
    assert len(ratings) == 3
    assert ratings == sorted(ratings)
    league = front_door.Run(trained).league()
    snapshots = [one.elo for one in league.players if one.parent == "main"]
    assert (ratings[0], ratings[-1]) == (pytest.approx(min(snapshots)), pytest.approx(max(snapshots)))
    for level in document["levels"]:
        agent = front_door.load_agent(Path("levels") / level["files"][0])
        assert agent.model == league[level["player"]].model


def test_levels_are_spread_evenly() -> None:
    strengths = {"a": 0.0, "b": 10.0, "c": 480.0, "d": 520.0, "e": 1000.0}
    assert spread_evenly(strengths, 3) == ["a", "c", "e"]
    assert spread_evenly(strengths, 9) == ["a", "b", "c", "d", "e"]
    assert spread_evenly(strengths, 1) == ["e"]
    assert spread_evenly(strengths, 4) == ["a", "c", "d", "e"]


def test_damaged_and_foreign_files_are_named(tmp_path: Path, agent_file: Path) -> None:
    import onnx

    with pytest.raises(front_door.GameError, match="there is no file"):
        front_door.load_agent(tmp_path / "none.onnx")
    (tmp_path / "cut.onnx").write_bytes(agent_file.read_bytes()[:500])
    with pytest.raises(front_door.GameError, match=r"cut\.onnx cannot be run by onnxruntime"):
        front_door.load_agent(tmp_path / "cut.onnx")
    model = onnx.load(agent_file)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(front_door.GameError, match="it has no manifest"):
        front_door.load_agent(tmp_path / "foreign.onnx")
    onnx.helper.set_model_props(model, {"ludus": json.dumps({"format": 99})})
    onnx.save(model, tmp_path / "newer.onnx")
    with pytest.raises(front_door.GameError, match="has format 99"):
        front_door.load_agent(tmp_path / "newer.onnx")


Change = str | Callable[[dict[str, Any]], object]
"""The text of a manifest, or what is changed in a good one."""


def changed_manifest(agent_file: Path, path: Path, change: Change) -> Path:
    import onnx

    model = onnx.load(agent_file)
    manifest = json.loads(model.metadata_props[0].value)
    if not isinstance(change, str):
        change(manifest)
    onnx.helper.set_model_props(model, {"ludus": change if isinstance(change, str) else json.dumps(manifest)})
    onnx.save(model, path)
    return path


def _renamed(manifest: dict[str, Any]) -> None:
    manifest["policies"][0]["inputs"][0]["name"] = "observation.secret"


def _huge(manifest: dict[str, Any]) -> None:
    next(iter(manifest["played"]["kinds"][0]["observation"].values()))["size"] = 10**12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{", "its manifest does not read"),
        ("7", "its manifest does not read"),
        ("[" * 5000, "its manifest does not read"),
        (lambda manifest: manifest.pop("player"), "its manifest does not read"),
        (lambda manifest: manifest.update(policies=7), "its manifest does not read"),
        (lambda manifest: manifest["policies"].append(7), "its manifest does not read"),
        (lambda manifest: manifest.update(played=None), "its manifest does not read"),
        (_renamed, "do not agree about"),
        (_huge, "numbers in one row, at most"),
    ],
)
def test_a_manifest_that_nobody_wrote_is_refused(agent_file: Path, tmp_path: Path, change: Change, said: str) -> None:
    path = changed_manifest(agent_file, tmp_path / "agent.onnx", change)
    with pytest.raises(front_door.GameError, match=said):
        front_door.load_agent(path)


def graph_of(path: Path, *nodes: Any, tensors: Sequence[Any] = ()) -> Path:
    """A file with a network of these nodes, from `x` to `y`."""
    import onnx

    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy"]
    graph = onnx.helper.make_graph([*nodes], "hostile", ends[:1], ends[1:], [*tensors])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.helper.set_model_props(model, {"ludus": json.dumps({"format": 1})})
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["/etc/hostname", "../secret", "pipe", "/dev/zero"])
def test_a_file_reads_no_other_files(tmp_path: Path, location: str) -> None:
    """ONNX may keep weights in files beside it."""
    import onnx

    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    os.mkfifo(tmp_path / "folder" / "pipe")  # hangs whoever opens it
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    file = graph_of(
        tmp_path / "folder" / "agent.onnx", onnx.helper.make_node("Add", ["x", "w"], ["y"]), tensors=[tensor]
    )
    with pytest.raises(front_door.GameError, match="cannot be run by onnxruntime"):
        front_door.load_agent(file)


def test_a_few_bytes_do_not_unpack_to_gigabytes(tmp_path: Path) -> None:
    import onnx

    size = onnx.numpy_helper.from_array(np.array([2**29], np.int64), "n")
    made = onnx.helper.make_node("ConstantOfShape", ["n"], ["w"])
    file = graph_of(tmp_path / "agent.onnx", made, onnx.helper.make_node("Add", ["x", "w"], ["y"]), tensors=[size])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(front_door.GameError, match="its manifest does not read"):
        front_door.load_agent(file)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 200


PLAY = """
import importlib.util, sys
for name in ("torch", "msgspec", "scipy", "yaml", "safetensors", "click", "rich", "openskill"):
    assert importlib.util.find_spec(name) is None, name
import numpy as np
import ludus
agent = ludus.load_agent(sys.argv[1], greedy=True)
actions, _ = agent.act_batch(np.load(sys.argv[2]))
print(*actions.tolist())
"""


def test_onnxruntime_and_nothing_else_plays(trained: Path, agent_file: Path, tmp_path: Path) -> None:
    """In an environment that has what `pip install onnxruntime` installs, and the package `ludus`."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "ludus").symlink_to(Path(front_door.__file__).parent)
    for name in BARE:
        found = find_spec(name) if "." not in name else None
        places = list(found.submodule_search_locations or ()) if found is not None else []
        if name == "numpy.libs":
            places = [str(Path(np.__file__).parents[1] / name)]
        if places and Path(places[0]).is_dir():
            (site / name).symlink_to(places[0])
    shutil.copy(agent_file, tmp_path / "renamed.onnx")
    observations = np.random.default_rng(0).standard_normal((50, 11)).astype(np.float32)
    np.save(tmp_path / "seen.npy", observations)
    program = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(site)!r}]\n{PLAY}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, "renamed.onnx", "seen.npy"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected, _ = front_door.load_agent(trained, "main@best", greedy=True).act_batch(observations)
    assert done.stdout.split() == [str(action) for action in expected.tolist()]
