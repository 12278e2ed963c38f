"""Made-up moments: a bar that grows, so that every picture differs from the one before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ludus.games.pictures import Moment

WIDTH, HEIGHT = 120, 80


def bar(length: int) -> NDArray[np.uint8]:
    picture = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    picture[30:50, : length % WIDTH] = (200, 60, 20)
    return picture


def moment(step: int = 0, *, ended: bool = False, **changed: object) -> Moment:
    fields: dict[str, object] = {
        "game": "bars",
        "players": ("long", "short"),
        "score": (1.0, -1.0) if ended else (0.0, 0.0),
        "episode": 1,
        "episodes": 1,
        "step": step,
        "clock": None,
        "seat": None,
        "ended": ended,
        "draw": lambda: bar(step + 1),
    }
    return Moment(**(fields | changed))  # type: ignore[arg-type]


def episode(steps: int, **changed: object) -> Iterator[Moment]:
    for step in range(steps + 1):
        yield moment(step, ended=step == steps, **changed)
