"""Doom through ViZDoom: duels of two players, and its scenarios for one.

What is needed to describe an experiment is here; ViZDoom is imported only when the game is looked at. Every
engine is a process of its own that ends with ours, with a time limit for its answers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ludus.data.specs import GameSpec
from ludus.data.tree import TreeState
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.isolation.isolated import Isolated
from ludus.games.seat_rows import GameError
from ludus.system.machine import install_command

INSTALL = install_command("vizdoom")
SCREEN = (120, 160)
"""Rows and columns that the engine draws: the least it can."""
DUELS = {"duel": "multi_duel", "duel_cig": "cig", "duel_deathmatch": "multi"}
"""Scenario for two seats -> the one of ViZDoom whose map it is played on."""


@dataclass(frozen=True, kw_only=True)
class ViZDoom:
    """A scenario by its name: `duel` (or on another map `duel_cig`, `duel_deathmatch`) for two seats; for one
    seat those that ship with ViZDoom, such as `basic`, or the path of a `.cfg` file.

    In a duel a frag is worth 1 to whoever makes it and -1 to the other, a suicide the reverse. Its two
    engines settle over the network when a dead player comes back, so that its episodes cannot be repeated.
    """

    scenario: str
    frame_skip: int = 4
    """Tics (of 35 a second) in a decision."""
    shrink: int = 2
    """The screen of 160 x 120 is made so many times smaller, along each side."""
    colour: bool = False
    """Red, green and blue instead of one plane of grey."""
    seconds: float | None = None
    """Of game time in an episode; default: as the scenario says, and 60 where it says nothing."""
    answer_seconds: float = 20.0
    """An engine that takes longer to start or to answer is ended, and its table lost."""

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
        spec: GameSpec = _part("vizdoom_engine").spec_of(self)
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        if self.is_duel:
            duels: GameBatch = _part("vizdoom_engine").DuelTables(self, num_tables)
            return duels
        processes = min(num_tables, os.cpu_count() or 1)
        return self.engines("DoomTable", processes).tables(num_tables)

    def engines(self, game: str, processes: int) -> Isolated:
        """The game of `vizdoom_table` by this name, in processes of its own."""
        options = {"scenario": self.scenario, "frame_skip": self.frame_skip, "shrink": self.shrink}
        options |= {"colour": self.colour, "seconds": self.seconds}
        return Isolated(
            game=f"ludus.games.adapters.vizdoom_engine:{game}",
            options=options,
            processes=processes,
            step_seconds=self.answer_seconds,
            start_seconds=self.answer_seconds,
        )

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None


def _part(name: str) -> Any:
    """A module that needs ViZDoom. It is imported here and not above, so that recipes can be read without."""
    if importlib.util.find_spec("vizdoom") is None:
        raise GameError(f"Doom needs ViZDoom, which is not installed; {INSTALL} adds it")
    return importlib.import_module(f"ludus.games.adapters.{name}")
