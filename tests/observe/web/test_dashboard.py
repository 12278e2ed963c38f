"""The server of the dashboard over HTTP: documents, files, events, and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from page_requests import ask, served

from ludus.config import ConfigError
from ludus.observe.view import RunView, ViewError
from ludus.observe.web import dashboard as dashboard_module
from ludus.observe.web.dashboard import STATIC, Dashboard
from ludus.observe.web.page_server import PageServer


class MadeUpDocuments(RunView):
    """Documents that change when a test says so."""

    def __init__(self) -> None:  # without a run folder
        self.looks = 0
        self.versions: dict[str, int] = {"overview": 0, "league": 0, "player/<b>x</b>": 0}
        self.told: dict[str, int] = {}
        self.follow_ends = threading.Event()
        self.follow_ends.set()

    def look(self) -> None:
        self.looks += 1

    def follow(self) -> None:
        self.follow_ends.wait()

    def encoded(self, name: str) -> tuple[bytes, str]:
        if name not in self.versions:
            raise ViewError(f"there is no document {name!r}")
        self.told[name] = self.versions[name]
        version = self.versions[name]
        return json.dumps({"name": name, "version": version, "looks": self.looks}).encode(), str(version)

    def due(self) -> list[str]:
        return [name for name, version in self.told.items() if version != self.versions[name]]

    def encoded_game(self, name: str) -> bytes:
        if name != "000001":
            raise ViewError(f"the run has no recorded game {name!r}")
        return b'{"steps": []}'

    def filtered_matches(self, asked: Mapping[str, str]) -> bytes:
        if "limit" in asked:
            raise ValueError("limit must be small")
        return json.dumps(asked).encode()


def read_replay(name: str) -> dict[str, Any]:
    if name == "foreign.replay":
        raise ValueError("it is of \x1b[2Jgame")
    if name != "game.replay":
        raise ValueError(f"there is no {name!r}")
    return {"steps": []}


class Played(msgspec.Struct):
    players: list[str]


def play_game(players: Sequence[str]) -> Played:
    if "nobody" in players:
        raise ConfigError("no player 'nobody' \x1b[2J")
    if "broken" in players:
        raise RuntimeError("the game broke")
    return Played(list(players))


@contextmanager
def page(documents: MadeUpDocuments) -> Iterator[PageServer]:
    dashboard = Dashboard(documents, read_replay, play_game)
    with served(dashboard.app) as server:
        try:
            yield server
        finally:
            documents.follow_ends.set()
            dashboard.close()


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_module, "LOOK_EVERY_S", 0.02)


def test_documents_are_json_and_asked_for_again_only_when_they_change() -> None:
    documents = MadeUpDocuments()
    with page(documents) as server:
        first = ask(server, "/data/league")
        assert (first.status, first.headers["content-type"]) == (200, "application/json")
        assert json.loads(first.text)["name"] == "league"
        tag = first.headers["etag"]
        again = ask(server, "/data/league", If_None_Match=tag)
        assert (again.status, again.text) == (304, "")
        documents.versions["league"] = 1
        assert ask(server, "/data/league", If_None_Match=tag).status == 200
        assert json.loads(ask(server, "/data/player/%3Cb%3Ex%3C%2Fb%3E").text)["name"] == "player/<b>x</b>"
        missing = ask(server, "/data/nothing")
        assert (missing.status, missing.text) == (404, "there is no document 'nothing'")
        assert missing.headers["content-type"].startswith("text/plain")


def test_the_overview_does_not_wait_for_a_long_ledger() -> None:
    documents = MadeUpDocuments()
    documents.follow_ends.clear()
    with page(documents) as server:
        assert ask(server, "/data/overview").status == 200
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(ask(server, "/data/league").status))
        asking.start()
        asking.join(0.2)
        assert answers == []
        documents.follow_ends.set()
        asking.join(20)
        assert answers == [200]


def test_matches_are_filtered_by_the_address() -> None:
    with page(MadeUpDocuments()) as server:
        assert json.loads(ask(server, "/data/matches?player=main&state=void").text) == {
            "player": "main",
            "state": "void",
        }
        refused = ask(server, "/data/matches?limit=9")
        assert (refused.status, refused.text) == (400, "limit must be small")


def test_viewers_are_told_what_has_changed() -> None:
    documents = MadeUpDocuments()
    with page(documents) as server:
        ask(server, "/data/league")
        asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        asking.request("GET", "/events")
        with asking.getresponse() as answer:
            assert answer.getheader("Content-Type", "").startswith("text/event-stream")
            assert answer.readline() == b"retry: 2000\n"
            answer.readline()
            documents.versions["league"] = 1
            assert answer.readline() == b"event: changed\n"
            assert json.loads(answer.readline().removeprefix(b"data: ")) == ["league"]
        asking.close()


def test_nobody_looks_at_the_folder_without_a_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_module, "IDLE_AFTER_S", 0.1)
    documents = MadeUpDocuments()
    with page(documents) as server:
        deadline = time.monotonic() + 20
        looks = -1
        while looks != documents.looks and time.monotonic() < deadline:
            looks = documents.looks
            time.sleep(0.5)
        assert looks == documents.looks
        # Who comes then sees what is, and not what was when the last one left.
        assert json.loads(ask(server, "/data/overview").text)["looks"] > looks


def test_the_page_and_its_files_are_served() -> None:
    with page(MadeUpDocuments()) as server:
        index = ask(server, "/")
        assert index.headers["content-type"].startswith("text/html")
        assert "main.js" in index.text
        assert ask(server, "/main.js").headers["content-type"].startswith("text/javascript")
        assert ask(server, "/dashboard.css").headers["content-type"].startswith("text/css")


def test_every_file_that_a_module_imports_is_there() -> None:
    for path in STATIC.glob("*.js"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("import ") and " from " in line:
                name = line.rpartition(" from ")[2].strip('";')
                assert name.startswith("./"), f"{path.name}: a report can only embed ./NAME.js, not {name}"
                assert (STATIC / name).is_file(), f"{path.name} imports {name}"


def test_no_module_makes_markup_or_code_from_text() -> None:
    for path in STATIC.glob("*.js"):
        if path.name != "uPlot.esm.js":
            source = path.read_text(encoding="utf-8")
            for forbidden in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ):
                assert forbidden not in source, f"{path.name} has {forbidden}"


@pytest.mark.parametrize(
    "path", ["/../security.py", "/%2e%2e/security.py", "/..%2fsecurity.py", "/uPlot.LICENSE", "/none.js", "/%00.js"]
)
def test_no_other_file_is_served(path: str) -> None:
    with page(MadeUpDocuments()) as server:
        assert ask(server, path).status == 404


def test_recorded_games_are_read_by_who_can() -> None:
    with page(MadeUpDocuments()) as server:
        assert json.loads(ask(server, "/replays/game.replay").text) == {"steps": []}
        missing = ask(server, "/replays/..%2F..%2Fetc")
        assert missing.status == 404
        foreign = ask(server, "/replays/foreign.replay")
        assert (foreign.status, foreign.text) == (404, "it is of \N{REPLACEMENT CHARACTER}[2Jgame")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(method: str) -> None:
    with page(MadeUpDocuments()) as server:
        mine = f"127.0.0.1:{server.port}"
        own = {"Host": mine, "Origin": f"http://{mine}", "Content_Type": "application/json"}
        for path in ("/", "/data/league", "/events", "/replays/game.replay"):
            assert ask(server, path, method, "{}", **own).status == 405


def test_recorded_games_are_served() -> None:
    with page(MadeUpDocuments()) as server:
        assert json.loads(ask(server, "/games/000001").text) == {"steps": []}
        missing = ask(server, "/games/..%2Frun")
        assert missing.status == 404
        assert ask(server, "/games/000002").text == "the run has no recorded game '000002'"


def test_a_game_is_played_for_the_page_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with page(MadeUpDocuments()) as server:

        def post(body: str, origin: str = f"http://127.0.0.1:{server.port}") -> tuple[int, str]:
            answer = ask(server, "/watch", "POST", body, origin=origin, content_type="application/json")
            return answer.status, answer.text

        assert post('{"players": ["a", "b"]}') == (200, '{"players":["a","b"]}')
        assert post('{"players": ["a", "nobody"]}') == (400, "no player 'nobody' \N{REPLACEMENT CHARACTER}[2J")
        assert post('{"players": ["a", "broken"]}') == (500, "RuntimeError: the game broke")
        assert "the game broke" in capsys.readouterr().err
        for wrong in ("", "[]", '{"players": "a"}', '{"players": [1]}', "\xff"):
            assert post(wrong)[0] == 400, wrong
        assert post('{"players": ["a", "b"]}', origin="http://elsewhere")[0] == 403
        assert ask(server, "/watch").status == 405
