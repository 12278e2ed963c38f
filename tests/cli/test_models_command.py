"""`ludus models`, and runs that begin with models from elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Ludus

from ludus.config import encode
from ludus.data.records import ModelId, PlayerAdded
from ludus.lookup import find_experiment
from ludus.models.policy import join_kinds, weights_of
from ludus.runtime.networks import build_policies
from ludus.store.run_folder import RunFolder

MODEL = (
    "model.hidden=16", "model.activation=tanh", "model.central_critic=false", "model.action_values=false",
    "algorithm.all_actions=false", "game.critic_state=false",
)  # fmt: skip
TRAINING = (
    "runtime=serial", "budget=3000", "actor.num_tables=32", "actor.matches=2", "actor.episodes_per_table=4",
    "learner.batch_size=1000", "evaluation.episodes=32", *MODEL,
)  # fmt: skip
KEYS = """
place: model_state_dict
weights:
  player/trunk.layers.0.*: actor.0.*
  player/heads.heads.0.scores.*: actor.2.*
  player/critic.trunk.layers.0.*: critic.0.*
  player/critic.value.*: critic.2.*
"""


def setting(*values: str) -> list[str]:
    return [part for value in values for part in ("--set", value)]


@pytest.fixture(autouse=True)
def no_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the cache of this user nor an index of theirs has a say."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("LUDUS_MODEL_INDEX", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


def new_run(path: str, *settings: str, seed: int = 0) -> RunFolder:
    """A run of kuhn that was never trained, with the fresh weights of its seed as main:0:0."""
    experiment = find_experiment("kuhn", [*MODEL, *settings])
    folder = RunFolder.create(path, encode(experiment), seed=0)
    policies = build_policies(experiment, seed)
    weights = join_kinds(policies, map(weights_of, policies))
    folder.models.publish(ModelId("main", 0, 0), weights, parent=None, facts={"decisions": 7})
    with folder.ledger() as ledger:
        ledger.append([PlayerAdded(player="main", role="main")])
        ledger.append([PlayerAdded(player="main.1", role="frozen", parent="main", model="main:0:0")])
    return folder


def foreign(path: str, hidden: int = 16, **more: Any) -> torch.nn.Module:
    """A checkpoint as other programs write them: an actor and a critic with their own names."""

    def layers(outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(11, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, outputs))

    network = torch.nn.ModuleDict({"actor": layers(2), "critic": layers(1)})
    optimiser = torch.optim.Adam(network.parameters())
    torch.save({"model_state_dict": network.state_dict(), "opt": optimiser.state_dict(), **more}, path)
    return network


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the folder `web`."""
    (tmp_path / "web").mkdir()

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    handler = partial(Silent, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def models(run: RunFolder | str) -> list[str]:
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    return [str(entry.model) for entry in folder.models.entries()]


# --- list and keys ---


def test_list_shows_what_is_in_the_pool(ludus: Ludus) -> None:
    folder = new_run("mine")
    folder.models.tag("first", ModelId("main", 0, 0))
    code, out, _ = ludus("models", "list", "mine")
    assert code == 0
    for part in ("main:0:0", "main.1", "live", "first latest", "KiB", "7"):
        assert part in out
    _, out, _ = ludus("models", "list", "mine", "--json")
    row = json.loads(out)
    assert row["weights"] == {"live": folder.models.entry(ModelId("main", 0, 0)).digest}
    assert (row["players"], row["tags"], row["decisions"]) == (["main.1"], ["first", "latest"], 7)
    assert row["bytes"] > 1000


def test_an_empty_pool_says_so(ludus: Ludus) -> None:
    RunFolder.create("mine", {}, seed=0)
    code, out, _ = ludus("models", "list", "mine")
    assert (code, "no models yet" in out) == (0, True)


def test_keys_lists_the_tensors_of_a_file(ludus: Ludus) -> None:
    foreign("agent.pt")
    code, out, _ = ludus("models", "keys", "agent.pt", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert rows[0] == {
        "name": "actor.0.weight", "shape": [16, 11], "dtype": "float32", "place": "model_state_dict",
    }  # fmt: skip
    assert len(rows) == 8


# --- import ---


def test_import_by_a_map_keeps_the_numbers(ludus: Ludus) -> None:
    folder = new_run("mine")
    network = foreign("agent.pt")
    Path("keys.yaml").write_text(KEYS)
    code, out, _ = ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml", "--tag", "first")
    assert code == 0
    assert "matched:  8 of 8" in out
    model = folder.models.resolve("agent@first")
    assert str(model) == "agent:0:0"
    weights = folder.models.fetch(model)
    state = network.state_dict()
    assert np.array_equal(weights["player/heads.heads.0.scores.weight"], state["actor.2.weight"].numpy())
    assert folder.models.entry(model).facts["source"] == "agent.pt"

    again = ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml", "--json")[1]
    assert json.loads(again)["model"] == "agent:0:0", "the same weights are the same model"
    foreign("agent.pt")
    other = ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml", "--json")[1]
    assert json.loads(other)["model"] == "agent:0:1", "other weights get the next free step"


def test_import_takes_an_average_from_its_place(ludus: Ludus) -> None:
    folder = new_run("mine")
    averaged = foreign("other.pt").state_dict()
    foreign("agent.pt", ema=averaged)
    Path("keys.yaml").write_text("average: ema\n" + KEYS)
    assert ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml")[0] == 0
    average = folder.models.fetch(ModelId("agent", 0, 0), "average")
    assert np.array_equal(average["player/critic.value.weight"], averaged["critic.2.weight"].numpy())


def test_a_first_map_is_guessed_and_works(ludus: Ludus) -> None:
    folder = new_run("mine")
    network = foreign("agent.pt")
    code, out, _ = ludus("models", "import", "mine", "agent.pt", "--write-map", "keys.yaml")
    assert (code, "8 are guessed" in out) == (0, True)
    assert models(folder) == ["main:0:0"]
    assert "GUESS" in Path("keys.yaml").read_text()
    assert ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml")[0] == 0
    weights = folder.models.fetch(ModelId("agent", 0, 0))
    state = network.state_dict()
    assert np.array_equal(weights["player/trunk.layers.0.weight"], state["actor.0.weight"].numpy())
    assert np.array_equal(weights["player/critic.trunk.layers.0.bias"], state["critic.0.bias"].numpy())
    code, _, err = ludus("models", "import", "mine", "agent.pt", "--write-map", "keys.yaml")
    assert (code, "keys.yaml is there already" in err) == (2, True)


def test_what_does_not_match_is_listed_and_refused(ludus: Ludus) -> None:
    folder = new_run("mine")
    foreign("agent.pt", hidden=8)
    Path("keys.yaml").write_text(KEYS.replace("critic.2", "crtic.2"))
    for more, expected in (["--dry-run"], 1), ([], 1):
        code, out, err = ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml", *more)
        assert code == expected
        assert "player/trunk.layers.0.weight is (16, 11), actor.0.weight in the file is (8, 11)" in out
        assert "player/critic.value.bias (looked for crtic.2.bias); perhaps critic.2.bias" in out
        assert "left over:   critic.2.weight in the file" in out
    assert "--partial" in err
    assert models(folder) == ["main:0:0"]


def test_partial_keeps_fresh_weights_of_the_seed(ludus: Ludus) -> None:
    folder = new_run("mine")
    foreign("agent.pt")
    Path("keys.yaml").write_text(KEYS.replace("  player/critic.value.*: critic.2.*\n", ""))
    code, out, _ = ludus("models", "import", "mine", "agent.pt", "--map", "keys.yaml", "--partial")
    assert code == 0
    assert "the 2 unfilled weights are as seed 0 draws them" in out
    fresh = folder.models.fetch(ModelId("main", 0, 0))
    weights = folder.models.fetch(ModelId("agent", 0, 0))
    assert np.array_equal(weights["player/critic.value.weight"], fresh["player/critic.value.weight"])
    assert not np.array_equal(weights["player/trunk.layers.0.weight"], fresh["player/trunk.layers.0.weight"])


def test_kinds_of_seats_are_filled_from_one_file_or_several(ludus: Ludus) -> None:
    per_seat = "policies=per_seat"
    folder = new_run("mine", per_seat)
    first, second = foreign("first.pt").state_dict(), foreign("second.pt").state_dict()
    Path("keys.yaml").write_text(KEYS.replace("player/", ""))
    assert ludus("models", "import", "mine", "first.pt", "--map", "keys.yaml")[0] == 0
    shared = folder.models.fetch(ModelId("first", 0, 0))
    assert np.array_equal(shared["seat0/critic.value.weight"], shared["seat1/critic.value.weight"])

    one = ["models", "import", "mine", "second.pt", "--map", "keys.yaml", "--kind", "seat1"]
    code, _, err = ludus(*one)
    assert (code, "does not fill 8 of our weights, such as seat0/" in err) == (1, True)
    assert ludus(*one, "--base", "first")[0] == 0
    weights = folder.models.fetch(ModelId("second", 0, 0))
    assert np.array_equal(weights["seat0/critic.value.weight"], first["critic.2.weight"].numpy())
    assert np.array_equal(weights["seat1/critic.value.weight"], second["critic.2.weight"].numpy())
    assert folder.models.entry(ModelId("second", 0, 0)).parent == ModelId("first", 0, 0)


def test_a_recipe_that_was_never_trained_gives_a_file_to_start_from(ludus: Ludus) -> None:
    foreign("agent.pt")
    Path("keys.yaml").write_text(KEYS)
    convert = ["models", "import", "kuhn", "agent.pt", "--map", "keys.yaml", *setting(*MODEL)]
    code, _, err = ludus(*convert)
    assert (code, "--to" in err) == (2, True)
    assert ludus(*convert, "--to", "guest.safetensors")[0] == 0
    start = setting(*TRAINING, "league.roles.main.start=guest.safetensors")
    assert ludus("train", "kuhn", "--run", "mine", *start, "--quiet")[0] == 0
    assert "main.start:0:0" in models("mine")


class Marks:
    """Leaves a folder behind if it is ever unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("mark",)


def test_a_checkpoint_that_would_execute_is_refused(ludus: Ludus) -> None:
    folder = new_run("mine")
    foreign("agent.pt", extra=Marks())
    for command in (
        ["models", "import", "mine", "agent.pt"],
        ["models", "keys", "agent.pt"],
        ["models", "pull", "mine", "agent.pt"],
    ):
        code, _, err = ludus(*command)
        assert code == 1
        assert "agent.pt needs posix.mkdir" in err
    assert not Path("mark").exists()
    assert models(folder) == ["main:0:0"]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["import", "mine", "agnt.pt"], 1, "did you mean agent.pt"),
        (["import", "nowhere", "agent.pt"], 2, "nowhere"),
        (["import", "mine", "agent.pt", "--player", "main"], 2, "'main' learns in this run"),
        (["import", "mine", "agent.pt", "--player", "a/b"], 2, "'a/b' is refused"),
        (["import", "mine", "agent.pt", "--kind", "playr"], 1, "did you mean 'player'"),
        (["import", "mine", "agent.pt", "--place", "model"], 1, "model_state_dict"),
        (["import", "mine", "agent.pt", "--map", "nowhere.yaml"], 1, "nowhere.yaml"),
        (["import", "mine", "agent.pt", "--map", "bad.yaml"], 1, "did you mean 'player/trunk.layers.0.bias'"),
        (["import", "mine", "agent.pt", "--map", "worse.yaml"], 2, "worse.yaml"),
        (["import", "mine", "agent.pt", "--base", "mian"], 1, "did you mean 'main'"),
        (["keys", "nowhere.pt"], 1, "nowhere.pt"),
        (["pull", "mine", "agent.pt", "--digest", "sha256:12"], 1, "64 hex digits"),
        (["pull", "mine", "other#mian"], 1, "did you mean 'main'"),
        (["pull", "mine", "other#main"], 2, "--player"),
        (["pull", "mine", "strong"], 1, "LUDUS_MODEL_INDEX"),
        (["list", "nowhere"], 1, "nowhere"),
        (["lst"], 2, "lst"),
    ],
)
def test_bad_input_names_the_thing(ludus: Ludus, arguments: list[str], code: int, named: str) -> None:
    new_run("mine")
    new_run("other")
    foreign("agent.pt")
    Path("bad.yaml").write_text("weights: {player/trunk.layer.0.bias: actor.0.bias}\n")
    Path("worse.yaml").write_text("weights: [a\n")
    got, _, err = ludus("models", *arguments)
    assert (got, named in err) == (code, True), err


# --- pull ---


def test_pull_from_another_run(ludus: Ludus) -> None:
    mine, other = new_run("mine"), new_run("other", seed=3)
    digest = other.models.entry(ModelId("main", 0, 0)).digest
    pull = ["models", "pull", "mine", "other#main.1", "--player", "guest"]
    assert ludus(*pull, "--digest", f"sha256:{digest}")[0] == 0
    entry = mine.models.entry(ModelId("guest", 0, 0))
    assert entry.digest == digest
    assert entry.facts["decisions"] == 7
    code, _, err = ludus(*pull, "--digest", "sha256:" + "0" * 64)
    assert code == 1
    assert f"has digest sha256:{digest}, expected sha256:000" in err


def test_pull_from_the_web_by_url_and_by_name(ludus: Ludus, web: str) -> None:
    mine, other = new_run("mine"), new_run("other", seed=3)
    content = next((other.path / "models" / "main").glob("*.safetensors")).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    Path("web/guest.safetensors").write_bytes(content)
    code, out, _ = ludus("models", "pull", "mine", f"{web}/guest.safetensors")
    assert code == 0
    assert "compared with nothing" in out
    assert "guest:0:0" in models(mine)

    Path("web/guest.safetensors.sha256").write_text(f"{digest}  guest.safetensors\n")
    _, out, _ = ludus("models", "pull", "mine", f"{web}/guest.safetensors", "--player", "second")
    assert f"as {web}/guest.safetensors.sha256 says" in out

    index = {"strong": {"url": "guest.safetensors", "sha256": digest}}
    Path("web/index.json").write_text(json.dumps(index))
    code, out, _ = ludus("models", "pull", "mine", "strong", "--index", f"{web}/index.json", "--json")
    assert code == 0
    assert json.loads(out)["model"] == "strong:0:0"

    wrong = ["--digest", "0" * 64, "--player", "third"]
    code, _, err = ludus("models", "pull", "mine", f"{web}/guest.safetensors", *wrong)
    assert (code, f"has digest sha256:{digest}" in err) == (1, True)
    code, _, err = ludus("models", "pull", "mine", f"{web}/nothing.safetensors")
    assert (code, "404" in err) == (1, True)
    assert {model.partition(":")[0] for model in models(mine)} == {"guest", "main", "second", "strong"}
    assert [path.suffix for path in Path("cache").rglob("*") if path.is_file()].count(".lock") == len(
        [path for path in Path("cache").rglob("*") if path.is_file()]
    ), "what is in the pool does not stay in the cache"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["model.hidden=8"], "player/trunk.layers.0.weight is (16, 11), player/trunk.layers.0.weight"),
        (["model.activation=relu"], "was trained with model.activation=relu, here it is tanh"),
        (["model.separate_critic=false"], "missing:     player/critic.trunk.layers.0.weight"),
        (["model.hidden=[16, 16]"], "left over:   player/trunk.layers.1.weight"),
    ],
)
def test_other_networks_are_refused(ludus: Ludus, settings: Sequence[str], named: str) -> None:
    mine = new_run("mine")
    new_run("other", *settings)
    code, _, err = ludus("models", "pull", "mine", "other#main", "--player", "guest")
    assert (code, named in err) == (1, True), err
    assert models(mine) == ["main:0:0"]


# --- runs that begin with them ---


def test_a_run_begins_with_models_of_others(ludus: Ludus) -> None:
    other = new_run("other", seed=3)
    wanted = setting("league.external={guest: other#main.1, twin: other#main.1}", *TRAINING)
    wanted += setting("league.roles.main.start=other#main@latest")
    code, _, err = ludus("train", "kuhn", "--run", "mine", *wanted, "--quiet")
    assert code == 0, err
    mine = RunFolder.open("mine")
    league = json.loads((mine.path / "run.json").read_text())["experiment"]["league"]
    assert league["external"] == {"guest": "guest:0:0", "twin": "guest:0:0"}
    assert league["roles"]["main"]["start"] == "main.start:0:0"
    digest = other.models.entry(ModelId("main", 0, 0)).digest
    for model in ("guest:0:0", "main.start:0:0", "main:0:0"):
        assert mine.models.entry(ModelId.parse(model)).digest == digest
    assert mine.models.lineage(ModelId("main", 0, 0))[-1] == ModelId("main.start", 0, 0)
    players = {one["id"]: one for one in json.loads(ludus("league", "mine", "--json")[1])["players"]}
    assert players["guest"]["role"] == players["twin"]["role"] == "frozen"
    assert players["guest"]["games"] > 0

    later = setting("budget=4000", "league.external={guest: guest:0:0, twin: guest:0:0, late: other#main}")
    assert ludus("train", "--run", "mine", "--resume", *later, "--quiet")[0] == 0
    players = {one["id"]: one for one in json.loads(ludus("league", "mine", "--json")[1])["players"]}
    assert players["late"]["model"] == "late:0:0"


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ("league.external={guest: guest:0:0}", "league.external.guest: no model guest:0:0: a new run has none"),
        ("league.external={guest: other#mian}", "did you mean 'main'"),
        ("league.external={guest: nowhere.pt}", "no file nowhere.pt"),
        ("league.external={guest: agent.pt}", "perhaps actor.0.weight"),
        ("league.external={guest: wide#main}", "is (16, 11), player/trunk.layers.0.weight in the file is"),
        ("league.roles.main.start=other", "league.roles.main.start: other is a run: which model?"),
    ],
)
def test_nothing_is_written_if_a_model_is_wrong(ludus: Ludus, wish: str, named: str) -> None:
    new_run("other")
    new_run("wide", "model.hidden=32")
    foreign("agent.pt")
    code, _, err = ludus("train", "kuhn", "--run", "mine", *setting(*TRAINING, wish))
    assert (code, named in err) == (2, True), err
    assert not Path("mine").exists()


def test_a_pool_that_is_there_before_its_run(ludus: Ludus) -> None:
    RunFolder.models_in("mine").publish(
        ModelId("guest", 0, 0), new_run("other").models.fetch(ModelId("main", 0, 0)), parent=None, facts={}
    )
    wish = setting(*TRAINING, "league.external={guest: guest:0:0}", "league.roles.main.start=guest:0:0")
    assert ludus("train", "kuhn", "--run", "mine", *wish, "--quiet")[0] == 0
    assert models("mine")[:2] == ["guest:0:0", "main:0:0"]
    code, _, err = ludus("train", "--run", "mine", "--resume", *setting("league.roles.main.start=other#main"))
    assert (code, "league.roles.main.start" in err) == (2, True)
