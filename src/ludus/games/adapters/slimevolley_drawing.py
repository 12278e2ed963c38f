"""Pictures of SlimeVolley's court, without the libraries that the game draws with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.moments import colour_of_team

_SCALE = 10
"""Pixels in a unit of length."""
_WIDTH, _HEIGHT, _GROUND = 48, 24, 1.5
_SKY, _EARTH, _FENCE, _BALL = (11, 16, 19), (116, 114, 117), (102, 56, 35), (217, 79, 0)


def draw(game: Any, lives: Sequence[int]) -> NDArray[np.uint8]:
    """RGB [240, 480, 3] of a game object; lives of the right and the left."""
    picture = np.empty((_HEIGHT * _SCALE, _WIDTH * _SCALE, 3), np.uint8)
    picture[:] = _SKY
    y = _HEIGHT - (np.arange(len(picture))[:, None] + 0.5) / _SCALE
    x = (np.arange(picture.shape[1]) + 0.5) / _SCALE - _WIDTH / 2

    def disc(thing: Any, colour: tuple[int, int, int]) -> None:
        picture[(x - thing.x) ** 2 + (y - thing.y) ** 2 <= thing.r**2] = colour

    picture[(abs(x - game.fence.x) <= game.fence.w / 2) & (y <= game.fenceStub.y)] = _FENCE
    disc(game.fenceStub, _FENCE)
    for team, slime in enumerate((game.agent_right, game.agent_left)):
        half = ((x - slime.x) ** 2 + (y - slime.y) ** 2 <= slime.r**2) & (y >= slime.y)
        picture[half] = colour_of_team(team)
        for life in range(lives[team]):
            centre = slime.dir * (_WIDTH / 2 - 1 - 1.5 * life)
            picture[(x - centre) ** 2 + (y - _HEIGHT + 1) ** 2 <= 0.4**2] = colour_of_team(team)
    disc(game.ball, _BALL)
    picture[np.broadcast_to(y <= _GROUND, picture.shape[:2])] = _EARTH
    return picture
