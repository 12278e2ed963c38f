"""Google Research Football: academy scenarios against the game's own players, and matches of two teams.

What is needed to describe an experiment is here; the game's library is imported only when it is looked at.
Every table is an engine of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from ludus.data.specs import (
    ActionSpec,
    Choice,
    GameSpec,
    Head,
    ObservationSpec,
    Planes,
    SeatKind,
    Vector,
    When,
)
from ludus.data.tree_game import TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.adapters.football_views import MINIMAP, NUM_OWN, NUM_SIMPLE
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError

INSTALL = "ludus games --install football"
NUM_ACTIONS = 19
"""Idle, eight directions, three passes, shot, sprint, stand, walk, slide, dribble, stop dribbling."""
AUTOPILOT = "autopilot"
TAKEN = -1
"""In the head `autopilot`: the game's own player decides for this seat."""

View = Literal["simple115v2", "extracted"]


@dataclass(frozen=True, kw_only=True)
class Football:
    """A scenario of the library by its name, such as `5_vs_5`.

    A goal is worth 1 to every seat of the team that makes it and -1 to the other side's. Both sides see the
    pitch from the left, so that one policy plays either. Who has no seat is played by the game itself.
    """

    scenario: str
    left: int = 1
    """Seats of the left side. One alone goes to whom the game picks, mostly the nearest to the ball."""
    right: int = 0
    view: View = "simple115v2"
    """115 numbers of places and speeds, or four planes of a map of the pitch."""
    checkpoints: bool = False
    """A tenth more for each of ten lines towards the goal that a seat brings the ball across, once each: the
    reward is then not the score."""
    builtin_bot: bool = False
    """The game's own player can take seats, as the bot `builtin`. For this there is a second head that never
    counts."""
    max_length: int | None = None
    """Ends longer episodes; default: the scenario's own limit."""

    def __post_init__(self) -> None:
        for side, number in (("left", self.left), ("right", self.right)):
            if not 0 <= number <= 11:
                raise GameError(f"{side} must be 0 to 11 seats, got {number}")
        if not self.left + self.right:
            raise GameError("left and right are both 0: somebody must have a seat")
        if self.view not in get_args(View):
            raise GameError(f"view must be {' or '.join(get_args(View))}, got {self.view!r}")
        if self.max_length is not None and self.max_length < 1:
            raise GameError(f"max_length must be at least 1, got {self.max_length}")

    @cached_property
    def spec(self) -> GameSpec:
        own_limit: int = _tables().steps_of(self)
        action: dict[str, Head] = {"action": Choice(num=NUM_ACTIONS, masked=False)}
        if self.builtin_bot:
            action[AUTOPILOT] = Choice(num=1, when=When(head="action", values=()), masked=False)
        seats = self.left + self.right
        both = bool(self.left and self.right)
        return GameSpec(
            name=f"football:{self.scenario}",
            kinds=(SeatKind(name="player", observation=self._observation, action=ActionSpec(heads=action)),),
            seats=(0,) * seats,
            teams=(0,) * self.left + (int(both),) * self.right,
            max_length=min(own_limit, self.max_length or own_limit),
            zero_sum=both and not self.checkpoints,
            reward_is_score=not self.checkpoints,
        )

    @property
    def _observation(self) -> ObservationSpec:
        channels, height, width = MINIMAP
        own = Vector(size=NUM_OWN)
        if self.view == "simple115v2":
            return ObservationSpec(parts={"pitch": Vector(size=NUM_SIMPLE), "own": own})
        planes = Planes(channels=channels, height=height, width=width, dtype="uint8")
        return ObservationSpec(parts={"pitch": planes, "own": own})

    def tables(self, num_tables: int) -> GameBatch:
        games = [_tables().FootballTable(self) for _ in range(num_tables)]
        return LiftedBatch(self.spec, games)

    def bots(self) -> Mapping[str, Bot]:
        builtin = {"builtin": BuiltinBot()} if self.builtin_bot else {}
        return {"random": RandomBot(), **builtin}

    def tree(self) -> TreeState | None:
        return None


@dataclass(frozen=True, kw_only=True)
class BuiltinBot:
    """Leaves its seat to the game's own player."""

    def act(self, game: Any, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        idle = np.zeros(len(tables), np.int32)
        return {"action": idle, AUTOPILOT: np.full_like(idle, TAKEN)}


def _tables() -> Any:
    """The module that needs the library. It is imported here and not above, so that recipes can be read
    without."""
    if importlib.util.find_spec("gfootball") is None:
        raise GameError(f"football needs the library gfootball, which is not installed; {INSTALL} adds it")
    return importlib.import_module("ludus.games.adapters.football_table")
