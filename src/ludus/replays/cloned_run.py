"""A run folder that cloning fills: a league of one learning player, whose models every command finds."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

import msgspec

from ludus.data.records import AnyEvent, LearnerProgress, ModelId, PlayerRemoved, RunStarted
from ludus.data.replay import Outcome
from ludus.data.trees import under
from ludus.league.league import League
from ludus.league.promotion import Snapshot
from ludus.replays.cloning import Cloner, Validation
from ludus.runtime.serial import FINISHED, run_serial
from ludus.store.checkpoints import Checkpoint, Checkpoints
from ludus.store.files import UNREADABLE, atomic_write
from ludus.store.model_pool import BEST
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.workers.learner import put_into_pool
from ludus.workers.worker import LearningWatch, Middleware, Progress, StopTraining, TrainingFailed

BEST_VALIDATION = "best validation"
"""Why a snapshot was frozen."""
TIME_IS_UP = "time is up"
CLONING = "cloning"
"""What a checkpoint says of how far the validation is."""
NOTES = 1_000
"""Lines of metrics over the whole budget; each is the mean over the updates since the one before."""
_FILE = "cloning.json"


class CloningFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run folder keeps of how its player was cloned, besides the experiment."""

    recipe: str
    player: str
    dataset: str
    digest: str
    """Of the dataset: going on with another one would not be the same cloning."""
    outcome: Outcome | None
    """The only outcome of the episodes that were trained on; None: all."""
    network: tuple[str, ...]
    """Settings that a league which begins with the player needs to have the same network and game."""
    settings: msgspec.Raw
    """`CloningSettings` as JSON."""

    def write(self, folder: RunFolder) -> None:
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        atomic_write(folder.path / _FILE, content + b"\n")

    @classmethod
    def read(cls, folder: RunFolder) -> CloningFacts:
        try:
            return msgspec.json.decode((folder.path / _FILE).read_bytes(), type=cls)
        except FileNotFoundError:
            raise RunFolderError(f"{folder.path} was not cloned: it has no {_FILE}") from None
        except UNREADABLE as error:
            raise RunFolderError(f"{folder.path / _FILE} is damaged: {error}") from error


def is_cloned(folder: RunFolder) -> bool:
    return (folder.path / _FILE).exists()


class MetricsClient(Protocol):
    """Where rows of metrics go."""

    def append(self, row: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class ClonedRun:
    """Trains, validates, and keeps the best: in the pool as PLAYER@best, in the league as the one snapshot of
    its player. `league` has heard all events of the ledger so far."""

    def __init__(
        self,
        cloner: Cloner,
        folder: RunFolder,
        league: League,
        checkpoints: Checkpoints,
        metrics: Callable[[], MetricsClient],
        *,
        validate_every: int,
        most_refused: int,
    ) -> None:
        self.cloner = cloner
        self.folder = folder
        self.best = math.inf
        """The lowest validation loss so far."""
        self._league = league
        self._checkpoints = checkpoints
        self._validate_every = validate_every
        self._validated_at = 0
        self._noted_at = 0
        self._since_note: defaultdict[str, list[float]] = defaultdict(list)
        self._statistics: dict[str, float] = {}
        self._watch_learning = LearningWatch(most_refused)
        checkpoint = checkpoints.load_latest()
        if checkpoint is not None:
            self._load(checkpoint)
        self._metrics = metrics()  # opened only now: a run that cannot go on is left as it is
        self._ledger = folder.ledger()
        self._commit([RunStarted(league.starts), *league.initial_events()])
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
        """Train until the budget or the time is spent, or somebody stops it; says which. The state is saved
        either way, and unless it was stopped, the last weights are validated and put into the pool."""
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
            [self.cloner],
            middleware=middleware,
            finished=lambda: self.cloner.progress >= 1.0,
            after_round=after_round,
        )
        if reason in (FINISHED, TIME_IS_UP):
            self._end()
        else:
            self.save()
        return reason

    def numbers(self) -> dict[str, float]:
        """How far it is, and its latest statistics."""
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

    # --- between updates ---

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
        """A line of metrics."""
        self._noted_at = self.cloner.trained.decisions
        for name, values in self._since_note.items():
            is_count = name in ("skipped", "impossible")
            self._statistics[f"{self.player}/{name}"] = values[-1] if is_count else fmean(values)
        self._since_note.clear()
        self._metrics.append(self.numbers())

    def _validate(self) -> None:
        """Measure, keep what is better than ever before, and save."""
        self._validated_at = self.cloner.trained.decisions
        found = self.cloner.validate()
        if found is not None:
            measured = {"loss": found.loss, **found.statistics}
            self._statistics |= {f"{self.player}/validation.{name}": one for name, one in measured.items()}
        self._note()
        self._commit([self._report()])
        if found is None or found.loss < self.best:
            self._keep(found)
        self.save()

    def _keep(self, found: Validation | None) -> None:
        """The weights of now are the best: a snapshot of them takes the place of the one before."""
        self.best = math.inf if found is None else found.loss
        models, league = self.folder.models, self._league
        put_into_pool(models, self.cloner.trained, None)
        models.tag(BEST, self.cloner.trained.model)
        own = (one for one in league.candidates.frozen() if league.players[one].parent == self.player)
        left = [PlayerRemoved(player, BEST_VALIDATION) for player in own]
        self._commit([*left, league.snapshot_of(self.player, Snapshot(reason=BEST_VALIDATION))])
        models.collect_garbage(keep_last=1)

    def _end(self) -> None:
        """The last weights are the player's latest, be they the best or not."""
        if self.cloner.trained.decisions > self._validated_at:
            self._validate()
        put_into_pool(self.folder.models, self.cloner.trained, None)
        self.folder.models.collect_garbage(keep_last=1)

    def _report(self) -> LearnerProgress:
        trained = self.cloner.trained
        return LearnerProgress(self.player, trained.incarnation, trained.step, trained.decisions)

    def _commit(self, events: Sequence[AnyEvent]) -> None:
        self._ledger.append(events)
        for event in events:
            self._league.apply(event)

    # --- stopping and going on ---

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
        if trained.model < newest:  # it was killed: what it learns now may differ, and an id means one content
            trained.incarnation = newest.incarnation + 1
