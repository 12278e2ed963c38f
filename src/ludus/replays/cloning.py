"""The cloner: trains one player on windows of recorded episodes, and measures it on episodes it never saw."""

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
from ludus.data.replay import DatasetError, first_choice
from ludus.data.schedules import Linear, Schedule
from ludus.data.specs import Entities, GameSpec
from ludus.data.trees import Array, Tree
from ludus.games.game import GameSource
from ludus.games.strategies import PART, WithStrategies
from ludus.models.policy import Policy, load_weights, placed
from ludus.models.tensors import on_device
from ludus.replays.dataset import ReplayDataset
from ludus.workers.trained_player import LearnerConfig, TrainedPlayer
from ludus.workers.worker import Progress

HIDDEN_STRATEGIES = 0.1
"""Share of the windows in which the strategy is not shown, so that the player can do without."""


class ReplayWindows:
    """Random windows of the episodes of a dataset, with what a batch of trajectories has and they lack."""

    def __init__(self, episodes: ReplayDataset, window: int, *, strategies: NDArray[np.float32] | None = None) -> None:
        """`strategies` [episodes, size]: what each episode's seat is shown of how it was going to play."""
        decisions = episodes.episodes.decisions.astype(np.int64)
        self.num_decisions = episodes.num_decisions
        self._episodes = episodes
        self._strategies = strategies
        self._window = min(window, int(decisions.max()))
        likely = decisions + self._window - 1  # see ReplayDataset.draw
        self._held = float((likely * np.minimum(decisions, self._window)).sum() / likely.sum())
        """Decisions in a window, on average."""

    def draw(self, rng: np.random.Generator, decisions: int) -> Batch:
        """Windows with about so many decisions."""
        count = max(1, round(decisions / self._held))
        batch = self._episodes.windows(rng, count, self._window)
        episode = batch.extra["episode"]
        observation = batch.observation
        if self._strategies is not None:
            shown = rng.random(count) >= HIDDEN_STRATEGIES
            strategies = self._strategies[episode[0]] * shown[:, None]
            observation = {**observation, PART: np.repeat(strategies[None], len(episode), axis=0)}
        outcome = self._episodes.episodes.outcome[episode]
        return replace(batch, observation=observation, extra={OUTCOME: outcome})


def require_fit(game: GameSource, spec: GameSpec, dataset: ReplayDataset) -> list[int]:
    """The kinds of seat in `spec`, which is that of `game` with its seats grouped, that see and do what the
    dataset says. Raises `DatasetError` with the first difference if there are none."""
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


def windows_by_kind(game: GameSource, spec: GameSpec, episodes: ReplayDataset, window: int) -> dict[int, ReplayWindows]:
    """By kind of seat: windows of the episodes of its seats, for those that have any."""
    found = {}
    for kind in require_fit(game, spec, episodes):
        own = episodes.where(np.isin(episodes.episodes.seat, spec.seats_of_kind[kind]))
        if own.num_decisions:
            strategies = _strategies(game, own) if isinstance(game, WithStrategies) else None
            found[kind] = ReplayWindows(own, window, strategies=strategies)
    return found


def vocabularies(episodes: ReplayDataset, parts: Mapping[str, bool] | None = None) -> Mapping[str, tuple[int, ...]]:
    """What occurs in these episodes, by the setting of a network that cuts its vocabulary to it. `parts` of
    the observation that the network does not read are False."""
    kind, read = episodes.kind, parts or {}
    types = {
        number
        for name, part in kind.observation.parts.items()
        if isinstance(part, Entities) and part.types and read.get(name, True)
        for number in episodes.types(name).tolist()
        if 0 <= number < part.types  # those beyond are unknown to every network
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
    for name, here, there in (
        ("build_order", build_order, known.build_order),
        ("built", built, known.built),
    ):
        if here.shape[1] != there.shape[1]:
            raise DatasetError(
                f"{own.path}: {name} has {here.shape[1]} places, but {there.shape[1]} in {game.strategies}"
            )
    return game.features(build_order, built)


MOST_VALIDATED = 65_536
"""Decisions that one validation looks at; of more than that, always the same ones."""
VALIDATED_AT_ONCE = 8_192
"""Decisions in one pass of a validation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloningSettings:
    """How a dataset becomes a player. What is not here comes from the experiment's learner."""

    loss: Cloning = field(default_factory=Cloning)
    learning_rate: Schedule = field(default_factory=lambda: Linear(start=1e-3, end=1e-5))
    """Over the budget."""
    minibatch_size: int = 128
    """Decisions in one gradient step. More of them on a GPU, or where a network with memory learns from whole
    windows."""
    average_decay: float = 0.95
    """Per gradient step, of the averaged weights that are validated and kept."""
    window: int = 64
    """Decisions of an episode that are read together; memory starts from zero at the first."""
    validation: float = 0.1
    """Share of the games that is not trained on but measured; 0: the newest weights count as the best."""
    budget: int = 1_000_000
    """Decisions to train on."""
    validate_every: int = 100_000
    """Decisions between two validations, each with a checkpoint."""

    def __post_init__(self) -> None:
        for name in ("minibatch_size", "window", "budget", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.validation < 1.0:
            raise ValueError(f"validation must be at least 0 and below 1, got {self.validation}")

    def learner(self, config: LearnerConfig) -> LearnerConfig:
        """An update is one gradient step, so that the average follows as closely as it can."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """How the averaged weights do on episodes that are not trained on."""

    loss: float
    """Minus the weighted log-probability of a recorded action."""
    statistics: Mapping[str, float]


class Cloner:
    """A worker whose step is one update. Deterministic given its player's seed, the data and the device: all
    chance comes from the player's generator, which is saved with it.

    Windows come by the kind of seat whose policy learns from them; all are of one dataset, so that the
    heads are the same."""

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
        """Recorded actions that were not trained on because the policy can never take them."""
        self._algorithm = trained.algorithm
        self._training = training
        self._validation = validation
        self._judged = tuple(placed(policy, trained.device) for policy in build())
        """The averaged weights, while they are measured."""

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return min(self.trained.decisions / self.budget, 1.0)

    @property
    def epochs(self) -> float:
        """How often it has been through the data, counted by decisions: windows are drawn at random."""
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
        for name in ("lag", "max_lag"):  # of weights that acted, of which there are none
            statistics.pop(name)
        statistics |= {"skipped": float(trained.skipped), "impossible": float(self.impossible)}
        return Progress(count=trained.decisions - before, statistics=_known(statistics))

    @torch.no_grad()
    def validate(self) -> Validation | None:
        """None without anything to validate on."""
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
            loss=total / decisions if decisions else math.inf,  # nothing measured is not the best
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
        """Windows with about so many decisions, of each kind of seat as it has its share of them."""
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
        """Nothing to let go of."""

    # --- what survives a stop ---

    def save(self) -> tuple[Tree, dict[str, Any]]:
        arrays, facts = self.trained.save()
        return arrays, {**facts, "windows": self.windows, "impossible": self.impossible}

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self.trained.load(arrays, facts)
        self.windows = facts["windows"]
        self.impossible = facts["impossible"]


def _known(statistics: Mapping[str, float]) -> dict[str, float]:
    """Without those of heads that were never in use."""
    return {name: value for name, value in statistics.items() if not math.isnan(value)}


def _num_decisions(episodes: Mapping[int, ReplayWindows]) -> int:
    return sum(one.num_decisions for one in episodes.values())
