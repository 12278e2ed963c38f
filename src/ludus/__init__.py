"""Ludus trains leagues of agents for competitive games."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.data.specs import GameSpec
    from ludus.experiment import Experiment
    from ludus.games.check import check_game
    from ludus.games.game import Game, GameBatch, GameSource, Turn
    from ludus.runtime.assemble import load_experiment

__all__ = [
    "Experiment",
    "Game",
    "GameBatch",
    "GameSource",
    "GameSpec",
    "Turn",
    "check_game",
    "load_experiment",
]

_HOME = {
    "Experiment": "ludus.experiment",
    "Game": "ludus.games.game",
    "GameBatch": "ludus.games.game",
    "GameSource": "ludus.games.game",
    "GameSpec": "ludus.data.specs",
    "Turn": "ludus.games.game",
    "check_game": "ludus.games.check",
    "load_experiment": "ludus.runtime.assemble",
}
"""Loaded when first asked for: `import ludus` stays quick, and needs no torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ludus' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
