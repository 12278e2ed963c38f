"""Windows of a dataset of replays as batches to clone from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ludus.algorithms.cloning import OUTCOME
from ludus.data.batch import Batch
from ludus.data.dataset import ReplayDataset
from ludus.data.dataset_format import DatasetError
from ludus.data.episodes import first_choice
from ludus.data.specs import Entities, GameSpec
from ludus.games.game import GameSource
from ludus.games.strategies import PART, WithStrategies

HIDDEN_STRATEGIES = 0.1
"""Share of the windows in which the strategy is not shown, so that the player can do without."""


class ReplayWindows:
    """Random windows of the episodes of a dataset, with what a batch of trajectories has and they lack."""

    def __init__(
        self, episodes: ReplayDataset, window: int, *, strategies: NDArray[np.float32] | None = None
    ) -> None:
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


def windows_by_kind(
    game: GameSource, spec: GameSpec, episodes: ReplayDataset, window: int
) -> dict[int, ReplayWindows]:
    """By kind of seat: windows of the episodes of its seats, for those that have any."""
    found = {}
    for kind in require_fit(game, spec, episodes):
        own = episodes.where(np.isin(episodes.episodes.seat, spec.seats_of_kind[kind]))
        if own.num_decisions:
            strategies = _strategies(game, own) if isinstance(game, WithStrategies) else None
            found[kind] = ReplayWindows(own, window, strategies=strategies)
    return found


def vocabularies(
    episodes: ReplayDataset, parts: Mapping[str, bool] | None = None
) -> Mapping[str, tuple[int, ...]]:
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
