"""Matches on a game server, from Python: start them, wait for them, join them, read their results."""

from __future__ import annotations

import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ludus.games.game import Actions, TableView
from ludus.games.remote.batch import read_spec
from ludus.games.remote.frames import SharedActions, SharedView, WireError
from ludus.games.remote.link import PlayStream, ServerAccess, ServerLost, StreamEnded, call
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

_LONG_POLL_S = 20.0


class GameClient:
    """A way to the match service of a server: `GameClient("127.0.0.1:23432")`. Raises `Refused` for what the
    server does not do, `ServerLost` when it is gone."""

    def __init__(
        self,
        server: str,
        *,
        token_file: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._access = ServerAccess(server=server, token_file=token_file, ca_file=ca_file, timeout_s=timeout_s)
        self._channel = self._access.channel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def describe(self) -> Description:
        """What the server plays, and for how many."""
        described: Description = self._call("Describe", Nothing(), Description)
        return described

    def start_game(self, match: str, config: MatchConfig) -> MatchResult:
        """Begin a match under a name of the caller's. Saying it again changes nothing."""
        return self._match("StartGame", StartRequest(match, config))

    def stop_game(self, match: str) -> MatchResult:
        return self._match("StopGame", MatchRequest(match))

    def exists(self, match: str) -> bool:
        """Whether it is being played."""
        answer: ExistsAnswer = self._call("Exists", MatchRequest(match), ExistsAnswer)
        return answer.exists

    def wait_game(self, match: str, timeout_s: float | None = None) -> MatchResult:
        """The result, once it has ended; raises TimeoutError if that takes longer."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LONG_POLL_S if until is None else min(_LONG_POLL_S, until - time.monotonic())
            result = self._match("WaitGame", MatchRequest(match, max(0.0, left)), wait_s=_LONG_POLL_S)
            if result.ended:
                return result
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"match {match!r} is {result.state} after {timeout_s:g} s")

    def result(self, match: str) -> MatchResult:
        """How it stands now."""
        return self._match("Result", MatchRequest(match))

    def list(self) -> tuple[MatchResult, ...]:
        """Every match that the server knows, the oldest first."""
        answer: MatchList = self._call("List", Nothing(), MatchList)
        return answer.matches

    def join(self, match: str, camp: int, turn_seconds: float = 600.0) -> CampSeats:
        """Play a camp that has no bot. `turn_seconds`: how long the others may take between two turns of this
        camp, before the server counts as lost."""
        return CampSeats(replace(self._access, timeout_s=turn_seconds), match, camp)

    def _match(self, method: str, request: StartRequest | MatchRequest, wait_s: float = 0.0) -> MatchResult:
        result: MatchResult = self._call(method, request, MatchResult, wait_s)
        return result

    def _call(self, method: str, request: Any, kind: Any, wait_s: float = 0.0) -> Any:
        return call(self._access, self._channel, method, request, kind, wait_s)


class CampSeats:
    """The seats of one camp at the table of a match.

    `view` shows one table, of which only the own seats are filled in; its rewards are those since it was
    shown last. While `playing`, call `step` with actions for the seats that are to act; after the end of an
    episode (over, or truncated also by the frame limit), its actions do not matter. Raises `ServerLost`."""

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
        """Decide, and wait until it is this camp's turn again or the episode or match has ended. Raises
        ValueError for what are no actions of this game; then nothing was decided."""
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
