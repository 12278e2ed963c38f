"""What a seat sees of a football match, from the library's observation, and a picture of the pitch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
