"""FightingICE (DareFightingICE) through pyftg's protocol: two fighters, one seat each, sixty frames a second.

The game is the user's own; it runs beside us with `--pyftg-mode`, and plays one match at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.tree import TreeState
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch, Seat, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError

COMMANDS = (
    "NEUTRAL",
    "FORWARD_WALK",
    "DASH",
    "BACK_STEP",
    "CROUCH",
    "JUMP",
    "FOR_JUMP",
    "BACK_JUMP",
    "STAND_GUARD",
    "CROUCH_GUARD",
    "AIR_GUARD",
    "THROW_A",
    "THROW_B",
    "STAND_A",
    "STAND_B",
    "CROUCH_A",
    "CROUCH_B",
    "AIR_A",
    "AIR_B",
    "AIR_DA",
    "AIR_DB",
    "STAND_FA",
    "STAND_FB",
    "CROUCH_FA",
    "CROUCH_FB",
    "AIR_FA",
    "AIR_FB",
    "AIR_UA",
    "AIR_UB",
    "STAND_D_DF_FA",
    "STAND_D_DF_FB",
    "STAND_F_D_DFA",
    "STAND_F_D_DFB",
    "STAND_D_DB_BA",
    "STAND_D_DB_BB",
    "AIR_D_DF_FA",
    "AIR_D_DF_FB",
    "AIR_F_D_DFA",
    "AIR_F_D_DFB",
    "AIR_D_DB_BA",
    "AIR_D_DB_BB",
    "STAND_D_DF_FC",
)
"""The options of the action head, in order. A command that cannot be carried out now does nothing."""

HELD = frozenset({"FORWARD_WALK", "CROUCH", "STAND_GUARD", "CROUCH_GUARD", "AIR_GUARD"})
"""Go on for as long as their key is down."""

NUM_ACTIONS, NUM_STATES = 56, 4
"""What a fighter can be doing (`Action` of pyftg), and how it stands (`State`)."""
PROJECTILES = 2
"""Seen of each side, the first ones."""
_WIDTH, _HEIGHT = 960.0, 640.0
_CHARACTER = 11 + NUM_STATES + NUM_ACTIONS
_PROJECTILE = 6
OBSERVATION = 2 * _CHARACTER + 2 * PROJECTILES * _PROJECTILE + 2


def keys_of(command: str, command_center: Any, faces_right: bool) -> list[str]:
    """The keys of each frame, by pyftg's own table of commands."""
    if command == COMMANDS[0]:
        return []
    center = command_center()
    center.set_frame_data(_Facing(faces_right), True)
    center.command_call(command)
    return ["".join(name for name in "ABCURDL" if getattr(key, name)) for key in center.get_skill_keys()]


class _Facing:
    """All that pyftg needs to know of a frame to turn a command into keys."""

    def __init__(self, faces_right: bool) -> None:
        self._faces_right = faces_right

    def is_front(self, player: bool) -> bool:
        return self._faces_right


def look(frame: Any, side: int, scale: tuple[float, float], frames: int) -> NDArray[np.float32]:
    """What a side sees of a frame: itself, the other, what flies about, and the time, all about -1 to 1."""
    seen = np.zeros(OBSERVATION, np.float32)
    if frame.empty_flag or len(frame.character_data) < 2:
        return seen  # nothing is known yet: what is seen lags behind
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


_NOTHING = b"\x00"
"""What a new connection is for: a kind that the game does not know and passes over."""


def connect(host: str, port: int, limit_s: float) -> socket.socket:
    """Raises `GameError` if nothing listens there."""
    try:
        return socket.create_connection((host, port), limit_s)
    except OSError as error:
        raise GameError(
            f"no FightingICE at {host}:{port} ({error.strerror or error}); start it with --pyftg-mode --port "
            f"{port}, see docs/games/fightingice.md"
        ) from None


def probe(host: str, port: int, limit_s: float) -> None:
    """Whether it is there; raises `GameError` if not."""
    with connect(host, port, limit_s) as connection:
        connection.sendall(_NOTHING)  # a connection that ends without a byte would end the game's server


CHARACTERS = ("GARNET", "ZEN", "LUD", "NEZ")
_USUAL_HP, _USUAL_ENERGY = 400.0, 300.0


@dataclass(frozen=True, kw_only=True)
class FightingICE:
    """A game of several rounds. A decision names a command, whose keys take some frames; a seat decides again
    when its fighter can be told something new."""

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (31415,)
    """One running game for each table."""
    characters: tuple[str, str] = ("ZEN", "ZEN")
    rounds: int = 3
    """As the game was started with (-r); for the length of an episode only."""
    round_frames: int = 3_600
    """As the game was started with (-f)."""
    frames_per_decision: int = 6
    """Least frames between two decisions of a seat; walking, crouching and guarding go on for as long."""
    delayed: bool = True
    """Seats see frames of a quarter of a second ago (15 frames), as people do; else the present one."""
    time_limit_s: float = 30.0
    """How long the game may take to start or to show a frame."""

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
            # A round goes on for a while after its last frame, and every step takes a frame at least.
            max_length=self.rounds * (self.round_frames + 300),
            reward_is_score=False,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        if num_tables > len(self.ports):
            raise GameError(f"{self._too_few(num_tables)} (or actor.num_tables)")
        return LiftedBatch(self.spec, [Fight(self, port) for port in self.ports[:num_tables]])

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    def missing(self, num_tables: int) -> list[str]:
        found = [self._too_few(num_tables)] if num_tables > len(self.ports) else []
        for port in self.ports[:num_tables]:
            try:
                probe(self.host, port, self.time_limit_s)
            except GameError as error:
                found.append(str(error))
        return found

    def _too_few(self, num_tables: int) -> str:
        return (
            f"{num_tables} tables, but ports names {len(self.ports)} running games, and each plays one "
            "match at a time: start more, and set ports=31415,31416,..."
        )


class Fight:
    """One table. The reward of a seat is what its fighter's lead in hit points changes by, as a share of a
    full bar; the score of an episode is who won more rounds."""

    def __init__(self, source: FightingICE, port: int) -> None:
        self.spec = source.spec
        self._source = source
        self._link: Any = None
        link = import_module("ludus.games.adapters.fightingice_link")
        self._codes: Any = link
        self._connect = partial(link.Link, source.host, port, source.characters, source.time_limit_s)
        self._command_center = import_module("pyftg.aiinterface.command_center").CommandCenter

    def reset(self, seed: int) -> Turn:
        """The game draws nothing, so the seed changes nothing."""
        self.close()
        self._link = self._connect()
        self._keys: list[list[str]] = [[], []]
        self._busy = [0, 0]
        """Frames before each side may decide again."""
        self._clock = 0
        self._lead = self._paid = 0.0
        """Of side 0 over side 1, in shares of a bar: now, and what has been paid out as reward."""
        self._rounds_lead = 0.0
        """The same, at the ends of the rounds that are over."""
        self._faces_right = [True, True]
        self._won = [0, 0]
        self._scale = (_USUAL_HP, _USUAL_ENERGY)
        self._full = [0.0, 0.0]
        """Hit points of the two at the start of a round."""
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
        if self._link is not None:
            self._link.close()
            self._link = None

    def _play_on(self) -> Turn:
        """Until a side has to decide, or the game ends."""
        while True:
            states = [self._link.receive(side) for side in range(2)]
            if None in states:
                raise GameError("fightingice: the game was broken off")
            kinds = {state.state_flag for state in states}
            if len(kinds) > 1:
                raise GameError(f"fightingice: the two sides were told different things: {sorted(kinds)}")
            (kind,) = kinds
            if kind == self._codes.INITIALIZE:
                self._learn_scale(states[0].game_data)
            elif kind in (self._codes.ROUND_END, self._codes.GAME_END):
                self._end_round(states[0].round_result)
                if kind == self._codes.GAME_END:
                    return self._end()
            elif kind == self._codes.PROCESSING:
                deciding = self._see(states)
                if deciding:
                    return Turn(observations=deciding, reward=self._reward(), clock=self._clock)
                self._press()

    def _see(self, states: list[Any]) -> dict[Seat, Any]:
        """What the sides that have to decide now see."""
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
        """A frame's keys of both sides; the side that decides now has none left to press."""
        for side, keys in enumerate(self._keys):
            self._link.press(side, keys.pop(0) if keys else "")

    def _learn_scale(self, data: Any) -> None:
        # Without a limit, hit points count down from 0.
        hp = float(max(data.max_hps, default=0)) or _USUAL_HP
        self._scale = (hp, float(max(data.max_energies, default=0)) or _USUAL_ENERGY)
        self._full = [float(one) for one in data.max_hps] if len(data.max_hps) == 2 else [0.0, 0.0]

    def _ahead(self, hps: list[int]) -> float:
        """By how much less side 0 has lost in this round."""
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
