"""Serves a page from a thread of its own. `PageGuard` rejects requests of other sites and without the token, and the
server limits connections and the size and time of requests, so that nobody can keep the page from others."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ludus.system.network import Strangers, is_loopback

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
SIGN_IN = "/sign-in"
"""The path to which the login form sends the token."""
WRONG_TOKEN_S = 0.5
"""An answer to a wrong token takes so long: guessing is slow."""
MOST_CONNECTIONS = 256
"""Connections with an accepted request; the one that asked longest ago makes room for the next. A browser connects its
stream of events again."""
MOST_STRANGERS = 64
"""Connections without one; the oldest makes room for the next."""
REQUEST_S = 10.0
"""Time for the head of a request, and again for its body."""
MOST_BYTES = 64_000
"""The longest body of a request."""
_HEAD_BYTES = 16_384
_CONNECTION = "ludus connection"
"""Where the state of a request has its connection."""
_READS = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")

HEADERS = {
    # No script but our own files: a name that looks like a script stays a name.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # without any, a form would not say that it comes from this page
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every response."""
_NO_STORE = "no-store"
"""Unless an answer says itself how long it may be kept."""


class UnsafeAddressError(ValueError):
    """A page would be visible to other machines without a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageAccess:
    """The host that a page listens on, the names that requests may use for it, and its access token."""

    host: str = "127.0.0.1"
    token: str | None = None
    names: tuple[str, ...] = ()
    """Further names of this machine that may stand in an address of the page, as behind a proxy."""

    def __post_init__(self) -> None:
        if not self.is_local and not self.token:
            raise UnsafeAddressError(
                f"--host {self.host} can be reached from other machines: give --token-file, a file with a "
                "secret token; the page asks for it"
            )
        if not self.is_local:
            _own_names()  # asks a name server, which must not hold up a request

    @property
    def is_local(self) -> bool:
        """Only this machine reaches it."""
        return is_loopback(self.host)

    def knows(self, host_header: str) -> bool:
        """Whether a request was meant for this server. Ports are not looked at: they may be forwarded."""
        name = _host_of(host_header)
        if name in LOOPBACK_NAMES or name in self.names:
            return True
        if self.is_local:
            return False
        # An address cannot be made to point here by somebody else's name server; a name can.
        return _is_address(name) or name == self.host.lower() or name in _own_names()

    def lets_in(self, connection: HTTPConnection) -> bool:
        if self.token is None:
            return True
        scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(sent.strip().encode(), self.token.encode())
        sent = connection.cookies.get(self.cookie, "")
        return hmac.compare_digest(sent.encode(), self.cookie_value.encode())

    def is_guess(self, connection: HTTPConnection) -> bool:
        """Whether a request that is not let in has tried a token or a cookie."""
        return "authorization" in connection.headers or self.cookie in connection.cookies

    @property
    def cookie(self) -> str:
        """Cookies are shared by all ports of a host: pages with different tokens must not mix theirs up."""
        return f"ludus-{self._digest('name')[:12]}"

    @property
    def cookie_value(self) -> str:
        """A proof that the visitor knew the token, which does not reveal the token."""
        return self._digest("value")

    def _digest(self, of: str) -> str:
        assert self.token is not None
        return hmac.new(self.token.encode(), f"ludus page cookie {of}".encode(), hashlib.sha256).hexdigest()


class PageGuard:
    """The app behind it is asked only what `PageAccess` allows, and its answers carry `HEADERS`."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither web sockets nor a lifespan are ours
        send = _with_headers(send)
        request = Request(scope, receive)
        refused = await self._refusal(request)
        if refused is None and scope["method"] not in _READS:
            body = await _body(request)
            receive, refused = (_given(body), None) if isinstance(body, bytes) else (receive, body)
        if refused is None and (connection := scope.get("state", {}).get(_CONNECTION)) is not None:
            connection.accept()
        await (self._app if refused is None else refused)(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        headers = request.headers
        if _head_bytes(request) > _HEAD_BYTES:  # uvicorn limits only heads that arrive in pieces
            return _closing(f"more than {_HEAD_BYTES} bytes before the body", 431)
        if not self._access.knows(headers.get("host", "")):
            return PlainTextResponse(f"{headers.get('host', '')!r} is no name of this server", 421)
        if not _from_this_page(headers):
            return PlainTextResponse("asked by the page of another site", 403)
        if request.url.path == SIGN_IN and self._access.token is not None:
            return await self._sign_in(request)
        if not self._access.lets_in(request):
            if self._access.is_guess(request):
                await asyncio.sleep(WRONG_TOKEN_S)
            return _sign_in_page(401) if _wants_page(request) else PlainTextResponse("the token is missing", 401)
        if request.method not in _READS:
            if "origin" not in headers:
                return PlainTextResponse("a POST names its page by Origin", 403)
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return PlainTextResponse("send application/json", 415)
        return None

    async def _sign_in(self, request: Request) -> Response:
        if request.method != "POST":
            return _sign_in_page(200)
        sent = await _body(request)
        if isinstance(sent, Response):
            return sent
        [token] = parse_qs(sent.decode(errors="replace")).get("token", [""])[-1:]
        assert self._access.token is not None
        if not hmac.compare_digest(token.strip().encode(), self._access.token.encode()):
            await asyncio.sleep(WRONG_TOKEN_S)
            return _sign_in_page(403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self._access.cookie,
            self._access.cookie_value,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer


async def _body(request: Request) -> bytes | Response:
    """The body of a request, or a refusal if it is too long or too slow."""
    sent = bytearray()
    try:
        async with asyncio.timeout(REQUEST_S):
            async for part in request.stream():
                sent += part
                if len(sent) > MOST_BYTES:
                    return _closing(f"more than {MOST_BYTES} bytes", 413)
    except TimeoutError:
        return _closing(f"the request took more than {REQUEST_S:g} s", 408)
    except ClientDisconnect:
        return _closing("the request has ended early", 400)
    return bytes(sent)


def _head_bytes(request: Request) -> int:
    line = len(request.scope.get("raw_path") or request.scope["path"]) + len(request.scope["query_string"])
    return line + sum(len(name) + len(value) for name, value in request.headers.raw)


def _closing(text: str, status: int) -> Response:
    """The rest of the request is not read."""
    return PlainTextResponse(text, status, {"connection": "close"})


def _given(body: bytes) -> Receive:
    """Hands a body that has arrived to the app."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    return receive


def file_route(path: Path) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that sends a file."""

    async def give(_: Request) -> Response:
        return FileResponse(path, headers={"cache-control": "no-cache"})

    return give


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """As they stand in a Host header, without a port."""
    return tuple(_host_of(name) for name in names)


def _from_this_page(headers: Headers) -> bool:
    """Whether a request comes from this page. Browsers name the origin of scripts; other clients send none."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.lower().partition("://")[2] == headers.get("host", "").lower()
    # A link on another site may lead here, which shows the page and tells that site nothing.
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none") or (
        headers.get("sec-fetch-mode") == "navigate"
    )


def problem_answer(text: str, status: int, request: Request) -> Response:
    """A small page for a person who opened an address, and the text alone for scripts."""
    if not _wants_page(request):
        return PlainTextResponse(text, status)
    return _small_page("not shown", f'<p>{escape(text)}</p><p><a href="/">Go to the first page</a></p>', status)


def _wants_page(request: Request) -> bool:
    return request.method in _READS and "text/html" in request.headers.get("accept", "")


def _sign_in_page(status: int) -> Response:
    told = "<p>That is not it.</p>" if status == 403 else ""
    return _small_page(
        "sign in",
        f'{told}<form method=post action="{SIGN_IN}"><p><label>Token, as in the file that '
        "<code>--token-file</code> named: <input name=token type=password required autofocus></label> "
        "<button>Show the page</button></form>",
        status,
    )


def _small_page(title: str, body: str, status: int) -> Response:
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        '<meta name=color-scheme content="light dark">'
        f"<title>Ludus: {title}</title><main><h1>Ludus</h1>{body}</main>",
        status,
    )


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", _NO_STORE)
        await send(message)

    return sent


@cache
def _own_names() -> frozenset[str]:
    """The names of this machine, in lower case."""
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def _host_of(header: str) -> str:
    """The name in NAME, NAME:PORT, [ADDRESS]:PORT or a bare address; anything else is returned as it is."""
    header = header.strip().lower()
    found = _HOST.fullmatch(header)
    return header if found is None else found[1] or found[2]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _PageConnection(H11Protocol):
    """Limits the time for the head of a request, for which uvicorn would wait for ever, and the number of connections
    that have sent none and of the others. Each server has a class of its own, with its `strangers` and `viewers`."""

    strangers: Strangers
    viewers: Strangers
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, _CONNECTION: self}
        self.strangers.add(self, transport.abort)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.strangers.remove(self)
        self.viewers.remove(self)
        super().connection_lost(exc)

    def accept(self) -> None:
        """It has sent a request that is accepted, the latest of all connections."""
        self.strangers.remove(self)
        self.viewers.remove(self)
        self.viewers.add(self, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()


class PageServer:
    """Listens when it is made and serves from `start` until `close`."""

    def __init__(self, app: ASGIApp, access: PageAccess, *, port: int = 0) -> None:
        """`port` 0: any that is free."""
        self._listening = _listen(access.host, port)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://{_shown_host(access.host)}:{self.port}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                PageGuard(app, access),
                log_config=None,  # its own would replace every handler of the process, and close some of them
                log_level="critical",
                lifespan="off",
                ws="none",
                http=type(
                    "PageConnection",
                    (_PageConnection,),
                    {"strangers": Strangers(MOST_STRANGERS), "viewers": Strangers(MOST_CONNECTIONS)},
                ),
                # Connections that are being closed count as well.
                limit_concurrency=2 * (MOST_CONNECTIONS + MOST_STRANGERS),
                h11_max_incomplete_event_size=_HEAD_BYTES,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, name="page server", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Streams of events must have ended, or are cut after two seconds."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listening.close()


def _shown_host(host: str) -> str:
    """As it stands in an address that works on this machine."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        place = f"{host} port {port}"
        raise OSError(error.errno, f"cannot serve a page there: {error.strerror}", place) from None
