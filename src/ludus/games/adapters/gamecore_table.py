"""One table of Honor of Kings: a game of the gamecore server, and the bridge that its simulator calls."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ludus.games.adapters.gamecore_client import CampAddress, GamecoreClient
from ludus.games.adapters.gamecore_heads import actions_1v1, actions_3v3, legal_1v1
from ludus.games.game import Seat, Turn
from ludus.games.program import Program, ProgramLost
from ludus.games.seat_rows import GameError

if TYPE_CHECKING:
    from ludus.games.adapters.gamecore import Gamecore


class Battle:
    """The camps decide in turn, frame by frame: the one whose simulator waits for an answer."""

    def __init__(self, source: Gamecore, number: int) -> None:
        self.spec = source.spec
        self._source = source
        self._number = number
        self._client = GamecoreClient(source.server_address, time_limit_s=source.time_limit_s)
        self._program: Program | None = None
        self._id = f"ludus-{os.getpid()}-{number}-{secrets.token_hex(4)}"
        self._running = False
        self._camps = range(source.num_camps)
        self._size = source.heroes_a_camp

    def reset(self, seed: int) -> Turn:
        """The server takes no seed: no two games are alike."""
        source = self._source
        self._stop()
        if self._program is None:
            self._program = Program("gamecore_bridge", source.bridge_command)
            self._ports = [self._port(camp) for camp in self._camps]
        listening = [f"tcp://0.0.0.0:{port}" for port in self._ports]
        self._ask({"type": "open", "addresses": listening, "eval": source.eval_mode})
        addresses: list[CampAddress | None] = [
            CampAddress(ip=source.own_ip, port=port) for port in self._ports
        ]
        self._client.start_game(
            self._id,
            source.mode,
            source.line_ups,
            addresses if len(addresses) == 2 else [*addresses, None],
            simulator="remote" if source.eval_mode else source.simulator,
            max_frames=source.max_frames,
        )
        self._running = True
        self._deciding: int | None = None
        self._start_frame: int | None = None
        self._earned = [0.0] * self.spec.num_seats
        return self._next()

    def step(self, actions: Mapping[Seat, Mapping[str, int]]) -> Turn:
        camp = self._deciding
        assert camp is not None
        to_game = actions_1v1 if self._source.mode == "1v1" else actions_3v3
        chosen = [to_game(actions[seat]) for seat in self._seats(camp)]
        self._ask({"type": "act", "actions": chosen})
        return self._next()

    def close(self) -> None:
        self._stop()
        if self._program is not None:
            self._program.close()
            self._program = None

    def _next(self) -> Turn:
        answer = self._ask({"type": "next"})
        self._earn(answer)
        if answer["over"]:
            return self._end(answer)
        camp = self._deciding = answer["camp"]
        observations, legal = {}, {}
        for seat, hero in zip(self._seats(camp), answer["heroes"], strict=True):
            observations[seat] = self._observation(hero["observation"])
            if self._source.mode == "1v1":
                legal[seat] = legal_1v1(hero["legal"])
        return Turn(
            observations=observations, legal=legal, reward=self._paid(), clock=self._clock(answer["frame"])
        )

    def _end(self, answer: Mapping[str, Any]) -> Turn:
        """Both camps are shown the last frame."""
        for _ in range(1, len(self._camps)):
            self._earn(self._ask({"type": "next"}))
        self._running = False
        lost = answer["lost_camp"]  # 1 or 2
        first = 0.0 if lost is None else 1.0 if lost == 2 else -1.0
        return Turn(
            observations={},
            reward=self._paid(),
            over=True,
            score=(first, -first)[: self.spec.num_teams],
            clock=self._clock(answer["frame"]) + 1,
        )

    def _seats(self, camp: int) -> range:
        return range(camp * self._size, (camp + 1) * self._size)

    def _observation(self, values: Sequence[float]) -> NDArray[np.float32]:
        if len(values) != self._source.num_features:
            raise GameError(
                f"gamecore: a hero sees {len(values)} numbers; set observation_size={len(values)} for this "
                f"version of the library, instead of {self._source.num_features}"
            )
        return np.array(values, np.float32)

    def _earn(self, answer: Mapping[str, Any]) -> None:
        if self._deciding is None and not answer["over"]:
            return  # nobody has done anything yet
        for seat, hero in zip(self._seats(answer["camp"]), answer["heroes"], strict=False):
            self._earned[seat] += hero["reward"]

    def _paid(self) -> list[float]:
        paid, self._earned = self._earned, [0.0] * self.spec.num_seats
        return paid

    def _clock(self, frame: int) -> int:
        if self._start_frame is None:
            self._start_frame = frame
        return frame - self._start_frame

    def _port(self, camp: int) -> int:
        if self._source.first_port:
            return self._source.first_port + 2 * self._number + camp
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            return port

    def _stop(self) -> None:
        if self._running:
            self._running = False
            self._client.stop_game(self._id)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._program is not None
        try:
            return self._program.ask(request, self._source.time_limit_s)
        except ProgramLost as error:
            self._program.close()
            self._program = None
            raise GameError(f"gamecore: the bridge ({self._source.bridge_command[0]}) {error}") from None
