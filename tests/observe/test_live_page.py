"""The live page over HTTP, as a browser speaks to it: files, the stream of moments, and its buttons."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from made_up_moments import HEIGHT, WIDTH, episode, moment
from PIL import Image

from ludus.observe.live_page import LivePage

QUICK = 1000.0


@contextmanager
def page(moments_per_second: float = QUICK) -> Iterator[LivePage]:
    served = LivePage(moments_per_second=moments_per_second)
    try:
        yield served
    finally:
        served.close("the test has ended")


def connection(served: LivePage) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(served.url.removeprefix("http://").rstrip("/"), timeout=20)


def ask(served: LivePage, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str, str]:
    """Status, content type, body."""
    asking = connection(served)
    sent = {"Origin": served.url.rstrip("/")} | {name.replace("_", "-"): value for name, value in headers.items()}
    asking.request(method, path, body, sent)
    answer = asking.getresponse()
    said = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    asking.close()
    return said


def press(served: LivePage, **control: object) -> int:
    return ask(served, "POST", "/control", json.dumps(control), Content_Type="application/json")[0]


@contextmanager
def watching(served: LivePage) -> Iterator[Iterator[tuple[str, Any]]]:
    """Kind and content of each event until the stream ends."""
    with closing(connection(served)) as asking:
        asking.request("GET", "/events")
        with asking.getresponse() as answer:
            assert answer.status == 200
            assert answer.getheader("Content-Type", "").startswith("text/event-stream")
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def heard(events: Iterator[tuple[str, Any]], kind: str) -> Any:
    """The content of the next event of this kind."""
    return next(content for one, content in events if one == kind)


@contextmanager
def playing(play: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive()


def test_the_page_is_whole_and_asks_nobody_else() -> None:
    with page() as served:
        assert served.url.startswith("http://127.0.0.1:")
        for path, kind in (("/", "text/html"), ("/live.css", "text/css"), ("/live.js", "text/javascript")):
            status, content_type, body = ask(served, "GET", path)
            assert (status, content_type.partition(";")[0]) == (200, kind)
            assert "http://" not in body
            assert "https://" not in body
        assert ask(served, "GET", "/../live_page.py")[0] == 404


def test_moments_are_streamed_as_different_pictures_and_the_end_is_told() -> None:
    served = LivePage(moments_per_second=0.01)  # the first stays until the next episode is asked for

    def play() -> None:
        served.wait_for_spectator()
        for shown in episode(4, episodes=1):
            served.show(shown)
        served.close("all episodes have been played")

    with playing(play), watching(served) as events:
        first = heard(events, "moment")
        press(served, next=True, speed=8)
        told = list(events)
    moments = [first, *(content for kind, content in told if kind == "moment")]
    assert len(moments) == 2
    pictures = []
    for content in moments:
        head, _, encoded = content["picture"].partition(",")
        assert head == "data:image/png;base64"
        picture = np.asarray(Image.open(BytesIO(base64.b64decode(encoded))))
        assert picture.shape == (HEIGHT, WIDTH, 3)
        pictures.append(picture)
    assert (pictures[0] != pictures[-1]).any()
    assert [team["player"] for team in moments[-1]["teams"]] == ["long", "short"]
    assert [team["won"] for team in moments[-1]["teams"]] == [True, False]
    assert moments[-1]["state"] == ["long wins", "step 4"]
    assert dict(told)["results"] == {"rows": [["long against short", "1", "long 1, short 0, draws 0"]]}
    assert told[-1] == ("ended", {"reason": "all episodes have been played"})


def test_results_are_added_up_whoever_sits_where() -> None:
    with page() as served:
        press(served, speed=8)
        for changed in (
            {},
            {"players": ("short", "long"), "score": (-1.0, 1.0)},
            {"score": (0.0, 0.0)},
            {"players": ("alone",), "score": (3.0,)},
            {"players": ("alone",), "score": (4.0,)},
        ):
            served.show(moment(ended=True, **changed))
        with watching(served) as events:
            rows = heard(events, "results")["rows"]
    assert rows == [["long against short", "3", "long 2, short 0, draws 1"], ["alone", "2", "mean score 3.5"]]


def test_a_pause_holds_play_until_it_goes_on() -> None:
    with page() as served:
        assert press(served, paused=True) == 204
        shown = threading.Event()

        def play() -> None:
            served.show(moment())
            shown.set()

        with playing(play), watching(served) as events:
            assert heard(events, "controls")["paused"] is True
            assert heard(events, "moment")["state"] == ["step 0"]
            assert not shown.wait(0.1)
            press(served, paused=False)
            assert shown.wait(20)


def test_next_skips_to_the_end_of_the_episode_and_no_further() -> None:
    drawn: list[tuple[int, int]] = []
    with page(0.01) as served:  # a moment would last 100 s

        def play() -> None:
            for number in (1, 2):
                for shown in episode(50, episode=number, episodes=2):
                    served.show(_noting(shown.step, shown.ended, number, drawn))

        with playing(play), watching(served) as events:
            assert heard(events, "moment")["state"] == ["episode 1 of 2", "step 0"]
            press(served, next=True)
            assert heard(events, "moment")["state"] == ["long wins", "episode 1 of 2", "step 50"]
            press(served, next=True)
            assert heard(events, "moment")["state"] == ["episode 2 of 2", "step 0"]
            press(served, next=True, speed=8)
    assert drawn == [(1, 0), (1, 50), (2, 0), (2, 50)], "what is skipped is not drawn"


def _noting(step: int, ended: bool, number: int, drawn: list[tuple[int, int]]) -> Any:
    plain = moment(step, ended=ended)

    def draw() -> Any:
        drawn.append((number, step))
        return plain.draw()

    return moment(step, ended=ended, episode=number, episodes=2, draw=draw)


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        ('{"paused": true}', {"Content_Type": "text/plain"}, 415, "application/json"),
        ("[1]", {"Content_Type": "application/json"}, 400, "not a JSON object"),
        ("{", {"Content_Type": "application/json"}, 400, "not a JSON object"),
        ('{"speed": 3}', {"Content_Type": "application/json"}, 400, "speed must be one of 0.25, 0.5, 1"),
        (" " * 70_000, {"Content_Type": "application/json"}, 413, "more than 64000 bytes"),
        ("{}", {"Content_Type": "application/json", "Host": "example.org"}, 421, "is no name of this server"),
        ("{}", {"Content_Type": "application/json", "Origin": "http://example.org"}, 403, "another site"),
    ],
)
def test_what_is_no_button_is_refused(body: str, headers: dict[str, str], status: int, said: str) -> None:
    with page() as served:
        answer = ask(served, "POST", "/control", body, **headers)
        assert answer[0] == status
        assert said in answer[2]
        with watching(served) as events:
            assert heard(events, "controls")["paused"] is False


def test_a_port_that_is_taken_is_named() -> None:
    with page() as served:
        port = int(served.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError, match="cannot serve a page there") as error:
            LivePage(port=port)
        assert error.value.filename == f"127.0.0.1 port {port}"
