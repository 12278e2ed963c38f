"""One engine of ViZDoom: made from a scenario, and its screen, numbers and buttons in our terms."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import vizdoom
from numpy.typing import NDArray
from vizdoom import GameVariable

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Vector
from ludus.data.trees import IntArray, put, take
from ludus.games.adapters.vizdoom import DUELS, SCREEN, ViZDoom
from ludus.games.game import Actions, Seat, TableView, Turn, allocate_actions
from ludus.games.seat_rows import GameError

TICS_A_SECOND = 35
DEFAULT_SECONDS = 60.0
SCREEN_PART, STATUS_PART = "screen", "status"
STATUS = (
    (GameVariable.HEALTH, 100.0),
    (GameVariable.ARMOR, 100.0),
    (GameVariable.SELECTED_WEAPON_AMMO, 50.0),
    (GameVariable.ATTACK_READY, 1.0),
)
"""What a player is told in numbers, each divided by its usual size. After them comes the share of the time
that is left."""
_SIDES = {
    "sideways": ("MOVE_LEFT", "MOVE_RIGHT"),
    "turn": ("TURN_LEFT", "TURN_RIGHT"),
    "walk": ("MOVE_FORWARD", "MOVE_BACKWARD"),
    "look": ("LOOK_UP", "LOOK_DOWN"),
}
"""Buttons that exclude each other share a head: neither, the first or the second."""
_DUEL_BUTTONS = [*_SIDES["sideways"], *_SIDES["turn"], *_SIDES["walk"], "ATTACK"]
"""The maps say nothing of it, or leave a duel without turning."""


class Buttons:
    """The heads of a scenario's buttons, and what the engine is told to press."""

    def __init__(self, names: list[str]) -> None:
        # A delta button takes a number of any size; the others do the same in steps.
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


def spec_of(source: ViZDoom) -> GameSpec:
    engine = open_scenario(source)
    seats = 2 if source.is_duel else 1
    return GameSpec.symmetric(
        name=f"vizdoom:{source.scenario}",
        num_seats=seats,
        observation=observation_spec(source),
        action=ActionSpec(heads=buttons_of(engine).heads),
        max_length=math.ceil(tics_of(source, engine) / source.frame_skip) + 1,
        zero_sum=source.is_duel,
        # The engines of a duel settle over the network when a dead player comes back.
        repeatable=not source.is_duel,
    )


def observation_spec(source: ViZDoom) -> ObservationSpec:
    height, width = (side // source.shrink for side in SCREEN)
    screen = Planes(channels=3 if source.colour else 1, height=height, width=width, dtype="uint8")
    return ObservationSpec(parts={SCREEN_PART: screen, STATUS_PART: Vector(size=len(STATUS) + 1)})


def open_scenario(source: ViZDoom) -> Any:
    """An engine that is ready to be started."""
    engine = vizdoom.DoomGame()
    engine.load_config(str(_file_of(source.scenario)))
    engine.set_doom_config_path(os.devnull)  # its own settings: else a file in the folder that one is in
    engine.set_window_visible(False)
    engine.set_mode(vizdoom.Mode.PLAYER)
    engine.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    formats = vizdoom.ScreenFormat
    engine.set_screen_format(formats.CRCGCB if source.colour else formats.GRAY8)
    if source.is_duel:
        engine.set_available_buttons([getattr(vizdoom.Button, name) for name in _DUEL_BUTTONS])
    engine.set_available_game_variables([variable for variable, _ in STATUS] + [GameVariable.FRAGCOUNT])
    return engine


def start(engine: Any) -> None:
    """It makes an empty folder where it is started, which would be the user's."""
    place = Path(tempfile.gettempdir(), f"ludus-doom-{os.getuid()}")
    place.mkdir(exist_ok=True)
    with contextlib.chdir(place):
        engine.init()


def buttons_of(engine: Any) -> Buttons:
    return Buttons([button.name for button in engine.get_available_buttons()])


def tics_of(source: ViZDoom, engine: Any) -> int:
    """Tics of an episode; the engine does not count those before the player can act."""
    if source.seconds is not None:
        return math.ceil(source.seconds * TICS_A_SECOND)
    own: int = 0 if source.is_duel else engine.get_episode_timeout()
    return own or math.ceil(DEFAULT_SECONDS * TICS_A_SECOND)


def see(source: ViZDoom, state: Any, time_left: float) -> dict[str, NDArray[Any]]:
    """What the player sees; `state` is the engine's."""
    screen = state.screen_buffer.reshape(-1, *SCREEN)
    if source.shrink > 1:
        height, width = (side // source.shrink for side in SCREEN)
        blocks = screen.reshape(len(screen), height, source.shrink, width, source.shrink)
        screen = blocks.mean(axis=(2, 4)).astype(np.uint8)
    numbers = [value / size for value, (_, size) in zip(state.game_variables[:-1].tolist(), STATUS, strict=True)]
    return {SCREEN_PART: screen, STATUS_PART: np.array([*numbers, time_left], np.float32)}


def _file_of(scenario: str) -> Path:
    if scenario.endswith(".cfg"):
        if not Path(scenario).is_file():
            raise GameError(f"there is no scenario file {scenario!r}")
        return Path(scenario).resolve()
    folder = Path(vizdoom.scenarios_path)
    name = DUELS.get(scenario, scenario)
    if not (folder / f"{name}.cfg").is_file():
        known = [*DUELS, *sorted(path.stem for path in folder.glob("*.cfg"))]
        close = difflib.get_close_matches(scenario, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise GameError(f"ViZDoom has no scenario {scenario!r}; {hint}")
    return folder / f"{name}.cfg"


REST, RUN, SHOW = range(3)
"""What a player of a duel does in a step: nothing, one tic, or one tic after which its screen is drawn."""
_CONNECT_S = 15
"""How long the engines of a duel wait for each other."""
_HOST = (
    "-host 2 -deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 "
    "+viz_respawn_delay 0"
)


class DoomTable:
    """A scenario for one player."""

    def __init__(self, **options: Any) -> None:
        self._source = ViZDoom(**options)
        self.spec: GameSpec = self._source.spec
        self._engine = open_scenario(self._source)
        self._tics = tics_of(self._source, self._engine)
        self._engine.set_episode_timeout(self._tics)
        self._buttons = buttons_of(self._engine)
        start(self._engine)
        self._steps = 0
        self._seen: dict[str, NDArray[Any]] = {}

    def reset(self, seed: int) -> Turn:
        self._engine.set_seed(seed % 2**31)
        self._engine.new_episode()
        self._steps = 0
        return self._turn(0.0)

    def step(self, actions: Mapping[Seat, Mapping[str, int] | int]) -> Turn:
        pressed = self._buttons.press(_by_head(self.spec, actions[0]))
        self._steps += 1
        return self._turn(self._engine.make_action(pressed, self._source.frame_skip))

    def close(self) -> None:
        self._engine.close()

    def _turn(self, reward: float) -> Turn:
        # The time that is left is seen, so that its end is an end by the rules.
        over = self._engine.is_episode_finished()
        if not over:
            passed = self._steps * self._source.frame_skip / self._tics
            self._seen = see(self._source, self._engine.get_state(), max(0.0, 1.0 - passed))
        return Turn(observations={0: self._seen}, reward={0: reward}, over=over)


@dataclass(frozen=True, slots=True)
class DuelPlace:
    """Where a player of a duel meets the other one, and as whom. It travels inside the seed of a reset."""

    port: int
    hosts: bool

    def in_seed(self, seed: int) -> int:
        return (seed % 2**31) << 17 | self.port << 1 | self.hosts

    @classmethod
    def of_seed(cls, seed: int) -> DuelPlace:
        return cls(seed >> 1 & 0xFFFF, bool(seed & 1))


class DuelPlayer:
    """One player of a duel, tic by tic: the engines wait for each other's every tic, and one that is a few
    ahead and then asked for nothing would leave the other waiting for ever."""

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
        self._place: DuelPlace | None = None
        self._engine: Any = None
        self._frags = 0.0
        self._seen: dict[str, NDArray[Any]] = {}

    def reset(self, seed: int) -> Turn:
        place = DuelPlace.of_seed(seed)
        if place != self._place:  # the first duel here, or the other player was lost
            self.close()
            self._start(place, seed >> 17)
        self._engine.new_episode()
        self._frags = self._engine.get_game_variable(vizdoom.GameVariable.FRAGCOUNT)
        self._seen = see(self._source, self._engine.get_state(), 1.0)
        return Turn(observations={0: self._seen})

    def step(self, actions: Mapping[Seat, Mapping[str, int]]) -> Turn:
        action = actions[0]
        if action["tic"] == REST:
            return Turn(observations={0: self._seen})
        self._engine.set_action(self._buttons.press(action))
        self._engine.advance_action(1, action["tic"] == SHOW)
        frags = self._engine.get_game_variable(vizdoom.GameVariable.FRAGCOUNT)
        gained, self._frags = frags - self._frags, frags
        if action["tic"] == SHOW and (state := self._engine.get_state()) is not None:
            self._seen = see(self._source, state, 1.0)
        return Turn(observations={0: self._seen}, reward={0: gained})

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _start(self, place: DuelPlace, seed: int) -> None:
        engine = open_scenario(self._source)
        engine.set_episode_timeout(0)
        engine.set_seed(seed)
        engine.add_game_args(_HOST if place.hosts else "-join 127.0.0.1")
        engine.add_game_args(f"-port {place.port} +viz_connect_timeout {_CONNECT_S}")
        engine.add_game_args(f"+name {'Host' if place.hosts else 'Guest'} +colorset {int(place.hosts)}")
        self._buttons = buttons_of(engine)
        start(engine)
        self._engine, self._place = engine, place


def _by_head(spec: GameSpec, action: Mapping[str, int] | int) -> Mapping[str, int]:
    """A game with a single head is given just its number."""
    if isinstance(action, Mapping):
        return action
    return {next(iter(spec.kinds[0].action.heads)): action}


_SEATS = 2


class DuelTables:
    """A `GameBatch`. Its players are the tables of another one: those of table t are 2t, who hosts the duel,
    and 2t + 1. Where one of them is lost, so is the duel."""

    def __init__(self, source: ViZDoom, num_tables: int) -> None:
        self.spec: GameSpec = source.spec
        self.num_tables = num_tables
        self.view = TableView.allocate(self.spec, num_tables)
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
                self._ports[table] = _free_port()
            port = self._ports[table]
            places += [DuelPlace(port, hosts).in_seed(seed) for hosts in (True, False)]
        players = (tables[:, None] * _SEATS + np.arange(_SEATS)).reshape(-1)
        self._players.reset(players, np.array(places, np.uint64))
        view = self.view
        view.over[tables] = view.truncated[tables] = False
        view.to_act[tables] = True
        view.reward[tables] = view.score[tables] = 0.0
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
        """What the seat sees; None: both, side by side."""
        seats = range(_SEATS) if seat is None else (seat,)
        screens = [self.view.observation[0][SCREEN_PART][table, shown] for shown in seats]
        picture = np.concatenate(screens, axis=2).transpose(1, 2, 0)
        return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))

    def _show(self, tables: IntArray) -> None:
        """What the players of these tables see, and which duels are lost."""
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
            self._ports.pop(table, None)  # its players meet elsewhere, which makes both start anew
            self.view.to_act[table] = self.view.over[table] = False
            self.view.reward[table] = 0.0


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
