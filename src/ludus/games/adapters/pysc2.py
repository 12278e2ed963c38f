"""StarCraft II through PySC2, as an experiment describes it: mini-games with one seat, full games with one or two."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.replay import EpisodeSource, NoOp
from ludus.data.specs import GameSpec, Pointer
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.seat_rows import GameError
from ludus.games.tables import GameDefaults
from ludus.system.machine import install_command

Race = Literal["terran", "zerg", "protoss", "random"]
Difficulty = Literal[
    "very_easy", "easy", "medium", "medium_hard", "hard", "harder", "very_hard", "cheat_vision", "cheat_money",
    "cheat_insane",
]  # fmt: skip
Build = Literal["random", "rush", "timing", "power", "macro", "air"]

INSTALL = install_command("sc2")

Interface = Literal["features", "raw"]
Inputs = Literal["basic", "published"]

UNMARKED = {"function", "delay", "unit_tags"}
"""Heads that cannot mark a computer player, because they count for no-op or pick several units."""
UNIT_X, UNIT_Y = 7, 8
EFFECT_X, EFFECT_Y = 5, 6
"""Columns of the lists of units and effects with their position, as shares of the side of the map or screen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Computer:
    """A computer player of the game."""

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
    """Gives its seat to a computer player."""

    computer: Computer

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        action = game.spec.kinds[game.spec.seats[int(seats[0])]].action
        chosen: Tree = {}
        for name, head in action.heads.items():
            several = isinstance(head, Pointer) and head.picks > 1
            shape = (len(tables), *action.arrays[name].shape)
            chosen[name] = np.full(shape, -1 if several else 0, np.int32)
        chosen[_marked(action.heads)][:] = -1 - COMPUTERS.index(self.computer)
        return chosen


def computer_on_seat(heads: Mapping[str, NDArray[np.int32]]) -> Computer | None:
    """The computer player that takes the seat, by the seat's action in the lobby; None: the seat plays itself."""
    value = int(heads[_marked(heads)])
    return COMPUTERS[-1 - value] if value < 0 else None


def _marked(heads: Iterable[str]) -> str:
    """The head that marks a computer player in the lobby, where only no-op can be chosen."""
    return next(name for name in heads if name not in UNMARKED)


@dataclass(frozen=True, kw_only=True)
class PySC2(GameDefaults):
    """A map of StarCraft II, with a seat for each of its players unless there is an `opponent`."""

    map_name: str
    races: tuple[Race, ...] = ("random",)
    """Races by seat, or one for all."""
    opponent: Computer | None = None
    """The computer player that a single seat plays against; None: two seats play each other."""
    builtin_bots: bool = True
    """Whether computer players may take a seat of a game for two; an episode then begins with a decision to wait."""
    builtin_builds: tuple[Build, ...] = ("random",)
    """The builds of the built-in bots."""
    interface: Interface = "features"
    """How to act: on screen and minimap, as people do, or by naming units of a list."""
    screen: int = 84
    """Pixels along a side of the screen; 0 for none, with the raw interface only."""
    minimap: int = 64
    screen_layers: tuple[str, ...] = (
        "height_map", "visibility_map", "creep", "power", "player_relative", "unit_type", "selected",
        "unit_hit_points_ratio", "unit_energy_ratio", "unit_shields_ratio", "unit_density_aa", "effects",
        "build_progress",
    )  # fmt: skip
    minimap_layers: tuple[str, ...] = (
        "height_map", "visibility_map", "creep", "camera", "player_relative", "selected", "alerts", "pathable",
        "buildable",
    )  # fmt: skip
    inputs: Inputs = "basic"
    """What a seat sees besides layers: some scalars and units, or all that AlphaStar's publication names, with the raw
    interface only."""
    mmr: int = 6_200
    """Rating that a seat is shown, with published inputs; in datasets, that of the player of the replay."""
    hidden_race: float = 0.1
    """Share of the episodes in which a seat does not see which race its opponent asked for, with published inputs."""
    opponent_view: bool = False
    """Show critics the other seat's observation and both scores, in games for two."""
    max_units: int = 0
    """Rows of the list of units, those on the screen or, with the raw interface, all; 0: no list."""
    max_selected: int = 16
    """Most units in one raw action."""
    raw_resolution: int = 128
    """Positions along a side of the map in raw actions."""
    functions: tuple[str, ...] = ()
    """Names of the usable action functions, beside `no_op`; () for all."""
    specific_functions: bool = False
    """Include special cases of general functions, such as the cancelling of one certain building."""
    step_mul: int = 8
    """Game steps per decision."""
    max_actions: int = 0
    """Most functions other than `no_op` that a seat may call within 5 seconds; then it has to wait. 0: no limit."""
    max_delay: int = 0
    """Above 0, a decision chooses how many game steps it lasts, up to this number, and `step_mul` is not used."""
    game_steps_per_episode: int | None = None
    """Game steps after which an episode is cut off; default: the map's own limit."""
    version: str | None = None
    """Version of the game, such as `4.10.0`; default: the newest that is installed."""
    time_limit_s: int = 120
    """Time limit for the game to start or to answer; beyond it the process is replaced."""
    episodes_per_process: int = 200
    """Episodes after which a process is replaced, because the game's memory grows."""
    fast_restart: bool = False
    """Restart a mini-game without recreating it: faster, but a process uses its first seed only."""
    mock: bool = False
    """Use PySC2's mock of the game, which has the right shapes and in which nothing happens. For tests."""

    def __post_init__(self) -> None:
        least = {"minimap": 0, "screen": 0, "max_units": 0, "max_delay": 0, "step_mul": 1, "max_selected": 1}
        least |= {"max_actions": 0, "mmr": 0, "hidden_race": 0}
        least |= {"raw_resolution": 1, "time_limit_s": 1, "episodes_per_process": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise GameError(f"{name} must be at least {smallest}, got {getattr(self, name)}")
        if self.hidden_race > 1:
            raise GameError(f"hidden_race must be at most 1, got {self.hidden_race}")
        wrong = [race for race in self.races if race not in get_args(Race)]
        if wrong or not self.races:
            raise GameError(f"races must be of {', '.join(get_args(Race))}, got {', '.join(wrong) or 'none'}")
        if self.interface not in get_args(Interface):
            raise GameError(f"interface must be {' or '.join(get_args(Interface))}, got {self.interface!r}")
        if self.interface == "features" and not (self.screen and self.minimap):
            raise GameError("the interface 'features' needs a screen and a minimap; give both a size")
        if bool(self.screen) != bool(self.minimap):
            raise GameError(f"screen is {self.screen} and minimap {self.minimap}: give both a size, or neither")
        if self.inputs not in get_args(Inputs):
            raise GameError(f"inputs must be {' or '.join(get_args(Inputs))}, got {self.inputs!r}")
        if self.inputs == "published" and self.interface != "raw":
            raise GameError(f"inputs='published' needs interface='raw', got {self.interface!r}")
        if self.interface == "raw" and not self.max_units:
            raise GameError("the interface 'raw' names units in a list: set max_units, such as 256")

    @cached_property
    def spec(self) -> GameSpec:
        spec: GameSpec = _part("pysc2_tables").spec_of(self)
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        tables: GameBatch = _part("pysc2_tables").SC2Tables(self, num_tables)
        return tables

    @property
    def strategy_groups(self) -> dict[str, int]:
        """The groups of facts of a strategy, for `WithStrategies.groups`: units, effects and upgrades."""
        return dict(_part("pysc2_history").FACTS)

    def bots(self) -> Mapping[str, Bot]:
        bots: dict[str, Bot] = {"random": RandomBot()}
        if self.builtin_bots and self.spec.num_seats == 2:
            offered = [computer for computer in COMPUTERS if computer.build in self.builtin_builds]
            bots |= {computer.name: ComputerBot(computer=computer) for computer in offered}
        return bots

    replay_suffix: ClassVar[str] = ".SC2Replay"

    def replay_episodes(self, files: Mapping[str, Path], no_op: NoOp | None) -> EpisodeSource:
        """The game's own replays by name, as episodes of this game."""
        episodes: EpisodeSource = _part("pysc2_replays").SC2Replays(self, files, no_op)
        return episodes


def _part(name: str) -> Any:
    """A module that imports PySC2, loaded when the game is used, so that recipes can be read without PySC2."""
    if importlib.util.find_spec("pysc2") is None:
        raise GameError(f"StarCraft II needs PySC2, which is not installed; {INSTALL} adds it")
    return importlib.import_module(f"ludus.games.adapters.{name}")
