"""One engine of ViZDoom: made from a scenario, and its screen, numbers and buttons in our terms."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import vizdoom
from numpy.typing import NDArray
from vizdoom import GameVariable

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes, Vector
from ludus.games.adapters.vizdoom import DUELS, SCREEN, ViZDoom
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
        self._columns = {
            head: [names.index(name) for name in group] for head, group in groups.items() if group
        }
        self._num = len(names)
        self.heads = {
            head: Choice(num=len(columns) + 1, masked=False) for head, columns in self._columns.items()
        }

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
    numbers = [
        value / size for value, (_, size) in zip(state.game_variables[:-1].tolist(), STATUS, strict=True)
    ]
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
