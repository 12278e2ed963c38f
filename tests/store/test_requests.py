"""Requests and answers as files: each is done once or not at all, whatever dies meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ludus.data.records import ChangeSettings, FreezePlayer
from ludus.store import run_control as requests
from ludus.store.run_control import Asked, EditAnswer, RequestFolder


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 0.0)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_requests_are_taken_in_order_and_answered_once(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    taker = RequestFolder(folder)
    assert list(taker.take()) == []
    asked = [Asked(folder, FreezePlayer(player=f"main_{index}")) for index in range(3)]
    for index, request in enumerate(taker.take()):
        assert request.edit == FreezePlayer(player=f"main_{index}")
        request.answer(EditAnswer(done=f"froze {index}"))
    assert list(taker.take()) == []
    assert [one.answer() for one in asked] == [EditAnswer(done=f"froze {index}") for index in range(3)]
    assert [one.answer() for one in asked] == [None] * 3
    assert files(folder) == []


def test_who_stops_early_leaves_the_rest_for_the_next_look(tmp_path: Path) -> None:
    waiting = [Asked(tmp_path, FreezePlayer(player=f"main_{index}")) for index in range(2)]
    taker = RequestFolder(tmp_path)
    first = next(taker.take())
    first.answer(EditAnswer(done="froze"))
    assert [request.edit for request in taker.take()] == [FreezePlayer(player="main_1")]
    assert waiting[0].answer() == EditAnswer(done="froze")


def test_a_request_is_withdrawn_or_taken_never_both(tmp_path: Path) -> None:
    taker = RequestFolder(tmp_path)
    withdrawn = Asked(tmp_path, FreezePlayer(player="main"))
    assert withdrawn.withdraw()
    assert list(taker.take()) == []
    taken = Asked(tmp_path, FreezePlayer(player="main"))
    assert len(list(taker.take())) == 1
    assert not taken.withdraw()


def test_nobody_is_surprised_by_a_request_that_nobody_waits_for(tmp_path: Path) -> None:
    """Its command was killed."""
    asked = Asked(tmp_path, FreezePlayer(player="main"))
    del asked
    assert list(RequestFolder(tmp_path).take()) == []
    assert files(tmp_path) == []


@pytest.mark.parametrize("ahead_s", [3_600.0, -3_600.0])
def test_clocks_that_differ_do_not_matter(tmp_path: Path, ahead_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer may be on another machine."""
    asked, now = Asked(tmp_path, FreezePlayer(player="main")), time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead_s)
    (request,) = RequestFolder(tmp_path).take()
    request.answer(EditAnswer(done="froze"))
    assert asked.answer() == EditAnswer(done="froze")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"[[[[",
        b'{"edit": {"edit": "explode"}}',
        b'{"edit": {"edit": "freeze", "player": "main", "more": 1}}',
        b'{"edit": {"edit": "freeze", "player": 3}}',
        b" " * 2_000_000,
    ],
)
def test_what_is_no_request_is_answered_with_what_is_wrong(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1-x.request").write_bytes(content)
    (request,) = RequestFolder(tmp_path).take()
    assert request.edit is None
    assert "does not read" in request.problem
    request.answer(EditAnswer(refused=request.problem))
    assert files(tmp_path) == ["1-x.answer"]


def test_what_the_dead_left_is_removed(tmp_path: Path) -> None:
    for name in ("1-x.taken", "2-x.answer", "3-x.answer"):
        (tmp_path / name).write_bytes(b"{}")
    long_ago = time.time() - 3600
    os.utime(tmp_path / "2-x.answer", (long_ago, long_ago))
    waiting = Asked(tmp_path, ChangeSettings(settings={"budget": "9"}))
    taker = RequestFolder(tmp_path)
    assert [name for name in files(tmp_path) if not name.endswith(".request")] == ["3-x.answer"]
    (request,) = taker.take()
    request.answer(EditAnswer(done="set"))
    assert waiting.answer() == EditAnswer(done="set")


def test_the_folder_is_not_looked_at_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 3600.0)
    taker = RequestFolder(tmp_path)
    _first = Asked(tmp_path, FreezePlayer(player="main"))
    assert len(list(taker.take())) == 1
    _second = Asked(tmp_path, FreezePlayer(player="main"))
    assert list(taker.take()) == []
