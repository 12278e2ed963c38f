"""Honor of Kings through its gamecore server: battles of one against one, and of three against three.

The server, its simulators and the library for them are closed; docs/games/gamecore.md says what is known of them.
This module was written without running any of them.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Vector, When
from ludus.games.adapters.gamecore_client import CampAddress, GamecoreClient, Hero, Mode, SimulatorType
from ludus.games.game import GameBatch, Seat, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.program import Program, ProgramLost
from ludus.games.seat_rows import GameError
from ludus.games.tables import GameDefaults

SERVER = "127.0.0.1:23432"
ENVIRONMENT = "GAMECORE_SERVER_ADDR"
OBSERVATION: Mapping[Mode, int] = {"1v1": 725, "3v3": 4586}
"""Size of a hero's observation in the published settings."""
HEROES: Mapping[Mode, tuple[int, ...]] = {"1v1": (112,), "3v3": (157, 174, 167)}
"""Default heroes of both camps."""
_BRIDGE = Path(__file__).with_name("gamecore_bridge.py")
_LOOK_FOR_HOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('hok') is None)"
_LOOK_S = 10.0
"""Time limit of each check for what is missing."""

BUTTONS_1V1 = (
    "none", "none_2", "move", "attack", "skill_1", "skill_2", "skill_3", "heal", "chosen_skill", "recall",
    "skill_4", "equipment",
)  # fmt: skip
BUTTONS_3V3 = (
    "none", "none_2", "move", "attack", "skill_1", "skill_2", "skill_3", "skill_4", "chosen_skill", "recall",
    "equipment", "heal", "friend",
)  # fmt: skip
_MOVE, _ATTACK, _RECALL = 2, 3, 9
_PLACES, _TARGETS = 16, 8
"""Of 1v1: positions along a side of the area to point at, and targets."""
_SIZES_1V1 = (len(BUTTONS_1V1), _PLACES, _PLACES, _PLACES, _PLACES, len(BUTTONS_1V1) * _TARGETS)
LEGAL_1V1 = sum(_SIZES_1V1)


@dataclass(frozen=True, kw_only=True)
class Gamecore(GameDefaults):
    """A battle of two camps; every hero is a seat, and a camp is a team."""

    mode: Mode
    server: str = ""
    """HOST:PORT of the gamecore server; default: $GAMECORE_SERVER_ADDR, or this machine."""
    heroes: tuple[tuple[Hero, ...], tuple[Hero, ...]] | None = None
    common_ai: bool = False
    """The server's own player has the second camp; the game then has one team."""
    simulator: SimulatorType = "remote"
    eval_mode: bool = False
    """Always start a new battle; where the library decides, it decides greedily."""
    max_frames: int = 20_000
    """Frames after which a battle ends without a winner."""
    observation_size: int = 0
    """Size of a hero's observation; 0: as published for this mode."""
    own_ip: str = "127.0.0.1"
    """Address of this machine for the simulators."""
    first_port: int = 0
    """Table N listens at this port plus 2 N, and plus 1 for its second camp; 0: at free ports."""
    python: str = "python3.9"
    """A Python interpreter with the library `hok`."""
    bridge: str = ""
    """A command to use instead: a program of your own that answers as gamecore_bridge.py does."""
    time_limit_s: float = 60.0
    """Time limit for an answer of the server and of its simulator."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise GameError(f"mode must be {' or '.join(get_args(Mode))}, got {self.mode!r}")
        if self.simulator not in get_args(SimulatorType):
            raise GameError(f"simulator must be of {', '.join(get_args(SimulatorType))}, got {self.simulator!r}")
        if self.max_frames < 1 or self.time_limit_s <= 0:
            raise GameError("max_frames and time_limit_s must be above 0")
        for camp in self.line_ups:
            if len(camp) != self.heroes_a_camp:
                raise GameError(f"{self.mode} has {self.heroes_a_camp} heroes a camp, got {len(camp)}")

    @property
    def server_address(self) -> str:
        return self.server or os.environ.get(ENVIRONMENT) or SERVER

    @property
    def num_features(self) -> int:
        return self.observation_size or OBSERVATION[self.mode]

    @property
    def heroes_a_camp(self) -> int:
        return len(HEROES[self.mode])

    @property
    def num_camps(self) -> int:
        return 1 if self.common_ai else 2

    @property
    def line_ups(self) -> tuple[tuple[Hero, ...], tuple[Hero, ...]]:
        usual = tuple(Hero(hero_id=hero) for hero in HEROES[self.mode])
        return (usual, usual) if self.heroes is None else self.heroes

    @property
    def bridge_command(self) -> list[str]:
        return shlex.split(self.bridge) or [self.python, str(_BRIDGE), self.mode]

    @cached_property
    def spec(self) -> GameSpec:
        kind = SeatKind(
            name="hero",
            observation=ObservationSpec(parts={"features": Vector(size=self.num_features)}),
            action=heads_1v1() if self.mode == "1v1" else heads_3v3(),
        )
        teams = [camp for camp in range(self.num_camps) for _ in range(self.heroes_a_camp)]
        return GameSpec(
            name=f"gamecore_{self.mode}",
            kinds=(kind,),
            seats=(0,) * len(teams),
            teams=tuple(teams),
            max_length=2 * self.max_frames,
            zero_sum=False,
            reward_is_score=False,
            timed=True,
            repeatable=False,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return LiftedBatch(self.spec, [Battle(self, number) for number in range(num_tables)])

    def missing(self, num_tables: int) -> list[str]:
        found = [self._missing_bridge()]
        try:
            GamecoreClient(self.server_address, time_limit_s=min(_LOOK_S, self.time_limit_s)).reach()
        except GameError as error:
            found.append(str(error))
        return [one for one in found if one]

    def _missing_bridge(self) -> str:
        program = self.bridge_command[0]
        if self.bridge:
            return "" if shutil.which(program) else f"no program {program!r}, which the option bridge names"
        try:
            asked = subprocess.run(
                [program, "-c", _LOOK_FOR_HOK], capture_output=True, text=True, timeout=_LOOK_S, check=False
            )
        except FileNotFoundError:
            why = "there is none of that name"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        else:
            if not asked.returncode:
                return ""
            why = next(iter(asked.stderr.splitlines()), "it has no module hok")
        return (
            f"no Python with the library hok: {program!r} ({why}); set the option python=/PATH/TO/python3.9, "
            "or bridge to a program of your own"
        )


class Battle:
    """A `Game`: one battle. The camps decide in turn, frame by frame, when their simulator waits for an answer."""

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
        """The server takes no seed, so episodes cannot be repeated."""
        source = self._source
        self._stop()
        if self._program is None:
            self._program = Program("gamecore_bridge", source.bridge_command)
            self._ports = [self._port(camp) for camp in self._camps]
        listening = [f"tcp://0.0.0.0:{port}" for port in self._ports]
        self._ask({"type": "open", "addresses": listening, "eval": source.eval_mode})
        addresses: list[CampAddress | None] = [CampAddress(ip=source.own_ip, port=port) for port in self._ports]
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
        return Turn(observations=observations, legal=legal, reward=self._paid(), clock=self._clock(answer["frame"]))

    def _end(self, answer: Mapping[str, Any]) -> Turn:
        """Both camps receive the last frame."""
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
            return  # no camp has acted yet
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


def heads_1v1() -> ActionSpec:
    """Legal targets depend on the button, so every button that aims has a target head of its own."""
    skills = _skills(BUTTONS_1V1)
    heads = {"button": Choice(num=len(BUTTONS_1V1))}
    heads |= {name: Choice(num=_PLACES, when=_when(_MOVE)) for name in ("move_x", "move_z")}
    heads |= {name: Choice(num=_PLACES, when=_when(*skills)) for name in ("skill_x", "skill_z")}
    for button in (_ATTACK, *skills):
        heads[f"target_{BUTTONS_1V1[button]}"] = Choice(num=_TARGETS, when=_when(button))
    return ActionSpec(heads=heads)


def heads_3v3() -> ActionSpec:
    """Heads without masks: the library shows what was legal only after it has acted."""
    skills = _skills(BUTTONS_3V3)
    return ActionSpec(
        heads={
            "button": Choice(num=len(BUTTONS_3V3), masked=False),
            "move": Choice(num=25, masked=False, when=_when(_MOVE)),
            "offset_x": Choice(num=42, masked=False, when=_when(*skills)),
            "offset_z": Choice(num=42, masked=False, when=_when(*skills)),
            "target": Choice(num=39, masked=False, when=_when(_ATTACK, *skills)),
        }
    )


def _skills(buttons: Sequence[str]) -> tuple[int, ...]:
    return tuple(number for number in range(_ATTACK + 1, len(buttons)) if number != _RECALL)


def _when(*buttons: int) -> When:
    return When(head="button", values=buttons)


def legal_1v1(flags: Sequence[int]) -> dict[str, NDArray[np.bool_]]:
    """Masks by head from the game's row of flags: one per option, and for targets one per button and option."""
    if len(flags) != LEGAL_1V1:
        raise ValueError(f"legal_action has {len(flags)} flags, expected {LEGAL_1V1}")
    parts = np.split(np.array(flags, np.bool_), np.cumsum(_SIZES_1V1)[:-1])
    legal = dict(zip(("button", "move_x", "move_z", "skill_x", "skill_z"), parts[:5], strict=True))
    targets = parts[5].reshape(len(BUTTONS_1V1), _TARGETS)
    for button in (_ATTACK, *_skills(BUTTONS_1V1)):
        legal[f"target_{BUTTONS_1V1[button]}"] = targets[button]
    for name, mask in legal.items():
        if name != "button" and not mask.any():
            mask[0] = True  # unused, but a head that counts needs an option
    return legal


def actions_1v1(action: Mapping[str, int]) -> list[int]:
    """Button, move x and z, skill x and z, target."""
    button = action["button"]
    target = action.get(f"target_{BUTTONS_1V1[button]}", 0)
    return [button, *(action[name] for name in ("move_x", "move_z", "skill_x", "skill_z")), target]


def actions_3v3(action: Mapping[str, int]) -> list[int]:
    return [action[name] for name in ("button", "move", "offset_x", "offset_z", "target")]
