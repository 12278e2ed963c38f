"""The plan of a cloning: an experiment with one player and the data that it learns from.

`plan_new` and `plan_resumed` check everything before anything is written. `CloningFacts` is what the run folder
keeps of the plan, beside the experiment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ludus.algorithms.cloning import OUTCOME, Cloning
from ludus.config import ConfigError, apply_overrides, decode, encode
from ludus.data.batch import Batch
from ludus.data.checks import require_in
from ludus.data.replay import OUTCOMES, DatasetError, Outcome, first_choice
from ludus.data.schedules import Linear, Schedule
from ludus.data.specs import Entities, GameSpec
from ludus.experiment import Experiment
from ludus.games.game import GameSource
from ludus.games.strategies import Strategies, WithStrategies
from ludus.league.rules import LeagueRules, Role
from ludus.lookup import find_experiment, open_run, parse_settings
from ludus.replays.dataset import ReplayDataset
from ludus.runtime.assemble import create_run, load_experiment, require_devices, require_metrics
from ludus.store.files import UNREADABLE, atomic_write, read_file
from ludus.store.run_folder import NewRun, RunFolder, RunFolderError
from ludus.workers.config import LearnerConfig

OWN = "cloning"
"""The first word of the paths of cloning's own settings."""
EPOCHS = 10.0
VALIDATIONS = 20
"""Validations over the budget, unless `validate_every` is set."""
INSTEAD = {
    "budget": "--epochs or --steps",
    "learner.epochs": "--epochs",
    "learner.learning_rate": "cloning.learning_rate",
    "learner.average_decay": "cloning.average_decay",
    "learner.batch_size": "cloning.minibatch_size",
    "learner.minibatch_size": "cloning.minibatch_size",
    "checkpoint_every": "cloning.validate_every",
    "algorithm": "cloning.loss",
    "league": "--player, for its only player",
}
"""Settings of a recipe that cloning does not use, and what it has instead."""
NETWORK = ("model", "game", "policies")
"""Settings that a league which starts from the cloned player has to share."""
HIDDEN_STRATEGIES = 0.1
"""Share of the windows that hide the strategy, so that the player learns to play without one."""
_FILE = "cloning.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class CloningSettings:
    """Settings of cloning. All others come from the experiment's learner."""

    loss: Cloning = field(default_factory=Cloning)
    learning_rate: Schedule = field(default_factory=lambda: Linear(start=1e-3, end=1e-5))
    """Over the budget."""
    minibatch_size: int = 128
    """Decisions in one gradient step. Use more on a GPU, or for a network with memory."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CloningRequest:
    """The settings and the length of training that the user asks for."""

    settings: Sequence[str] = ()
    epochs: float | None = None
    steps: int | None = None


class CloningFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the player of a run folder was cloned, as `cloning.json`."""

    recipe: str
    player: str
    dataset: str
    digest: str
    """Digest of the dataset. A run is not resumed with another one."""
    outcome: Outcome | None
    """Only episodes with this outcome are trained on; None: all."""
    network: tuple[str, ...]
    """Settings that give a league the same network and game."""
    settings: msgspec.Raw
    """`CloningSettings` as JSON."""

    def write(self, folder: RunFolder) -> None:
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        atomic_write(folder.path / _FILE, content + b"\n")

    @classmethod
    def read(cls, folder: RunFolder) -> CloningFacts:
        try:
            return msgspec.json.decode(read_file(folder.path / _FILE), type=cls)
        except FileNotFoundError:
            raise RunFolderError(f"{folder.path} was not cloned: it has no {_FILE}") from None
        except UNREADABLE as error:
            raise RunFolderError(f"{folder.path / _FILE} is damaged: {error}") from error


def is_cloned(folder: RunFolder) -> bool:
    return (folder.path / _FILE).exists()


@dataclass(frozen=True, kw_only=True, slots=True)
class CloningPlan:
    experiment: Experiment
    settings: CloningSettings
    facts: CloningFacts
    training: Mapping[int, ReplayWindows]
    validation: Mapping[int, ReplayWindows]
    description: str
    folder: RunFolder | None = None
    """The run that is resumed."""

    def write_to(self, path: Path | None) -> RunFolder:
        """Create the run folder (None: the next free one under runs/)."""
        experiment = self.experiment
        new = NewRun(path, f"{experiment.name}-clone")
        with new.build() as place:
            self.facts.write(create_run(place, experiment))
        return new.folder

    def update(self, folder: RunFolder) -> RunFolder:
        """Write what this plan changes in a locked run folder."""
        if self.folder is not None and encode(self.experiment) != encode(load_experiment(folder)):
            folder = folder.with_experiment(encode(self.experiment))
        self.facts.write(folder)
        return folder


def plan_new(
    dataset: str, recipe: str, player: str, wish: CloningRequest, *, outcome: Outcome | None, cut: bool
) -> CloningPlan:
    own, others = _split(wish.settings)
    for path in others:
        for setting, better in INSTEAD.items():
            if path == setting or path.startswith(f"{setting}."):
                raise ConfigError(f"{path} means nothing to cloning; there is {better}")
    found = find_experiment(recipe, [f"{path}={text}" for path, text in others.items()])
    experiment = _with_one_player(found.of_role(player), player)  # a role may have its own network
    settings = apply_overrides({OWN: CloningSettings()}, own)[OWN]
    network = [f"{path}={text}" for path, text in others.items() if path.partition(".")[0] in NETWORK]
    episodes = _find_episodes(dataset, outcome)
    require_fit(experiment.game, experiment.grouped_game.spec, episodes)
    training, _ = episodes.split(settings.validation, experiment.seed)
    if cut:
        words = vocabularies(training, getattr(experiment.model, "parts", None))
        experiment = _with_vocabularies(experiment, words)
        network += [f"model.{name}=[{','.join(map(str, known))}]" for name, known in words.items()]
    facts = CloningFacts(
        recipe=recipe,
        player=player,
        dataset=dataset,
        digest=episodes.digest,
        outcome=outcome,
        network=tuple(network),
        settings=msgspec.Raw(b"null"),
    )
    settings = _with_budget(settings, wish, training.num_decisions, own)
    return _plan(experiment, settings, facts, episodes)


def plan_resumed(run: str | None, dataset: str | None, wish: CloningRequest) -> CloningPlan:
    folder = open_run(run)
    facts = CloningFacts.read(folder)
    own, others = _split(wish.settings)
    for path in others:
        if not path.startswith("learner.") or path in INSTEAD:
            raise ConfigError(f"{path} stays as it is in {folder.path}; change it in another run")
    for path in (f"{OWN}.validation", f"{OWN}.window"):
        if path in own:
            raise ConfigError(f"{path} stays as it is in {folder.path}: what was trained on must not be measured")
    experiment = apply_overrides(load_experiment(folder), others)
    before = _decoded(folder, facts)
    settings = apply_overrides({OWN: before}, own)[OWN]
    place = dataset or facts.dataset
    episodes = _find_episodes(place, facts.outcome)
    if episodes.digest != facts.digest:
        raise ConfigError(
            f"{place} has other contents than {facts.dataset} had when {folder.path} began to learn from it"
        )
    training, _ = episodes.split(settings.validation, experiment.seed)
    if wish.epochs is not None or wish.steps is not None:
        settings = _with_budget(settings, wish, training.num_decisions, own)
    facts = msgspec.structs.replace(facts, dataset=place)
    return replace(_plan(experiment, settings, facts, episodes), folder=folder)


def _decoded(folder: RunFolder, facts: CloningFacts) -> CloningSettings:
    """Settings of a cloning before. `load_experiment` has looked at `run.json`, and this is another file."""
    written = msgspec.json.decode(facts.settings)
    folder.require_own_code_in(written, _FILE)
    if not isinstance(settings := decode(written), CloningSettings):
        raise RunFolderError(f"{folder.path / _FILE} is damaged: its settings are {type(settings).__name__}")
    return settings


def _plan(
    experiment: Experiment, settings: CloningSettings, facts: CloningFacts, episodes: ReplayDataset
) -> CloningPlan:
    require_devices(experiment)
    require_metrics(experiment)
    game, spec = experiment.game, experiment.grouped_game.spec
    try:
        settings.loss.check(spec.kinds)
    except ValueError as error:
        raise ConfigError(f"{OWN}.loss: {error}") from None
    parts = episodes.split(settings.validation, experiment.seed)
    training, validation = (windows_by_kind(game, spec, part, settings.window) for part in parts)
    if not training:
        raise ConfigError(f"{facts.dataset} has no decisions to learn from")
    left = [kind.name for index, kind in enumerate(spec.kinds) if index not in training]
    description = (
        f"dataset:    {facts.dataset}: {parts[0].num_episodes:,} episodes with {parts[0].num_decisions:,} "
        f"decisions to learn from, {parts[1].num_episodes:,} with {parts[1].num_decisions:,} to measure on"
    )
    if left:
        description += f"\nnot in it:  {', '.join(left)} seats: their policy keeps its fresh weights"
    encoded = msgspec.Raw(msgspec.json.encode(encode(settings)))
    return CloningPlan(
        experiment=experiment,
        settings=settings,
        facts=msgspec.structs.replace(facts, settings=encoded),
        training=training,
        validation={kind: one for kind, one in validation.items() if kind in training},
        description=description,
    )


def _find_episodes(path: str, outcome: Outcome | None) -> ReplayDataset:
    dataset = ReplayDataset.open(Path(path))
    if outcome is not None:
        dataset = dataset.where(dataset.episodes.outcome == OUTCOMES[outcome])
    if not dataset.num_decisions:
        raise ConfigError(f"{path} has no episodes" + (f" that ended with a {outcome}" if outcome else ""))
    return dataset


def _split(settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into cloning's own and those of the recipe."""
    given = parse_settings(settings)
    own = {path: text for path, text in given.items() if path.partition(".")[0] == OWN}
    return own, {path: text for path, text in given.items() if path not in own}


def _with_one_player(experiment: Experiment, player: str) -> Experiment:
    try:
        role = Role(snapshot_weights="average")
        league = LeagueRules(roles={player: role}, bots=experiment.league.bots)
        return replace(experiment, league=league)
    except ValueError as error:
        raise ConfigError(f"--player {player}: {error}") from None


def _with_vocabularies(experiment: Experiment, found: Mapping[str, tuple[int, ...]]) -> Experiment:
    model = experiment.model
    if not all(hasattr(model, name) for name in found):
        raise ConfigError(
            f"--cut-vocabularies: {type(model).__name__} has no vocabulary to cut; the AlphaStar network has"
        )
    return replace(experiment, model=replace(model, **found))  # type: ignore[type-var]


def _with_budget(
    settings: CloningSettings, wish: CloningRequest, decisions: int, own: Mapping[str, Any]
) -> CloningSettings:
    budget = settings.budget
    if wish.steps is not None:
        budget = wish.steps * settings.minibatch_size
    elif wish.epochs is not None or f"{OWN}.budget" not in own:
        budget = max(1, math.ceil((wish.epochs or EPOCHS) * decisions))
    every = settings.validate_every
    if f"{OWN}.validate_every" not in own:
        every = -(-budget // VALIDATIONS)
    return replace(settings, budget=budget, validate_every=every)


class ReplayWindows:
    """Random windows of the episodes of a dataset, with the columns that cloning needs."""

    def __init__(self, episodes: ReplayDataset, window: int, *, strategies: WithStrategies | None = None) -> None:
        """`strategies`: the game that shows each seat the strategy that it went on to play."""
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
            played = self._episodes.episodes.take(episode[0])
            assert played.build_order is not None
            assert played.built is not None
            strategies = self._strategies.features(
                Strategies(played.build_order, played.built, played.build_place), shown
            )
            repeated = {name: np.repeat(array[None], len(episode), axis=0) for name, array in strategies.items()}
            observation = {**observation, **repeated}
        outcome = self._episodes.episodes.outcome[episode]
        return replace(batch, observation=observation, extra={OUTCOME: outcome})


def windows_by_kind(game: GameSource, spec: GameSpec, episodes: ReplayDataset, window: int) -> dict[int, ReplayWindows]:
    """By kind of seat: windows of the episodes of its seats, where there are any."""
    found = {}
    for kind in require_fit(game, spec, episodes):
        own = episodes.where(np.isin(episodes.episodes.seat, spec.seats_of_kind[kind]))
        if own.num_decisions:
            if isinstance(game, WithStrategies):
                _require_same_sizes(game, own)
            found[kind] = ReplayWindows(own, window, strategies=game if isinstance(game, WithStrategies) else None)
    return found


def require_fit(game: GameSource, spec: GameSpec, dataset: ReplayDataset) -> list[int]:
    """The kinds of seat whose observations and actions are those of the dataset. `spec` is that of `game` with
    its seats grouped. Raises `DatasetError` with the first difference if no kind fits."""
    filled = tuple(game.parts) if isinstance(game, WithStrategies) else ()
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


def _require_same_sizes(game: WithStrategies, own: ReplayDataset) -> None:
    build_order, built = own.episodes.build_order, own.episodes.built
    assert build_order is not None
    assert built is not None
    known = game.known
    for name, here, there in (("build_order", build_order, known.build_order), ("built", built, known.built)):
        if here.shape[1] != there.shape[1]:
            raise DatasetError(
                f"{own.path}: {name} has {here.shape[1]} places, but {there.shape[1]} in {game.strategies}"
            )
