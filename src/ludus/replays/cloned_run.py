"""A cloning in its run folder: one player is trained on recorded episodes and validated on held-out ones."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.algorithms.cloning import choices_of, statistics_of, unroll_leniently
from ludus.data.batch import Batch
from ludus.data.records import AnyEvent, LearnerProgress, ModelId, PlayerRemoved, RunStarted
from ludus.data.trees import Array, Tree, under
from ludus.league.players import BEST_VALIDATION
from ludus.league.promotion import Snapshot
from ludus.models.policy import load_weights, placed
from ludus.models.tensors import on_device
from ludus.observe.metrics import RunMetrics
from ludus.replays.cloning_plan import CloningPlan, ReplayWindows
from ludus.runtime.assemble import CHECKPOINT, new_league
from ludus.runtime.networks import build_policies
from ludus.runtime.rounds import FINISHED, run_serial
from ludus.store.checkpoints import Checkpoint
from ludus.store.inspection import latest_state, note_checkpoint
from ludus.store.model_pool import BEST
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.workers.learner import put_into_pool
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import LearningWatch, Middleware, Progress, StopTraining, TrainingFailed

TIME_IS_UP = "time is up"
CLONING = "cloning"
"""The part of a checkpoint that holds the state of the validation."""
MOST_VALIDATED = 65_536
"""The most decisions of one validation; always the same ones."""
VALIDATED_AT_ONCE = 8_192
"""Decisions in one forward pass of a validation."""
NOTES = 1_000
"""Rows of metrics over the whole budget. Each row is the mean over the updates since the last one."""


class Cloner:
    """A worker whose step is one update. Deterministic given the player's seed, the data and the device: all
    randomness comes from the player's generator, which is saved with it."""

    name = "cloner"

    def __init__(self, plan: CloningPlan) -> None:
        experiment, settings = plan.experiment, plan.settings
        seed = int(np.random.SeedSequence([experiment.seed, 0]).generate_state(1)[0])
        learner = settings.learner(experiment.learner)
        policies = build_policies(experiment, seed)
        self.trained = TrainedPlayer(plan.facts.player, policies, settings.loss, learner, seed=seed)
        self.budget = settings.budget
        self.windows = 0
        """Windows drawn so far."""
        self.impossible = 0
        """Recorded actions that were not trained on because the policy cannot take them."""
        self._algorithm = settings.loss
        self._training, self._validation = plan.training, plan.validation
        self._judged = tuple(placed(policy, self.trained.device) for policy in build_policies(experiment, seed))
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
    def validate(self) -> dict[str, float] | None:
        """Statistics of the averaged weights, with the negative weighted log-probability of a recorded action as
        `loss`; None without held-out episodes."""
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
        loss = total / decisions if decisions else math.inf  # without decisions it must not be the best
        return {"loss": loss, **_known({name: float(value) for name, value in statistics_of(kind, sums).items()})}

    def _sums(self, drawn: Mapping[int, Batch]) -> Tensor:
        total = []
        for kind, batch in drawn.items():
            policy = self._judged[kind]
            tensors = batch.map(lambda array: on_device(array, self.trained.device))
            prepared = self._algorithm.prepare(policy, {}, tensors)
            if not policy.state_arrays:
                prepared = prepared.flat()
            choices = choices_of(policy, unroll_leniently(policy, prepared), prepared)
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


class ClonedRun:
    """Trains, validates and keeps the best weights: in the pool as PLAYER@best, and in the league as the only
    snapshot of the player."""

    def __init__(self, plan: CloningPlan, folder: RunFolder) -> None:
        self._league = new_league(plan.experiment)
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        with folder.ledger() as ledger:
            ledger.fold(self._league.apply)
            checkpoint, reason = latest_state(ledger, self._checkpoints)
        if reason is not None:
            raise RunFolderError(f"{folder.path}: {reason}; restore it, or clone again")
        self.cloner = Cloner(plan)
        self.folder = folder
        self.best = math.inf
        """The lowest validation loss so far."""
        self._validate_every = plan.settings.validate_every
        self._validated_at = 0
        self._noted_at = 0
        self._since_note: defaultdict[str, list[float]] = defaultdict(list)
        self._statistics: dict[str, float] = {}
        self._watch_learning = LearningWatch(plan.experiment.supervision.most_refused)
        if checkpoint is not None:
            self._load(checkpoint)
        # Opened only now: a run that cannot be resumed stays as it is.
        self._metrics = RunMetrics(folder, plan.experiment.metrics)
        self._ledger = folder.ledger()
        self._commit([RunStarted(self._league.starts), *self._league.initial_events()])
        if checkpoint is None:
            self.save()

    @property
    def player(self) -> str:
        return self.cloner.trained.player

    def run(
        self,
        watch: Callable[[ClonedRun], None] | None = None,
        *,
        minutes: float | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> str:
        """Train until the budget or the time is spent or the run is stopped, save the state, and return the reason.
        Unless the run was stopped, the last weights are validated and put into the pool."""
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes

        def after_round(done: dict[str, Progress]) -> None:
            self._see(done[self.cloner.name])
            if self.cloner.trained.decisions - self._validated_at >= self._validate_every:
                self._validate()
            if watch is not None:
                watch(self)
            if time.monotonic() > deadline:
                raise StopTraining(TIME_IS_UP)

        reason = run_serial(
            [self.cloner], middleware=middleware, finished=lambda: self.cloner.progress >= 1.0, after_round=after_round
        )
        if reason in (FINISHED, TIME_IS_UP):
            self._end()
        else:
            self.save()
        return reason

    def numbers(self) -> dict[str, float]:
        """Counters and the latest statistics."""
        return {
            "decisions": self.cloner.trained.decisions,
            "updates": self.cloner.trained.step,
            "windows": self.cloner.windows,
            "epochs": self.cloner.epochs,
            **self._statistics,
        }

    def close(self) -> None:
        self._metrics.close()
        self._ledger.close()

    def _see(self, done: Progress) -> None:
        for name, value in done.statistics.items():
            self._since_note[name].append(value)
        if self.cloner.trained.decisions - self._noted_at >= self.cloner.budget / NOTES:
            self._note()
        try:
            self._watch_learning.see({f"{self.player}/{name}": one for name, one in done.statistics.items()})
        except TrainingFailed:
            self.save()
            raise

    def _note(self) -> None:
        self._noted_at = self.cloner.trained.decisions
        for name, values in self._since_note.items():
            is_count = name in ("skipped", "impossible")
            self._statistics[f"{self.player}/{name}"] = values[-1] if is_count else fmean(values)
        self._since_note.clear()
        self._metrics.append(self.numbers())

    def _validate(self) -> None:
        """Validate, keep the weights if they are the best so far, and save."""
        self._validated_at = self.cloner.trained.decisions
        found = self.cloner.validate()
        if found is not None:
            self._statistics |= {f"{self.player}/validation.{name}": one for name, one in found.items()}
        self._note()
        trained = self.cloner.trained
        self._commit([LearnerProgress(self.player, trained.incarnation, trained.step, trained.decisions)])
        if found is None or found["loss"] < self.best:
            self.best = math.inf if found is None else found["loss"]
            self._keep()
        self.save()

    def _keep(self) -> None:
        """Replace the snapshot of the player by its current weights."""
        models, league = self.folder.models, self._league
        put_into_pool(models, self.cloner.trained, None)
        models.tag(BEST, self.cloner.trained.model)
        own = (one for one in league.candidates.frozen() if league.players[one].parent == self.player)
        left = [PlayerRemoved(player, BEST_VALIDATION) for player in own]
        self._commit([*left, league.snapshot_of(self.player, Snapshot(reason=BEST_VALIDATION))])
        models.collect_garbage(keep_last=1)

    def _end(self) -> None:
        """Validate the last weights and put them into the pool as the player's latest."""
        if self.cloner.trained.decisions > self._validated_at:
            self._validate()
        put_into_pool(self.folder.models, self.cloner.trained, None)
        self.folder.models.collect_garbage(keep_last=1)

    def _commit(self, events: Sequence[AnyEvent]) -> None:
        self._ledger.append(events)
        for event in events:
            self._league.apply(event)

    def save(self) -> None:
        arrays, facts = self.cloner.save()
        row, chain = self._ledger.position
        self._checkpoints.save(
            self.cloner.trained.decisions,
            {f"learner/{self.player}/{name}": array for name, array in arrays.items()},
            {
                "learner": {self.player: facts},
                "events": row,
                "chain": chain.hex(),
                CLONING: {"best": self.best, "validated_at": self._validated_at},
            },
        )
        note_checkpoint(self._ledger, self._checkpoints, row, chain, self.cloner.trained.decisions)

    def _load(self, checkpoint: Checkpoint) -> None:
        arrays, facts = checkpoint.arrays, checkpoint.facts
        self.cloner.load(under(f"learner/{self.player}/", arrays), facts["learner"][self.player])
        self.best, self._validated_at = facts[CLONING]["best"], facts[CLONING]["validated_at"]
        self._noted_at = self.cloner.trained.decisions
        standing = self._league.standings[self.player]
        known = [ModelId(self.player, standing.incarnation, standing.step or 0)]
        known += [one.model for one in self.folder.models.entries() if one.model.player == self.player]
        trained, newest = self.cloner.trained, max(known)
        if trained.model < newest:  # it was killed; what it learns now may differ, so it needs new ids
            trained.incarnation = newest.incarnation + 1


def _known(statistics: Mapping[str, float]) -> dict[str, float]:
    """Drop the statistics of heads that no decision used."""
    return {name: value for name, value in statistics.items() if not math.isnan(value)}


def _num_decisions(episodes: Mapping[int, ReplayWindows]) -> int:
    return sum(one.num_decisions for one in episodes.values())
