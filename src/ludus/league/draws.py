"""Random numbers as pure functions of the run's seed, so that a replayed decision comes out the same."""

from __future__ import annotations

import hashlib

import numpy as np

_MATCH, _RESET, _MEMBER = 0, 1, 2
"""Keys that keep the streams apart."""


def match_generator(seed: int, match_id: int) -> np.random.Generator:
    """All draws of one match."""
    return _generator(seed, _MATCH, match_id)


def reset_draw(seed: int, joined: int, snapshots: int) -> float:
    """In [0, 1): whether the player that joined at event `joined` is reset after its n-th snapshot."""
    return float(_generator(seed, _RESET, joined, snapshots).random())


def member_generator(seed: int, player: str, takeovers: int, interval: int) -> np.random.Generator:
    """All draws of one judgement of a member of a population; those of its start have the numbers 0 and 0."""
    # By name, because a player's first settings are drawn before it has joined.
    name = int.from_bytes(hashlib.blake2b(player.encode(), digest_size=8).digest())
    return _generator(seed, _MEMBER, name, takeovers, interval)


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
