"""Doom through ViZDoom: duels of two players, and its scenarios for one.

Every engine is a process of its own, which ends with this one and has a time limit for its answers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Vector
from ludus.data.trees import IntArray, put, take
from ludus.games.game import Actions, GameBatch, Seat, Turn, allocate_actions
from ludus.games.isolation.isolated import Isolated
from ludus.games.seat_rows import GameError, nearest
from ludus.games.tables import ArrayTables, GameDefaults
from ludus.system.machine import install_command

INSTALL = install_command("vizdoom")
SCREEN = (120, 160)
"""Rows and columns that the engine draws, its lowest resolution."""
DUELS = {"duel": "multi_duel", "duel_cig": "cig", "duel_deathmatch": "multi"}
"""Scenario for two seats -> ViZDoom's scenario with its map."""

TICS_A_SECOND = 35
DEFAULT_SECONDS = 60.0
SCREEN_PART, STATUS_PART = "screen", "status"
STATUS = {"HEALTH": 100.0, "ARMOR": 100.0, "SELECTED_WEAPON_AMMO": 50.0, "ATTACK_READY": 1.0}
"""Game variables that a player sees -> their usual size. The share of time left follows them."""
_SIDES = {
    "sideways": ("MOVE_LEFT", "MOVE_RIGHT"),
    "turn": ("TURN_LEFT", "TURN_RIGHT"),
    "walk": ("MOVE_FORWARD", "MOVE_BACKWARD"),
    "look": ("LOOK_UP", "LOOK_DOWN"),
}
"""Buttons that exclude each other share a head with the options neither, first and second."""
_DUEL_BUTTONS = [*_SIDES["sideways"], *_SIDES["turn"], *_SIDES["walk"], "ATTACK"]
"""The maps of duels define no buttons, or none for turning."""

REST, RUN, SHOW = range(3)
"""A step of a player of a duel: nothing, one tic, or one tic after which its screen is drawn."""
_CONNECT_S = 15
"""Time limit of the engines of a duel to find each other."""
_HOST = (
    "-host 2 -deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 "
    "+viz_respawn_delay 0"
)

_SEATS = 2


@dataclass(frozen=True, kw_only=True)
class ViZDoom(GameDefaults):
    """A scenario by its name: `duel` (on other maps `duel_cig`, `duel_deathmatch`) for two seats; for one seat
    those that ship with ViZDoom, such as `basic`, or the path of a `.cfg` file.

    In a duel a frag is worth 1 to the seat that makes it and -1 to the other, a suicide the reverse. The two
    engines agree over the network when a dead player returns, so episodes of a duel cannot be repeated.
    """

    scenario: str
    frame_skip: int = 4
    """Tics per decision, of 35 per second."""
    shrink: int = 2
    """Factor by which each side of the screen of 160 x 120 is reduced."""
    colour: bool = False
    """Three colour planes instead of one grey plane."""
    seconds: float | None = None
    """Game time per episode; default: the scenario's own, or 60 where it has none."""
    answer_seconds: float = 20.0
    """Time limit of an engine to start or to answer; beyond it the engine is ended and its table is lost."""

    def __post_init__(self) -> None:
        if self.frame_skip < 1:
            raise GameError(f"frame_skip must be at least 1, got {self.frame_skip}")
        if self.shrink < 1 or any(side % self.shrink for side in SCREEN):
            raise GameError(f"shrink must divide 160 and 120, such as 1, 2 or 4, got {self.shrink}")
        if self.seconds is not None and not self.seconds > 0:
            raise GameError(f"seconds must be above 0, got {self.seconds}")

    @property
    def is_duel(self) -> bool:
        return self.scenario in DUELS

    @cached_property
    def spec(self) -> GameSpec:
        engine = open_scenario(self)
        return GameSpec.symmetric(
            name=f"vizdoom:{self.scenario}",
            num_seats=2 if self.is_duel else 1,
            observation=observation_spec(self),
            action=ActionSpec(heads=Buttons(engine).heads),
            max_length=math.ceil(tics_of(self, engine) / self.frame_skip) + 1,
            zero_sum=self.is_duel,
            repeatable=not self.is_duel,
        )

    def tables(self, num_tables: int) -> GameBatch:
        if self.is_duel:
            return DuelTables(self, num_tables)
        processes = min(num_tables, os.cpu_count() or 1)
        return self.engines("DoomTable", processes).tables(num_tables)

    def engines(self, game: str, processes: int) -> Isolated:
        """A `Game` of this module by its name, in processes of its own."""
        options = {"scenario": self.scenario, "frame_skip": self.frame_skip, "shrink": self.shrink}
        options |= {"colour": self.colour, "seconds": self.seconds}
        return Isolated(
            game=f"ludus.games.adapters.vizdoom:{game}",
            options=options,
            processes=processes,
            step_seconds=self.answer_seconds,
            start_seconds=self.answer_seconds,
        )


class DoomTable:
    """A `Game`: a scenario for one player."""

    def __init__(self, **options: Any) -> None:
        self._source = ViZDoom(**options)
        self.spec: GameSpec = self._source.spec
        self._engine = open_scenario(self._source)
        self._tics = tics_of(self._source, self._engine)
        self._engine.set_episode_timeout(self._tics)
        self._buttons = Buttons(self._engine)
        start(self._engine)
        self._steps = 0
        self._seen: dict[str, NDArray[Any]] = {}

    def reset(self, seed: int) -> Turn:
        self._engine.set_seed(seed % 2**31)
        self._engine.new_episode()
        self._steps = 0
        return self._turn(0.0)

    def step(self, actions: Mapping[Seat, Mapping[str, int] | int]) -> Turn:
        action = actions[0]
        if not isinstance(action, Mapping):  # games with a single head get its number
            action = dict.fromkeys(self._buttons.heads, action)
        pressed = self._buttons.press(action)
        self._steps += 1
        return self._turn(self._engine.make_action(pressed, self._source.frame_skip))

    def close(self) -> None:
        self._engine.close()

    def _turn(self, reward: float) -> Turn:
        # Observations show the time left, so its end is an end by the rules.
        over = self._engine.is_episode_finished()
        if not over:
            passed = self._steps * self._source.frame_skip / self._tics
            self._seen = see(self._source, self._engine.get_state(), max(0.0, 1.0 - passed))
        return Turn(observations={0: self._seen}, reward={0: reward}, over=over)


class DuelTables(ArrayTables):
    """Duels. Their players are the tables of another batch: 2t, which hosts, and 2t + 1 play at table t. A duel is
    lost with either of its players."""

    def __init__(self, source: ViZDoom, num_tables: int) -> None:
        super().__init__(source.spec, num_tables)
        self.lost: Mapping[int, str] = {}
        self._frame_skip = source.frame_skip
        self._length = self.spec.max_length - 1
        self._steps = np.zeros(num_tables, np.int64)
        self._ports: dict[int, int] = {}
        self._players = source.engines("DuelPlayer", _SEATS * num_tables).tables(_SEATS * num_tables)
        self._orders = allocate_actions(self._players.spec, _SEATS * num_tables)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        places = []
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            if table not in self._ports:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("127.0.0.1", 0))
                    self._ports[table] = probe.getsockname()[1]
            # The seed of a player holds the port at which they meet, and whether this one hosts.
            places += [(seed % 2**31) << 17 | self._ports[table] << 1 | hosts for hosts in (1, 0)]
        players = (tables[:, None] * _SEATS + np.arange(_SEATS)).reshape(-1)
        self._players.reset(players, np.array(places, np.uint64))
        self._start_episodes(tables)
        self._steps[tables] = 0
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view, orders = self.view, self._orders[0]
        playing = np.flatnonzero(view.to_act[:, 0])
        for head, chosen in actions[0].items():
            orders[head][:] = chosen.reshape(-1, 1)
        order = orders["tic"].reshape(self.num_tables, _SEATS)
        frags = np.zeros((self.num_tables, _SEATS))
        for tic in range(self._frame_skip):
            order[:] = REST
            order[playing] = SHOW if tic == self._frame_skip - 1 else RUN
            self._players.step(self._orders)
            frags += self._players.view.reward.reshape(frags.shape)
        view.reward[playing] = (frags - frags[:, ::-1])[playing]
        view.score[playing] += view.reward[playing]
        self._steps[playing] += 1
        ended = playing[self._steps[playing] >= self._length]
        view.over[ended] = True
        view.to_act[ended] = False
        self._show(playing)

    def close(self) -> None:
        self._players.close()

    def render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        """The screen of a seat; None: both, side by side."""
        seats = range(_SEATS) if seat is None else (seat,)
        screens = [self.view.observation[0][SCREEN_PART][table, shown] for shown in seats]
        picture = np.concatenate(screens, axis=2).transpose(1, 2, 0)
        return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))

    def _show(self, tables: IntArray) -> None:
        """Write the observations of these tables, and note lost duels."""
        shown = self.view.observation[0]
        for seat in range(_SEATS):
            seen = take(self._players.view.observation[0], (tables * _SEATS + seat, 0))
            put(shown, (tables, seat), seen)
        shown[STATUS_PART][tables, :, -1] = (1.0 - self._steps[tables] / self._length)[:, None]
        reasons = getattr(self._players, "lost", {})
        if not reasons and not self.lost:
            return
        self.lost = {player // _SEATS: reason for player, reason in reasons.items()}
        for table in self.lost:
            self._ports.pop(table, None)  # its players meet at another port, which restarts both
            self.view.to_act[table] = self.view.over[table] = False
            self.view.reward[table] = 0.0


class DuelPlayer:
    """A `Game`: one player of a duel, advanced tic by tic. The engines wait for each other at every tic, so an engine
    that ran ahead and then paused would block the other one."""

    def __init__(self, **options: Any) -> None:
        self._source = ViZDoom(**options)
        duel = self._source.spec
        heads = {**duel.kinds[0].action.heads, "tic": Choice(num=3, masked=False)}
        self.spec = GameSpec.symmetric(
            name="player of a duel",
            num_seats=1,
            observation=observation_spec(self._source),
            action=ActionSpec(heads=heads),
            max_length=2**31,
            zero_sum=False,
        )
        self._place = 0
        self._engine: Any = None
        self._frags = 0.0
        self._seen: dict[str, NDArray[Any]] = {}

    def reset(self, seed: int) -> Turn:
        place = seed & 0x1FFFF
        if place != self._place:  # the first duel of this player, or the other player was lost
            self.close()
            self._start(port=place >> 1, hosts=bool(place & 1), seed=seed >> 17)
            self._place = place
        self._engine.new_episode()
        self._frags = self._count_frags()
        self._seen = see(self._source, self._engine.get_state(), 1.0)
        return Turn(observations={0: self._seen})

    def step(self, actions: Mapping[Seat, Mapping[str, int]]) -> Turn:
        action = actions[0]
        if action["tic"] == REST:
            return Turn(observations={0: self._seen})
        self._engine.set_action(self._buttons.press(action))
        self._engine.advance_action(1, action["tic"] == SHOW)
        frags = self._count_frags()
        gained, self._frags = frags - self._frags, frags
        if action["tic"] == SHOW and (state := self._engine.get_state()) is not None:
            self._seen = see(self._source, state, 1.0)
        return Turn(observations={0: self._seen}, reward={0: gained})

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _count_frags(self) -> float:
        return float(self._engine.get_game_variable(_library().GameVariable.FRAGCOUNT))

    def _start(self, *, port: int, hosts: bool, seed: int) -> None:
        engine = open_scenario(self._source)
        engine.set_episode_timeout(0)
        engine.set_seed(seed)
        engine.add_game_args(_HOST if hosts else "-join 127.0.0.1")
        engine.add_game_args(f"-port {port} +viz_connect_timeout {_CONNECT_S}")
        engine.add_game_args(f"+name {'Host' if hosts else 'Guest'} +colorset {int(hosts)}")
        self._buttons = Buttons(engine)
        start(engine)
        self._engine = engine


class Buttons:
    """The buttons of a scenario as heads, and the way back."""

    def __init__(self, engine: Any) -> None:
        names = [button.name for button in engine.get_available_buttons()]
        # Delta buttons take a number of any size; other buttons do the same in steps.
        pressed = [name for name in names if not name.endswith("_DELTA")]
        weapons = [name for name in pressed if name.startswith("SELECT_")]
        groups: dict[str, tuple[str, ...]] = {
            head: tuple(name for name in side if name in pressed) for head, side in _SIDES.items()
        }
        groups["weapon"] = tuple(weapons)
        shared = {name for group in groups.values() for name in group}
        groups |= {name.lower(): (name,) for name in pressed if name not in shared}
        self._columns = {head: [names.index(name) for name in group] for head, group in groups.items() if group}
        self._num = len(names)
        self.heads = {head: Choice(num=len(columns) + 1, masked=False) for head, columns in self._columns.items()}

    def press(self, action: Mapping[str, int]) -> list[int]:
        pressed = [0] * self._num
        for head, columns in self._columns.items():
            if chosen := action[head]:
                pressed[columns[chosen - 1]] = 1
        return pressed


def _library() -> Any:
    """ViZDoom, imported when the game is used, so that recipes can be read without it."""
    if importlib.util.find_spec("vizdoom") is None:
        raise GameError(f"Doom needs ViZDoom, which is not installed; {INSTALL} adds it")
    return importlib.import_module("vizdoom")


def observation_spec(source: ViZDoom) -> ObservationSpec:
    height, width = (side // source.shrink for side in SCREEN)
    screen = Planes(channels=3 if source.colour else 1, height=height, width=width, dtype="uint8")
    return ObservationSpec(parts={SCREEN_PART: screen, STATUS_PART: Vector(size=len(STATUS) + 1)})


def open_scenario(source: ViZDoom) -> Any:
    """A configured engine, not yet started."""
    vizdoom = _library()
    engine = vizdoom.DoomGame()
    engine.load_config(str(_file_of(source.scenario)))
    engine.set_doom_config_path(os.devnull)  # else it writes its settings into the current folder
    engine.set_window_visible(False)
    engine.set_mode(vizdoom.Mode.PLAYER)
    engine.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    formats = vizdoom.ScreenFormat
    engine.set_screen_format(formats.CRCGCB if source.colour else formats.GRAY8)
    if source.is_duel:
        engine.set_available_buttons([getattr(vizdoom.Button, name) for name in _DUEL_BUTTONS])
    engine.set_available_game_variables([getattr(vizdoom.GameVariable, name) for name in (*STATUS, "FRAGCOUNT")])
    return engine


def start(engine: Any) -> None:
    """Start the engine in a temporary folder: it makes an empty folder in the current one."""
    folder = Path(tempfile.gettempdir(), f"ludus-doom-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        engine.init()


def tics_of(source: ViZDoom, engine: Any) -> int:
    """Tics per episode; the engine does not count those before the player can act."""
    if source.seconds is not None:
        return math.ceil(source.seconds * TICS_A_SECOND)
    own: int = 0 if source.is_duel else engine.get_episode_timeout()
    return own or math.ceil(DEFAULT_SECONDS * TICS_A_SECOND)


def see(source: ViZDoom, state: Any, time_left: float) -> dict[str, NDArray[Any]]:
    """The observation of a player from the engine's state."""
    screen = state.screen_buffer.reshape(-1, *SCREEN)
    if source.shrink > 1:
        height, width = (side // source.shrink for side in SCREEN)
        blocks = screen.reshape(len(screen), height, source.shrink, width, source.shrink)
        screen = blocks.mean(axis=(2, 4)).astype(np.uint8)
    numbers = [value / size for value, size in zip(state.game_variables[:-1].tolist(), STATUS.values(), strict=True)]
    return {SCREEN_PART: screen, STATUS_PART: np.array([*numbers, time_left], np.float32)}


def _file_of(scenario: str) -> Path:
    if scenario.endswith(".cfg"):
        if not Path(scenario).is_file():
            raise GameError(f"there is no scenario file {scenario!r}")
        return Path(scenario).resolve()
    folder = Path(_library().scenarios_path)
    name = DUELS.get(scenario, scenario)
    if not (folder / f"{name}.cfg").is_file():
        known = [*DUELS, *(path.stem for path in folder.glob("*.cfg"))]
        raise GameError(f"ViZDoom has no scenario {scenario!r}{nearest(scenario, known)}")
    return folder / f"{name}.cfg"
