"""Settings of population-based training, in which players that fall behind take over from better ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np

from ludus.data.checks import require_in, require_one_of
from ludus.data.records import Settings
from ludus.league.payoff import PayoffRules
from ludus.league.players import member_generator
from ludus.league.promotion import MAX_DECISIONS

Plain = bool | int | float | str


class SearchSpace(Protocol):
    """The values that one setting of the experiment may take."""

    path: str
    start: Any
    """The initial value of every member; None: each draws its own."""

    def begin(self, rng: np.random.Generator) -> Plain:
        """The value of a new member."""
        value: Plain = self.draw(rng) if self.start is None else self.start
        return value

    def draw(self, rng: np.random.Generator) -> Plain:
        """A random value of the space."""

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Plain:
        """A value close to a donor's; a random one if the donor's is not of this space."""

    def examples(self) -> tuple[Plain, ...]:
        """Values that must all fit the experiment: the ends, or all options."""


def _pick(number: int, rng: np.random.Generator) -> int:
    """One of `number` indices. Uses a single `random()`, whose stream numpy keeps stable between versions."""
    return min(int(rng.random() * number), number - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform(SearchSpace):
    """A number drawn uniformly from `low` to `high`; `near` multiplies by a factor and clips to the ends."""

    path: str
    low: float
    high: float
    start: float | None = None
    """The initial value of every member; None: each draws its own."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"{name} of {self.path!r} needs finite low < high, got low={self.low}, high={self.high}")
        if self.start is not None and not self.low <= self.start <= self.high:
            raise ValueError(f"{name}.start of {self.path!r} must be from {self.low} to {self.high}, got {self.start}")

    def draw(self, rng: np.random.Generator) -> float:
        return min(max(self.low + (self.high - self.low) * rng.random(), self.low), self.high)

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.draw(rng)  # a schedule that was set by hand cannot be multiplied
        return min(max(value * factors[_pick(len(factors), rng)], self.low), self.high)

    def examples(self) -> tuple[float, ...]:
        return self.low, self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class LogUniform(Uniform):
    """A number from `low` to `high` whose logarithm is drawn uniformly; `near` as in `Uniform`."""

    def __post_init__(self) -> None:
        Uniform.__post_init__(self)
        if not self.low > 0:
            raise ValueError(f"LogUniform.low of {self.path!r} must be above 0, got {self.low}; or use Uniform")

    def draw(self, rng: np.random.Generator) -> float:
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + (high - low) * rng.random()), self.low), self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class OneOf(SearchSpace):
    """One of `options`, drawn uniformly; `near` gives the same option or a neighbour, so their order matters."""

    path: str
    options: tuple[Plain, ...]
    start: Plain | None = None
    """The initial value of every member; None: each draws its own."""

    def __post_init__(self) -> None:
        if len(self.options) < 2:
            raise ValueError(f"OneOf.options of {self.path!r} needs two or more, got {self.options}")
        if self.start is not None and self.start not in self.options:
            raise ValueError(f"OneOf.start of {self.path!r} must be one of {self.options}, got {self.start!r}")

    def draw(self, rng: np.random.Generator) -> Plain:
        return self.options[_pick(len(self.options), rng)]

    def near(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Plain:
        if value not in self.options:
            return self.draw(rng)
        place = self.options.index(value) + _pick(3, rng) - 1
        return self.options[min(max(place, 0), len(self.options) - 1)]

    def examples(self) -> tuple[Plain, ...]:
        return self.options


def suggest(
    search: Sequence[SearchSpace],
    tried: Sequence[tuple[Settings, float | None]],
    number: int,
    *,
    lower_is_better: bool,
    seed: int,
) -> list[Settings]:
    """The next settings to try, chosen by Optuna's tree-structured Parzen estimator from the values that earlier ones
    reached; None: they failed. The same arguments give the same settings. Needs `optuna`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spaces = {space.path: _distribution(space) for space in search}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, constant_liar=True)
    study = optuna.create_study(direction="minimize" if lower_is_better else "maximize", sampler=sampler)
    for settings, value in tried:
        trial = optuna.trial.create_trial(
            params=dict(settings),
            distributions=spaces,
            value=value,
            state=optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE,
        )
        study.add_trial(trial)
    return [dict(study.ask(spaces).params) for _ in range(number)]


def _distribution(space: SearchSpace) -> Any:
    """A space as Optuna has it."""
    import optuna

    if isinstance(space, Uniform):
        return optuna.distributions.FloatDistribution(space.low, space.high, log=isinstance(space, LogUniform))
    return optuna.distributions.CategoricalDistribution(space.examples())


Fitness = Literal["rating", "win_rate", "score", "evaluation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead:
    """The lead of another member over the judged one, in units of the fitness."""

    by: float
    standard_error: float
    win_rate: float | None = None
    """Expected win rate of the other member against the judged one; None for scores."""


class Selection(Protocol):
    """Chooses the donor of a member, if any."""

    def choose(self, leads: Mapping[str, Lead], rng: np.random.Generator) -> str | None:
        """`leads`: the other members that can be compared with it, in joining order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncation(Selection):
    """A member of the worst `bottom` share takes over from a random one of the best `top` share, at least one each."""

    bottom: float = 0.2
    top: float = 0.2

    def __post_init__(self) -> None:
        require_in(self, "(0, 0.5]", bottom=self.bottom, top=self.top)

    def choose(self, leads: Mapping[str, Lead], rng: np.random.Generator) -> str | None:
        worse = sum(lead.by < 0 for lead in leads.values())
        if not leads or worse >= _share(self.bottom, len(leads) + 1):
            return None
        best = sorted(leads, key=lambda other: -leads[other].by)[: _share(self.top, len(leads) + 1)]
        return best[int(rng.random() * len(best))]


@dataclass(frozen=True, kw_only=True, slots=True)
class BinaryTournament(Selection):
    """A uniformly drawn other member, if its win rate against the judged one, if any, is at least `min_win_rate`."""

    min_win_rate: float = 0.7

    def __post_init__(self) -> None:
        require_in(self, "[0.5, 1)", min_win_rate=self.min_win_rate)

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
    """Population-based training of the players of a role. A member that takes over gets the live weights of its donor,
    a fresh optimiser and slightly changed settings of the donor; its games are forgotten."""

    search: tuple[SearchSpace, ...]
    """Settings below `learner` and `algorithm`. A number in place of a schedule is a constant; to search one
    end of a schedule, name it: `learner.learning_rate.start`."""
    every: int
    """Decisions of a member between two judgements, and from a reset to the first."""
    ready_after: int = 0
    """Decisions of a member before its first judgement."""
    fitness: Fitness = "rating"
    """"rating": Elo from all games. "win_rate": games against other members. "score": recent training scores,
    in a game with one team. "evaluation": rating or score of the newest snapshot."""
    selection: Selection = field(default_factory=Truncation)
    min_games: float = 100.0
    """Decayed games, or episodes of a score, that both compared members need."""
    confidence: float = 0.95
    """Confidence required that the donor is better; 0.5: any lead counts."""
    factors: tuple[float, ...] = (0.8, 1.25)
    """A donor's number is multiplied by one of these, drawn uniformly."""
    resample_probability: float = 0.25
    """Probability that a setting is drawn anew instead."""

    def __post_init__(self) -> None:
        if not self.search:
            raise ValueError("Population.search is empty: name a setting such as learner.learning_rate")
        names = [space.path for space in self.search]
        for path in names:
            if names.count(path) > 1:
                raise ValueError(f"Population.search has {path!r} twice")
            if inside := [other for other in names if other.startswith(f"{path}.")]:
                raise ValueError(f"Population.search has {path!r} and {inside[0]!r}, which is a part of it")
        require_in(self, f"[1, {MAX_DECISIONS}]", every=self.every)
        require_in(self, "[0, inf]", ready_after=self.ready_after)
        require_one_of(self, get_args(Fitness), fitness=self.fitness)
        require_in(self, "(0, inf)", min_games=self.min_games)
        require_in(self, "[0.5, 1)", confidence=self.confidence)
        if not self.factors or not all(0.0 < factor < math.inf for factor in self.factors):
            raise ValueError(f"Population.factors must all be positive and finite, got {self.factors}")
        require_in(self, "[0, 1]", resample_probability=self.resample_probability)

    def check_memory(self, payoff: PayoffRules) -> None:
        """Raise if `min_games` exceeds the games that the payoff remembers."""
        if self.fitness in ("win_rate", "score") and self.min_games >= payoff.memory_games:
            raise ValueError(
                f"Population.min_games={self.min_games:g} is never reached: the payoff remembers "
                f"{payoff.memory_games:.1f} games of a pair at most; raise league.payoff.decay_games"
            )

    def new_settings(self, seed: int, player: str) -> Settings:
        rng = member_generator(seed, player, 0, 0)
        return {space.path: space.begin(rng) for space in self.search}

    def explore(self, donated: Settings, rng: np.random.Generator) -> Settings:
        """The donor's settings, perturbed or resampled."""
        found: Settings = {}
        for space in self.search:
            anew = rng.random() < self.resample_probability
            value = donated.get(space.path)
            found[space.path] = space.draw(rng) if anew else space.near(value, self.factors, rng)
        return found
