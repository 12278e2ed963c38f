"""Replays of StarCraft II: read without the game, shown by a stand-in for it, and made into a dataset."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pysc2")

from sc2_replay_files import replay_file
from stand_in_sc2 import asked, change_plan, install

from ludus.data.replay import DecodedReplay, EpisodeFilter, EpisodeSource, NoOp, column_specs
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_history import NUM_TYPES, UNIT_TYPES
from ludus.games.adapters.pysc2_replays import DamagedReplayError, read_header
from ludus.games.seat_rows import GameError
from ludus.games.strategies import Strategies, WithStrategies
from ludus.replays.cloning_plan import windows_by_kind
from ludus.replays.conversion import convert
from ludus.replays.dataset import ReplayDataset
from ludus.replays.dataset_writer import write_dataset

ON_SCREEN = PySC2(map_name="Simple64", screen=16, minimap=16, time_limit_s=30)
WITH_DELAYS = PySC2(map_name="Simple64", screen=16, minimap=16, max_delay=16, time_limit_s=30)
EVERYTHING = EpisodeFilter()
ATTACK = 12


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install(tmp_path / "StarCraftII", ends_at=65, acts_at=33)
    monkeypatch.setenv("SC2PATH", str(folder))
    return folder


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    path = tmp_path / "good.SC2Replay"
    path.write_bytes(replay_file())
    return path


def decode(source: PySC2, *files: Path, wanted: EpisodeFilter = EVERYTHING, no_op: Any = None) -> list[DecodedReplay]:
    named = {path.name: path for path in files}
    episodes: EpisodeSource = source.replay_episodes(named, no_op)
    return list(episodes.decode(list(episodes.replays()), wanted))


def test_a_header_says_version_map_and_players() -> None:
    header = read_header(replay_file(version=(5, 0, 13), build=92440, game_steps=20_000, Title="Ever Dream LE"))
    assert (header.version, header.build, header.game_steps) == ("5.0.13", 92440, 20_000)
    assert header.map == "Ever Dream LE"
    assert header.players == (("terran", "win", 0), ("zerg", "loss", 0))
    rated = [{"AssignedRace": "Prot", "Result": "Win", "MMR": rating} for rating in (5321, -36400)]
    assert [player.mmr for player in read_header(replay_file(Players=rated)).players] == [5321, 0]


@pytest.mark.parametrize("length", [0, 3, 40, 1030, 1060, -20, -1])
def test_a_cut_off_replay_is_damaged(length: int) -> None:
    with pytest.raises(DamagedReplayError):
        read_header(replay_file()[:length])


def test_a_flipped_byte_never_brings_the_reader_down() -> None:
    content = bytearray(replay_file())
    for place in range(0, len(content), 7):
        content[place] ^= 0xFF
        with suppress(DamagedReplayError):
            read_header(bytes(content))
        content[place] ^= 0xFF


def test_no_game_at_all_is_explained(replay: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SC2PATH", str(tmp_path / "nowhere"))
    with pytest.raises(GameError, match="set SC2PATH to its folder"):
        decode(ON_SCREEN, replay)


def test_what_cannot_be_shown_is_skipped_with_the_reason(game: Path, tmp_path: Path) -> None:
    contents = {
        "damaged": replay_file()[:700],
        "other": replay_file(version=(4, 8, 2), build=71663),
        "alone": replay_file(Players=[{"AssignedRace": "Terr", "Result": "Win"}]),
    }
    paths = [tmp_path / f"{name}.SC2Replay" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_bytes(content)
    found = {one.name: one.skipped for one in decode(ON_SCREEN, *paths, tmp_path / "missing.SC2Replay")}
    assert "cannot be read" in found["damaged.SC2Replay"]
    assert found["other.SC2Replay"] == (
        "it needs StarCraft II 4.8.2 (build 71663), which is not installed; there are 4.10.0, latest"
    )
    assert found["alone.SC2Replay"] == "it has 1 players, not 2"
    assert "No such file" in found["missing.SC2Replay"]
    assert asked(game) == []  # all that without starting the game


def test_filters_count_what_they_leave_out_before_the_game_is_started(game: Path, replay: Path) -> None:
    wanted = EpisodeFilter(map="Ever Dream LE")
    (found,) = decode(ON_SCREEN, replay, wanted=wanted)
    assert (found.dropped["map"], found.episodes) == (2, ())
    assert asked(game) == []


@pytest.mark.slow
def test_each_player_is_watched_and_actions_become_decisions(game: Path, replay: Path) -> None:
    (found,) = decode(ON_SCREEN, replay)
    assert found.skipped == ""
    assert [line["player"] for line in asked(game, "start_replay")] == [1, 2]
    won, lost = found.episodes
    assert (won.facts.player, won.facts.outcome, won.facts.seat) == ("terran", "win", 0)
    assert (lost.facts.player, lost.facts.outcome, lost.facts.seat) == ("zerg", "loss", 1)
    assert won.facts.matchup == ("terran", "zerg")
    columns = won.columns
    specs = column_specs(ON_SCREEN.spec.kinds[0])
    assert {name: (array.shape[1:], array.dtype) for name, array in columns.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
    # The stand-in starts at game step 1; the player attacks (5, 7) before step 33: the fourth decision.
    functions = columns["action.function"].tolist()
    assert functions == [0, 0, 0, ATTACK, 0, 0, 0, 0]
    assert columns["action.screen"][3] == 7 * 16 + 5
    assert columns["legal.function"][3, ATTACK]
    assert not columns["legal.function"][4, ATTACK]
    assert columns["reward"].tolist() == [0.0] * 7 + [1.0]
    assert columns["over"].tolist() == [False] * 7 + [True]
    assert columns["elapsed"].tolist() == [1] * 8
    assert lost.columns["reward"][-1] == -1.0


@pytest.mark.slow
def test_decisions_to_do_nothing_are_thinned_out(game: Path, replay: Path) -> None:
    (found,) = decode(ON_SCREEN, replay, no_op=NoOp(head="function"), wanted=EpisodeFilter(outcome="win"))
    (won,) = found.episodes
    assert won.facts.length == 8
    assert won.columns["action.function"].tolist() == [0, ATTACK, 0]
    assert won.columns["elapsed"].tolist() == [3, 4, 1]


@pytest.mark.slow
def test_with_delays_a_decision_is_made_where_the_player_acts(game: Path, replay: Path) -> None:
    (found,) = decode(WITH_DELAYS, replay, wanted=EpisodeFilter(outcome="win"))
    (won,) = found.episodes
    assert won.columns["action.function"].tolist() == [0, 0, ATTACK, 0, 0]
    assert (won.columns["action.delay"] + 1).tolist() == [16, 15, 16, 16, 1]
    assert won.columns["elapsed"].tolist() == [16, 15, 16, 16, 1]


@pytest.mark.slow
def test_a_replay_that_brings_the_game_down_is_skipped_and_the_next_one_shown(game: Path, tmp_path: Path) -> None:
    change_plan(game, crash_at=20, ends_at=65)
    first, second = (tmp_path / f"{name}.SC2Replay" for name in ("first", "second"))
    for path in (first, second):
        path.write_bytes(replay_file())
    episodes = ON_SCREEN.replay_episodes({path.name: path for path in (first, second)}, None)
    decoded = episodes.decode(episodes.replays(), EpisodeFilter(outcome="win"))
    assert "the game does not show it" in next(decoded).skipped
    change_plan(game, ends_at=65)
    assert len(next(decoded).episodes) == 1
    assert list(decoded) == []


@pytest.mark.slow
def test_an_action_that_pysc2_does_not_know_is_left_out_and_counted(game: Path, replay: Path) -> None:
    change_plan(game, ends_at=65, acts_at=33, strange=2)
    (found,) = decode(ON_SCREEN, replay, wanted=EpisodeFilter(outcome="win"))
    assert found.skipped == ""
    assert found.episodes[0].columns["action.function"].tolist() == [0, 0, 0, ATTACK, 0, 0, 0, 0]
    ((reason, count),) = found.left_out.items()
    assert "Unknown ability_id: 3674" in reason
    assert count == 2


@pytest.mark.slow
def test_replays_become_a_dataset(game: Path, replay: Path, tmp_path: Path) -> None:
    episodes = ON_SCREEN.replay_episodes({replay.name: replay}, None)
    with write_dataset(
        tmp_path / "dataset", game=episodes.game, kind=episodes.kind, strategy=episodes.strategy, settings={}
    ) as writer:
        convert(episodes, writer, EVERYTHING)
    dataset = ReplayDataset.open(tmp_path / "dataset")
    dataset.require_fit(ON_SCREEN.spec.kinds[0])
    assert (dataset.num_episodes, dataset.num_decisions) == (2, 16)
    assert dataset.actions("function").tolist() == [0, ATTACK]
    batch = dataset.windows(np.random.default_rng(0), 4, 8)
    assert batch.action["screen"].max() == 7 * 16 + 5


@pytest.mark.slow
def test_strategies_of_replays_are_what_their_players_built(game: Path, replay: Path, tmp_path: Path) -> None:
    depot, marine = 19, 48
    units = [
        {"tag": 1, "unit_type": 18, "alliance": 1, "at": (10, 10)},
        {"tag": 2, "unit_type": depot, "alliance": 1, "at": (32, 48), "since": 12},
        {"tag": 3, "unit_type": marine, "alliance": 1, "at": (11, 10), "since": 40},
    ]
    change_plan(game, ends_at=65, acts_at=33, units=units, abilities={"18": [524]}, upgrades=[15])
    source = PySC2(
        map_name="Simple64",
        interface="raw",
        inputs="published",
        opponent_view=True,
        max_units=16,
        raw_resolution=64,
        screen=16,
        minimap=16,
        time_limit_s=30,
    )
    episodes = source.replay_episodes({replay.name: replay}, None)
    folder = tmp_path / "dataset"
    with write_dataset(
        folder, game=episodes.game, kind=episodes.kind, strategy=episodes.strategy, settings={}
    ) as writer:
        convert(episodes, writer, EpisodeFilter(outcome="win"))
    dataset = ReplayDataset.open(folder)
    codes = [UNIT_TYPES.index(kind) + 1 for kind in (depot, marine)]
    known = Strategies.read(str(folder / "strategies.npz"))
    assert known.build_order[0, :3].tolist() == [*codes, -1]
    assert known.build_place is not None
    assert known.build_place[0, :3].tolist() == [(64 - 48) * 2 * 128 + 64, (64 - 10) * 2 * 128 + 22, -1]
    assert np.flatnonzero(known.built[0, :NUM_TYPES]).tolist() == sorted(codes)
    assert known.built[0, NUM_TYPES:].sum() == 1  # the upgrade
    game_with = WithStrategies(
        game=source,
        strategies=str(folder / "strategies.npz"),
        types=NUM_TYPES,
        groups=source.strategy_groups,
        separate=True,
    )
    batch = windows_by_kind(game_with, game_with.spec, dataset, 4)[0].draw(np.random.default_rng(0), 64)
    shown = batch.observation["z"][0, :, 0] > 0
    assert shown.any()
    assert (batch.observation["z_build_order_length"][0] == np.where(shown, 2, 0)).all()
    assert batch.observation["available_actions"].sum(-1).max() == 3  # no_op, the camera and what a building can do
    assert not batch.observation["critic.units"].any()  # a replay shows one player at a time
    assert batch.observation["critic.scores"].any()
