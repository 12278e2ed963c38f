"""StarCraft II through PySC2: mini-games with one seat, full games with one or two.

What is needed to describe an experiment is here; PySC2 is imported only when the game is looked at.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.replay import EpisodeSource, NoOp
from ludus.data.specs import GameSpec, Pointer
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.seat_rows import GameError
from ludus.system.machine import install_command

Race = Literal["terran", "zerg", "protoss", "random"]
Difficulty = Literal[
    "very_easy",
    "easy",
    "medium",
    "medium_hard",
    "hard",
    "harder",
    "very_hard",
    "cheat_vision",
    "cheat_money",
    "cheat_insane",
]
Build = Literal["random", "rush", "timing", "power", "macro", "air"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Computer:
    """A computer player of the game itself."""

    race: Race = "random"
    difficulty: Difficulty = "very_easy"
    build: Build = "random"

    def __post_init__(self) -> None:
        for name, known in (("race", Race), ("difficulty", Difficulty), ("build", Build)):
            given, allowed = getattr(self, name), get_args(known)
            if given not in allowed:
                raise GameError(f"Computer.{name} must be one of {', '.join(allowed)}, got {given!r}")

    @property
    def name(self) -> str:
        build = "" if self.build == "random" else f"_{self.build}"
        return f"builtin_{self.race}_{self.difficulty}{build}"


COMPUTERS = tuple(
    Computer(race=race, difficulty=difficulty, build=build)
    for race, difficulty, build in product(get_args(Race), get_args(Difficulty), get_args(Build))
)


@dataclass(frozen=True, kw_only=True)
class ComputerBot:
    """Gives its seat to the computer."""

    computer: Computer

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        action = game.spec.kinds[game.spec.seats[int(seats[0])]].action
        chosen: Tree = {}
        for name, head in action.heads.items():
            several = isinstance(head, Pointer) and head.picks > 1
            shape = (len(tables), *action.arrays[name].shape)
            chosen[name] = np.full(shape, -1 if several else 0, np.int32)
        chosen[_marked(list(action.heads))][:] = -1 - COMPUTERS.index(self.computer)
        return chosen


def bots_of(builds: Sequence[Build]) -> Mapping[str, Bot]:
    """One for each race and difficulty, and for each of these ways to play."""
    return {computer.name: ComputerBot(computer=computer) for computer in COMPUTERS if computer.build in builds}


def computer_on_seat(heads: Mapping[str, NDArray[np.int32]]) -> Computer | None:
    """Who takes the seat, by its action in the lobby; None: the player that is asked for actions."""
    value = int(heads[_marked(list(heads))])
    return COMPUTERS[-1 - value] if value < 0 else None


def _marked(heads: Sequence[str]) -> str:
    """A head with one number that never counts in the lobby: an argument of a function other than no-op."""
    return next(name for name in heads if name not in ("function", "delay", "unit_tags"))


INSTALL = install_command("sc2")

Interface = Literal["features", "raw"]

UNIT_X, UNIT_Y = 7, 8
"""Columns of the list of units that hold their place, as shares of the side of the map or screen."""


@dataclass(frozen=True, kw_only=True)
class PySC2:
    """A map of StarCraft II. Its seats are as many as the map has players, unless there is an `opponent`."""

    map_name: str
    races: tuple[Race, ...] = ("random",)
    """By seat, or one for all."""
    opponent: Computer | None = None
    """A computer player against whom a single seat plays; None: two seats play each other."""
    builtin_bots: bool = True
    """Computer players may take a seat of a game for two; an episode then begins with a decision to wait."""
    builtin_builds: tuple[Build, ...] = ("random",)
    """For which ways to play there are built-in bots."""
    interface: Interface = "features"
    """How to act: as a person does, on screen and minimap, or by naming the units in a list."""
    screen: int = 84
    """Places along a side of the screen; 0 for none, with the raw interface only."""
    minimap: int = 64
    screen_layers: tuple[str, ...] = (
        "height_map",
        "visibility_map",
        "creep",
        "power",
        "player_relative",
        "unit_type",
        "selected",
        "unit_hit_points_ratio",
        "unit_energy_ratio",
        "unit_shields_ratio",
        "unit_density_aa",
        "effects",
        "build_progress",
    )
    minimap_layers: tuple[str, ...] = (
        "height_map",
        "visibility_map",
        "creep",
        "camera",
        "player_relative",
        "selected",
        "alerts",
        "pathable",
        "buildable",
    )
    max_units: int = 0
    """Rows of the list of units, on the screen or, with the raw interface, anywhere; 0: no list."""
    max_selected: int = 16
    """Units that one raw action may name."""
    raw_resolution: int = 128
    """Places along a side of the map, as raw actions name them."""
    functions: tuple[str, ...] = ()
    """Names of the action functions that may be used, beside `no_op`; () for all."""
    specific_functions: bool = False
    """All functions include special cases of general ones, such as the cancelling of one certain building."""
    step_mul: int = 8
    """Game steps in a decision."""
    max_delay: int = 0
    """Above 0, a decision chooses how many game steps it lasts, up to this, and `step_mul` is not used."""
    game_steps_per_episode: int | None = None
    """Longer episodes are cut off; default: the map's own limit."""
    version: str | None = None
    """Of the game, such as `4.10.0`; default: the newest that is installed."""
    time_limit_s: int = 120
    """How long the game may take to start or to answer before its process is replaced."""
    episodes_per_process: int = 200
    """After which the process is replaced all the same: the game's memory grows."""
    fast_restart: bool = False
    """Start a mini-game again without making it anew: quicker, but a process heeds its first seed only."""
    mock: bool = False
    """PySC2's stand-in for the game: the right shapes, and nothing happens. For tests."""

    def __post_init__(self) -> None:
        least = {"minimap": 0, "screen": 0, "max_units": 0, "max_delay": 0, "step_mul": 1, "max_selected": 1}
        least |= {"raw_resolution": 1, "time_limit_s": 1, "episodes_per_process": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise GameError(f"{name} must be at least {smallest}, got {getattr(self, name)}")
        wrong = [race for race in self.races if race not in get_args(Race)]
        if wrong or not self.races:
            raise GameError(f"races must be of {', '.join(get_args(Race))}, got {', '.join(wrong) or 'none'}")
        if self.interface not in get_args(Interface):
            raise GameError(f"interface must be {' or '.join(get_args(Interface))}, got {self.interface!r}")
        if self.interface == "features" and not (self.screen and self.minimap):
            raise GameError("the interface 'features' needs a screen and a minimap; give both a size")
        if bool(self.screen) != bool(self.minimap):
            raise GameError(f"screen is {self.screen} and minimap {self.minimap}: give both a size, or neither")
        if self.interface == "raw" and not self.max_units:
            raise GameError("the interface 'raw' names units in a list: set max_units, such as 256")

    @cached_property
    def spec(self) -> GameSpec:
        spec: GameSpec = _part("pysc2_game").spec_of(self)
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        tables: GameBatch = _part("pysc2_game").tables_of(self, num_tables)
        return tables

    def bots(self) -> Mapping[str, Bot]:
        builtin = bots_of(self.builtin_builds) if self.builtin_bots and self.spec.num_seats == 2 else {}
        return {"random": RandomBot(), **builtin}

    def tree(self) -> TreeState | None:
        return None

    replay_suffix: ClassVar[str] = ".SC2Replay"

    def replay_episodes(self, files: Mapping[str, Path], no_op: NoOp | None) -> EpisodeSource:
        """The game's own replays, by name, as they are seen and acted on here."""
        episodes: EpisodeSource = _part("pysc2_replays").SC2Replays(self, files, no_op)
        return episodes


def _part(name: str) -> Any:
    """A module that needs PySC2. It is imported here and not above, so that recipes can be read without."""
    if importlib.util.find_spec("pysc2") is None:
        raise GameError(f"StarCraft II needs PySC2, which is not installed; {INSTALL} adds it")
    return importlib.import_module(f"ludus.games.adapters.{name}")
