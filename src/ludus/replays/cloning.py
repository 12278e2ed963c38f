"""Behaviour cloning: one player is trained on windows of recorded episodes and validated on held-out ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.algorithms.cloning import OUTCOME, Cloning, choices_of, statistics_of, unroll_leniently
from ludus.data.batch import Batch
from ludus.data.checks import require_in
from ludus.data.replay import DatasetError, first_choice
from ludus.data.schedules import Linear, Schedule
from ludus.data.specs import Entities, GameSpec
from ludus.data.trees import Array, Tree
from ludus.games.game import GameSource
from ludus.games.strategies import PART, WithStrategies
from ludus.models.policy import Policy, load_weights, placed
from ludus.models.tensors import on_device
from ludus.replays.dataset import ReplayDataset
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import Progress

HIDDEN_STRATEGIES = 0.1
"""Share of the windows that hide the strategy, so that the player learns to play without one."""
MOST_VALIDATED = 65_536
"""The most decisions of one validation; always the same ones."""
VALIDATED_AT_ONCE = 8_192
"""Decisions in one forward pass of a validation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloningSettings:
    """Settings of cloning. All others come from the experiment's learner."""

    loss: Cloning = field(default_factory=Cloning)
    learning_rate: Schedule = field(default_factory=lambda: Linear(start=1e-3, end=1e-5))
    """Over the budget."""
    minibatch_size: int = 128
    """Decisions in one gradient step. Use more on a GPU, or for a network with memory, which learns from whole
    windows."""
    average_decay: float = 0.95
    """Decay per gradient step of the averaged weights, which are validated and kept."""
    window: int = 64
    """Consecutive decisions of an episode that are read together; memory starts from zero at the first."""
    validation: float = 0.1
    """Share of the games that is held out for validation; 0: the newest weights count as the best."""
    budget: int = 1_000_000
    """Decisions to train on."""
    validate_every: int = 100_000
    """Decisions between two validations, each with a checkpoint."""

    def __post_init__(self) -> None:
        counts = ("minibatch_size", "window", "budget", "validate_every")
        require_in(self, "[1, inf]", **{name: getattr(self, name) for name in counts})
        require_in(self, "[0, 1)", validation=self.validation)

    def learner(self, config: LearnerConfig) -> LearnerConfig:
        """Make each update one gradient step, so that the average follows closely."""
        return replace(
            config,
            batch_size=self.minibatch_size,
            minibatch_size=self.minibatch_size,
            buffer_size=self.minibatch_size,
            epochs=1,
            learning_rate=self.learning_rate,
            average_decay=self.average_decay,
            schedule="sync",
            reuse=1,
        )


class Cloner:
    """A worker whose step is one update. Deterministic given the player's seed, the data and the device: all
    randomness comes from the player's generator, which is saved with it.

    Windows are given by the kind of seat whose policy learns from them. All are of one dataset and have the same
    heads.
    """

    name = "cloner"

    def __init__(
        self,
        trained: TrainedPlayer,
        build: Callable[[], tuple[Policy, ...]],
        training: Mapping[int, ReplayWindows],
        validation: Mapping[int, ReplayWindows],
        *,
        budget: int,
    ) -> None:
        assert isinstance(trained.algorithm, Cloning)
        self.trained = trained
        self.budget = budget
        self.windows = 0
        """Windows drawn so far."""
        self.impossible = 0
        """Recorded actions that were not trained on because the policy cannot take them."""
        self._algorithm = trained.algorithm
        self._training = training
        self._validation = validation
        self._judged = tuple(placed(policy, trained.device) for policy in build())
        """Policies that hold the averaged weights during a validation."""

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return min(self.trained.decisions / self.budget, 1.0)

    @property
    def epochs(self) -> float:
        """Decisions trained on, as a multiple of the dataset. Windows are drawn at random."""
        return self.trained.decisions / max(_num_decisions(self._training), 1)

    def step(self) -> Progress:
        """One update on freshly drawn windows.

        consumes:  windows of the dataset
        produces:  new weights
        """
        trained = self.trained
        before = trained.decisions
        drawn = self._draw(self._training, trained.rng, trained.config.batch_size)
        statistics = trained.update(drawn, self.progress)
        self.windows += sum(batch.valid.shape[1] for batch in drawn.values())
        # a mean over kinds of seat and gradient steps
        impossible = statistics.pop("impossible", 0.0) * len(drawn) * statistics["gradient_steps"]
        self.impossible += round(impossible)
        for name in ("lag", "max_lag"):  # no weights acted
            statistics.pop(name)
        statistics |= {"skipped": float(trained.skipped), "impossible": float(self.impossible)}
        return Progress(count=trained.decisions - before, statistics=_known(statistics))

    @torch.no_grad()
    def validate(self) -> Validation | None:
        """Measure the averaged weights; None without held-out episodes."""
        if not self._validation:
            return None
        load_weights(self._judged, self.trained.average_weights())
        found = [self._sums(drawn) for drawn in self._to_validate()]
        sums = torch.stack(found).sum(0).cpu()
        rows, _, _, log_prob = sums
        kind = self._judged[next(iter(self._validation))].kind
        weights = [self._algorithm.head_weights.get(head, 1.0) for head in kind.action.heads]
        decisions = float(rows[0])  # the first head is always in use
        total = -float((log_prob * torch.tensor(weights)).sum())
        return Validation(
            loss=total / decisions if decisions else math.inf,  # without decisions it must not be the best
            statistics=_known({name: float(value) for name, value in statistics_of(kind, sums).items()}),
        )

    def _sums(self, drawn: Mapping[int, Batch]) -> Tensor:
        total = []
        for kind, batch in drawn.items():
            policy = self._judged[kind]
            tensors = batch.map(lambda array: on_device(array, self.trained.device))
            prepared = self._algorithm.prepare(policy, {}, tensors)
            if not policy.state_arrays:
                prepared = prepared.flat()
            choices = choices_of(policy.kind, unroll_leniently(policy, prepared), prepared)
            total.append(choices.sums().double())
        return torch.stack(total).sum(0)

    def _to_validate(self) -> Iterator[Mapping[int, Batch]]:
        """The same windows every time."""
        rng = np.random.default_rng(0)
        left = min(_num_decisions(self._validation), MOST_VALIDATED)
        while left > 0:
            yield self._draw(self._validation, rng, min(left, VALIDATED_AT_ONCE))
            left -= VALIDATED_AT_ONCE

    def _draw(
        self, episodes: Mapping[int, ReplayWindows], rng: np.random.Generator, decisions: int
    ) -> dict[int, Batch]:
        """Windows with about this many decisions, divided over the kinds of seat by their share of the data."""
        share = decisions / max(_num_decisions(episodes), 1)
        drawn = {}
        for kind, one in episodes.items():
            batch = one.draw(rng, round(share * one.num_decisions))
            drawn[kind] = replace(
                batch,
                state=self.trained.policies[kind].initial_state(batch.valid.shape[1]),
                version=np.full(batch.valid.shape, self.trained.step, np.int64),
            )
        return drawn

    def close(self) -> None:
        """A cloner holds no resources."""

    def save(self) -> tuple[Tree, dict[str, Any]]:
        arrays, facts = self.trained.save()
        return arrays, {**facts, "windows": self.windows, "impossible": self.impossible}

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self.trained.load(arrays, facts)
        self.windows = facts["windows"]
        self.impossible = facts["impossible"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """The averaged weights measured on held-out episodes."""

    loss: float
    """Negative weighted log-probability of a recorded action."""
    statistics: Mapping[str, float]


class ReplayWindows:
    """Random windows of the episodes of a dataset, with the columns that cloning needs."""

    def __init__(self, episodes: ReplayDataset, window: int, *, strategies: NDArray[np.float32] | None = None) -> None:
        """`strategies` [episodes, size]: features of the strategy that each seat went on to play."""
        decisions = episodes.episodes.decisions.astype(np.int64)
        self.num_decisions = episodes.num_decisions
        self._episodes = episodes
        self._strategies = strategies
        self._window = min(window, int(decisions.max()))
        likely = decisions + self._window - 1  # see ReplayDataset.draw
        self._mean_decisions = float((likely * np.minimum(decisions, self._window)).sum() / likely.sum())

    def draw(self, rng: np.random.Generator, decisions: int) -> Batch:
        """Windows with about this many decisions in all."""
        count = max(1, round(decisions / self._mean_decisions))
        batch = self._episodes.windows(rng, count, self._window)
        episode = batch.extra["episode"]
        observation = batch.observation
        if self._strategies is not None:
            shown = rng.random(count) >= HIDDEN_STRATEGIES
            strategies = self._strategies[episode[0]] * shown[:, None]
            observation = {**observation, PART: np.repeat(strategies[None], len(episode), axis=0)}
        outcome = self._episodes.episodes.outcome[episode]
        return replace(batch, observation=observation, extra={OUTCOME: outcome})


def windows_by_kind(game: GameSource, spec: GameSpec, episodes: ReplayDataset, window: int) -> dict[int, ReplayWindows]:
    """By kind of seat: windows of the episodes of its seats, where there are any."""
    found = {}
    for kind in require_fit(game, spec, episodes):
        own = episodes.where(np.isin(episodes.episodes.seat, spec.seats_of_kind[kind]))
        if own.num_decisions:
            strategies = _strategies(game, own) if isinstance(game, WithStrategies) else None
            found[kind] = ReplayWindows(own, window, strategies=strategies)
    return found


def require_fit(game: GameSource, spec: GameSpec, dataset: ReplayDataset) -> list[int]:
    """The kinds of seat whose observations and actions are those of the dataset. `spec` is that of `game` with
    its seats grouped. Raises `DatasetError` with the first difference if no kind fits."""
    filled = (PART,) if isinstance(game, WithStrategies) else ()
    fitting, errors = [], []
    for index, kind in enumerate(spec.kinds):
        try:
            dataset.require_fit(kind, filled)
        except DatasetError as error:
            errors.append(error)
        else:
            fitting.append(index)
    if not fitting:
        raise errors[0]
    if filled and dataset.episodes.built is None:
        raise DatasetError(f"{dataset.path} has no strategies, but the game shows seats a strategy to follow")
    return fitting


def vocabularies(episodes: ReplayDataset, parts: Mapping[str, bool] | None = None) -> Mapping[str, tuple[int, ...]]:
    """Actions and entity types that occur in these episodes, by the setting of a network that limits its
    vocabulary to them. `parts` of the observation that the network does not read are False."""
    kind, read = episodes.kind, parts or {}
    types = {
        number
        for name, part in kind.observation.parts.items()
        if isinstance(part, Entities) and part.types and read.get(name, True)
        for number in episodes.types(name).tolist()
        if 0 <= number < part.types  # no network knows others
    }
    head = first_choice(kind)
    actions = () if head is None else tuple(episodes.actions(head).tolist())
    found = {"actions": actions, "entity_types": tuple(sorted(types))}
    return {setting: numbers for setting, numbers in found.items() if numbers}


def _strategies(game: WithStrategies, own: ReplayDataset) -> NDArray[np.float32]:
    build_order, built = own.episodes.build_order, own.episodes.built
    assert build_order is not None
    assert built is not None
    known = game.known
    for name, here, there in (("build_order", build_order, known.build_order), ("built", built, known.built)):
        if here.shape[1] != there.shape[1]:
            raise DatasetError(
                f"{own.path}: {name} has {here.shape[1]} places, but {there.shape[1]} in {game.strategies}"
            )
    return game.features(build_order, built)


def _known(statistics: Mapping[str, float]) -> dict[str, float]:
    """Drop the statistics of heads that no decision used."""
    return {name: value for name, value in statistics.items() if not math.isnan(value)}


def _num_decisions(episodes: Mapping[int, ReplayWindows]) -> int:
    return sum(one.num_decisions for one in episodes.values())
