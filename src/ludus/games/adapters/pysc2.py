"""StarCraft II through PySC2: mini-games with one seat, full games with one or two.

What is needed to describe an experiment is here; PySC2 is imported only when the game is looked at.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from ludus.data.episodes import EpisodeSource, NoOp
from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.games.adapters.pysc2_bots import Build, Computer, Race, bots_of
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.seat_rows import GameError

INSTALL = "pip install 'ludus[sc2]'"

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
            raise GameError(
                f"screen is {self.screen} and minimap {self.minimap}: give both a size, or neither"
            )
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
