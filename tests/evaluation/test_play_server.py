"""The page of `ludus play` over HTTP: several tabs, what is refused, and what is recorded at the end."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted_runs import plant
from played_runs import folded, opponents_of, small, trained

from ludus.cli.play import _Records
from ludus.evaluation.play import server as play_server
from ludus.evaluation.play.house import NARROW_ELO, Kept, Opponents, PersonsGame, PlayHost
from ludus.evaluation.play.replays import replay_reader
from ludus.evaluation.play.server import FILES, PlayPage
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.league.summary import best_snapshot, elo_of, summarise
from ludus.observe.league_fold import read_league
from ludus.observe.web.page_server import PageAccess, PageServer
from ludus.recipes import connect_four
from ludus.runtime.assemble import load_experiment
from ludus.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "run", small(connect_four.experiment(), TicTacToe())).path


class Page:
    """What a browser asks, and the answers."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        source = TicTacToe()
        house = PlayHost(source, opponents_of(run), person="ann", keep=_Records(run, source).keep)
        self._page = PlayPage(house, "perfect", 0, read_replay=replay_reader(run))
        self._server = PageServer(self._page.app, PageAccess())
        self._server.start()
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()
        self._page.close()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        usual = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, usual if headers is None else headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(content) if is_json else content.decode()

    def post(self, path: str, **body: Any) -> Any:
        status, told = self.ask("POST", path, body)
        assert status == 200, told
        return told

    def play_out(self, told: Any) -> Any:
        session = told["session"]
        while told["open"]:
            told = self.post("/move", session=session, option=told["options"][0]["option"])
        return told

    def wait_for_record(self, session: str) -> Any:
        for _ in range(600):
            status, told = self.ask("GET", f"/state?session={session}")
            assert status == 200
            if told["kept"] is not None:
                return told["kept"]
            time.sleep(0.05)
        raise AssertionError("it is never recorded")


@pytest.fixture
def page(finished_run: Path, tmp_path: Path) -> Iterator[Page]:
    shutil.copytree(finished_run, tmp_path / "run")
    page = Page(RunFolder.open(tmp_path / "run"))
    yield page
    page.close()


def test_the_page_and_its_files_are_there(page: Page) -> None:
    for path in FILES:
        status, content = page.ask("GET", path)
        assert (status, bool(content)) == (200, True), path
    status, told = page.ask("GET", "/start")
    assert (told["game"], told["player"], told["seat"], told["seats"]) == ("tic_tac_toe", "perfect", 0, ["red", "blue"])
    offered = {one["name"]: one for one in told["players"]}
    assert {"main", "main.1", "perfect"} <= offered.keys()
    assert (offered["main"]["group"], offered["main"]["weights"]) == ("learning", "averaged weights")
    assert (offered["perfect"]["group"], offered["perfect"]["weights"]) == ("bots", "")
    assert {one["elo"] for one in told["players"]} == {None}, "few games say nothing about strength"


def test_opponents_are_offered_with_their_ratings(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    league, _ = read_league(folder)
    ratings = Opponents(connect_four.experiment(), folder, league, weights="average", greedy=False).ratings()
    known = elo_of(summarise(league))
    narrow = {name: round(elo) for name, (elo, error) in known.items() if 1.96 * error <= NARROW_ELO}
    assert narrow
    assert ratings == {**narrow, "main@best": narrow[str(best_snapshot(league, "main"))]}


def test_the_next_opponent_is_a_step_stronger_or_weaker(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    league, _ = read_league(folder)
    opponents = Opponents(connect_four.experiment(), folder, league, weights="average", greedy=False)
    ratings = opponents.ratings()
    middle = sorted(ratings, key=ratings.__getitem__)[len(ratings) // 2]
    up, down = opponents.suggestion(middle, 1.0), opponents.suggestion(middle, 0.0)
    assert up is not None
    assert down is not None
    assert ratings[up["player"]] == min(elo for elo in ratings.values() if elo > ratings[middle])
    assert ratings[down["player"]] == max(elo for elo in ratings.values() if elo < ratings[middle])
    assert up["text"].startswith(f"You beat {middle} (Elo {ratings[middle]}). Try {up['player']} ")
    assert opponents.suggestion(middle, 0.5) is None
    assert opponents.suggestion(max(ratings, key=ratings.__getitem__), 1.0) is None
    assert opponents.suggestion("unrated", 1.0) is None


def test_a_move_is_taken_back(page: Page) -> None:
    told = page.post("/game", player="perfect", seat=0)
    session = told["session"]
    assert told["can_undo"] is False
    status, answer = page.ask("POST", "/undo", {"session": session})
    assert (status, answer["error"]) == (400, "there is no move of yours to take back")
    assert page.post("/move", session=session, option=4)["can_undo"] is True
    assert page.post("/undo", session=session)["view"]["stones"] == [-1] * 9


def test_a_game_is_played_recorded_and_looked_at_again(page: Page) -> None:
    before = folded(page.run).matches.finished
    told = page.post("/game", player="main", seat=0)
    session = told["session"]
    told = page.play_out(told)
    assert told["outcome"].startswith({1.0: "You win", 0.5: "A draw", 0.0: "You lose"}[told["won"]])
    kept = page.wait_for_record(session)
    assert folded(page.run).matches.finished == before + 1
    status, replay = page.ask("GET", f"/replays/{kept['replay']}")
    assert status == 200
    assert [player["name"] for player in replay["players"]] == ["ann", "main"]
    status, told = page.ask("GET", "/replays/..%2Frun.json")
    assert status == 404


def test_two_tabs_play_two_games(page: Page) -> None:
    one, other = page.post("/game", player="perfect", seat=0), page.post("/game", player="perfect", seat=0)
    assert one["session"] != other["session"]
    page.post("/move", session=one["session"], option=4)
    _, told = page.ask("GET", f"/state?session={other['session']}")
    assert told["view"]["stones"] == [-1] * 9
    _, told = page.ask("GET", f"/state?session={one['session']}")
    assert told["view"]["stones"].count(-1) == 7


ECHO = """
import json, sys, time
hello = json.loads(sys.stdin.readline())
print(json.dumps({"protocol": 1}), flush=True)
moves = 0
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(0.2)
    moves = 1 if request["rows"][0]["new"] else moves + 1
    legal = request["rows"][0]["legal"]["move"]
    print(json.dumps({"id": request["id"], "actions": [legal[-1] if moves == 1 else legal[0]]}), flush=True)
"""
"""It remembers how many moves it has made in its game."""


def test_each_game_has_a_bot_of_its_own(finished_run: Path, tmp_path: Path) -> None:
    """Two people play against the same program at the same time."""
    (tmp_path / "echo.py").write_text(ECHO)
    folder = RunFolder.open(finished_run)
    experiment = replace(load_experiment(folder), bots={"echo": f"program:{tmp_path / 'echo.py'}"})
    opponents = Opponents(experiment, folder, folded(folder), weights="average", greedy=False)
    house = PlayHost(TicTacToe(), opponents, person="ann", keep=lambda *_: Kept(text=""))
    games = [house.start("echo", 0) for _ in range(2)]

    def play(game: PersonsGame) -> list[int]:
        game.move(4)
        game.move(7)
        stones: list[int] = game.show()["view"]["stones"]
        return stones

    with ThreadPoolExecutor(2) as threads:
        for stones in threads.map(play, games):
            assert stones == [1, -1, -1, -1, 0, -1, -1, 0, 1]
    for game in games:
        game.close("the end")


def test_a_new_game_ends_the_one_before_in_its_tab_only(page: Page) -> None:
    before = folded(page.run).matches.void
    one, other = page.post("/game", player="perfect", seat=0), page.post("/game", player="perfect", seat=0)
    for tab in (one, other):
        page.post("/move", session=tab["session"], option=4)
    page.post("/game", session=one["session"], player="perfect", seat=1)
    status, told = page.ask("POST", "/move", {"session": one["session"], "option": 0})
    assert (status, told["error"]) == (404, "this game is not known any more; begin a new one")
    page.post("/move", session=other["session"], option=min_free(page, other["session"]))
    page.post("/leave", session=other["session"])
    page.close()
    assert folded(page.run).matches.void == before + 2


def min_free(page: Page, session: str) -> int:
    _, told = page.ask("GET", f"/state?session={session}")
    option: int = told["options"][0]["option"]
    return option


def test_games_that_go_on_when_the_page_is_closed_are_void(page: Page) -> None:
    before = folded(page.run).matches.void
    begun = page.post("/game", player="perfect", seat=0)
    page.post("/move", session=begun["session"], option=4)
    page.post("/game", player="perfect", seat=0)
    page.close()
    assert folded(page.run).matches.void == before + 1, "the other had not begun"


def test_the_oldest_game_makes_room(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play_server, "MOST_GAMES", 2)
    games = [page.post("/game", player="perfect", seat=0)["session"] for _ in range(3)]
    assert [page.ask("GET", f"/state?session={game}")[0] for game in games] == [404, 200, 200]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/move", {"option": 0}, 404, "this game is not known any more"),
        ("/move", {"option": "0"}, 400, 'send {"option": NUMBER}'),
        ("/tick", {}, 400, 'send {"orders": [...]}'),
        ("/game", {"player": 3}, 400, 'send {"player": NAME'),
        ("/game", {"player": "mian"}, 400, "unknown player 'mian'; did you mean 'main'?"),
        ("/game", {"player": "perfect", "seat": 5}, 400, "tic_tac_toe has seats 0 to 1, not 5"),
        ("/game", [], 400, "send a JSON object"),
        ("/game", b"{", 400, "send a JSON object"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(page: Page, path: str, body: Any, status: int, said: str) -> None:
    got, told = page.ask("POST", path, body)
    assert (got, said in told["error"]) == (status, True), told


def test_a_wrong_move_leaves_the_game_as_it_was(page: Page) -> None:
    told = page.post("/game", player="perfect", seat=0)
    session = told["session"]
    status, answer = page.ask("POST", "/move", {"session": session, "option": 11})
    assert (status, answer["error"].startswith("option 11 is not legal; legal are 0, 1")) == (400, True)
    status, answer = page.ask("POST", "/tick", {"session": session, "orders": []})
    assert (status, answer["error"]) == (400, "tic_tac_toe is not played in real time")
    assert page.ask("GET", f"/state?session={session}")[1]["view"] == told["view"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 403),  # no page says that it is asking
        ({"Content-Type": "application/json", "Origin": "http://elsewhere.example"}, 403),
        ({"Content-Type": "text/plain", "Origin": "http://127.0.0.1:{port}"}, 415),
        ({"Content-Type": "application/json", "Origin": "http://127.0.0.1:{port}", "Host": "elsewhere"}, 421),
    ],
)
def test_other_sites_cannot_move(page: Page, headers: dict[str, str], status: int) -> None:
    session = page.post("/game", player="perfect", seat=0)["session"]
    sent = {name: value.replace("{port}", str(page.port)) for name, value in headers.items()}
    got, _ = page.ask("POST", "/move", {"session": session, "option": 4}, sent)
    assert got == status
    assert page.ask("GET", f"/state?session={session}")[1]["view"]["stones"] == [-1] * 9


@pytest.mark.parametrize("path", ["/game", "/move", "/tick", "/leave"])
def test_nothing_changes_by_looking(page: Page, path: str) -> None:
    assert page.ask("GET", path)[0] == 405


def test_answers_that_take_long_do_not_keep_the_page_from_others(page: Page) -> None:
    """A player that searches thinks for seconds, and anybody may ask for many games at once."""
    go_on = threading.Event()

    def think(_: str) -> dict[str, Any]:
        assert go_on.wait(60)
        return {}

    thinking = PlayPage(page._page._house, "perfect", 0, read_replay=think)
    server = PageServer(thinking.app, PageAccess())
    server.start()
    page.port = server.port
    with ThreadPoolExecutor(60) as others:
        asked = [others.submit(page.ask, "GET", "/replays/any") for _ in range(60)]
        try:
            time.sleep(1.0)
            before = time.monotonic()
            assert page.ask("GET", "/")[0] == 200
            assert time.monotonic() - before < 10
        finally:
            go_on.set()
        assert [one.result()[0] for one in asked] == [200] * 60
    server.close()
    thinking.close()
