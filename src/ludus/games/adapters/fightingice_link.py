"""The connection to FightingICE: one to start a game, and one for each of the two sides.

Every message has a length in front (four bytes, lowest first), but for single bytes that say what follows.
The messages themselves are those of pyftg.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from pyftg.protoc import message_pb2, service_pb2

from ludus.games.adapters.fightingice import connect
from ludus.games.seat_rows import GameError

_PLAY, _RUN = b"\x01", b"\x02"
"""What a new connection is for."""
_FOLLOWS = b"\x01"
"""A state follows; any other byte ends the game."""
_SUCCESS = 0
_RETRY_S = 0.2
NAMES = ("Ludus1", "Ludus2")

INITIALIZE, PROCESSING, ROUND_END, GAME_END = 1, 3, 4, 5
"""Kinds of state."""


class GameConnection:
    """One game, from its start to its end. `receive` and then `press` for every frame, side by side."""

    def __init__(self, host: str, port: int, characters: tuple[str, str], time_limit_s: float) -> None:
        self._place = f"FightingICE at {host}:{port}"
        self._address = (host, port)
        self._limit_s = time_limit_s
        self._open: list[socket.socket] = []
        try:
            self._start(characters)
            self._sides = [self._join(side) for side in range(2)]
        except BaseException:
            self.close()
            raise

    def receive(self, side: int) -> Any:
        """The next `PlayerGameState` of a side; None when the game has closed the connection."""
        connection = self._sides[side]
        if self._read(connection, 1) != _FOLLOWS:
            return None
        state = service_pb2.PlayerGameState()
        state.ParseFromString(self._read_message(connection))
        return state

    def press(self, side: int, keys: str) -> None:
        """Hold these keys (letters of ABCULDR) for a frame."""
        self._write(self._sides[side], message_pb2.GrpcKey(**dict.fromkeys(keys, True)))

    def close(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.close()
        self._open = []

    def _start(self, characters: tuple[str, str]) -> None:
        """The game refuses while the one before it has not been cleared away yet."""
        request = service_pb2.RunGameRequest(
            character_1=characters[0],
            character_2=characters[1],
            player_1=NAMES[0],
            player_2=NAMES[1],
            game_number=1,
        )
        deadline = time.monotonic() + self._limit_s
        while True:
            connection = self._connect()
            connection.sendall(_RUN)
            self._write(connection, request)
            answer = service_pb2.RunGameResponse()
            answer.ParseFromString(self._read_message(connection))
            if answer.status_code == _SUCCESS:
                return
            self._open.remove(connection)
            connection.close()
            if time.monotonic() > deadline:
                raise GameError(f"{self._place} does not start a game: {answer.response_message}")
            time.sleep(_RETRY_S)

    def _join(self, side: int) -> socket.socket:
        connection = self._connect()
        connection.sendall(_PLAY)
        self._write(
            connection,
            service_pb2.InitializeRequest(player_number=side == 0, player_name=NAMES[side], is_blind=False),
        )
        return connection

    def _connect(self) -> socket.socket:
        connection = connect(*self._address, self._limit_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.append(connection)
        return connection

    def _write(self, connection: socket.socket, message: Any) -> None:
        data = message.SerializeToString()
        try:
            connection.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise GameError(f"{self._place} is gone: {error}") from None

    def _read_message(self, connection: socket.socket) -> bytes:
        return self._read(connection, int.from_bytes(self._read(connection, 4), "little"))

    def _read(self, connection: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = connection.recv(count - len(data))
            except TimeoutError:
                raise GameError(f"{self._place} said nothing for {self._limit_s:g} s") from None
            except OSError as error:
                raise GameError(f"{self._place} is gone: {error}") from None
            if not part:
                raise GameError(f"{self._place} closed the connection in the middle of a game")
            data += part
        return bytes(data)
