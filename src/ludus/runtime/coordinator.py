"""The coordinator: one training loop for every runtime.

It owns the league, the ledger, checkpoints, metrics, requests and the status file. Its `Workers` play and learn:
`SerialWorkers` in this process, `ProcessWorkers` as processes of this machine or of a Ray cluster.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from ludus.data.records import AnyEvent, LossAccepted, Match, MatchFinished, RunStarted, SettingsChanged
from ludus.experiment import Experiment
from ludus.observe.league_fold import RunFold
from ludus.observe.lost_matches import LossCount, absences
from ludus.observe.metrics import RunMetrics
from ludus.runtime.assemble import (
    CHECKPOINT,
    edit_context,
    learning_players,
    new_controller,
    new_league,
    snapshot_exploitability,
)
from ludus.runtime.edits import Editor, Orders, answer_requests
from ludus.runtime.faults import Fault, FaultLog
from ludus.runtime.launcher import LEARNER, learner_name
from ludus.runtime.learner_client import LearnerGone
from ludus.runtime.recovery import new_incarnation
from ludus.runtime.rounds import FINISHED, INTERRUPTED, TIME_LIMIT, run_rounds, stop_signals
from ludus.runtime.settings import effective, with_rules
from ludus.runtime.status import ServiceStatus, StatusWriter, no_services
from ludus.store.checkpoints import Checkpoint
from ludus.store.files import StoreError
from ludus.store.inspection import fallen_back, latest_state, note_checkpoint
from ludus.store.ledger import MissingLedger
from ludus.store.run_control import LOOK_EVERY_S, Bottleneck, RequestFolder, WorkerStatus
from ludus.store.run_folder import MetricsFile, RunFolder
from ludus.workers.controller import Controller, LearnerClient, unreadable_models
from ludus.workers.evaluator import EVALUATIONS
from ludus.workers.exploitability import EXPLOITS, SnapshotExploiters
from ludus.workers.messages import HostedPlayer
from ludus.workers.worker import Diverged, LearningWatch, StopTraining, TrainingFailed

LARGEST_SHARE = 0.01
"""Of the time, for checkpoints that `checkpoint_seconds` asks for."""


class HostingLearner(LearnerClient, Protocol):
    """The learner of a run, in this process or another."""

    @property
    def decisions(self) -> int:
        """Decisions that all players have trained on, including players that have left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """An update of the learner: the decisions learned by then, and what it measured."""

    decisions: int
    statistics: Mapping[str, float]


class Workers(Protocol):
    """The learner and the actors of a run.

    `start_learner`, `wait_for_learner` and `start_actors` start one generation of them, in this order; `end`
    ends it.
    """

    @property
    def learner(self) -> HostingLearner: ...

    @property
    def restarts(self) -> int:
        """How often a worker was replaced while the others went on."""

    @property
    def saves_tables(self) -> bool:
        """A clean checkpoint holds the tables, so that their matches stay open and continue exactly."""

    @property
    def can_save(self) -> bool:
        """A checkpoint can be written without waiting for a learner that starts again."""

    @property
    def paused(self) -> bool: ...

    def can_continue(self, checkpoint: Checkpoint) -> bool:
        """Whether the tables of a checkpoint can be restored."""

    def start_learner(
        self,
        experiment: Experiment,
        players: Mapping[str, HostedPlayer],
        *,
        start: int,
        spent: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Start the learner of these players. `experiment`: as the run folder has it, with the roles of now;
        `start`: how often the run was started before; `spent`: decisions of players that have left."""

    def wait_for_learner(self, stopped: Callable[[], bool]) -> None:
        """Wait until the learner has loaded its checkpoint."""

    def can_replace(self, player: str) -> bool:
        """Whether the learner of this player alone can be started again."""

    def replace_learner(self, player: str, hosted: HostedPlayer, resume: Callable[[], None]) -> None:
        """Start the learner of one player again, from the latest checkpoint; the others go on. `resume`: called as
        soon as it has loaded it."""

    def start_actors(self, controller: Controller, experiment: Experiment, tables: Checkpoint | None) -> None:
        """Start to play. `tables`: the checkpoint to restore tables from; None: all matches are new."""

    def run_round(self, finished: Callable[[], bool], *, training: bool) -> Sequence[Update]:
        """Do one round of work and return the updates it brought. `training`: False when the budget is spent
        and only matches that measure are wanted; `finished` is asked before every step."""

    def configure(self, experiment: Experiment) -> None:
        """Settings were changed: from now on the experiment is this one."""

    def require_room(self, experiment: Experiment) -> None:
        """Raise `ValueError` if these workers cannot run a changed experiment."""

    def pause(self, paused: bool) -> None: ...

    def save(self, num_events: int, chain: str, *, clean: bool, patience_s: float | None) -> None:
        """Write a checkpoint of the learner and, if `clean` and possible, of the tables. It names the last event and
        its digest in the ledger."""

    def numbers(self) -> dict[str, float]:
        """Counters and statistics for the metrics: `updates`, `dropped_reward` and those of inference."""

    def status(self) -> tuple[Sequence[WorkerStatus], Bottleneck | None]: ...

    def end(self) -> None:
        """End all workers now, without saving."""

    def close(self) -> None: ...


W = TypeVar("W", bound=Workers)


class Coordinator(Generic[W]):
    """A run that trains: starts its workers, runs them until the budget is spent, saves and resumes them."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        new_workers: Callable[[Experiment, FaultLog], W],
        *,
        service_status: ServiceStatus = no_services,
    ) -> None:
        """`new_workers` gets the experiment with the changes that the ledger holds; `service_status`: of the
        services that run beside the workers."""
        self._written = self.experiment = experiment
        self.folder = folder
        self.league = new_league(experiment)
        self._learning = LearningWatch(experiment.supervision.most_refused)
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._requests = RequestFolder(folder.requests)
        self._orders = Orders()
        self._stopped: Callable[[], bool] = lambda: False
        self._statistics: dict[str, float] = {}
        self._episodes = 0
        """Of matches that finished under earlier controllers."""
        self._restarts = 0
        """Of all workers together."""
        self._learner_failures = 0
        """The learner's own, since a checkpoint was last written."""
        self._saved_at = 0
        """Decisions that the latest checkpoint has."""
        self._saved_row = 0
        """Of the ledger, at which the latest checkpoint of this start was made."""
        self._save_next = 0.0
        """When the next checkpoint is due by time (monotonic)."""
        self._looked = time.monotonic()
        """When the ledger and the metrics were last looked for at their places."""
        self._accepted: LossAccepted | None = None
        self.notices: list[str] = []
        """What whoever starts the run has to know: what was lost, and what is used instead."""
        self._waits = False
        """Whether all is trained and only exploiters are waited for."""
        self.on_evaluation: Callable[[Match], None] = lambda match: None
        """Called after each evaluation match."""
        self.controller: Controller
        with ExitStack() as resources:
            self._ledger = resources.enter_context(folder.ledger())
            self._metrics = RunMetrics(folder, experiment.metrics)
            resources.callback(self._metrics.close)
            self.faults = FaultLog(folder.metrics / "faults.jsonl")
            resources.callback(self.faults.close)
            self._evaluated = resources.enter_context(MetricsFile(folder.metrics / EVALUATIONS))
            self._exploited: MetricsFile | None = None
            """Held as soon as `ludus exploit` has written it, so that it can be written again."""
            self._follow_ledger()
            self._events_before, self._finished_before = self.league.num_events, self.league.matches.finished
            self.workers = new_workers(effective(experiment, self.league), self.faults)
            resources.callback(self.workers.close)
            self._status = StatusWriter(self, self._orders, self.workers.status, service_status)
            self._exploitability = snapshot_exploitability(experiment, folder, self.league)
            self._exploiters = SnapshotExploiters(folder, self.league, self._metrics.tell)
            resources.callback(self._exploiters.close)
            self._note_unclean_end()
            self._note_loss_accepted()
            self._start("restart")
            if self.league.absent:
                self.notices.append(absences(self.league.absent))
            self._resources = resources.pop_all()

    def close(self) -> None:
        self._resources.close()

    @property
    def learner(self) -> HostingLearner:
        return self.workers.learner

    # --- starting ---

    def _follow_ledger(self) -> None:
        """Apply what the ledger has and the league has not seen."""

        def apply(event: AnyEvent) -> None:
            self.league.apply(event)
            if isinstance(event, MatchFinished):
                self._episodes += event.result.episodes
            elif isinstance(event, LossAccepted | RunStarted):  # told by the first start after it
                self._accepted = event if isinstance(event, LossAccepted) else None

        self._ledger.fold(apply, after=self.league.num_events)

    def _note_unclean_end(self) -> None:
        """A clean end leaves no match open, unless it saves their tables."""
        left = list(self.league.matches.open_matches)
        if left and not self.workers.saves_tables:
            fault = Fault("restart", "the controller before this one did not end in good order")
            self.faults.note(fault, "controller", "its matches are void", matches=left)

    def _note_loss_accepted(self) -> None:
        if self._accepted is None:
            return
        models = [
            f"{player} goes on from {model or 'fresh weights'}" for player, model in self._accepted.models.items()
        ]
        then = "; ".join(models) or "the weights of the checkpoint are kept"
        self.notices.append(f"{self._accepted.reason}; accepted: {then}")
        self.faults.note(Fault("loss_accepted", self._accepted.reason), "controller", then)

    def _start(self, reason: str) -> None:
        """Start all workers; again if the learner dies meanwhile, unless the run is stopped."""
        while not self._stopped():
            try:
                self._start_workers(reason)
                return
            except LearnerGone as gone:
                reason = self._lose_learner(gone)

    def _start_workers(self, reason: str) -> None:
        """Start all workers from the latest checkpoint. Where the tables cannot be restored, open matches are
        void and players continue under a new incarnation: weights published since keep their ids."""
        self._follow_ledger()
        self.experiment = effective(self._written, self.league)
        self._hosted = learning_players(self.league)
        start = self.league.starts
        checkpoint = self._load_checkpoint()
        tables = checkpoint if checkpoint is not None and self._continues_exactly(checkpoint) else None
        self.workers.start_learner(
            with_rules(self._written, self.league),
            self._hosted if tables else {player: self._as_restarted(player) for player in self._hosted},
            start=start,
            spent=self.league.decisions_of_removed,
            checkpoint=checkpoint,
        )
        self.controller = new_controller(
            self.experiment,
            self.folder,
            self.league,
            self._ledger,
            self.learner,
            lambda match: self.on_evaluation(match),
            self._evaluated,
        )
        self._editor = self._new_editor()
        if tables is None:
            self.faults.note_frozen(self.controller.start(start, reason))
        self.workers.wait_for_learner(self._stopped)
        if tables is None:
            self.controller.repeat_resets(after=checkpoint.facts["events"] if checkpoint else 0)
        self.controller.configure_learner()
        self._saved_at = self.learner.decisions
        self._save_next = time.monotonic() + self.experiment.checkpoint_seconds
        self.workers.start_actors(self.controller, self.experiment, tables)

    def _load_checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint that can be read, which has to fit the ledger. An older one is used, and told."""
        checkpoint, reason = latest_state(self._ledger, self._checkpoints)
        if reason is not None:
            raise StoreError(f"{self.folder.path}: {reason}")
        if checkpoint is not None and (fallback := fallen_back(self._ledger, checkpoint)):
            self.notices.append(fallback)
            self.faults.note(Fault("damaged_checkpoint", fallback), LEARNER, "an older one is used")
        return checkpoint

    def _continues_exactly(self, checkpoint: Checkpoint) -> bool:
        """The tables can be restored, and since then only settings have changed, which apply from now on. With
        players who have left or returned, their matches would be others."""
        since = self._ledger.replay(after=checkpoint.facts["events"])
        return (
            self.workers.can_continue(checkpoint)
            and all(isinstance(event, SettingsChanged) for _, event in since)
            and unreadable_models(self.league, self.folder.models).keys() == self.league.absent.keys()
        )

    def _as_restarted(self, player: str) -> HostedPlayer:
        hosted, standing = self._hosted[player], self.league.standings.get(player)
        if standing is None:
            return hosted
        return replace(hosted, incarnation=new_incarnation(self.folder.models, self.league, player))

    def _new_editor(self) -> Editor:
        context = edit_context(self._written, self.folder)

        def check(changed: Experiment) -> None:
            context.check(changed)
            self.workers.require_room(changed)

        return Editor(self.controller, dataclasses.replace(context, check=check))

    def _restart(self, reason: str) -> None:
        """Start all workers again from the latest checkpoint."""
        self._episodes, self.controller.episodes.total = self.episodes, 0
        self.workers.end()
        self._start(reason)

    def _recover(self, gone: LearnerGone) -> None:
        """A learner is gone: start that of a single player again, or everything, also if it was lost in the middle of
        an edit."""
        player = gone.player
        edited = self._editor.now != self.experiment or self._hosted.keys() != self.league.standings.keys()
        if player is None or edited or self._stopped() or not self.workers.can_replace(player):
            self._restart(self._lose_learner(gone))
            return
        self._note_loss(gone, learner_name(player), "started again from the checkpoint; the others go on")
        checkpoint = self._load_checkpoint()
        after = checkpoint.facts["events"] if checkpoint else 0

        def resume() -> None:
            self.controller.repeat_resets(after, player)
            self.controller.configure_learner()  # of all: settings of one player may have been on their way to it

        self.workers.replace_learner(player, self._as_restarted(player), resume)

    def _lose_learner(self, gone: LearnerGone) -> str:
        """The learner is gone, with all that actors have played for it: everything has to start again."""
        self.workers.end()
        self._note_loss(
            gone,
            LEARNER if gone.player is None else learner_name(gone.player),
            "all started again from the checkpoint",
            matches=list(self.league.matches.open_matches),
        )
        return str(gone.fault)

    def _note_loss(self, gone: LearnerGone, name: str, then: str, matches: Sequence[int] = ()) -> None:
        """Note that a learner is gone. Raises if the run cannot go on."""
        fault = gone.fault
        self._learner_failures += fault.own or fault.kind == "models_unreachable"  # it cannot start without them
        rules = self._written.supervision
        given_up = fault.kind in ("disk", "diverged") or self._learner_failures >= rules.most_failures
        ends = given_up or self._stopped()
        self.faults.note(fault, name, "the run ends" if ends else then, pid=gone.pid, matches=matches)
        if fault.kind == "disk":
            raise StoreError(fault.reason)
        if fault.kind == "diverged":
            raise Diverged(fault.reason.removeprefix(f"{Diverged.__name__}: "))
        if given_up:
            raise TrainingFailed(
                f"the learner failed {self._learner_failures} times without reaching a checkpoint, at last "
                f"with {fault.reason} (see {self.folder.logs / f'{name}.log'})"
            )
        self._restarts += 1

    # --- running ---

    def run(self, watch: Callable[[Any], None] | None = None) -> str:
        """Train until the budget is spent or the run is stopped; the state is saved either way. When the
        budget is spent, the learning players are frozen and measured. `watch` is called after every round.
        Returns why it ended."""
        ended = "failed"
        try:
            with stop_signals() as stopped:
                self._stopped = lambda: stopped() or self._orders.stop
                ended = self._run(watch)
            with suppress(StoreError, OSError, ValueError, LookupError):  # readers can do without it
                RunFold.save_of(self.folder)
            return ended
        except KeyboardInterrupt:
            ended = INTERRUPTED
            raise
        finally:
            if self._ledger.is_folder_in_place:
                self._status.end(ended)

    def _run(self, watch: Callable[[Any], None] | None) -> str:
        while True:
            try:
                try:
                    return self._train(watch)
                except LearnerGone as gone:
                    self._recover(gone)
                    if self._stopped():  # what was learned since the latest checkpoint is lost
                        return INTERRUPTED
            except Diverged as error:  # what is saved is from before
                with suppress(StoreError, OSError):
                    self._void_open("stopped")
                raise Diverged(f"{error}. {self._way_back()}") from error
            except TrainingFailed:
                with suppress(LearnerGone, StoreError, OSError):
                    self.save(clean=False, patience_s=self._written.supervision.stop_within_s)
                with suppress(StoreError, OSError):
                    self._void_open("stopped")
                raise
            except MissingLedger as error:
                raise self._rescue(error) from error
            except (StoreError, OSError) as error:
                self.faults.note(Fault("disk", str(error)), "controller", "the run ends")
                raise

    def _rescue(self, gone: MissingLedger) -> StoreError:
        """The ledger was removed or replaced: save, write what it held, and say so. The run ends. If the whole folder
        was moved, nothing is written: another run may be at its path."""
        if not self._ledger.is_folder_in_place:
            return StoreError(f"{gone}; nothing was saved. Where the folder is now, it goes on from its checkpoint")
        with suppress(LearnerGone, StoreError, OSError):
            self._end("stopped", clean=True)
        try:
            rows = self._ledger.position[0]
            then = f"the run was saved, and its {rows:,} rows were written again, to {self._ledger.rescue()}"
        except (StoreError, OSError) as error:
            then = f"its rows could not be written again: {error}"
        self.faults.note(Fault("disk", str(gone)), "controller", "the run ends")
        return StoreError(f"{gone}; {then}")

    def _way_back(self) -> str:
        """How to go on with a run whose latest update was bad."""
        saved = None
        with suppress(StoreError, OSError):
            saved = self._checkpoints.load_latest()
        where = "the start, since there is no checkpoint yet" if saved is None else f"{saved.step:,} decisions"
        return (
            f"This update was not saved. Go on from {where}, with a lower rate: ludus train --run {self.folder.path} "
            "--resume --set learner.learning_rate=RATE (league.roles.ROLE.learner.learning_rate if a role has its own)"
        )

    def _train(self, watch: Callable[[Any], None] | None) -> str:
        while True:
            reason = self._run_rounds(lambda: self._is_spent, watch, training=True)
            if reason == FINISHED:
                self.controller.freeze_all()
                reason = self._run_rounds(
                    lambda: not (self._is_spent and self.controller.is_measuring), watch, training=False
                )
            if reason == FINISHED:
                reason = self._await_exploiters(watch)
            if reason != FINISHED or self._is_spent:  # the budget may have grown meanwhile
                break
        if reason == FINISHED and (measured := self._measure_snapshots()):  # of the last snapshots
            self._metrics.append({**self.numbers(), **measured})
        self._look()  # something may have gone since the last time
        self._end(TIME_LIMIT if reason == TIME_LIMIT else "stopped", clean=True)
        if reason == FINISHED:
            self._require_results()
        return reason

    def _await_exploiters(self, watch: Callable[[Any], None] | None) -> str:
        """The workers have nothing to do meanwhile, and leave the cores to the exploiters."""
        self._waits = True
        try:
            return self._run_rounds(
                lambda: not (self._is_spent and self._exploiters.is_busy(self.experiment.evaluation.exploiters)),
                watch,
                training=False,
            )
        finally:
            self._waits = False

    def _require_results(self) -> None:
        """Raise `TrainingFailed` if all matches of this start are void, although everything was learned."""
        if self.league.matches.finished == self._finished_before:
            lost = LossCount(self._events_before).follow(self._ledger)
            if lost.void:
                lines = "\n  ".join(lost.lines())
                raise TrainingFailed(f"the budget is spent, but no match was finished:\n  {lines}")

    @property
    def _is_spent(self) -> bool:
        return self.learner.decisions >= self.experiment.budget

    def _run_rounds(self, finished: Callable[[], bool], watch: Callable[[Any], None] | None, *, training: bool) -> str:
        def one_round() -> None:
            if self._orders.is_overdue(self.experiment.time_limit_h):
                raise StopTraining(TIME_LIMIT)
            self._note(self.workers.run_round(finished, training=training))
            if time.monotonic() - self._looked >= LOOK_EVERY_S:
                self._look()
                self._follow_exploiters()
            self._take_requests()
            self._status.publish()
            if watch is not None:
                watch(self)

        return run_rounds(one_round, finished=finished, stopped=self._stopped)

    def _look(self) -> None:
        """Look whether the files that are open here are still at their places."""
        self._ledger.require_in_place()
        if self._exploited is None and (path := self.folder.metrics / EXPLOITS).exists():
            self._exploited = self._resources.enter_context(MetricsFile(path))
        beside = (self._evaluated, *filter(None, [self._exploited]))
        for text in self.faults.restore(self._metrics.file, *beside):
            self._metrics.tell(f"metrics: {text}")
        self._looked = time.monotonic()

    def _note(self, updates: Sequence[Update]) -> None:
        """Write updates into the metrics, and a checkpoint if it is time."""
        for update in updates:
            measured = {**update.statistics, **self.controller.episodes.take()}
            self._statistics |= measured
            row = {**self._counters(), "decisions": update.decisions, **measured, **self._measure_snapshots()}
            self._metrics.append(row)
            self._learning.see(update.statistics)
        by_decisions = self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every
        if updates and (by_decisions or time.monotonic() >= self._save_next) and self.workers.can_save:
            self.save(clean=False)

    def _measure_snapshots(self) -> dict[str, float]:
        """The exact exploitability of new snapshots, where it can be computed."""
        try:
            return self._exploitability.follow(self.experiment.evaluation.exact_nodes)
        except Exception as error:  # whatever the tree of a user's game may raise: a curve is not worth a training
            self._metrics.tell(f"metrics: a snapshot has no nash_conv: {type(error).__name__}: {error}")
            return {}

    def _follow_exploiters(self) -> None:
        """None starts while the run is paused."""
        if self._orders.paused:
            return
        if measured := self._exploiters.follow(self.experiment.evaluation.exploiters):
            self._metrics.append({**self.numbers(), **measured})

    def _take_requests(self) -> None:
        """Do what commands have asked for. When learning players join or leave, all workers start again, from
        a checkpoint of this moment."""
        if answer_requests(self._requests, self._editor, self._orders):
            self.experiment = self._editor.now
            self.controller.change_evaluation(self.experiment.evaluation)
            self.workers.configure(self.experiment)
            if self._hosted.keys() != self.league.standings.keys():
                self.save(clean=False)
                self._restart("league edited")
        self._orders.end_at_once()
        if (self._orders.paused or self._waits) != self.workers.paused:
            self.workers.pause(self._orders.paused or self._waits)
            self.controller.clock.hold(self._orders.paused)
            self._status.publish(at_once=True)

    # --- saving and ending ---

    def save(self, *, clean: bool, patience_s: float | None = None) -> None:
        """Write a checkpoint. A clean one also holds the tables, where the workers can save them."""
        self._ledger.require_folder()
        began = time.monotonic()
        row, chain = self._ledger.position
        self.workers.save(row, chain.hex(), clean=clean, patience_s=patience_s)
        note_checkpoint(self._ledger, self._checkpoints, row, chain, self.learner.decisions)
        took = time.monotonic() - began
        self._save_next = began + max(self.experiment.checkpoint_seconds, took / LARGEST_SHARE)
        self._saved_at = self.learner.decisions
        self._learner_failures = 0
        self._delete_retired(row)

    def _delete_retired(self, row: int) -> None:
        """`row`: at which the latest checkpoint was made. A start may go on from the one before it, so that all that it
        knew stays."""
        try:
            self.controller.delete_retired(before=self._saved_row)
        except (StoreError, OSError) as error:
            self._metrics.tell(f"models: weights of snapshots that left cannot be deleted: {error}")
        self._saved_row = row

    def _end(self, reason: str, *, clean: bool) -> None:
        """Save, and void the open matches unless their tables are saved. Workers that save no tables may have learned
        since the controller last heard of them: the ledger gets the decisions that the checkpoint has."""
        self.save(clean=clean, patience_s=self._written.supervision.stop_within_s if self._stopped() else None)
        if self.workers.can_save and not self.workers.saves_tables:
            self.controller.record_progress()
        self._void_open(reason)

    def _void_open(self, reason: str) -> None:
        if not self.workers.saves_tables:
            self.controller.void(None, reason)

    # --- for observers ---

    @property
    def restarts(self) -> int:
        return self._restarts + self.workers.restarts

    @property
    def episodes(self) -> int:
        """Episodes of all finished matches."""
        return self._episodes + self.controller.episodes.total

    def numbers(self) -> dict[str, float]:
        """Progress of the run, and the latest statistics of its learners."""
        return {**self._counters(), **self._statistics}

    def _counters(self) -> dict[str, float]:
        return {
            "decisions": self.learner.decisions,
            "episodes": self.episodes,
            "matches": self.league.matches.finished,
            "restarts": self.restarts,
            **{name: count for name, count in self._troubles().items() if count},
            **self.workers.numbers(),
        }

    def _troubles(self) -> dict[str, float]:
        """Counters that are 0 in a healthy run."""
        return {"void_in_a_row": self.controller.void_in_a_row, "metrics_lost": self._metrics.lost}


Training = Coordinator[Any]
"""A training in any runtime."""
