"""The values that a population may try for a setting: how one is drawn, and what lies near another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Plain = bool | int | float | str


class SearchSpace(Protocol):
    """What one setting of the experiment may be."""

    path: str

    def begin(self, rng: np.random.Generator) -> Plain:
        """For a new member."""

    def draw(self, rng: np.random.Generator) -> Plain:
        """Any value, whatever was there before."""

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Plain:
        """A value close to that of a donor; a drawn one if that is none of this space's kind."""

    def examples(self) -> tuple[Plain, ...]:
        """Values that must all fit the experiment: the ends, or all of them."""


def _pick(number: int, rng: np.random.Generator) -> int:
    """One of `number` places. Uses one `random()`, whose stream numpy keeps the same between versions."""
    return min(int(rng.random() * number), number - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform(SearchSpace):
    """A number from `low` to `high`, each alike. Near it: times one of the factors, inside the ends."""

    path: str
    low: float
    high: float
    start: float | None = None
    """What every member begins with; None: each draws its own."""

    def __post_init__(self) -> None:
        _check_ends(self, self.low, self.high, self.start)

    def begin(self, rng: np.random.Generator) -> float:
        return self.draw(rng) if self.start is None else self.start

    def draw(self, rng: np.random.Generator) -> float:
        return min(max(self.low + (self.high - self.low) * rng.random(), self.low), self.high)

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> float:
        return _times(self, value, factors, rng)

    def examples(self) -> tuple[float, ...]:
        return self.low, self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class LogUniform(SearchSpace):
    """A number from `low` to `high`, each order of magnitude alike. Near it: times one of the factors, inside
    the ends."""

    path: str
    low: float
    high: float
    start: float | None = None
    """What every member begins with; None: each draws its own."""

    def __post_init__(self) -> None:
        _check_ends(self, self.low, self.high, self.start)
        if not self.low > 0:
            raise ValueError(
                f"LogUniform.low of {self.path!r} must be above 0, got {self.low}; or use Uniform"
            )

    def begin(self, rng: np.random.Generator) -> float:
        return self.draw(rng) if self.start is None else self.start

    def draw(self, rng: np.random.Generator) -> float:
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + (high - low) * rng.random()), self.low), self.high)

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> float:
        return _times(self, value, factors, rng)

    def examples(self) -> tuple[float, ...]:
        return self.low, self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class OneOf(SearchSpace):
    """One of `options`, each alike. Near it: itself or a neighbour, so that the order of numbers matters."""

    path: str
    options: tuple[Plain, ...]
    start: Plain | None = None
    """What every member begins with; None: each draws its own."""

    def __post_init__(self) -> None:
        if len(self.options) < 2:
            raise ValueError(f"OneOf.options of {self.path!r} needs two or more, got {self.options}")
        if self.start is not None and self.start not in self.options:
            raise ValueError(
                f"OneOf.start of {self.path!r} must be one of {self.options}, got {self.start!r}"
            )

    def begin(self, rng: np.random.Generator) -> Plain:
        return self.draw(rng) if self.start is None else self.start

    def draw(self, rng: np.random.Generator) -> Plain:
        return self.options[_pick(len(self.options), rng)]

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Plain:
        if value not in self.options:
            return self.draw(rng)
        place = self.options.index(value) + _pick(3, rng) - 1
        return self.options[min(max(place, 0), len(self.options) - 1)]

    def examples(self) -> tuple[Plain, ...]:
        return self.options


def _times(
    space: Uniform | LogUniform, value: Any, factors: Sequence[float], rng: np.random.Generator
) -> float:
    """A schedule that somebody set by hand is no number to multiply."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return space.draw(rng)
    return min(max(value * factors[_pick(len(factors), rng)], space.low), space.high)


def _check_ends(space: object, low: float, high: float, start: float | None) -> None:
    name, path = type(space).__name__, getattr(space, "path", "")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{name} of {path!r} needs finite low < high, got low={low}, high={high}")
    if start is not None and not low <= start <= high:
        raise ValueError(f"{name}.start of {path!r} must be from {low} to {high}, got {start}")
