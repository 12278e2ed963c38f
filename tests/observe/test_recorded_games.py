"""Recorded games on disk: how many are kept, what a kill or damage leaves behind, and what a reader refuses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from planted_runs import plant

from ludus.observe import recorded_games
from ludus.observe.recorded_games import (
    GameFolder,
    GameLine,
    GameList,
    GameMove,
    GamePlayer,
    GameRecord,
    GameStep,
    encode_game,
    next_name,
)
from ludus.observe.report import GAME_BYTES, read_documents
from ludus.store.files import StoreError

RECORD = GameRecord(
    game="a game",
    players=[GamePlayer(name="main.1", model="main:0:3", weights="average"), GamePlayer(name="random")],
    teams=[0, 1],
    score=["1", "-1"],
    points=[1.0, -1.0],
    outcome="main.1 wins",
    decisions=1,
    every=1,
    score_range=(-1.0, 1.0),
    real_time=False,
    steps=[GameStep(), GameStep(done=[GameMove(seat=0, name="bet", value=0.5, options=[("bet", 1.0)])])],
)


def line(name: str, size: int = 100) -> GameLine:
    return GameLine(
        name=name,
        players=["main.1", f"bot_{name}"],
        seats=["main.1", f"bot_{name}"],
        outcome="draw",
        won=0.5,
        score=["0", "0"],
        decisions=3,
        trained=7,
        match=2,
        time=1.0,
        bytes=size,
    )


def filled(folder: GameFolder, number: int, *, most: int, size: int = 100) -> GameList:
    kept = folder.open()
    for _ in range(number):
        kept = folder.add(kept, line(next_name(kept.games), size), encode_game(RECORD), most=most)
    return kept


def files(folder: GameFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_a_game_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = GameFolder(tmp_path)
    assert folder.listed() == GameList()
    assert folder.changed == 0
    filled(folder, 1, most=5)
    assert folder.changed > 0
    assert [one.name for one in folder.listed().games] == ["000001"]
    assert folder.read("000001") == RECORD


def test_the_oldest_make_room(tmp_path: Path) -> None:
    folder = GameFolder(tmp_path)
    filled(folder, 5, most=3)
    assert [one.name for one in folder.listed().games] == ["000005", "000004", "000003"]
    assert files(folder) == ["000003.json", "000004.json", "000005.json", "index.json"]


def test_their_bytes_are_bounded(tmp_path: Path) -> None:
    folder = GameFolder(tmp_path)
    filled(folder, 4, most=100, size=recorded_games.MOST_BYTES_IN_ALL // 2)
    assert [one.name for one in folder.listed().games] == ["000004", "000003"]
    assert files(folder) == ["000003.json", "000004.json", "index.json"]


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    folder = GameFolder(tmp_path)
    filled(folder, 2, most=5)
    (folder.path / "000003.json").write_bytes(encode_game(RECORD))  # killed before its list was written
    (folder.path / "000001.json").unlink()
    assert [one.name for one in folder.open().games] == ["000002"]
    assert files(folder) == ["000002.json", "index.json"]


def test_a_damaged_list_is_told_and_begun_again(tmp_path: Path) -> None:
    folder = GameFolder(tmp_path)
    filled(folder, 2, most=5)
    (folder.path / "index.json").write_text('{"games": [{"name"')
    with pytest.raises(StoreError, match=r"index.json cannot be read"):
        folder.listed()
    assert folder.open() == GameList()
    assert [one.name for one in filled(folder, 1, most=5).games] == ["000001"]


@pytest.mark.parametrize("name", ["000009", "../run", "index", "", "1" * 20])
def test_other_files_are_no_games(tmp_path: Path, name: str) -> None:
    folder = GameFolder(tmp_path)
    filled(folder, 1, most=5)
    with pytest.raises(StoreError, match="no recorded game"):
        folder.read(name)


def test_a_link_or_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = GameFolder(tmp_path)
    filled(folder, 1, most=5)
    (folder.path / "000002.json").symlink_to(folder.path / "000001.json")
    with pytest.raises(StoreError, match="no recorded game"):
        folder.read("000002")
    monkeypatch.setattr(recorded_games, "MOST_BYTES", 100)
    with pytest.raises(StoreError, match="more than 100 bytes"):
        folder.read("000001")
    with pytest.raises(StoreError, match="at most 100 are kept"):
        encode_game(RECORD)


@pytest.mark.parametrize("claimed", [-(10**9), 0, 100])
def test_the_games_in_a_report_are_bounded_whatever_their_list_says(tmp_path: Path, claimed: int) -> None:
    run = plant(tmp_path / "run", snapshots=2, matches=8)
    folder = GameFolder(run.path)
    folder.open()
    long = msgspec.structs.replace(RECORD, outcome="x" * 400_000)
    names = [f"{number:06d}" for number in range(1, 9)]
    for name in names:
        (folder.path / f"{name}.json").write_bytes(encode_game(long))
    folder.write(GameList(games=[line(name, claimed) for name in [*names, *names * 50]]))
    documents = read_documents(run, lambda name: None, lambda text: None)
    games = [name for name in documents if name.startswith("game/")]
    assert games == ["game/000001", "game/000002"]
    assert [one["name"] for one in documents["games"]["games"]] == ["000001", "000002"]
    assert len(msgspec.json.encode({name: documents[name] for name in ("games", *games)})) < 2 * GAME_BYTES


def test_files_of_others_stay(tmp_path: Path) -> None:
    """A folder that somebody has sent may lead anywhere."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters.json").write_text("{}")
    (tmp_path / "home" / "000007.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "games").symlink_to(tmp_path / "home")
    with pytest.raises(OSError, match="a link"):
        GameFolder(tmp_path / "run").open()
    (tmp_path / "run" / "games").unlink()
    (tmp_path / "home").rename(tmp_path / "run" / "games")
    assert GameFolder(tmp_path / "run").open() == GameList()
    assert files(GameFolder(tmp_path / "run")) == ["letters.json"]
