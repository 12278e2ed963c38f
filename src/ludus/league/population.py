"""Population-based training: the players of a role try settings of their own, and those that fall behind go
on from the weights and settings of better ones.

Here are its settings; `takeovers` decides with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np

from ludus.data.records import Settings
from ludus.league.payoff import PayoffRules
from ludus.league.players import member_generator, unknown
from ludus.league.promotion import MAX_DECISIONS

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
            raise ValueError(f"LogUniform.low of {self.path!r} must be above 0, got {self.low}; or use Uniform")

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
            raise ValueError(f"OneOf.start of {self.path!r} must be one of {self.options}, got {self.start!r}")

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


def _times(space: Uniform | LogUniform, value: Any, factors: Sequence[float], rng: np.random.Generator) -> float:
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


Fitness = Literal["rating", "win_rate", "score", "evaluation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead:
    """How far another member is ahead of the one that is judged, in the units of the fitness."""

    by: float
    standard_error: float
    win_rate: float | None = None
    """Of the other one against it, as the fitness expects; None for scores."""


class Selection(Protocol):
    """Chooses whom a member should take over from, if anybody."""

    def choose(self, leads: Mapping[str, Lead], rng: np.random.Generator) -> str | None:
        """`leads`: every other member that can be compared with it, in joining order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncation(Selection):
    """A member of the worst `bottom` share takes over from one of the best `top` share, each alike.

    Both shares hold at least one. Of members that are as good as each other, none is worse.
    """

    bottom: float = 0.2
    top: float = 0.2

    def __post_init__(self) -> None:
        for name in ("bottom", "top"):
            if not 0.0 < getattr(self, name) <= 0.5:
                raise ValueError(f"Truncation.{name} must be above 0 and at most 0.5, got {getattr(self, name)}")

    def choose(self, leads: Mapping[str, Lead], rng: np.random.Generator) -> str | None:
        worse = sum(lead.by < 0 for lead in leads.values())
        if not leads or worse >= _share(self.bottom, len(leads) + 1):
            return None
        best = sorted(leads, key=lambda other: -leads[other].by)[: _share(self.top, len(leads) + 1)]
        return best[int(rng.random() * len(best))]


@dataclass(frozen=True, kw_only=True, slots=True)
class BinaryTournament(Selection):
    """Any other member, each alike, if it wins at least `min_win_rate` of the games between the two.

    With scores there is no such rate, and `Population.confidence` alone decides.
    """

    min_win_rate: float = 0.7

    def __post_init__(self) -> None:
        if not 0.5 <= self.min_win_rate < 1.0:
            raise ValueError(f"BinaryTournament.min_win_rate must be in [0.5, 1), got {self.min_win_rate}")

    def choose(self, leads: Mapping[str, Lead], rng: np.random.Generator) -> str | None:
        if not leads:
            return None
        other = list(leads)[int(rng.random() * len(leads))]
        rate = leads[other].win_rate
        return other if rate is None or rate >= self.min_win_rate else None


def _share(share: float, members: int) -> int:
    return max(1, math.floor(share * members + 1e-9))


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """What the players of a role search over, when each is judged, and who takes over from whom.

    A member is judged every `every` decisions. One that takes over gets the live weights of its donor, a
    fresh optimiser, and the donor's settings changed a little; its games are forgotten.
    """

    search: tuple[SearchSpace, ...]
    """Settings below `learner` and `algorithm`. A number in the place of a schedule is a constant; to search
    one end of it instead, name that: `learner.learning_rate.start`."""
    every: int
    """Decisions of a member between two judgements, and from a reset to the first."""
    ready_after: int = 0
    """Decisions that a member trains before it is judged at all."""
    fitness: Fitness = "rating"
    """"rating": Elo from all games that it played. "win_rate": from those against other members. "score": of
    recent training, in a game with one team. "evaluation": rating or score of its newest snapshot."""
    selection: Selection = field(default_factory=Truncation)
    min_games: float = 100.0
    """Games (decayed), or episodes of a score, of both members that are compared."""
    confidence: float = 0.95
    """How sure it must be that the donor is better; 0.5: any lead counts."""
    factors: tuple[float, ...] = (0.8, 1.25)
    """A number that is taken over is multiplied by one of these, each alike."""
    resample_probability: float = 0.25
    """Chance that a setting is drawn anew instead."""

    def __post_init__(self) -> None:
        if not self.search:
            raise ValueError("Population.search is empty: name a setting such as learner.learning_rate")
        names = [space.path for space in self.search]
        for path in names:
            if names.count(path) > 1:
                raise ValueError(f"Population.search has {path!r} twice")
            if inside := [other for other in names if other.startswith(f"{path}.")]:
                raise ValueError(f"Population.search has {path!r} and {inside[0]!r}, which is a part of it")
        if not 1 <= self.every <= MAX_DECISIONS:
            raise ValueError(f"Population.every must be from 1 to {MAX_DECISIONS:.0e}, got {self.every}")
        if self.ready_after < 0:
            raise ValueError(f"Population.ready_after must be at least 0, got {self.ready_after}")
        if self.fitness not in get_args(Fitness):
            raise ValueError(unknown("fitness", self.fitness, get_args(Fitness)))
        if not 0.0 < self.min_games < math.inf:
            raise ValueError(f"Population.min_games must be positive and finite, got {self.min_games}")
        if not 0.5 <= self.confidence < 1.0:
            raise ValueError(f"Population.confidence must be in [0.5, 1), got {self.confidence}")
        if not self.factors or not all(0.0 < factor < math.inf for factor in self.factors):
            raise ValueError(f"Population.factors must all be positive and finite, got {self.factors}")
        if not 0.0 <= self.resample_probability <= 1.0:
            raise ValueError(f"Population.resample_probability must be from 0 to 1, got {self.resample_probability}")

    def check_memory(self, payoff: PayoffRules) -> None:
        """Refuse to wait for more games than are ever remembered."""
        if self.fitness in ("win_rate", "score") and self.min_games >= payoff.memory_games:
            raise ValueError(
                f"Population.min_games={self.min_games:g} is never reached: the payoff remembers "
                f"{payoff.memory_games:.1f} games of a pair at most; raise league.payoff.decay_games"
            )

    def new_settings(self, seed: int, player: str) -> Settings:
        """What a new member begins with."""
        rng = member_generator(seed, player, 0, 0)
        return {space.path: space.begin(rng) for space in self.search}

    def explore(self, donated: Settings, rng: np.random.Generator) -> Settings:
        """The donor's settings, changed a little."""
        found: Settings = {}
        for space in self.search:
            anew = rng.random() < self.resample_probability
            value = donated.get(space.path)
            found[space.path] = space.draw(rng) if anew else space.near(value, self.factors, rng)
        return found
