"""Random numbers as pure functions of the run's seed, so that a replayed decision comes out the same."""

from __future__ import annotations

import numpy as np

_MATCH, _RESET = 0, 1
"""Keys that keep the streams apart."""


def match_generator(seed: int, match_id: int) -> np.random.Generator:
    """All draws of one match."""
    return _generator(seed, _MATCH, match_id)


def reset_draw(seed: int, joined: int, snapshots: int) -> float:
    """In [0, 1): whether the player that joined at event `joined` is reset after its n-th snapshot."""
    return float(_generator(seed, _RESET, joined, snapshots).random())


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
