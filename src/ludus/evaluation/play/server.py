"""The page on which a person plays: its files and its requests. Every open page has a key of its own, so that two tabs
play two games. A real-time game stands still until the page asks for its next tick."""

from __future__ import annotations

import json
import secrets
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ludus.config import ConfigError
from ludus.evaluation.play.house import PersonsGame, PlayHost
from ludus.evaluation.play.session import WrongMove
from ludus.games.seat_rows import GameError
from ludus.observe import web
from ludus.observe.web.page_server import file_route
from ludus.store.files import StoreError

OWN_FILES = Path(__file__).parent / "static"
SHARED_FILES = Path(web.__file__).parent / "static"
FILES: Mapping[str, Path] = {
    "/": OWN_FILES / "play.html",
    **{f"/{name}": OWN_FILES / name for name in ("play.css", "play.js", "analysis.js", "skirmish_orders.js")},
    **{
        f"/{name}": SHARED_FILES / name
        for name in ("theme.css", "game.css", "game_views.js", "skirmish_map.js", "replay.js")
    },
}
MOST_GAMES = 32
"""Games at the same time; the one that was idle for longest makes room for a new one."""

MOST_AT_ONCE = 4
"""Requests that are answered at the same time; others wait. A player that searches thinks for seconds, and must not
keep the threads from the files of the page and, in `ludus watch`, from the documents of the run."""

Answer = dict[str, Any]


class PlayRefused(Exception):  # noqa: N818
    """A request of the page that cannot be fulfilled; the page shows the reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class _Place:
    """One page that is open."""

    game: PersonsGame
    lock: threading.Lock = field(default_factory=threading.Lock)
    touched: float = field(default_factory=time.monotonic)


class PlayPage:
    """The app of the page, and the games that are played on it."""

    def __init__(self, house: PlayHost, player: str, seat: int | None, *, read_replay: Callable[[str], Answer]) -> None:
        """`player` and `seat` are the first choice of the page."""
        self._house = house
        self._player, self._seat = player, seat
        self._read_replay = read_replay
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()
        self._at_once = CapacityLimiter(MOST_AT_ONCE)
        # One after the other: recording waits for the process that trains the run, and the page does not.
        self._writer = ThreadPoolExecutor(1, "recording")
        self._written: list[Future[None]] = []
        asked = {"/game": self._new_game, "/move": self._move, "/undo": self._undo, "/tick": self._tick}
        asked["/leave"] = self._leave
        self.app = Starlette(
            routes=[
                *(Route(path, file_route(file)) for path, file in FILES.items()),
                Route("/start", self._get(self._begin)),
                Route("/state", self._get(self._state)),
                Route("/replays/{name}", self._get(self._replay)),
                *(Route(path, self._post(ask), methods=["POST"]) for path, ask in asked.items()),
            ]
        )

    def close(self) -> None:
        """End all games; those that are still going on are void. Everything is recorded when this returns."""
        with self._lock:
            places, self._places = list(self._places.values()), {}
        for place in places:
            self._close(place, "the page was closed")
        self._writer.shutdown(wait=True)
        for written in self._written:
            written.result()

    # --- what the page asks for ---

    def _begin(self, _: Mapping[str, str]) -> Answer:
        spec = self._house.source.spec
        return {
            "game": spec.name,
            "person": self._house.person,
            "player": self._player,
            "seat": self._seat,
            "seats": self._house.seat_names,
            "players": self._house.opponents.offered(),
            "real_time": self._house.view.real_time,
        }

    def _state(self, asked: Mapping[str, str]) -> Answer:
        with self._at(asked.get("session")) as place:
            return place.game.show(thoughts=asked.get("thoughts") == "true")

    def _replay(self, asked: Mapping[str, str]) -> Answer:
        try:
            return self._read_replay(asked["name"])
        except (ValueError, OSError) as error:
            raise PlayRefused(str(error), 404) from error

    def _new_game(self, asked: Answer) -> Answer:
        player, seat = asked.get("player"), asked.get("seat")
        if not isinstance(player, str) or not (seat is None or type(seat) is int):
            raise PlayRefused('send {"player": NAME, "seat": NUMBER or null}')
        game = self._house.start(player, seat)
        key = secrets.token_urlsafe(16)
        with self._lock:
            before = self._places.pop(str(asked.get("session")), None)
            late = [before] if before is not None else []
            if len(self._places) >= MOST_GAMES:
                oldest = min(self._places, key=lambda one: self._places[one].touched)
                late.append(self._places.pop(oldest))
            self._places[key] = _Place(game)
        for place in late:
            self._close(place, "the person began another game")
        return {"session": key} | self._shown(game, asked)

    def _move(self, asked: Answer) -> Answer:
        option = asked.get("option")
        if type(option) is not int:
            raise PlayRefused('send {"option": NUMBER}')
        with self._at(asked.get("session")) as place:
            place.game.move(option)
            return self._shown(place.game, asked)

    def _undo(self, asked: Answer) -> Answer:
        with self._at(asked.get("session")) as place:
            place.game.undo()
            return self._shown(place.game, asked)

    def _tick(self, asked: Answer) -> Answer:
        orders = asked.get("orders")
        if not isinstance(orders, list):
            raise PlayRefused('send {"orders": [...]}')
        with self._at(asked.get("session")) as place:
            place.game.tick(orders)
            return self._shown(place.game, asked)

    def _leave(self, asked: Answer) -> Answer:
        with self._lock:
            place = self._places.pop(str(asked.get("session")), None)
        if place is not None:
            self._close(place, "the person left")
        return {}

    # --- details ---

    def _shown(self, game: PersonsGame, asked: Answer) -> Answer:
        if game.must_be_settled:
            self._write(game.settle)
        return game.show(thoughts=bool(asked.get("thoughts")))

    def _close(self, place: _Place, reason: str) -> None:
        def close() -> None:
            with place.lock:
                place.game.close(reason)

        self._write(close)

    def _write(self, write: Callable[[], None]) -> None:
        with self._lock:
            self._written = [one for one in self._written if not one.done() or one.exception()]
            self._written.append(self._writer.submit(write))

    @contextmanager
    def _at(self, key: object) -> Iterator[_Place]:
        """The open page with this key; requests for it wait for each other."""
        with self._lock:
            place = self._places.get(str(key))
        if place is None:
            raise PlayRefused("this game is not known any more; begin a new one", 404)
        with place.lock:
            place.touched = time.monotonic()
            yield place

    def _get(self, ask: Callable[[Mapping[str, str]], Answer]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await self._answered(ask, {**request.query_params, **request.path_params})

        return answer

    def _post(self, ask: Callable[[Answer], Answer]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                asked = json.loads(await request.body())
            except (ValueError, RecursionError):
                asked = None
            if not isinstance(asked, dict):
                return JSONResponse({"error": "send a JSON object"}, 400)
            return await self._answered(ask, asked)

        return answer

    async def _answered(self, ask: Callable[[Any], Answer], asked: Any) -> Response:
        """Turn an error into a response that the page shows."""
        try:
            return JSONResponse(await anyio.to_thread.run_sync(ask, asked, limiter=self._at_once))
        except PlayRefused as error:
            return JSONResponse({"error": str(error)}, error.status)
        except (WrongMove, ConfigError) as error:
            return JSONResponse({"error": str(error)}, 400)
        except (GameError, StoreError, OSError) as error:
            return JSONResponse({"error": str(error)}, 500)
        except Exception as error:  # the page must not be left without an answer
            traceback.print_exc()
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)
