"""A stand-in for the program of FightingICE: the same connections and messages, and a very plain fight.

Fighters stand on a line. A fighter that presses A nearer than 120 hits for 10, unless the other holds the key
away from it; then nobody can be told anything for 8 frames. Frames are shown as they are and, as the game
does, as they were 15 frames before. Every game waits for the keys of both sides (`--input-sync`).
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from pyftg.protoc import message_pb2, service_pb2

DELAY = 15
REACH = 120
INITIALIZE, PROCESSING, ROUND_END, GAME_END = 1, 3, 4, 5


class StandIn:
    def __init__(self, *, rounds: int = 2, frames: int = 90, hp: int = 100, **plan: int) -> None:
        """`refuse`: games that are refused at first; `crash_at`, `hang_at`: frames of the first round."""
        self._rounds, self._frames, self._hp, self._plan = rounds, frames, hp, plan
        self.asked: list[Any] = []
        """`RunGameRequest`s."""
        self.pressed: list[tuple[str, str]] = []
        """Keys of both sides in every frame."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._thread.join(10)

    def _serve(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                self._game()

    def _game(self) -> None:
        runner = self._accept(2)
        request = service_pb2.RunGameRequest.FromString(_message(runner))
        self.asked.append(request)
        refuses = len(self.asked) <= self._plan.get("refuse", 0)
        said = "The game is not ready for running the game." if refuses else "Success"
        _send(runner, service_pb2.RunGameResponse(status_code=int(refuses), response_message=said))
        if refuses:
            return
        sides: dict[int, socket.socket] = {}
        for _ in range(2):
            side = self._accept(1)
            joined = service_pb2.InitializeRequest.FromString(_message(side))
            sides[0 if joined.player_number else 1] = side
        with suppress(OSError, EOFError):  # whoever plays has gone: the next game
            self._play([sides[0], sides[1]], [request.character_1, request.character_2])
            for connection in (runner, *sides.values()):
                connection.sendall(b"\x00")
        for connection in (runner, *sides.values()):
            connection.close()

    def _accept(self, kind: int) -> socket.socket:
        """As in the game, a connection that ends without a byte ends the server."""
        while True:
            connection, _ = self._server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            told = _exactly(connection, 1)
            if told != b"\x00":  # a kind that the game passes over
                assert told == bytes([kind])
                return connection

    def _play(self, sides: list[socket.socket], characters: list[str]) -> None:
        facts = message_pb2.GrpcGameData(max_hps=[self._hp] * 2, max_energies=[300, 300], character_names=characters)
        _tell(sides, service_pb2.PlayerGameState(state_flag=INITIALIZE, game_data=facts))
        for number in range(1, self._rounds + 1):
            left, frames = self._round(sides, number)
            result = message_pb2.GrpcRoundResult(current_round=number, remaining_hps=left, elapsed_frame=frames)
            flag = GAME_END if number == self._rounds else ROUND_END
            _tell(sides, service_pb2.PlayerGameState(state_flag=flag, round_result=result))

    def _round(self, sides: list[socket.socket], number: int) -> tuple[list[int], int]:
        hps, places, busy = [self._hp] * 2, [300, 600], 0
        past = deque([message_pb2.GrpcFrameData(empty_flag=True)] * DELAY, maxlen=DELAY)
        frame = 0
        while frame < self._frames and min(hps) > 0:
            frame += 1
            if number == 1 and frame == self._plan.get("crash_at"):
                raise EOFError
            if number == 1 and frame == self._plan.get("hang_at"):
                threading.Event().wait(5)
            front = [places[0] <= places[1], places[1] < places[0]]
            shown = message_pb2.GrpcFrameData(
                character_data=[
                    message_pb2.GrpcCharacterData(
                        player_number=side == 0, hp=hps[side], x=places[side], front=front[side],
                        control=not busy, state=0, action=1, energy=30,
                    )
                    for side in range(2)
                ],
                projectile_data=[
                    message_pb2.GrpcAttackData(
                        player_number=True, speed_x=5, hit_damage=20,
                        current_hit_area=message_pb2.GrpcHitArea(left=100, right=140, top=50, bottom=70),
                    )
                ],
                current_frame_number=frame,
                current_round=number,
                front=front,
            )  # fmt: skip
            past.append(shown)
            late = message_pb2.GrpcFrameData()
            late.CopyFrom(past[0])
            if late.empty_flag:
                late.front.extend(front)
            _tell(
                sides,
                service_pb2.PlayerGameState(
                    state_flag=PROCESSING, is_control=not busy, frame_data=late, non_delay_frame_data=shown
                ),
            )
            keys = [message_pb2.GrpcKey.FromString(_message(side)) for side in sides]
            self.pressed.append((_letters(keys[0]), _letters(keys[1])))
            busy = max(0, busy - 1)
            for side, key in enumerate(keys):
                if busy:
                    break
                places[side] = min(max(places[side] + 6 * (key.R - key.L), 0), 960)
                other = keys[1 - side]
                guards = (other.L if front[1 - side] else other.R) and not other.A
                if key.A and abs(places[0] - places[1]) < REACH:
                    hps[1 - side] -= 0 if guards else 10
                    busy = 8
        return hps, frame


def _letters(key: Any) -> str:
    return "".join(name for name in "ABCURDL" if getattr(key, name))


def _tell(sides: list[socket.socket], state: Any) -> None:
    for side in sides:
        side.sendall(b"\x01")
        _send(side, state)


def _send(connection: socket.socket, message: Any) -> None:
    data = message.SerializeToString()
    connection.sendall(len(data).to_bytes(4, "little") + data)


def _message(connection: socket.socket) -> bytes:
    return _exactly(connection, int.from_bytes(_exactly(connection, 4), "little"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data
