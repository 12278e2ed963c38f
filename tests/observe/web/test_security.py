"""Who is kept out of a page, each way of getting in tried over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress

import pytest
from page_requests import ask, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.observe.web import page_server as security
from ludus.observe.web.page_server import PageAccess, PageGuard, PageServer, UnsafeAddressError, known_names

TOKEN = "0123456789abcdef"
STRANGERS = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "", "192.168.1.7",
             "127.0.0.1:80.evil.example", "[::1].evil.example", "[::1]:80.evil.example")  # fmt: skip


async def answer(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {await request.body()!r}")


APP = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])


@pytest.fixture(scope="module")
def page() -> Iterator[PageServer]:
    with served(APP) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[PageServer]:
    with served(APP, PageAccess(token=TOKEN)) as server:
        yield server


# --- where it listens ---


def test_it_listens_on_loopback_unless_told_otherwise(page: PageServer) -> None:
    assert PageAccess().host == "127.0.0.1"
    assert page.url == f"http://127.0.0.1:{page.port}/"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "machine.example", ""])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(UnsafeAddressError, match=f"--host {host} can be reached from other machines"):
        PageAccess(host=host)
    with pytest.raises(UnsafeAddressError):
        PageAccess(host=host, token="")
    assert PageAccess(host=host, token=TOKEN).token == TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    assert PageAccess(host=host).is_local


def test_a_port_that_is_taken_is_named(page: PageServer) -> None:
    with pytest.raises(OSError, match=rf"cannot serve a page there.*port {page.port}"):
        PageServer(APP, PageAccess(), port=page.port)


# --- by which name it is asked ---


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:9999", "[::1]:80", "127.0.0.1:1"])
def test_its_own_names_are_answered_whatever_the_port(page: PageServer, host: str) -> None:
    assert ask(page, "/", Host=host).status == 200


@pytest.mark.parametrize("host", STRANGERS)
def test_a_foreign_name_that_points_here_is_not_answered(page: PageServer, host: str) -> None:
    refused = ask(page, "/", Host=host)
    assert refused.status == 421
    assert "GET" not in refused.text


def test_behind_another_address_only_names_of_the_machine_are_known() -> None:
    everywhere = PageAccess(host="0.0.0.0", token=TOKEN, names=known_names(["Proxy.Example:443"]))
    for known in ("192.168.1.7:80", "[fe80::1]:80", socket.gethostname(), "proxy.example", "localhost"):
        assert everywhere.knows(known), known
    for foreign in ("evil.example", "proxy.example.evil"):
        assert not everywhere.knows(foreign), foreign


# --- which page asks ---


def test_a_script_of_another_site_is_refused(page: PageServer) -> None:
    mine = f"127.0.0.1:{page.port}"
    for origin in ("http://evil.example", f"http://evil.example:{page.port}", "null", "http://127.0.0.1:1", "http://["):
        assert ask(page, "/", Host=mine, Origin=origin).status == 403, origin
    assert ask(page, "/", Host=mine, Origin=f"http://{mine}").status == 200
    assert ask(page, "/", Host=mine, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert ask(page, "/", Host=mine, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


def test_what_changes_something_is_a_post_of_json_from_the_page_itself(page: PageServer) -> None:
    mine = f"127.0.0.1:{page.port}"
    own = {"Host": mine, "Origin": f"http://{mine}"}
    assert ask(page, "/", "POST", "{}", Content_Type="application/json", **own).text == "POST b'{}'"
    assert ask(page, "/", "POST", "{}", Content_Type="application/json", Host=mine).status == 403
    assert ask(page, "/", "POST", "a=1", Content_Type="application/x-www-form-urlencoded", **own).status == 415
    assert ask(page, "/", "POST", "{}", Content_Type="text/plain", **own).status == 415


# --- the token ---


def test_without_the_token_nothing_is_told(locked: PageServer) -> None:
    assert ask(locked, "/").status == 401
    asked = ask(locked, "/", Accept="text/html")
    assert asked.status == 401
    assert '<form method=post action="/sign-in">' in asked.text
    assert ask(locked, "/", Authorization="Bearer wrong").status == 401
    assert ask(locked, "/", Authorization=f"Basic {TOKEN}").status == 401
    assert ask(locked, f"/?token={TOKEN}").status == 401


def test_with_the_token_everything_is_as_before(locked: PageServer) -> None:
    assert ask(locked, "/", Authorization=f"Bearer {TOKEN}").text == "GET b''"
    mine = f"127.0.0.1:{locked.port}"
    form = {"Host": mine, "Origin": f"http://{mine}", "Content_Type": "application/x-www-form-urlencoded"}
    signed = ask(locked, "/sign-in", "POST", f"token={TOKEN}", **form)
    assert (signed.status, signed.headers["location"]) == (303, "/")
    cookie = signed.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert ask(locked, "/", Cookie=cookie.partition(";")[0]).status == 200
    name = cookie.partition("=")[0]
    for forged in ("forged", "", "\xe9\xff"):
        assert ask(locked, "/", Cookie=f"{name}={forged}").status == 401


def test_a_wrong_token_is_answered_slowly_and_lets_nobody_in(
    locked: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    sleep = asyncio.sleep

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0.01)  # uvicorn waits by the same function

    monkeypatch.setattr(security.asyncio, "sleep", wait)
    asked = ask(locked, "/sign-in", "POST", "token=wrong", Content_Type="application/x-www-form-urlencoded")
    assert asked.status == 403
    assert "set-cookie" not in asked.headers
    assert waited.count(security.WRONG_TOKEN_S) == 1
    assert ask(locked, "/", Authorization="Bearer wrong").status == 401
    assert ask(locked, "/", Cookie=f"{PageAccess(token=TOKEN).cookie}=wrong").status == 401
    assert waited.count(security.WRONG_TOKEN_S) == 3
    assert ask(locked, "/").status == 401  # no guess
    assert waited.count(security.WRONG_TOKEN_S) == 3
    assert ask(locked, "/sign-in", "POST", "token=" + "x" * 70_000).status == 413


def test_pages_with_different_tokens_do_not_take_each_others_cookies() -> None:
    one, other = PageAccess(token="one"), PageAccess(token="other")
    assert one.cookie != other.cookie
    assert one.cookie_value != other.cookie_value


# --- how much of it one visitor can take ---


HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
)


def half_request(page: PageServer, sent: bytes = HEAD) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", page.port), timeout=20)
    connected.sendall(sent)
    return connected


def heard(connected: socket.socket) -> bytes:
    """Everything until the other side closes the connection."""
    told = b""
    with suppress(ConnectionError):
        while more := connected.recv(1000):
            told += more
    return told


@pytest.mark.parametrize("sent", [HEAD, BODY], ids=["head", "body"])
def test_half_requests_take_no_place_from_whole_ones(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(security, "MOST_STRANGERS", 4)
    with served(APP) as page, ExitStack() as ending:
        half = [ending.enter_context(half_request(page, sent)) for _ in range(12)]
        assert ask(page, "/").status == 200
        assert heard(half[0]) == b""  # the oldest ones have made room


def test_a_page_that_is_watched_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MOST_STRANGERS", 4)
    with served(APP) as page, ExitStack() as ending:
        watching = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
        for _ in range(2):
            watching.request("GET", "/")
            assert watching.getresponse().read() == b"GET b''"
            connected = watching.sock
            for _ in range(12):
                ending.enter_context(half_request(page))
            assert ask(page, "/").status == 200
            assert watching.sock is connected
        watching.close()


def test_streams_that_one_client_opens_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MOST_CONNECTIONS", 4)

    async def endless(_: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            while True:
                yield "still here\n"
                await asyncio.sleep(0.1)

        return StreamingResponse(lines())

    app = Starlette(routes=[Route("/", answer), Route("/events", endless)])
    with served(app) as page, ExitStack() as ending:
        streams = []
        for _ in range(4 + 64 + 12):
            streams.append(ending.enter_context(half_request(page, HEAD.replace(b"/", b"/events", 1) + b"\r\n")))
            assert streams[-1].recv(12) == b"HTTP/1.1 200"
        assert ask(page, "/").status == 200
        assert heard(streams[0])  # the oldest ones have made room


@pytest.mark.parametrize(("sent", "said"), [(b"GET / HT", b""), (BODY, b"HTTP/1.1 408")], ids=["head", "body"])
def test_a_request_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, said: bytes
) -> None:
    monkeypatch.setattr(security, "REQUEST_S", 0.05)
    with served(APP) as page, half_request(page, sent) as slow:
        answer = heard(slow)
    assert answer.startswith(said)
    assert bool(answer) == bool(said)


def test_a_long_head_and_a_long_body_are_refused(page: PageServer) -> None:
    mine = f"127.0.0.1:{page.port}"
    own = {"Host": mine, "Origin": f"http://{mine}", "Content_Type": "application/json"}
    assert ask(page, "/", "POST", " " * (security.MOST_BYTES + 1), **own).status == 413
    for path in ("/" + "x" * 20_000, "/?" + "x" * 20_000):  # a whole head that arrives at once
        assert ask(page, path).status == 431
    with half_request(page, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 40_000) as long:
        assert long.recv(1000).startswith(b"HTTP/1.1 400")


# --- what every answer says ---


def test_nothing_from_elsewhere_may_run_in_the_page(page: PageServer, locked: PageServer) -> None:
    for said in (ask(page, "/"), ask(page, "/", Host="evil.example"), ask(locked, "/"), ask(page, "/none")):
        policy = said.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert said.headers["x-content-type-options"] == "nosniff"
        assert said.headers["cache-control"] == "no-store"
        assert "server" not in said.headers


def test_web_sockets_are_not_ours() -> None:
    async def never(*_: object) -> None:
        raise AssertionError("the app was asked")

    asyncio.run(PageGuard(never, PageAccess())({"type": "websocket"}, never, never))
