"""A Python client for the matches of a game server: start, wait for and join them, and read their results."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Self, TypeVar

import msgspec

from ludus.games.game import Actions, TableView
from ludus.games.remote.batch import read_spec
from ludus.games.remote.connection import PlayStream, ServerAccess, ServerLost, StreamEnded, call
from ludus.games.remote.frames import SharedActions, SharedView
from ludus.games.remote.messages import (
    PROTOCOL,
    Description,
    ExistsAnswer,
    Join,
    MatchConfig,
    MatchList,
    MatchRequest,
    MatchResult,
    Nothing,
    StartRequest,
    Step,
    View,
    Welcome,
)
from ludus.system.arrays import WireError

_LONG_POLL_S = 20.0
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class GameClient:
    """A client of the match service, such as `GameClient("127.0.0.1:23432")`. Raises `ServerRefused` if the server
    rejects a request, `ServerLost` if it is gone."""

    def __init__(
        self, server: str, *, token_file: str | None = None, ca_file: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self._access = ServerAccess(server=server, token_file=token_file, ca_file=ca_file, timeout_s=timeout_s)
        self._channel = self._access.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def describe(self) -> Description:
        """The game of the server, and its load."""
        return self._call("Describe", Nothing(), Description)

    def start_game(self, match: str, config: MatchConfig) -> MatchResult:
        """Start a match under a name of the caller's. A repeated call changes nothing."""
        return self._call("StartGame", StartRequest(match, config), MatchResult)

    def stop_game(self, match: str) -> MatchResult:
        return self._call("StopGame", MatchRequest(match), MatchResult)

    def exists(self, match: str) -> bool:
        """Whether it is being played."""
        return self._call("Exists", MatchRequest(match), ExistsAnswer).exists

    def wait_game(self, match: str, timeout_s: float | None = None) -> MatchResult:
        """The result, once it has ended; raises TimeoutError if that takes longer."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LONG_POLL_S if until is None else min(_LONG_POLL_S, until - time.monotonic())
            result = self._call("WaitGame", MatchRequest(match, max(0.0, left)), MatchResult, wait_s=_LONG_POLL_S)
            if result.ended:
                return result
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"match {match!r} is {result.state} after {timeout_s:g} s")

    def result(self, match: str) -> MatchResult:
        """The result so far."""
        return self._call("Result", MatchRequest(match), MatchResult)

    def list(self) -> tuple[MatchResult, ...]:
        """Every match that the server knows, the oldest first."""
        return self._call("List", Nothing(), MatchList).matches

    def join(self, match: str, camp: int, turn_seconds: float = 600.0) -> CampSeats:
        """Play a camp that has no bot. If the other camps take longer than `turn_seconds` between two turns of this
        one, the server counts as lost."""
        return CampSeats(replace(self._access, timeout_s=turn_seconds), match, camp)

    def _call(self, method: str, request: msgspec.Struct, kind: type[_Answer], wait_s: float = 0.0) -> _Answer:
        answer: _Answer = call(self._access, self._channel, method, request, kind, wait_s)
        return answer


class CampSeats:
    """The seats of one camp at the table of a match.

    `view` shows one table, in which only the seats of the camp are filled in, with the rewards since the last view.
    While `playing`, call `step` with actions for the seats to act; after the end of an episode (over, or truncated,
    also by the frame limit) the actions do not matter. Raises `ServerLost`."""

    def __init__(self, access: ServerAccess, match: str, camp: int) -> None:
        self._server = access.server
        self._stream = PlayStream(access)
        self.playing = True
        try:
            answer, _ = self._stream.ask(Join(protocol=PROTOCOL, match=match, camp=camp))
            if not isinstance(answer, Welcome):
                raise ServerLost(f"game server {access.server} answered {type(answer).__name__}")
            self.spec = read_spec(answer, access.server)
            self.seats = self.spec.seats_of_team[camp]
            self._shared = SharedView(self.spec, 1)
            self._chosen = SharedActions(self.spec, 1)
            self._listen()
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> TableView:
        return self._shared.view

    def step(self, actions: Actions) -> None:
        """Act, and wait for the next turn of this camp or the end of the episode or match. Raises ValueError for
        wrong actions, and then sends nothing."""
        self._chosen.fill(actions)
        self._listen(Step())

    def close(self) -> None:
        self.playing = False
        self._stream.close()

    def _listen(self, step: Step | None = None) -> None:
        try:
            if step is None:
                answer, body = self._stream.listen()
            else:
                answer, body = self._stream.ask(step, [self._chosen.content])
            if not isinstance(answer, View):
                raise ServerLost(f"game server {self._server} answered {type(answer).__name__}")
            self._shared.take(body)
        except StreamEnded:
            self.close()
        except WireError as error:
            raise ServerLost(f"game server {self._server} answered nonsense: {error}") from error
