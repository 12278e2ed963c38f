"""FightingICE (DareFightingICE) through pyftg's protocol: two fighters, one seat each, sixty frames a second.

The user starts the game itself with `--pyftg-mode`; a running game plays one match at a time. pyftg is imported
when a match starts, so that recipes can be read without it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.game import GameBatch, Seat, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError
from ludus.games.tables import GameDefaults

COMMANDS = (
    "NEUTRAL", "FORWARD_WALK", "DASH", "BACK_STEP", "CROUCH", "JUMP", "FOR_JUMP", "BACK_JUMP", "STAND_GUARD",
    "CROUCH_GUARD", "AIR_GUARD", "THROW_A", "THROW_B", "STAND_A", "STAND_B", "CROUCH_A", "CROUCH_B", "AIR_A", "AIR_B",
    "AIR_DA", "AIR_DB", "STAND_FA", "STAND_FB", "CROUCH_FA", "CROUCH_FB", "AIR_FA", "AIR_FB", "AIR_UA", "AIR_UB",
    "STAND_D_DF_FA", "STAND_D_DF_FB", "STAND_F_D_DFA", "STAND_F_D_DFB", "STAND_D_DB_BA", "STAND_D_DB_BB",
    "AIR_D_DF_FA", "AIR_D_DF_FB", "AIR_F_D_DFA", "AIR_F_D_DFB", "AIR_D_DB_BA", "AIR_D_DB_BB", "STAND_D_DF_FC",
)  # fmt: skip
"""Options of the action head, in order. A command that the fighter cannot carry out now has no effect."""

HELD = frozenset({"FORWARD_WALK", "CROUCH", "STAND_GUARD", "CROUCH_GUARD", "AIR_GUARD"})
"""Commands that last as long as their key is pressed."""

NUM_ACTIONS, NUM_STATES = 56, 4
"""Number of values of pyftg's `Action` (what a fighter does) and `State` (its stance)."""
PROJECTILES = 2
"""Projectiles of each side in an observation, the first ones."""
_WIDTH, _HEIGHT = 960.0, 640.0
_CHARACTER = 11 + NUM_STATES + NUM_ACTIONS
_PROJECTILE = 6
OBSERVATION = 2 * _CHARACTER + 2 * PROJECTILES * _PROJECTILE + 2

_IGNORED, _PLAY, _RUN = b"\x00", b"\x01", b"\x02"
"""First byte of a connection: a purpose that the game does not know and ignores, to play, or to start a game."""
_FOLLOWS = b"\x01"
"""The byte before a state; any other byte ends the game."""
_SUCCESS = 0
_RETRY_S = 0.2
NAMES = ("Ludus1", "Ludus2")

INITIALIZE, PROCESSING, ROUND_END, GAME_END = 1, 3, 4, 5
"""Values of `state_flag`."""

CHARACTERS = ("GARNET", "ZEN", "LUD", "NEZ")
_USUAL_HP, _USUAL_ENERGY = 400.0, 300.0


@dataclass(frozen=True, kw_only=True)
class FightingICE(GameDefaults):
    """A game of several rounds. A decision is a command, whose keys take some frames; the seat decides again when
    its fighter can take a new command."""

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (31415,)
    """Ports of the running games, one for each table."""
    characters: tuple[str, str] = ("ZEN", "ZEN")
    rounds: int = 3
    """The game's option -r; used for the length of an episode only."""
    round_frames: int = 3_600
    """The game's option -f."""
    frames_per_decision: int = 6
    """Least frames between two decisions of a seat; walking, crouching and guarding last as long."""
    delayed: bool = True
    """Show frames with the game's delay of 15 frames, as to people; otherwise the present frame."""
    time_limit_s: float = 30.0
    """Time limit for the game to start or to send a frame."""

    def __post_init__(self) -> None:
        for name in ("rounds", "round_frames", "frames_per_decision", "time_limit_s"):
            if getattr(self, name) <= 0:
                raise GameError(f"{name} must be above 0, got {getattr(self, name)}")
        wrong = [name for name in self.characters if name not in CHARACTERS]
        if wrong:
            raise GameError(f"characters must be of {', '.join(CHARACTERS)}, got {wrong[0]!r}")
        if not self.ports:
            raise GameError("ports must name at least one running game")

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="fightingice",
            num_seats=2,
            observation=ObservationSpec(parts={"fight": Vector(size=OBSERVATION)}),
            action=ActionSpec(heads={"command": Choice(num=len(COMMANDS), masked=False)}),
            # A round continues for a while after its last frame, and every step takes at least a frame.
            max_length=self.rounds * (self.round_frames + 300),
            reward_is_score=False,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        if num_tables > len(self.ports):
            raise GameError(f"{self._too_few(num_tables)} (or actor.num_tables)")
        return LiftedBatch(self.spec, [Fight(self, port) for port in self.ports[:num_tables]])

    def missing(self, num_tables: int) -> list[str]:
        found = [self._too_few(num_tables)] if num_tables > len(self.ports) else []
        for port in self.ports[:num_tables]:
            try:
                with _connect(self.host, port, self.time_limit_s) as connection:
                    connection.sendall(_IGNORED)  # a connection that ends without a byte ends the game's server
            except GameError as error:
                found.append(str(error))
        return found

    def _too_few(self, num_tables: int) -> str:
        return (
            f"{num_tables} tables, but ports names {len(self.ports)} running games, and each plays one "
            "match at a time: start more, and set ports=31415,31416,..."
        )


class Fight:
    """One table. The reward of a seat is the change of its lead in hit points, as a share of a full bar; the score
    of an episode is 1 for the side that won more rounds."""

    def __init__(self, source: FightingICE, port: int) -> None:
        self.spec = source.spec
        self._source = source
        self._port = port
        self._match: GameConnection | None = None
        self._command_center = import_module("pyftg.aiinterface.command_center").CommandCenter

    def reset(self, seed: int) -> Turn:
        """The game has no chance, so the seed changes nothing."""
        self.close()
        source = self._source
        self._match = GameConnection(source.host, self._port, source.characters, source.time_limit_s)
        self._keys: list[list[str]] = [[], []]
        self._busy = [0, 0]
        """Frames until each side may decide again."""
        self._clock = 0
        self._lead = self._paid = 0.0
        """Lead of side 0 over side 1 in shares of a bar: now, and as already paid as reward."""
        self._rounds_lead = 0.0
        """Lead of side 0 summed over the finished rounds."""
        self._faces_right = [True, True]
        self._won = [0, 0]
        self._scale = (_USUAL_HP, _USUAL_ENERGY)
        self._full = [0.0, 0.0]
        """Hit points of both sides at the start of a round."""
        return self._play_on()

    def step(self, actions: Mapping[Seat, int]) -> Turn:
        for side, action in actions.items():
            command, frames = COMMANDS[action], self._source.frames_per_decision
            keys = keys_of(command, self._command_center, self._faces_right[side])
            self._keys[side] = keys * frames if command in HELD else keys
            self._busy[side] = max(frames, len(self._keys[side]))
        self._press()
        return self._play_on()

    def close(self) -> None:
        if self._match is not None:
            self._match.close()
            self._match = None

    def _play_on(self) -> Turn:
        """Advance until a side has to decide or the game ends."""
        assert self._match is not None
        while True:
            states = [self._match.receive(side) for side in range(2)]
            if None in states:
                raise GameError("fightingice: the game was broken off")
            kinds = {state.state_flag for state in states}
            if len(kinds) > 1:
                raise GameError(f"fightingice: the two sides received different states: {sorted(kinds)}")
            (kind,) = kinds
            if kind == INITIALIZE:
                self._learn_scale(states[0].game_data)
            elif kind in (ROUND_END, GAME_END):
                self._end_round(states[0].round_result)
                if kind == GAME_END:
                    return self._end()
            elif kind == PROCESSING:
                deciding = self._see(states)
                if deciding:
                    return Turn(observations=deciding, reward=self._reward(), clock=self._clock)
                self._press()

    def _see(self, states: list[Any]) -> dict[Seat, Any]:
        """Observations of the sides that have to decide now."""
        self._clock += 1
        present = states[0].non_delay_frame_data
        seen = [state.frame_data if self._source.delayed else state.non_delay_frame_data for state in states]
        if not present.empty_flag and len(present.character_data) == 2:
            self._lead = self._rounds_lead + self._ahead([one.hp for one in present.character_data])
        deciding = {}
        for side, state in enumerate(states):
            self._busy[side] = max(0, self._busy[side] - 1)
            facing = state.frame_data.front
            self._faces_right[side] = bool(facing[side]) if len(facing) == 2 else True
            if state.is_control and not self._busy[side] and not self._keys[side]:
                deciding[side] = look(seen[side], side, self._scale, self._source.round_frames)
        return deciding

    def _press(self) -> None:
        """Press the next keys of both sides for a frame."""
        assert self._match is not None
        for side, keys in enumerate(self._keys):
            self._match.press(side, keys.pop(0) if keys else "")

    def _learn_scale(self, data: Any) -> None:
        # Without a limit, hit points count down from 0.
        hp = float(max(data.max_hps, default=0)) or _USUAL_HP
        self._scale = (hp, float(max(data.max_energies, default=0)) or _USUAL_ENERGY)
        self._full = [float(one) for one in data.max_hps] if len(data.max_hps) == 2 else [0.0, 0.0]

    def _ahead(self, hps: list[int]) -> float:
        """Lead of side 0 in this round, in shares of a bar."""
        lost = [full - hp for full, hp in zip(self._full, hps, strict=True)]
        return (lost[1] - lost[0]) / self._scale[0]

    def _end_round(self, result: Any) -> None:
        left = list(result.remaining_hps)
        if len(left) == 2:
            self._rounds_lead += self._ahead(left)
            self._lead = self._rounds_lead
            for side in range(2):
                self._won[side] += left[side] > left[1 - side]
        self._keys, self._busy = [[], []], [0, 0]

    def _end(self) -> Turn:
        self.close()
        ahead = float((self._won[0] > self._won[1]) - (self._won[0] < self._won[1]))
        return Turn(observations={}, reward=self._reward(), over=True, score=(ahead, -ahead), clock=self._clock + 1)

    def _reward(self) -> tuple[float, float]:
        earned, self._paid = self._lead - self._paid, self._lead
        return (earned, -earned)


def keys_of(command: str, command_center: Any, faces_right: bool) -> list[str]:
    """The keys of each frame, by pyftg's own table of commands."""
    if command == COMMANDS[0]:
        return []
    center = command_center()
    center.set_frame_data(SimpleNamespace(is_front=lambda player: faces_right), True)  # all that it reads
    center.command_call(command)
    return ["".join(name for name in "ABCURDL" if getattr(key, name)) for key in center.get_skill_keys()]


def look(frame: Any, side: int, scale: tuple[float, float], frames: int) -> NDArray[np.float32]:
    """Observation of a side: itself, the other fighter, projectiles and time, all about -1 to 1."""
    seen = np.zeros(OBSERVATION, np.float32)
    if frame.empty_flag or len(frame.character_data) < 2:
        return seen  # observations are delayed, so at first nothing is known
    for place, which in enumerate((side, 1 - side)):
        seen[place * _CHARACTER : (place + 1) * _CHARACTER] = _character(frame.character_data[which], scale)
        flying = [one for one in frame.projectile_data if one.player_number == (which == 0)]
        for number, one in enumerate(flying[:PROJECTILES]):
            start = 2 * _CHARACTER + (place * PROJECTILES + number) * _PROJECTILE
            seen[start : start + _PROJECTILE] = _projectile(one)
    seen[-2:] = (frame.current_frame_number / frames, frame.current_round / 3.0)
    return seen


def _character(one: Any, scale: tuple[float, float]) -> NDArray[np.float32]:
    row = np.zeros(_CHARACTER, np.float32)
    row[:11] = (
        one.hp / scale[0],
        one.energy / scale[1],
        one.x / _WIDTH,
        one.y / _HEIGHT,
        one.speed_x / 20.0,
        one.speed_y / 28.0,
        one.front,
        one.control,
        one.remaining_frame / 70.0,
        min(one.hit_count, 10) / 10.0,
        one.hit_confirm,
    )
    if 0 <= one.state < NUM_STATES:
        row[11 + one.state] = 1.0
    if 0 <= one.action < NUM_ACTIONS:
        row[11 + NUM_STATES + one.action] = 1.0
    return row


def _projectile(one: Any) -> tuple[float, ...]:
    area = one.current_hit_area
    return (
        1.0,
        (area.left + area.right) / 2 / _WIDTH,
        (area.top + area.bottom) / 2 / _HEIGHT,
        one.speed_x / 20.0,
        one.speed_y / 20.0,
        one.hit_damage / 200.0,
    )


def _connect(host: str, port: int, limit_s: float) -> socket.socket:
    try:
        return socket.create_connection((host, port), limit_s)
    except OSError as error:
        raise GameError(
            f"no FightingICE at {host}:{port} ({error.strerror or error}); start it with --pyftg-mode --port "
            f"{port}, see docs/games/fightingice.md"
        ) from None


class GameConnection:
    """One game from start to end: `receive` and then `press` for each side, frame by frame.

    One connection starts the game, and each side has another. Every message has its length in front (four bytes,
    little-endian), except single bytes that announce what follows. The messages are those of pyftg.
    """

    def __init__(self, host: str, port: int, characters: tuple[str, str], time_limit_s: float) -> None:
        self._messages: Any = import_module("pyftg.protoc.message_pb2")
        self._service: Any = import_module("pyftg.protoc.service_pb2")
        self._place = f"FightingICE at {host}:{port}"
        self._address = (host, port)
        self._limit_s = time_limit_s
        self._open = ExitStack()
        try:
            self._start(characters)
            self._sides = [self._join(side) for side in range(2)]
        except BaseException:
            self.close()
            raise

    def receive(self, side: int) -> Any:
        """The next `PlayerGameState` of a side; None if the game has ended the match."""
        connection = self._sides[side]
        if self._read(connection, 1) != _FOLLOWS:
            return None
        return self._service.PlayerGameState.FromString(self._read_message(connection))

    def press(self, side: int, keys: str) -> None:
        """Hold these keys (letters of ABCULDR) for a frame."""
        self._write(self._sides[side], self._messages.GrpcKey(**dict.fromkeys(keys, True)))

    def close(self) -> None:
        self._open.close()

    def _start(self, characters: tuple[str, str]) -> None:
        """Retry for a while: the game refuses until it has cleaned up the previous match."""
        request = self._service.RunGameRequest(
            character_1=characters[0], character_2=characters[1], player_1=NAMES[0], player_2=NAMES[1], game_number=1
        )
        deadline = time.monotonic() + self._limit_s
        while True:
            connection = self._connect()
            connection.sendall(_RUN)
            self._write(connection, request)
            answer = self._service.RunGameResponse.FromString(self._read_message(connection))
            if answer.status_code == _SUCCESS:
                return
            connection.close()
            if time.monotonic() > deadline:
                raise GameError(f"{self._place} does not start a game: {answer.response_message}")
            time.sleep(_RETRY_S)

    def _join(self, side: int) -> socket.socket:
        connection = self._connect()
        connection.sendall(_PLAY)
        player = {"player_number": side == 0, "player_name": NAMES[side], "is_blind": False}
        self._write(connection, self._service.InitializeRequest(**player))
        return connection

    def _connect(self) -> socket.socket:
        connection = self._open.enter_context(_connect(*self._address, self._limit_s))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
