"""Pages that follow documents as they change, and the dashboard of a run as one of them.

    GET /                       the page; it and its files need no build step
    GET /data/NAME              a document as JSON: overview, games, league, history, top, matches, player/NAME
    GET /data/matches?player=…  those that pass a filter
    GET /games/NAME             a game that evaluation has recorded; the document games lists them
    GET /replays/NAME           a game of a person, as the replay viewer steps through it
    POST /watch                 {"players": [NAME, ...]}, by team: one game between them, played now
    GET /play/?player=NAME      a person plays against a player; the games are not recorded
    GET /events                 server-sent events: the names of documents that have changed

One thread looks at the run folder for all viewers, and only while there are any. It changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.games.seat_rows import GameError
from ludus.observe.view import RunView, ViewError
from ludus.observe.web.page_server import file_route
from ludus.store.files import StoreError
from ludus.system.text import printable

STATIC = Path(__file__).parent / "static"
LOOK_EVERY_S = 2.0
IDLE_AFTER_S = 10.0
"""Seconds without a viewer after which the folder is no longer read."""
TELL_EVERY_S = 0.5
KEEP_ALIVE_S = 15.0
PLAY_IDLE_S = 1800.0
"""A person may think for so long about a move."""


class _Watch(msgspec.Struct, frozen=True):
    players: list[str]


class Page(Protocol):
    """Another page that is served below this one."""

    @property
    def app(self) -> ASGIApp: ...

    def close(self) -> None: ...


class Documents(Protocol):
    """Where the documents of a page come from: `RunView`, `RunList`."""

    def look(self) -> None:
        """Look at what is quick to read."""

    def follow(self) -> bool | None:
        """Read the rest, or a part of it; whether there is more."""

    def is_quick(self, name: str) -> bool:
        """Whether a document does not need the rest."""

    def due(self) -> list[str]:
        """Documents that were requested before and can be made anew."""

    def encoded(self, name: str) -> tuple[bytes, str]:
        """A document as JSON, and a tag that changes with it; ViewError if there is none."""


class LiveDocuments:
    """An app to be served behind `page_server.PageGuard`: a page, documents, and events that tell which of them have
    changed. `close` ends its streams and its thread."""

    def __init__(self, view: Documents, page: Path, *routes: BaseRoute) -> None:
        """`routes`: further ones, which come before the general ones."""
        self._documents = view
        self._closing = threading.Event()
        self._idling = threading.Lock()
        self._asked = threading.Event()
        self._last_asked = time.monotonic()
        self._viewers = 0
        self._number = 0
        self._changed: dict[str, int] = {}
        """Document -> number of its last change."""
        self._looked, self._followed = threading.Event(), threading.Event()
        """Cleared while there is no viewer: what was read before is out of date."""
        self._failure = ""
        """The reason that the last refresh failed; empty if it did not."""
        self._thread = threading.Thread(target=self._watch, name="page reader", daemon=True)
        self._thread.start()
        self.app = Starlette(
            routes=[
                Route("/", file_route(page)),
                *routes,
                Route("/data/{name:path}", self._document),
                Route("/events", self._events),
                *(Route(f"/{file.name}", file_route(file)) for file in STATIC.iterdir() if file.suffix != ".LICENSE"),
            ]
        )

    @property
    def is_idle(self) -> bool:
        """Whether nobody looks at it."""
        return not self._viewers and time.monotonic() - self._last_asked > IDLE_AFTER_S

    def close(self) -> None:
        """Answer the requests that wait for a document with the latest one."""
        with self._idling:
            self._closing.set()
            for event in (self._asked, self._looked, self._followed):
                event.set()
        self._thread.join()

    # --- the reader ---

    def _watch(self) -> None:
        """Refresh the documents as long as there are viewers."""
        try:
            while not self._closing.is_set():
                self._look()
                self._closing.wait(LOOK_EVERY_S)
                with self._idling:
                    # No request since the last look: the next one waits for a fresh look.
                    if (self.is_idle and not self._closing.is_set()) or not self._asked.is_set():
                        for event in (self._asked, self._looked, self._followed):
                            event.clear()
                self._asked.wait()
        finally:  # no request may wait for a thread that has ended
            self._looked.set()
            self._followed.set()

    def _look(self) -> None:
        """Refresh the view. A failure, as on a network file system, may be gone the next time."""
        try:
            self._documents.look()
            self._looked.set()
            self._tell()
            while self._documents.follow() and not self._closing.is_set():
                self._tell()
            self._tell()
            self._failure = ""
        except Exception as error:
            if str(error) != self._failure:  # once, not at every look
                traceback.print_exc()
            self._failure = str(error)
            self._looked.set()
        self._followed.set()

    def _tell(self) -> None:
        for name in self._documents.due():
            self._number += 1
            self._changed[name] = self._number

    def _wake(self) -> None:
        with self._idling:
            self._last_asked = time.monotonic()
            self._asked.set()

    # --- answers ---

    async def _document(self, request: Request) -> Response:
        self._wake()
        name = request.path_params["name"]

        def make() -> tuple[bytes, str]:
            (self._looked if self._documents.is_quick(name) else self._followed).wait()
            return self._documents.encoded(name)

        try:
            content, tag = await run_in_threadpool(make)
        except ViewError as error:
            return PlainTextResponse(printable(str(error)), 404)
        tag = f'"{tag}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="application/json", headers=headers)

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        """Names of documents as they change; a comment now and then shows that the line is up."""
        seen, told = self._number, time.monotonic()
        self._viewers += 1
        self._wake()
        yield "retry: 2000\n\n"
        try:
            while not self._closing.is_set():
                changed = [name for name, number in list(self._changed.items()) if number > seen]
                seen = self._number
                if changed:
                    told = time.monotonic()
                    yield f"event: changed\ndata: {json.dumps(changed)}\n\n"
                elif time.monotonic() - told > KEEP_ALIVE_S:
                    told = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(TELL_EVERY_S)
        finally:
            self._viewers -= 1


class Dashboard(LiveDocuments):
    """The pages of one run."""

    def __init__(
        self,
        view: RunView,
        read_replay: Callable[[str], Mapping[str, Any]],
        play_game: Callable[[Sequence[str]], msgspec.Struct] | None = None,
        play_page: Callable[[], Page] | None = None,
    ) -> None:
        """`read_replay`: a person's game by its file name; `play_game`: a new game between these players, by team. It
        raises a ValueError, or an error of Ludus, with the reason that there is none. `play_page`: where a person plays
        against players of the run; it is opened when it is asked for, and raises the same errors."""
        self._view, self._read_replay, self._play_game = view, read_replay, play_game
        self._make_play_page = play_page
        self._play_page: Page | None = None
        self._opening_play_page = threading.Lock()
        self._played_at = -PLAY_IDLE_S
        super().__init__(
            view,
            STATIC / "index.html",
            Route("/data/matches", self._matches),
            Route("/replays/{name}", self._replay),
            Route("/games/{name}", self._game),
            Route("/watch", self._watch_game, methods=["POST"]),
            Mount("/play", self._play),
        )

    @property
    def is_idle(self) -> bool:
        return super().is_idle and time.monotonic() - self._played_at > PLAY_IDLE_S

    def close(self) -> None:
        super().close()
        with self._opening_play_page:
            self._make_play_page = None
            if self._play_page is not None:
                self._play_page.close()
                self._play_page = None

    async def _matches(self, request: Request) -> Response:
        if not request.query_params:
            request.path_params["name"] = "matches"
            return await self._document(request)
        self._wake()

        def make() -> bytes:
            self._followed.wait()
            return self._view.filtered_matches(dict(request.query_params))

        try:
            return Response(await run_in_threadpool(make), media_type="application/json")
        except ViewError as error:
            return PlainTextResponse(printable(str(error)), 404)
        except ValueError as error:
            return PlainTextResponse(printable(str(error)), 400)

    async def _replay(self, request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(self._read_replay, request.path_params["name"]))
        except (ValueError, OSError) as error:
            return PlainTextResponse(printable(str(error)), 404)

    async def _game(self, request: Request) -> Response:
        try:
            content = await run_in_threadpool(self._view.encoded_game, request.path_params["name"])
        except ViewError as error:
            return PlainTextResponse(printable(str(error)), 404)
        return Response(content, media_type="application/json")

    async def _watch_game(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=_Watch)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return PlainTextResponse('send {"players": [NAME, NAME]}, one for each team', 400)
        if self._play_game is None:
            return PlainTextResponse("games cannot be played here", 404)
        try:
            record = await run_in_threadpool(self._play_game, asked.players)
        except (ValueError, StoreError, GameError) as error:
            return PlainTextResponse(printable(str(error)), 400)
        except Exception as error:  # of the run's own game or networks: the page must not be left without an answer
            traceback.print_exc()
            return PlainTextResponse(printable(f"{type(error).__name__}: {error}"), 500)
        return Response(msgspec.json.encode(record), media_type="application/json")

    async def _play(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._wake()
        self._played_at = time.monotonic()
        try:
            page = await run_in_threadpool(self._open_play_page)
        except (ValueError, StoreError, GameError) as error:
            await PlainTextResponse(printable(str(error)), 404)(scope, receive, send)
            return
        await page.app(scope, receive, send)

    def _open_play_page(self) -> Page:
        with self._opening_play_page:
            if self._play_page is None:
                if self._make_play_page is None:
                    raise ValueError("nobody can play here")
                self._play_page = self._make_play_page()
            return self._play_page
