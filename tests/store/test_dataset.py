"""Datasets of replays: what is written comes back, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_episodes import KIND, STRATEGY, episode, more_and_more_values, replays

from ludus.data.batch import Batch
from ludus.data.replay import INDEX, DatasetError, DecodedReplay, Episode, column_specs
from ludus.data.specs import Entities, ObservationSpec, Vector
from ludus.data.trees import Tree
from ludus.replays import dataset_writer
from ludus.replays.dataset import ReplayDataset
from ludus.replays.dataset_writer import write_dataset
from ludus.store.files import StoreError

SETTINGS = {"outcome": None}


def write(folder: Path, given: list[DecodedReplay], **more: Any) -> None:
    facts: dict[str, Any] = {"game": "made", "kind": KIND, "strategy": STRATEGY, "settings": SETTINGS} | more
    with write_dataset(folder, **facts) as writer:
        for one in given:
            if one.name not in writer.done:
                writer.add(one)


def episodes_of(given: list[DecodedReplay]) -> list[Episode]:
    return [one for decoded in given for one in decoded.episodes]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def made(tmp_path: Path) -> tuple[ReplayDataset, list[Episode]]:
    given = replays(12)
    write(tmp_path / "set", given)
    return ReplayDataset.open(tmp_path / "set"), episodes_of(given)


def naive_window(one: Episode, start: int, length: int) -> Tree:
    """Rows `start` to `start + length`, zeros where the episode has no more, with what a batch adds."""
    rows = len(one.columns["reward"])
    window: Tree = {}
    for name, spec in column_specs(KIND).items():
        window[name] = np.zeros((length + 1, *spec.shape), spec.dtype)
        part = one.columns[name][start : start + length + 1]
        window[name][: len(part)] = part
    number = np.arange(length + 1)
    window["valid"] = (start + number < rows - one.has_bootstrap) & (number < length)
    window["follows"] = window["valid"] & np.append(window["valid"][1:], False)
    window["first"] = number == 0
    return window


def flattened(batch: Batch) -> Tree:
    rows: Tree = {f"observation.{name}": array for name, array in batch.observation.items()}
    rows |= {f"legal.{name}": array for name, array in batch.legal.items()}
    rows |= {f"action.{name}": array for name, array in batch.action.items()}
    names = ("reward", "rewards", "elapsed", "over", "valid", "follows", "first")
    return rows | {name: getattr(batch, name) for name in names}


@pytest.mark.parametrize("length", [1, 8, 64])
def test_windows_are_those_of_a_naive_reader(made: tuple[ReplayDataset, list[Episode]], length: int) -> None:
    dataset, given = made
    rng = np.random.default_rng(1)
    episode_numbers, starts = dataset.draw(rng, 50, length)
    batch = dataset.windows(np.random.default_rng(1), 50, length)
    found = flattened(batch)
    assert (batch.extra["episode"] == episode_numbers).all()
    for column, (number, start) in enumerate(zip(episode_numbers, starts, strict=True)):
        expected = naive_window(given[number], start, length)
        assert expected.keys() == found.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype, name
            np.testing.assert_array_equal(found[name][:, column], array, err_msg=name)


def test_every_window_is_as_long_as_can_be_and_every_decision_is_seen(
    made: tuple[ReplayDataset, list[Episode]],
) -> None:
    dataset, given = made
    numbers, starts = dataset.draw(np.random.default_rng(0), 5000, 8)
    seen = [np.zeros(one.num_decisions, np.int64) for one in given]
    for number, start in zip(numbers.tolist(), starts.tolist(), strict=True):
        decisions = given[number].num_decisions
        assert 0 <= start <= max(decisions - 8, 0)
        seen[number][start : start + 8] += 1
    assert min(counts.min() for counts in seen) > 0
    middles = np.concatenate([counts[8:-8] for counts in seen if len(counts) > 16])
    assert middles.std() < 0.3 * middles.mean(), "decisions far from both ends are equally likely"


def test_facts_of_episodes(made: tuple[ReplayDataset, list[Episode]]) -> None:
    dataset, given = made
    found = dataset.episodes
    assert dataset.num_episodes == len(given)
    assert dataset.num_decisions == sum(one.num_decisions for one in given)
    for number, one in enumerate(given):
        assert dataset.names[found.player[number]] == one.facts.player
        assert dataset.names[found.matchup[number]] == "ann vs bob"
        assert found.outcome[number] == {"win": 1, "draw": 0, "loss": -1, None: 0}[one.facts.outcome]
        assert found.length[number] == one.facts.length
        assert found.build_order is not None
        assert found.built is not None
        np.testing.assert_array_equal(found.build_order[number], one.build_order)
        np.testing.assert_array_equal(found.built[number], one.built)
    strategies = np.load(dataset.path / "strategies.npz")
    np.testing.assert_array_equal(strategies["build_order"], found.build_order)
    np.testing.assert_array_equal(strategies["built"], found.built)
    np.testing.assert_array_equal(strategies["outcome"], found.outcome)


def test_vocabularies_are_those_of_the_data(made: tuple[ReplayDataset, list[Episode]]) -> None:
    dataset, given = made
    part, _ = dataset.split(0.5)
    for view in (dataset, part):
        chosen = [one for number, one in enumerate(given) if number in view._numbers]
        types, picks, places = set[int](), set[int](), set[int]()
        for one in chosen:
            columns = one.columns
            lengths = columns["observation.units_length"]
            types |= {
                int(row[0])
                for rows, length in zip(columns["observation.units"], lengths, strict=True)
                for row in rows[:length]
            }
            for number in range(one.num_decisions):
                order = columns["action.order"][number]
                if order in (1, 2):
                    picks |= {int(pick) for pick in columns["action.who"][number] if pick >= 0}
                if order == 2:
                    places.add(int(columns["action.where"][number]))
        assert view.types("units").tolist() == sorted(types)
        assert view.actions("who").tolist() == sorted(picks)
        assert view.actions("where").tolist() == sorted(places)
    with pytest.raises(DatasetError, match="no head 'how'; there are order, who, where"):
        dataset.actions("how")
    with pytest.raises(DatasetError, match=r"'scalars' .* is not a list of entities with types"):
        dataset.types("scalars")


def test_a_split_keeps_games_together(made: tuple[ReplayDataset, list[Episode]]) -> None:
    dataset, _ = made
    training, validation = dataset.split(0.3, seed=3)
    assert training.num_episodes + validation.num_episodes == dataset.num_episodes
    assert not {*training.episodes.replay.tolist()} & {*validation.episodes.replay.tolist()}
    assert validation.num_episodes
    again, _ = dataset.split(0.3, seed=3)
    np.testing.assert_array_equal(again.episodes.replay, training.episodes.replay)
    wins = dataset.where(dataset.episodes.outcome > 0)
    assert (wins.episodes.outcome == 1).all()
    assert 0 < wins.num_episodes < dataset.num_episodes
    batch = wins.windows(np.random.default_rng(0), 20, 4)
    assert (wins.episodes.outcome[batch.extra["episode"]] == 1).all()
    nobody = dataset.where(dataset.episodes.outcome > 1)
    with pytest.raises(DatasetError, match="no episode"):
        nobody.windows(np.random.default_rng(0), 1, 4)


def test_another_kind_of_seat_is_refused_by_the_name_of_the_difference(
    made: tuple[ReplayDataset, list[Episode]],
) -> None:
    dataset, _ = made
    dataset.require_fit(replace(KIND, name="other", rewards=()))
    parts = dict(KIND.observation.parts)
    other = replace(
        KIND, observation=ObservationSpec(parts=parts | {"units": Entities(maximum=5, features=3, types=4)},
                                          critic=KIND.observation.critic)
    )  # fmt: skip
    with pytest.raises(DatasetError, match=r"observation\.units\.features is 2 in the dataset and 3"):
        dataset.require_fit(other)
    wider = replace(
        KIND, observation=ObservationSpec(parts=parts | {"z": Vector(size=9)}, critic=KIND.observation.critic)
    )
    with pytest.raises(DatasetError, match=r"observation\.z\.type is missing in the dataset"):
        dataset.require_fit(wider)
    dataset.require_fit(wider, filled=("z",))


def test_planes_with_many_values_are_stored_as_they_are(tmp_path: Path) -> None:
    given = more_and_more_values()
    write(tmp_path / "set", given)
    assert "observation.map.raw.bin" in contents(tmp_path / "set")
    assert "observation.map.bin" not in contents(tmp_path / "set")
    dataset, expected = ReplayDataset.open(tmp_path / "set"), episodes_of(given)
    for number, one in enumerate(expected):
        window = dataset.read_at(np.array([number]), np.array([0]), one.num_decisions).batch()
        rows = len(one.columns["reward"])
        np.testing.assert_array_equal(window.observation["map"][:rows, 0], one.columns["observation.map"])
    write(tmp_path / "few", given[:3])
    write(tmp_path / "few", given)
    assert contents(tmp_path / "few") == contents(tmp_path / "set")
    assert ReplayDataset.open(tmp_path / "set").damaged() == []


def test_planes_keep_every_bit(tmp_path: Path) -> None:
    one = replays(1)[0].episodes[0]
    odd = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45], np.float32)
    planes = np.resize(odd, one.columns["observation.map"].shape)
    one.columns["observation.map"][...] = planes
    write(tmp_path / "set", [DecodedReplay(name="x", episodes=(one,))])
    window = ReplayDataset.open(tmp_path / "set").read_at(np.array([0]), np.array([0]), len(planes)).batch()
    assert window.observation["map"][: len(planes), 0].tobytes() == planes.tobytes()


def test_going_on_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replays(10)
    write(tmp_path / "whole", given)
    monkeypatch.setattr(dataset_writer, "COMMIT_REPLAYS", 3)
    for stop in (0, 2, 5, 5, 10):
        write(tmp_path / "parts", given[:stop])
    broken = replace(given[7].episodes[0], columns={"reward": np.zeros(3, np.float32)})
    with pytest.raises(DatasetError, match="should be"):
        write(tmp_path / "broken", [*given[:7], DecodedReplay(name="broken", episodes=(broken,))])
    assert len(ReplayDataset.open(tmp_path / "broken").episodes.replay) < len(episodes_of(given[:7]))
    write(tmp_path / "broken", given)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_what_is_behind_the_committed_end_is_cut_off(tmp_path: Path) -> None:
    given = replays(10)
    write(tmp_path / "whole", given)
    write(tmp_path / "set", given[:6])
    for path in (tmp_path / "set").glob("*.bin"):
        path.write_bytes(path.read_bytes() + b"half of a chunk")
    with (tmp_path / "set" / "replays.jsonl").open("ab") as lines:
        lines.write(b'{"name": "ha')
    (tmp_path / "set" / "observation.map.raw.bin").write_bytes(b"left")
    assert ReplayDataset.open(tmp_path / "set").num_episodes == len(episodes_of(given[:6]))
    write(tmp_path / "set", given)
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from made_episodes import KIND, STRATEGY, more_and_more_values
from ludus.replays import dataset_writer

dataset_writer.COMMIT_REPLAYS = 2
stop, count = int(sys.argv[3]), 0

def counted(function):
    def call(*arguments, **more):
        global count
        count += 1
        if count == stop:
            os.kill(os.getpid(), 9)
        return function(*arguments, **more)
    return call

os.fsync, os.replace, os.truncate = counted(os.fsync), counted(os.replace), counted(os.truncate)
with dataset_writer.write_dataset(
    Path(sys.argv[2]), game="made", kind=KIND, strategy=STRATEGY, settings={"outcome": None}
) as writer:
    for one in more_and_more_values():
        if one.name not in writer.done:
            writer.add(one)
print(count)
"""


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "whole", more_and_more_values())

    def run(stop: int) -> subprocess.CompletedProcess[str]:
        here = str(Path(__file__).parent)
        return subprocess.run(
            [sys.executable, "-c", KILLED, here, str(tmp_path / "set"), str(stop)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    for stop in (1, 3, 17, 40, 60, 45):  # the index, a column, a second chunk, a column in another form...
        assert run(stop).returncode == -signal.SIGKILL
    last = run(0)
    assert last.returncode == 0, last.stderr
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_other_settings_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path / "set", replays(2))
    with pytest.raises(DatasetError, match="other settings: outcome was None and is 'win'"):
        write(tmp_path / "set", [], settings={"outcome": "win"})
    with pytest.raises(DatasetError, match="other game: it was 'made' and is 'chess'"):
        write(tmp_path / "set", [], game="chess")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear reader")
    with pytest.raises(DatasetError, match="neither empty nor a dataset"):
        write(tmp_path / "mine", [])
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    with (
        write_dataset(tmp_path / "set", game="made", kind=KIND, strategy=STRATEGY, settings=SETTINGS),
        pytest.raises(StoreError, match="being written by another process"),
    ):
        write(tmp_path / "set", [])


def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replays(10)
    write(tmp_path / "whole", given)
    write(tmp_path / "set", given[:4])
    full = type(dataset_writer.shutil.disk_usage(tmp_path))(1 << 30, 1 << 30, 0)
    with monkeypatch.context() as patch:
        patch.setattr(dataset_writer.shutil, "disk_usage", lambda path: full)
        with pytest.raises(DatasetError, match="make room and give the same command again"):
            write(tmp_path / "set", given)
    write(tmp_path / "set", given)
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_damage_is_found(tmp_path: Path) -> None:
    write(tmp_path / "set", replays(4))
    column = tmp_path / "set" / "action.where.bin"
    good = column.read_bytes()
    column.write_bytes(good[:-1])
    with pytest.raises(DatasetError, match=r"action\.where\.bin is cut short: \d+ bytes, should be"):
        ReplayDataset.open(tmp_path / "set")
    with pytest.raises(DatasetError, match="cut short"):
        write(tmp_path / "set", [])
    column.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert ReplayDataset.open(tmp_path / "set").damaged() == ["action.where"]
    column.unlink()
    with pytest.raises(DatasetError, match=r"action\.where\.bin is missing"):
        ReplayDataset.open(tmp_path / "set")
    with pytest.raises(DatasetError, match="is not a dataset"):
        ReplayDataset.open(tmp_path)
    index = tmp_path / "set" / INDEX
    facts = json.loads(index.read_text())
    index.write_text("{")
    with pytest.raises(DatasetError, match="is damaged"):
        ReplayDataset.open(tmp_path / "set")
    index.write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(DatasetError, match="has format 99"):
        ReplayDataset.open(tmp_path / "set")
    facts["columns"][0]["file"] = "../../secret"
    index.write_text(json.dumps(facts))
    with pytest.raises(DatasetError, match="it names the file"):
        ReplayDataset.open(tmp_path / "set")


def test_the_digest_tells_contents_apart(tmp_path: Path) -> None:
    write(tmp_path / "one", replays(3))
    write(tmp_path / "same", replays(3))
    write(tmp_path / "other", replays(3, seed=1))
    one, same, other = (ReplayDataset.open(tmp_path / name).digest for name in ("one", "same", "other"))
    assert one == same != other


def test_a_source_that_gives_other_arrays_is_refused(tmp_path: Path) -> None:
    one = episode(np.random.default_rng(0), "x", 0, 4)
    one.columns["action.order"] = one.columns["action.order"].astype(np.int64)
    with pytest.raises(DatasetError, match=r"column 'action\.order' should be int32\[4\], got int64\[4\]"):
        write(tmp_path / "set", [DecodedReplay(name="x", episodes=(one,))])
    one = episode(np.random.default_rng(0), "x", 0, 4)
    one.columns["action.order"][2] = 300
    with pytest.raises(DatasetError, match=r"column 'action\.order' should be from -1 to .*, got .* to 300"):
        write(tmp_path / "other", [DecodedReplay(name="x", episodes=(one,))])
