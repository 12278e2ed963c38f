"""A cloning in its run folder: training, validation, checkpoints, and the league of one player.

Every command finds the models of such a run as those of any other.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from ludus.data.records import AnyEvent, LearnerProgress, ModelId, PlayerRemoved, RunStarted
from ludus.data.trees import under
from ludus.league.promotion import Snapshot
from ludus.observe.metrics import RunMetrics
from ludus.replays.cloning import Cloner, Validation
from ludus.replays.cloning_plan import CloningPlan
from ludus.runtime.assemble import CHECKPOINT, build_policies, new_league
from ludus.runtime.rounds import FINISHED, run_serial
from ludus.store.checkpoints import Checkpoint
from ludus.store.model_pool import BEST
from ludus.store.run_folder import RunFolder
from ludus.workers.learner import put_into_pool
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import LearningWatch, Middleware, Progress, StopTraining, TrainingFailed

BEST_VALIDATION = "best validation"
"""The reason of the snapshot."""
TIME_IS_UP = "time is up"
CLONING = "cloning"
"""The part of a checkpoint that holds the state of the validation."""
NOTES = 1_000
"""Rows of metrics over the whole budget. Each row is the mean over the updates since the last one."""


def new_cloner(plan: CloningPlan) -> Cloner:
    experiment, settings = plan.experiment, plan.settings
    seed = int(np.random.SeedSequence([experiment.seed, 0]).generate_state(1)[0])
    trained = TrainedPlayer(
        plan.facts.player,
        build_policies(experiment, seed),
        settings.loss,
        settings.learner(experiment.learner),
        seed=seed,
    )
    return Cloner(
        trained, lambda: build_policies(experiment, seed), plan.training, plan.validation, budget=settings.budget
    )


class ClonedRun:
    """Trains, validates and keeps the best weights: in the pool as PLAYER@best, and in the league as the only
    snapshot of the player."""

    def __init__(self, plan: CloningPlan, folder: RunFolder) -> None:
        self._league = new_league(plan.experiment)
        with folder.ledger() as ledger:
            for _, event in ledger.replay():
                self._league.apply(event)
        self.cloner = new_cloner(plan)
        self.folder = folder
        self.best = math.inf
        """The lowest validation loss so far."""
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._validate_every = plan.settings.validate_every
        self._validated_at = 0
        self._noted_at = 0
        self._since_note: defaultdict[str, list[float]] = defaultdict(list)
        self._statistics: dict[str, float] = {}
        self._watch_learning = LearningWatch(plan.experiment.supervision.most_refused)
        checkpoint = self._checkpoints.load_latest()
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
        """Train until the budget or the time is spent or the run is stopped; return the reason.

        The state is always saved. Unless the run was stopped, the last weights are validated and put into the
        pool.
        """
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
            measured = {"loss": found.loss, **found.statistics}
            self._statistics |= {f"{self.player}/validation.{name}": one for name, one in measured.items()}
        self._note()
        trained = self.cloner.trained
        self._commit([LearnerProgress(self.player, trained.incarnation, trained.step, trained.decisions)])
        if found is None or found.loss < self.best:
            self._keep(found)
        self.save()

    def _keep(self, found: Validation | None) -> None:
        """Replace the snapshot of the player by its current weights."""
        self.best = math.inf if found is None else found.loss
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
        self._checkpoints.save(
            self.cloner.trained.decisions,
            {f"learner/{self.player}/{name}": array for name, array in arrays.items()},
            {
                "learner": {self.player: facts},
                "events": self._league.num_events,
                CLONING: {"best": self.best, "validated_at": self._validated_at},
            },
        )

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
