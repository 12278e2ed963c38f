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
from numpy.typing import NDArray

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
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError

NUM_SIMPLE = 115
NUM_OWN = 11
"""Which of the ten lasting actions (eight directions, sprint, dribble) are on, and the time left."""
MINIMAP = (4, 72, 96)
"""Own team, other team, ball and the seat's own player; rows; columns."""
_PLACES = 22
_HALF_WIDTH = 1 / 2.25
"""Of the pitch: its y goes from -0.42 to 0.42, that of the map a little beyond; x from -1 to 1."""
_OPPOSITE = [4, 5, 6, 7, 0, 1, 2, 3, 8, 9]
"""The lasting actions of one who plays from right to left, in the words of one who plays from left."""
_COLOURS = ((230, 60, 50), (60, 90, 230), (255, 255, 255), (255, 220, 60))
_GRASS = (40, 110, 50)
_ENLARGED = 4

Seen = Mapping[str, Any]
"""The library's observation, by name."""


class SideView:
    """The match as one side sees it: from the left, itself first."""

    def __init__(self, seen: Seen, *, left: bool) -> None:
        sign, (own, other) = (1.0, ("left", "right")) if left else (-1.0, ("right", "left"))
        self._left = left
        self._players = [
            sign * seen[part]
            for part in (f"{own}_team", f"{own}_team_direction", f"{other}_team", f"{other}_team_direction")
        ]
        turned = np.array([sign, sign, 1.0])
        self.ball = turned * seen["ball"]
        self._ball_direction = turned * seen["ball_direction"]
        owner: int = seen["ball_owned_team"]
        self.owner = owner if left or owner < 0 else 1 - owner
        """Of the ball: -1 nobody, 0 this side, 1 the other."""
        self.owning_player: int = seen["ball_owned_player"]
        self._mode: int = seen["game_mode"]
        self.controlled: list[int] = seen[f"{own}_agent_controlled_player"]
        """Per seat of this side, its player; -1: none now."""
        self._lasting = seen[f"{own}_agent_sticky_actions"]

    def simple(self, seat: int) -> NDArray[np.float32]:
        """As the library's `simple115v2`."""
        row = np.zeros(NUM_SIMPLE, np.float32)
        for index, places in enumerate(self._players):
            part = row[index * _PLACES : (index + 1) * _PLACES]
            part[:] = -1.0
            part[: places.size] = places.reshape(-1)
        row[88:91] = self.ball
        row[91:94] = self._ball_direction
        row[94 + (self.owner + 1)] = 1.0
        if self.controlled[seat] >= 0:
            row[97 + self.controlled[seat]] = 1.0
        row[108 + self._mode] = 1.0
        return row

    def minimap(self, seat: int) -> NDArray[np.uint8]:
        """As the library's `extracted`, channels first."""
        planes = np.zeros(MINIMAP, np.uint8)
        places = [self._players[0], self._players[2], self.ball[None, :2]]
        if self.controlled[seat] >= 0:
            places.append(self._players[0][[self.controlled[seat]]])
        _, height, width = MINIMAP
        for plane, marked in zip(planes, places, strict=False):
            columns = ((marked[:, 0] + 1.0) / 2.0 * width).astype(int).clip(0, width - 1)
            rows = ((marked[:, 1] + _HALF_WIDTH) / (2.0 * _HALF_WIDTH) * height).astype(int)
            plane[rows.clip(0, height - 1), columns] = 255
        return planes

    def own(self, seat: int, time_left: float) -> NDArray[np.float32]:
        lasting = np.asarray(self._lasting[seat], np.float32)
        return np.append(lasting if self._left else lasting[_OPPOSITE], np.float32(time_left))


def picture(side: SideView, seat: int | None) -> NDArray[np.uint8]:
    """The pitch from above: own side red, the other blue, ball white, the seat's player yellow."""
    planes = side.minimap(seat if seat is not None else 0)
    _, height, width = MINIMAP
    drawn = np.empty((height, width, 3), np.uint8)
    drawn[:] = _GRASS
    drawn[:, width // 2] = drawn[[0, -1]] = drawn[:, [0, -1]] = (200, 220, 200)
    for index in (0, 1, 3, 2):
        if index != 3 or seat is not None:
            drawn[planes[index] > 0] = _COLOURS[index]
    return np.ascontiguousarray(drawn.repeat(_ENLARGED, 0).repeat(_ENLARGED, 1))


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
