"""A page on this machine's loopback address that shows episodes while they are played. The thread that plays gives each
moment to `LivePage.show`, which holds it up as long as a spectator wants to look at it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.games.pictures import Moment, colour_of_team, written_score
from ludus.observe.pictures import png_address, state_of_play
from ludus.observe.web.page_server import PageAccess, PageServer, file_route

WEB = Path(__file__).parent / "web"
FILES = {"/": "live.html", "/theme.css": "static/theme.css", "/live.css": "live.css", "/live.js": "live.js"}
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
END_SECONDS = 1.5
"""Seconds that the last picture of an episode stays, at speed 1."""
_POLL_SECONDS = 0.02


@dataclass(slots=True)
class _Tally:
    """Results of the episodes of some players."""

    players: tuple[str, ...]
    episodes: int = 0
    wins: Counter[str] = field(default_factory=Counter)
    score: float = 0.0
    """Sum over episodes, where there is one team."""

    def cells(self) -> list[str]:
        """A row of the table: players, number of episodes, results."""
        if len(self.players) == 1:
            return [self.players[0], str(self.episodes), f"mean score {written_score(self.score / self.episodes)}"]
        won = [f"{player} {self.wins[player]}" for player in dict.fromkeys(self.players)]
        draws = self.episodes - self.wins.total()
        return [" against ".join(self.players), str(self.episodes), ", ".join([*won, f"draws {draws}"])]


class LivePage:
    """Starts serving when it is made; `close` ends it and tells the spectators why."""

    def __init__(self, *, port: int = 0, moments_per_second: float = 12) -> None:
        """`port` 0: any that is free."""
        self._seconds = 1 / moments_per_second
        self._changed = threading.Condition()
        self._events: dict[str, tuple[int, str]] = {}
        """The newest event of each kind, with its number: a late spectator misses only what is out of date."""
        self._number = 0
        self._spectators = 0
        self._paused = False
        self._skipping = False
        self._speed = 1.0
        self._held_until = time.monotonic()
        self._tallies: dict[tuple[str, ...], _Tally] = {}
        self._publish_controls()
        app = Starlette(
            routes=[
                *(Route(path, file_route(WEB / name)) for path, name in FILES.items()),
                Route("/events", self._events_route),
                Route("/control", self._control, methods=["POST"]),
            ]
        )
        self._server = PageServer(app, PageAccess(), port=port)
        self.url = self._server.url
        self._server.start()

    def wait_for_spectator(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._spectators > 0)

    def show(self, moment: Moment) -> None:
        """Shows the moment for its time; returns at once while the spectators skip the rest of an episode."""
        with self._changed:
            skipped = self._skipping and not moment.ended
            self._skipping = skipped
        if skipped:
            return
        self._publish("moment", _told(moment))
        if moment.ended:
            self._count(moment)
        self._hold(END_SECONDS if moment.ended else self._seconds)
        if moment.ended:
            self._skipping = False  # what was asked for during the last picture is done: the next episode

    def close(self, reason: str) -> None:
        self._publish("ended", {"reason": reason})
        self._server.close()

    # --- what spectators are told ---

    def _publish(self, kind: str, content: Mapping[str, Any]) -> None:
        text = f"event: {kind}\ndata: {json.dumps(content)}\n\n"
        with self._changed:
            self._number += 1
            self._events[kind] = self._number, text

    def _publish_controls(self) -> None:
        self._publish("controls", {"paused": self._paused, "speed": self._speed, "speeds": SPEEDS})

    def _count(self, moment: Moment) -> None:
        """Adds the end of an episode to the results of its players, whoever sat where."""
        tally = self._tallies.setdefault(tuple(sorted(moment.players)), _Tally(moment.players))
        tally.episodes += 1
        if moment.winner is not None:
            tally.wins[moment.players[moment.winner]] += 1
        elif moment.score is not None:
            tally.score += moment.score[0]
        self._publish("results", {"rows": [tally.cells() for tally in self._tallies.values()]})

    def _hold(self, seconds: float) -> None:
        """Waits as long as a moment is to be seen, at the speed and with the pauses that are asked for."""
        with self._changed:
            left = seconds - (time.monotonic() - self._held_until) * self._speed
            while (left > 0 or self._paused) and not self._skipping:
                speed, running, since = self._speed, not self._paused, time.monotonic()
                self._changed.wait(left / speed if running else None)
                if running:
                    left -= (time.monotonic() - since) * speed
            self._held_until = time.monotonic()

    # --- serving ---

    async def _events_route(self, _: Request) -> Response:
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        seen = 0
        self._arrive(1)
        try:
            while True:
                with self._changed:
                    new = sorted(event for event in self._events.values() if event[0] > seen)
                    ended = "ended" in self._events
                for number, text in new:
                    seen = number
                    yield text
                if ended:
                    return
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._arrive(-1)

    def _arrive(self, spectators: int) -> None:
        with self._changed:
            self._spectators += spectators
            self._changed.notify_all()

    async def _control(self, request: Request) -> Response:
        """A button: {"paused": true}, {"speed": 2}, {"next": true}."""
        try:
            asked = json.loads(await request.body())
            paused, speed, skip = asked.get("paused"), asked.get("speed"), asked.get("next")
        except (ValueError, AttributeError, RecursionError):
            return PlainTextResponse("not a JSON object", 400)
        if speed is not None and speed not in SPEEDS:
            return PlainTextResponse(f"speed must be one of {', '.join(f'{one:g}' for one in SPEEDS)}", 400)
        with self._changed:
            self._paused = self._paused if paused is None else bool(paused)
            self._speed = self._speed if speed is None else float(speed)
            if skip:
                self._skipping, self._paused = True, False
            self._publish_controls()
            self._changed.notify_all()
        return Response(status_code=204)


def _told(moment: Moment) -> dict[str, Any]:
    return {
        "game": moment.game,
        "teams": [
            {
                "player": player,
                "colour": "#{:02x}{:02x}{:02x}".format(*colour_of_team(team)),
                "score": "" if moment.score is None else written_score(moment.score[team]),
                "won": moment.winner == team,
            }
            for team, player in enumerate(moment.players)
        ],
        "state": state_of_play(moment),
        "ended": moment.ended,
        "picture": png_address(moment.draw()),
    }
