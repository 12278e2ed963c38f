"""Counter-based random numbers for array-native games: draw number `counter` of the stream of each seed.

A draw is a pure function of (seed, counter), so a table plays the same episode in any batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1

Seeds = NDArray[np.uint64]
Counter = int | NDArray[Any]
"""Number of the draw: one for all tables, or an array that broadcasts with the seeds."""


def _scramble(words: Seeds) -> Seeds:
    """The finaliser of splitmix64: a bijection that spreads every input bit over the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def mix(seeds: Seeds, counter: Counter) -> Seeds:
    """64 random bits per seed. `seeds` is an array (at least one axis) of uint64."""
    if isinstance(counter, int):
        offset: Any = np.uint64((counter + 1) * _GOLDEN & _WORD)
    else:
        offset = (np.asarray(counter).astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    # Scrambled twice: consecutive seeds, such as 0, 1, 2, must not give shifted copies of one stream.
    return _scramble(_scramble(seeds ^ np.uint64(_GOLDEN)) + offset)


def uniform(seeds: Seeds, counter: Counter) -> NDArray[np.float64]:
    """A float in [0, 1) per seed."""
    return (mix(seeds, counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def randbelow(seeds: Seeds, counter: Counter, n: int | NDArray[Any]) -> NDArray[np.int64]:
    """An integer in [0, n) per seed; n (below 2**32) may be an array. The bias is at most n / 2**32."""
    high = mix(seeds, counter) >> np.uint64(32)
    return ((high * np.asarray(n).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def shuffle(seeds: Seeds, counter: int, size: int) -> NDArray[np.int64]:
    """A permutation of range(size) per seed: [..., size]. Uses draws counter .. counter + size - 1."""
    keys = mix(seeds[..., None], counter + np.arange(size))
    return np.argsort(keys, axis=-1, kind="stable").astype(np.int64, copy=False)


def deal(seeds: Seeds, counter: int, deck: int, cards: int) -> NDArray[np.int64]:
    """`cards` different cards of range(deck) per seed: [..., cards]. Uses `deck` draws, as `shuffle`."""
    if not 0 <= cards <= deck:
        raise ValueError(f"cannot deal {cards} cards from a deck of {deck}")
    return shuffle(seeds, counter, deck)[..., :cards]
