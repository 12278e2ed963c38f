"""`ludus clone` as a person uses it: what it learns, what it leaves, how it goes on, what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from bot_datasets import RECIPE, same_again, tic_tac_toe_dataset
from command_line import Ludus

from ludus.data.trees import Array
from ludus.observe.metric_names import METRICS, find_metric
from ludus.replays import cloned_run
from ludus.replays.dataset import ReplayDataset
from ludus.runtime.assemble import CHECKPOINT
from ludus.store.model_pool import BEST
from ludus.store.run_folder import RunFolder, read_metrics

FEW = ("--set", "cloning.minibatch_size=64")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tic_tac_toe_dataset(tmp_path_factory.mktemp("data") / "rules", 250)


@pytest.fixture(autouse=True)
def recipes_and_data(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    (tmp_path / "rules").symlink_to(data)


def weights_in(run: str) -> dict[str, Array]:
    checkpoint = RunFolder.open(run).checkpoints(CHECKPOINT).load_latest()
    assert checkpoint is not None
    return checkpoint.arrays


def numbers_in(run: str) -> list[dict[str, Any]]:
    return read_metrics(RunFolder.open(run).metrics / "train.jsonl")[0]


def test_a_bot_is_cloned_and_other_commands_know_the_player(ludus: Ludus) -> None:
    fast = ("--set", "cloning.learning_rate=1e-2", "--set", "cloning.minibatch_size=128")
    code, out, _ = ludus("clone", "rules", "mine.py:plain", "--run", "mine", "--steps", "300", *fast)
    assert code == 0
    assert "finished after" in out
    assert "ludus train mine.py:plain --set league.roles.main.start=mine#main@best" in out
    last = numbers_in("mine")[-1]
    assert last["main/accuracy.move"] > 0.95
    assert last["main/validation.accuracy.move"] > 0.75
    assert last["main/value_loss"] < 0.5 * numbers_in("mine")[0]["main/value_loss"]

    code, out, _ = ludus("models", "list", "mine", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {tag for row in rows for tag in row["tags"]} == {"best", "latest"}

    code, out, _ = ludus("eval", "mine", "main", "main@best", "random", "-n", "64", "--greedy", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert rows[1]["win_rate"] > 0.75

    start = ("--set", "league.roles.main.start=mine#main@best")
    code, out, err = ludus("train", "mine.py:plain", "--run", "league", *start, "--quiet")
    assert code == 0, err
    begun = RunFolder.open("league").models.fetch(RunFolder.open("league").models.resolve("main.start"))
    best = RunFolder.open("mine").models
    cloned = best.fetch(best.resolve("main@best"), "average")
    assert all(np.array_equal(begun[name], cloned[name]) for name in cloned)


def test_best_is_what_validation_measured_best(ludus: Ludus) -> None:
    # Three games to learn by heart: validation gets worse again while training goes on.
    few = tic_tac_toe_dataset(Path("few"), 8)
    ludus(
        *("clone", str(few), "mine.py:plain", "--run", "mine", "--validation", "0.5", "--steps", "200"),
        *("--set", "cloning.minibatch_size=8", "--set", "cloning.validate_every=160"),
    )
    rows = [row for row in numbers_in("mine") if "main/validation.loss" in row]
    losses = {int(row["decisions"]): row["main/validation.loss"] for row in rows}
    best = min(losses, key=lambda decisions: losses[decisions])
    assert best < max(losses)
    pool = RunFolder.open("mine").models
    assert pool.entry(pool.resolve("main@best")).facts["decisions"] >= best
    measured = [row for row in rows if row["main/validation.loss"] == losses[best]]
    assert pool.entry(pool.resolve("main@best")).facts["decisions"] == measured[0]["decisions"]
    assert pool.resolve("main@latest") > pool.resolve("main@best")
    assert len({entry.model for entry in pool.entries()}) == 2


@pytest.mark.parametrize("recipe", ["plain", "remembering"])
def test_going_on_equals_never_having_stopped(ludus: Ludus, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("rules", f"mine.py:{recipe}", "--steps", "60", *FEW)
    ludus("clone", *options, "--run", "whole", "--quiet")

    class Stopping(cloned_run.Cloner):
        def step(self) -> Any:
            if self.trained.step == 25:
                raise cloned_run.StopTraining("interrupted")
            return super().step()

    with monkeypatch.context() as patch:
        patch.setattr(cloned_run, "Cloner", Stopping)
        code, out, _ = ludus("clone", *options, "--run", "parted")
    assert code == 130
    assert "go on:    ludus clone --run parted --resume" in out
    code, _, err = ludus("clone", "--run", "parted", "--resume", "--quiet")
    assert code == 0, err
    whole, parted = weights_in("whole"), weights_in("parted")
    assert whole.keys() == parted.keys()
    for name, array in whole.items():
        assert np.array_equal(array, parted[name]), name
    pools = [RunFolder.open(run).models for run in ("whole", "parted")]
    one, other = ([(entry.model, entry.digest) for entry in pool.entries()] for pool in pools)
    assert one == other


def test_after_a_kill_new_weights_get_new_ids(ludus: Ludus) -> None:
    options = ("rules", "mine.py:plain", *FEW)
    ludus("clone", *options, "--steps", "40", "--run", "mine", "--quiet")
    folder = RunFolder.open("mine")
    newest = folder.models.resolve("main@latest")
    kept = sorted(folder.checkpoints(CHECKPOINT).folder.glob("*.safetensors"))
    kept[-1].unlink()  # as if it had been killed before the last one was written
    code, _, err = ludus("clone", "--run", "mine", "--resume", "--steps", "40", "--quiet")
    assert code == 0, err
    assert folder.models.resolve("main@latest").incarnation == newest.incarnation + 1


def test_only_episodes_with_an_outcome(ludus: Ludus) -> None:
    dataset = ReplayDataset.open("rules")
    won = dataset.where(dataset.episodes.outcome == 1.0)
    assert 0 < won.num_decisions < dataset.num_decisions
    code, out, _ = ludus(
        *("clone", "rules", "mine.py:plain", "--run", "mine", "--steps", "2"),
        *("--filter-outcome", "win", "--validation", "0"),
    )
    assert code == 0
    assert f"{won.num_episodes:,} episodes with {won.num_decisions:,} decisions" in out
    assert "right in validation" in out
    assert RunFolder.open("mine").models.resolve("main@best")
    loss = ("--filter-outcome", "loss")
    lost = tic_tac_toe_dataset(Path("unbeaten"), 2)
    if not (ReplayDataset.open(lost).episodes.outcome == -1).any():
        code, _, err = ludus("clone", str(lost), "mine.py:plain", "--run", "none", *loss)
        assert (code, "no episodes that ended with a loss" in err) == (2, True)


def test_illegal_actions_are_counted_and_left_out(ludus: Ludus) -> None:
    def cheating(board: Array, legal: Array) -> Array:
        return same_again(board, legal)

    tic_tac_toe_dataset(Path("data"), 60, cheating)
    actions = np.memmap("data/action.move.bin", np.uint8 if _is_unsigned("data") else np.int8, "r+")
    legal = ReplayDataset.open("data").windows(np.random.default_rng(0), 1, 1).legal["move"]
    assert legal.shape[-1] == 9
    actions[:5] = 77
    actions.flush()
    code, out, err = ludus("clone", "data", "mine.py:plain", "--run", "mine", "--epochs", "10", *FEW)
    assert code == 0, err
    assert "times a recorded action was illegal" in out
    assert numbers_in("mine")[-1]["main/impossible"] > 0
    actions[:] = 77
    actions.flush()
    code, out, err = ludus("clone", "data", "mine.py:plain", "--run", "none", "--steps", "3", *FEW)
    assert (code, "main@best" in out) == (0, False), err
    assert not any(BEST in names for names in RunFolder.open("none").models.tags().values())


def _is_unsigned(data: str) -> bool:
    index = json.loads((Path(data) / "dataset.json").read_text())
    return next(one["stored"] for one in index["columns"] if one["name"] == "action.move") == "uint8"


def test_seats_with_a_policy_of_their_own_learn_from_their_own_episodes(ludus: Ludus) -> None:
    options = ("--steps", "3", "--set", "policies=per_seat", *FEW)
    code, out, err = ludus("clone", "rules", "mine.py:plain", "--run", "mine", *options)
    assert code == 0, err
    assert "--set policies=per_seat" in out
    moved = [name for name in weights_in("mine") if name.startswith("learner/main/live.")]
    assert {name.split(".")[1].split("/")[0] for name in moved} == {"seat0", "seat1"}


def test_a_network_can_know_only_what_is_in_the_data(ludus: Ludus) -> None:
    few = tic_tac_toe_dataset(Path("few"), 3)
    known = ReplayDataset.open(few).actions("move").tolist()
    assert len(known) < 9
    options = ("--run", "mine", "--steps", "3", "--validation", "0", "--cut-vocabularies", *FEW)
    code, out, err = ludus("clone", str(few), "mine.py:alphastar", *options)
    assert code == 0, err
    model = msgspec.json.decode(RunFolder.open("mine").facts.experiment)["model"]
    assert model["actions"] == known
    league = next(line for line in out.splitlines() if line.startswith("a league: "))
    command = shlex.split(league.removeprefix("a league: ludus "))
    assert f"model.actions=[{','.join(map(str, known))}]" in command
    code, _, err = ludus(*command, "--run", "league", "--quiet")
    assert code == 0, err
    without = [word for word in command if not word.startswith("model.actions")]
    without.remove("--set")
    code, _, err = ludus(*without, "--run", "another", "--quiet")
    assert (code, "does not fit the networks here" in err) == (2, True)


REFUSED = {
    "other game": (("rules", "kuhn"), "does not fit 'player'"),
    "no dataset": (("nowhere", "mine.py:plain"), "nowhere is not a dataset"),
    "no recipe": (("rules",), "ludus clone DATASET RECIPE"),
    "both lengths": (("rules", "mine.py:plain", "--epochs", "2", "--steps", "2"), "give one of them"),
    "league rate": (
        ("rules", "mine.py:plain", "--set", "learner.learning_rate=1"),
        "learner.learning_rate means nothing to cloning; there is cloning.learning_rate",
    ),
    "typo": (("rules", "mine.py:plain", "--set", "cloning.windw=3"), "window"),
    "wrong share": (("rules", "mine.py:plain", "--validation", "1.5"), "validation must be in [0, 1)"),
    "bot's name": (("rules", "mine.py:plain", "--player", "rules"), "rules"),
    "no vocabulary": (("rules", "mine.py:plain", "--cut-vocabularies"), "ActorCritic has no vocabulary"),
    "no head": (("rules", "mine.py:plain", "--set", "cloning.loss.head_weights={moov: 1}"), "'moov'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_is_written(ludus: Ludus, case: str) -> None:
    arguments, message = REFUSED[case]
    code, out, err = ludus("clone", *arguments, "--run", "mine")
    assert code in (1, 2)
    assert message in err
    assert "Traceback" not in out + err
    assert not Path("mine").exists()


def test_a_damaged_or_foreign_run_does_not_go_on(ludus: Ludus) -> None:
    ludus("clone", "rules", "mine.py:plain", "--run", "mine", "--steps", "3", *FEW)
    code, _, err = ludus("train", "--run", "mine", "--resume")
    assert (code, "`ludus clone --run mine --resume`" in err) == (2, True)
    other = tic_tac_toe_dataset(Path("other"), 20, seed=1)
    code, _, err = ludus("clone", str(other), "--run", "mine", "--resume")
    assert (code, "other has other contents than rules" in err) == (2, True)
    code, _, err = ludus("clone", "--run", "mine", "--resume", "--set", "model.hidden=8")
    assert (code, "model.hidden stays as it is" in err) == (2, True)
    for file in Path("mine/checkpoints").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-20])
    code, _, err = ludus("clone", "--run", "mine", "--resume")
    assert (code, "no checkpoint in mine/checkpoints/run opens" in err) == (1, True)
    Path("mine/cloning.json").write_text("{")
    code, _, err = ludus("clone", "--run", "mine", "--resume")
    assert (code, "mine/cloning.json is damaged" in err) == (1, True)
    Path("mine/cloning.json").unlink()
    code, _, err = ludus("clone", "--run", "mine", "--resume")
    assert (code, "mine was not cloned" in err) == (1, True)


def test_metrics_go_where_the_experiment_says(ludus: Ludus) -> None:
    code, out, _ = ludus(
        "clone", "rules", "mine.py:plain", "--run", "mine", "--steps", "3", *FEW, "--set", "metrics=[CSV]"
    )
    assert code == 0
    assert "metrics:    CSV: mine/metrics/train.csv" in out
    header, *rows = (RunFolder.open("mine").metrics / "train.csv").read_text().splitlines()
    assert set(header.split(",")) == {name for row in numbers_in("mine") for name in row}
    assert len(rows) == len(numbers_in("mine"))
    assert all(find_metric(name).metric in METRICS for name in header.split(","))
