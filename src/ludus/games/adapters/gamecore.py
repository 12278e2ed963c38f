"""Honor of Kings through its gamecore server: battles of one against one, and of three against three.

The server, its simulators and the library for them are closed; docs/games/gamecore.md says what is known of them.
This module was written without running any of them. `server="stand_in"` plays on a stand-in in this process.
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

from ludus.data.specs import CRITIC_PREFIX, ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Vector, When
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.adapters import gamecore_stand_in as stand_in
from ludus.games.adapters.gamecore_client import CampAddress, GamecoreClient, Hero, Mode, SimulatorType
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch, Seat, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.program import Program, ProgramLost
from ludus.games.seat_rows import GameError
from ludus.games.tables import GameDefaults

SERVER, STAND_IN = "127.0.0.1:23432", "stand_in"
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
_FLAGS: Mapping[Mode, tuple[int, ...]] = {
    "1v1": (len(BUTTONS_1V1), _PLACES, _PLACES, _PLACES, _PLACES, len(BUTTONS_1V1) * _TARGETS),
    "3v3": (len(BUTTONS_3V3), 25, 42, 42, 39),
}
"""How many flags of legal actions each head has."""
_STATE = (1e4, 1e4), (1e4, 10.0, 10.0, 1e5)
"""Units of the numbers about a camp (tower, crystal) and a hero (money, kills, deaths, damage to heroes)."""


@dataclass(frozen=True)
class CommonAI:
    """Gives its camp to the server's own player, by a mark in the decision before the battle starts."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        heads = game.spec.kinds[game.spec.seats[int(seats[0])]].action.heads
        marked = _marked(heads)
        return {head: np.full(len(tables), -1 if head == marked else 0, np.int32) for head in heads}


def _marked(heads: Mapping[str, Any]) -> str:
    """A head that does not count while no-op is the only button."""
    return "move_x" if "move_x" in heads else "move"


@dataclass(frozen=True, kw_only=True)
class Gamecore(GameDefaults):
    """A battle of two camps; every hero is a seat, and a camp is a team."""

    mode: Mode
    server: str = ""
    """HOST:PORT of the gamecore server; default: $GAMECORE_SERVER_ADDR, or this machine. `stand_in`: none, but
    battles with rules of our own in this process."""
    heroes: tuple[tuple[Hero | int | str, ...], tuple[Hero | int | str, ...]] | None = None
    """The line-up of each camp: a `Hero`, its number, or NUMBER:SKILL with the number of the chosen skill."""
    common_ai: bool = False
    """The server's own player has the second camp; the game then has one team."""
    common_ai_bot: bool = True
    """Whether the server's own player is a bot, `common_ai`, that can have either camp; an episode then begins with
    a decision to wait."""
    full_critic: bool = False
    """Whether critics see the features of both camps' heroes and the state of the battle."""
    masks: bool = True
    """In 3v3, ask the library what is legal before it acts; without it every option counts as legal."""
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
        if self.stands_in and self.num_features < stand_in.num_features(self.mode):
            raise GameError(
                f"observation_size must be at least {stand_in.num_features(self.mode)} with the stand-in, "
                f"got {self.observation_size}"
            )

    @property
    def server_address(self) -> str:
        return self.server or os.environ.get(ENVIRONMENT) or SERVER

    @property
    def stands_in(self) -> bool:
        return self.server_address == STAND_IN

    @property
    def has_lobby(self) -> bool:
        return self.common_ai_bot and not self.common_ai

    @property
    def num_features(self) -> int:
        usual = stand_in.num_features(self.mode) if self.stands_in else OBSERVATION[self.mode]
        return self.observation_size or usual

    @property
    def heroes_a_camp(self) -> int:
        return len(HEROES[self.mode])

    @property
    def num_camps(self) -> int:
        return 1 if self.common_ai else 2

    @property
    def line_ups(self) -> tuple[tuple[Hero, ...], tuple[Hero, ...]]:
        camps = (HEROES[self.mode],) * 2 if self.heroes is None else self.heroes
        first, second = (tuple(as_hero(hero) for hero in camp) for camp in camps)
        return first, second

    @property
    def state_scale(self) -> NDArray[np.float32]:
        """Units of the critic's `state`: of the own camp, then of the other one."""
        camp, hero = _STATE
        return np.array((camp + hero * self.heroes_a_camp) * 2, np.float32)

    @property
    def bridge_command(self) -> list[str]:
        return shlex.split(self.bridge) or [self.python, str(_BRIDGE), self.mode]

    @cached_property
    def spec(self) -> GameSpec:
        kind = SeatKind(
            name="hero",
            observation=ObservationSpec(parts={"features": Vector(size=self.num_features)}, critic=self._critic()),
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
            repeatable=self.stands_in,
        )

    def _critic(self) -> dict[str, Vector]:
        if not self.full_critic:
            return {}
        camps = 2 * self.heroes_a_camp * self.num_features
        return {"camps": Vector(size=camps), "state": Vector(size=len(self.state_scale))}

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), **({"common_ai": CommonAI()} if self.has_lobby else {})}

    def common_ai_camps(self, actions: Tree) -> NDArray[np.bool_]:
        """[..., camps]: which camps `common_ai` takes, by the first decisions of all seats [..., seats]."""
        marks = actions[_marked(actions)] < 0
        by_camp = marks.reshape(*marks.shape[:-1], self.num_camps, self.heroes_a_camp)
        if (by_camp.any(axis=-1) != by_camp.all(axis=-1)).any():
            raise GameError(f"common_ai plays a whole camp, all {self.heroes_a_camp} heroes of it")
        taken: NDArray[np.bool_] = by_camp[..., 0]
        return taken

    def action_rows(self, actions: Mapping[str, Any]) -> NDArray[np.int64]:
        """[..., numbers]: actions in the library's order: button, move, skill or offset, and the button's target."""
        if self.mode == "3v3":
            return np.stack([actions[head] for head in heads_3v3().heads], axis=-1).astype(np.int64)
        button = np.asarray(actions["button"])
        target = np.zeros_like(button)
        for number, name in enumerate(BUTTONS_1V1):
            if f"target_{name}" in actions:
                target = np.where(button == number, actions[f"target_{name}"], target)
        heads = ("move_x", "move_z", "skill_x", "skill_z")
        return np.stack([button, *(actions[head] for head in heads), target], axis=-1).astype(np.int64)

    def legal(self, flags: Array | Sequence[int]) -> dict[str, NDArray[np.bool_]]:
        """Masks by head from flags [..., flags] in the library's order: one per option, in 1v1 targets by button."""
        sizes = _FLAGS[self.mode]
        rows = np.asarray(flags, np.bool_)
        if rows.shape[-1] != sum(sizes):
            raise ValueError(f"legal_action has {rows.shape[-1]} flags, expected {sum(sizes)}")
        parts = np.split(rows, np.cumsum(sizes)[:-1], axis=-1)
        if self.mode == "3v3":
            legal = dict(zip(heads_3v3().heads, parts, strict=True))
        else:
            legal = dict(zip(("button", "move_x", "move_z", "skill_x", "skill_z"), parts[:5], strict=True))
            targets = parts[5].reshape(*rows.shape[:-1], len(BUTTONS_1V1), _TARGETS)
            for button in (_ATTACK, *_skills(BUTTONS_1V1)):
                legal[f"target_{BUTTONS_1V1[button]}"] = targets[..., button, :]
        for name in legal:
            if name != "button":  # unused, but a head that counts needs an option
                legal[name] = legal[name].copy()
                legal[name][..., 0] |= ~legal[name].any(axis=-1)
        return legal

    def tables(self, num_tables: int) -> GameBatch:
        if self.stands_in:
            return stand_in.StandInTables(self, num_tables)
        return LiftedBatch(self.spec, [Battle(self, number) for number in range(num_tables)])

    def missing(self, num_tables: int) -> list[str]:
        if self.stands_in:
            return []
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
        self._running = self._in_lobby = False
        self._size = source.heroes_a_camp
        self._seen = np.zeros((2, self._size * source.num_features), np.float32)
        """The latest features of each camp's heroes."""

    def reset(self, seed: int) -> Turn:
        """The server takes no seed, so episodes cannot be repeated."""
        self._stop()
        self._in_lobby = self._source.has_lobby
        if not self._in_lobby:
            return self._begin([False, self._source.common_ai])
        kind = self.spec.kinds[0]
        blank = {name: np.zeros(array.shape, array.dtype) for name, array in kind.observation.arrays.items()}
        masks = {head: np.ones(array.shape, np.bool_) for head, array in kind.legal_arrays.items()}
        masks["button"][1:] = False
        seats = range(self.spec.num_seats)
        return Turn(observations=dict.fromkeys(seats, blank), legal=dict.fromkeys(seats, masks))

    def _begin(self, common_ai: Sequence[bool]) -> Turn:
        source = self._source
        self._camps = [camp for camp in range(2) if not common_ai[camp]]
        """Camps that decide through the bridge, in its order."""
        if not self._camps:
            raise GameError("common_ai cannot have both camps: the server tells nobody how such a battle goes")
        if self._program is None:
            self._program = Program("gamecore_bridge", source.bridge_command)
            self._ports = [self._port(camp) for camp in range(2)]
        listening = [f"tcp://0.0.0.0:{self._ports[camp]}" for camp in self._camps]
        self._ask({"type": "open", "addresses": listening, "eval": source.eval_mode, "masks": source.masks})
        addresses = [
            CampAddress(ip=source.own_ip, port=port) if camp in self._camps else None
            for camp, port in enumerate(self._ports)
        ]
        self._client.start_game(
            self._id,
            source.mode,
            source.line_ups,
            addresses,
            simulator="remote" if source.eval_mode else source.simulator,
            max_frames=source.max_frames,
        )
        self._running = True
        self._seen[:] = 0
        self._deciding: int | None = None
        self._start_frame: int | None = None
        self._earned = [0.0] * self.spec.num_seats
        return self._next()

    def step(self, actions: Mapping[Seat, Mapping[str, int]]) -> Turn:
        seats = range(self.spec.num_seats) if self._in_lobby else self._seats(self._deciding or 0)
        chosen = {head: np.array([actions[seat][head] for seat in seats]) for head in self.spec.kinds[0].action.heads}
        if self._in_lobby:
            self._in_lobby = False
            return self._begin(self._source.common_ai_camps(chosen).tolist())
        self._ask({"type": "act", "actions": self._source.action_rows(chosen).tolist()})
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
        camp = self._deciding = self._camps[answer["camp"]]
        observations, legal = {}, {}
        for seat, hero in zip(self._seats(camp), answer["heroes"], strict=True):
            observations[seat] = {"features": self._observation(hero["observation"])}
            if hero.get("legal"):
                legal[seat] = self._source.legal(hero["legal"])
        if self._source.full_critic:
            self._seen[camp] = np.concatenate([one["features"] for one in observations.values()])
            own = [camp, 1 - camp]
            whole = self._seen[own].reshape(-1)
            state = np.array(answer["state"], np.float32)[own].reshape(-1) / self._source.state_scale
            for one in observations.values():
                one |= {CRITIC_PREFIX + "camps": whole, CRITIC_PREFIX + "state": state}
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
        for seat, hero in zip(self._seats(self._camps[answer["camp"]]), answer["heroes"], strict=False):
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
    skills = _skills(BUTTONS_3V3)
    return ActionSpec(
        heads={
            "button": Choice(num=len(BUTTONS_3V3)),
            "move": Choice(num=25, when=_when(_MOVE)),
            "offset_x": Choice(num=42, when=_when(*skills)),
            "offset_z": Choice(num=42, when=_when(*skills)),
            "target": Choice(num=39, when=_when(_ATTACK, *skills)),
        }
    )


def _skills(buttons: Sequence[str]) -> tuple[int, ...]:
    return tuple(number for number in range(_ATTACK + 1, len(buttons)) if number != _RECALL)


def _when(*buttons: int) -> When:
    return When(head="button", values=buttons)


def as_hero(given: Hero | int | str) -> Hero:
    """A hero by itself, by its number, or as NUMBER:SKILL."""
    if isinstance(given, Hero):
        return given
    number, _, skill = str(given).partition(":")
    if not number.isdecimal() or (skill and not skill.isdecimal()) or str(given).endswith(":"):
        raise GameError(f"a hero is NUMBER or NUMBER:SKILL, such as 112 or 112:80115, got {given!r}")
    return Hero(hero_id=int(number), skill_id=int(skill) if skill else None)
