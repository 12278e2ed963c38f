"""A run as processes of this machine. The main process is the controller; actors and the learner are its
children. An actor that dies is replaced and its matches are void; when the learner dies, everything starts
again from the latest checkpoint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from msgspec.structs import replace

from ludus.data.records import MatchFinished
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.observe.metrics import RunMetrics
from ludus.runtime.assemble import CHECKPOINT, Training, learning_players, new_league, surroundings
from ludus.runtime.edits import Editor, Orders, answer_requests
from ludus.runtime.faults import START_UP_S, Fault, FaultLog, WorkerSlot, death_of
from ludus.runtime.launcher import LEARNER, Launcher
from ludus.runtime.learner_client import LearnerGone, RemoteLearner
from ludus.runtime.serial import FINISHED, INTERRUPTED, TIME_LIMIT, stop_signals
from ludus.runtime.settings import effective
from ludus.runtime.shared_parts import WAIT_S
from ludus.runtime.status import Beside, StatusWriter, WorkerGroupStatus, nobody
from ludus.runtime.supervisor import Begin, Supervisor, Tally, WorkerGroup, default_places
from ludus.services.resources import cpus_of
from ludus.store.files import StoreError
from ludus.store.ledger import Ledger
from ludus.store.run_control import RequestFolder
from ludus.store.run_folder import RunFolder
from ludus.system.machine import usable_cores
from ludus.system.process import BadMessage, PeerGone, WorkerProcess, receive, send
from ludus.workers.controller import Controller
from ludus.workers.evaluator import EvaluationBook, Evaluator
from ludus.workers.messages import (
    Done,
    FindFrozen,
    FromActor,
    FromHelper,
    FrozenFound,
    HostedPlayer,
    Leaving,
    MatchFound,
    NextMatch,
    ReportResult,
    Save,
    Stopping,
    VoidMatch,
)
from ludus.workers.worker import LearningWatch, StopTraining, TrainingFailed


class RequestHandler:
    """From one start of all workers to the next. What cannot be answered is its sender's fault."""

    def __init__(
        self,
        *,
        crew: WorkerGroup,
        controller: Controller,
        learner: RemoteLearner,
        upkeep: Supervisor,
        faults: FaultLog,
        tally: Tally,
    ) -> None:
        self._crew = crew
        self._controller = controller
        self._learner = learner
        self._upkeep = upkeep
        self._faults = faults
        self._tally = tally

    def serve(self, place: WorkerSlot, process: WorkerProcess) -> None:
        """Take the next message of a worker and answer it."""
        is_actor = place not in self._crew.helpers
        try:
            if is_actor:
                self._serve_actor(place, process)
            else:
                self._serve_helper(place, process)
        except PeerGone:
            self._upkeep.replace(place, death_of(process, "env_crash" if is_actor else "worker_crash"))
        except BadMessage as error:
            self._upkeep.replace(place, Fault("worker_crash", str(error)))

    def _serve_actor(self, place: WorkerSlot, process: WorkerProcess) -> None:
        request = receive(process.control, FromActor)
        if isinstance(request, NextMatch):
            leaves = place.leave_by is not None
            match = None if leaves else self._controller.next_match(request.tables, place.name)
            send(process.control, MatchFound(match, self._crew.sharing))
        elif isinstance(request, ReportResult):
            if self._report(place, request):
                send(process.control, Done())
        elif isinstance(request, VoidMatch):
            if self._void(place, request):
                send(process.control, Done())
        elif isinstance(request, FindFrozen):
            send(process.control, self._find_frozen(request))
        elif isinstance(request, Stopping):
            raise StopTraining(request.reason)
        elif isinstance(request, Leaving):
            self._upkeep.let_go(place)
        else:
            self._upkeep.replace(place, Fault(request.kind, request.reason))

    def _serve_helper(self, place: WorkerSlot, process: WorkerProcess) -> None:
        request = receive(process.control, FromHelper)
        if isinstance(request, FindFrozen):
            send(process.control, self._find_frozen(request))
        elif isinstance(request, Stopping):
            raise StopTraining(request.reason)
        else:
            self._upkeep.replace(place, Fault(request.kind, request.reason))

    def _find_frozen(self, request: FindFrozen) -> FrozenFound:
        player = self._controller.league.players[request.player]
        return FrozenFound(player.model or "", player.weights)

    def _report(self, place: WorkerSlot, request: ReportResult) -> bool:
        """Record a result; what cannot be one is refused, and its sender is replaced."""
        try:
            self._controller.report(request.result)
        except (ValueError, LookupError) as error:
            self._upkeep.replace(place, Fault("bad_result", str(error)))
            return False
        self._tally.episodes += request.result.episodes
        for working in (place, *self._crew.helpers):
            working.forgive(self._learner.decisions)
        return True

    def _void(self, place: WorkerSlot, request: VoidMatch) -> bool:
        """A game was lost; the actor that plays it goes on, unless it has no such match."""
        try:
            self._controller.void_match(request.match_id, request.reason)
        except (ValueError, LookupError) as error:
            self._upkeep.replace(place, Fault("bad_result", str(error)))
            return False
        fault = Fault("game_lost", request.reason)
        self._faults.note(fault, place.name, "the match is void", matches=[request.match_id])
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What stays, whatever is started again."""

    written: Experiment
    """As the run folder has it, without what the ledger says was changed since."""
    folder: RunFolder
    league: League
    ledger: Ledger
    crew: WorkerGroup
    faults: FaultLog
    tally: Tally


class Shift:
    """The controller of the workers that were started together, and its helpers."""

    def __init__(self, run: Run, learner: RemoteLearner, default_actors: int) -> None:
        """`default_actors`: how many there are where the experiment does not say."""
        now = effective(run.written, run.league)
        self.learner = learner
        self.controller = Controller(
            league=run.league,
            ledger=run.ledger,
            models=run.folder.models,
            learner=learner,
            evaluator=Evaluator(now.evaluation, run.league),
            evaluations=EvaluationBook(run.folder),
            episodes_per_table=now.actor.episodes_per_table,
        )
        self.upkeep = Supervisor(
            crew=run.crew,
            controller=self.controller,
            learner=learner,
            rules=now.supervision,
            faults=run.faults,
            logs=run.folder.logs,
            tally=run.tally,
        )
        self.serving = RequestHandler(
            crew=run.crew,
            controller=self.controller,
            learner=learner,
            upkeep=self.upkeep,
            faults=run.faults,
            tally=run.tally,
        )
        around = surroundings(run.written, run.folder)

        def check(changed: Experiment) -> None:
            around.check(changed)
            self.upkeep.require_room(changed.actors or default_actors)

        self.editor = Editor(self.controller, dataclasses.replace(around, check=check))


class ProgressNotes:
    """Writes what the learner tells into the metrics of the run."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self._metrics = RunMetrics(folder, experiment.metrics)
        self._watch = LearningWatch(experiment.supervision.most_refused)
        self.episodes: dict[str, float] = {}
        """What learning players got out of episodes of late."""

    def note(self, run: Run, learner: RemoteLearner, controller: Controller) -> None:
        """What is new since the last time; an error if nothing has been learned for too long."""
        launcher = run.crew.launcher
        for decisions, statistics in learner.news:
            episodes = controller.episodes.take()
            self.episodes |= episodes
            self._metrics.append(
                {
                    "decisions": decisions,
                    "episodes": run.tally.episodes,
                    "matches": run.league.matches.finished,
                    "updates": sum(report.step for report in learner.reports.values()),
                    "restarts": run.tally.restarts,
                    "dropped_reward": float(launcher.parts.dropped_reward.sum()),
                    **launcher.inference.update(),
                    **statistics,
                    **episodes,
                }
            )
            self._watch.see(statistics)
        learner.news.clear()

    def close(self) -> None:
        self._metrics.close()


STEPS_PER_SHARE = 4
"""Steps of its tables that an actor should make at least for its share of a batch."""


class LocalTraining:
    """A run as processes of this machine."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        num_actors: int,
        *,
        num_places: int | None = None,
        launcher: Launcher | None = None,
        beside: Beside = nobody,
    ) -> None:
        """`num_actors`: where the experiment does not say; `num_places`: how many there may be at most;
        `beside`: how the services are that run with it."""
        self._written = self.experiment = experiment
        self.folder = folder
        self.league = new_league(experiment)
        self.faults = FaultLog(folder.metrics / "faults.jsonl")
        self._num_actors = num_actors
        self._tally = Tally()
        self._rules = experiment.supervision
        self._ledger = folder.ledger()
        self._notes = ProgressNotes(experiment, folder)
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._requests = RequestFolder(folder.requests)
        self._orders = Orders()
        self._launcher = launcher or Launcher(experiment, folder)
        self._learner_failures = 0
        """Of its own, since a checkpoint was last written."""
        self._saved_at = 0
        self._stopped: Callable[[], bool] = lambda: False
        try:
            self._note_unclean_end()
            self.experiment = effective(self._written, self.league)
        except BaseException:
            self._release()
            raise
        self._crew = WorkerGroup(
            self._launcher,
            num_places or default_places(self._wanted_actors),
            num_ranks=experiment.learner.ranks,
            with_policy_worker=experiment.actor.inference == "worker",
            with_buffer_worker=experiment.learner.buffer_worker,
        )
        for place in self._crew.free(self._wanted_actors):
            place.taken = True
        self._kept = Run(
            written=self._written,
            folder=folder,
            league=self.league,
            ledger=self._ledger,
            crew=self._crew,
            faults=self.faults,
            tally=self._tally,
        )
        watch = WorkerGroupStatus(self._crew, experiment, folder)
        self._status = StatusWriter(self, self._orders, watch.look, beside)
        try:
            self._start("restart")
        except BaseException:
            self.close()
            raise

    # --- starting ---

    def _start(self, reason: str) -> None:
        """Start all processes; once more if the learner dies meanwhile, unless somebody stops it."""
        while not self._stopped():
            try:
                self._start_all(reason)
                return
            except LearnerGone as gone:
                reason = self._lose_learner(gone.fault)

    def _start_all(self, reason: str) -> None:
        """Open matches are void, players get a new incarnation, all processes start from the checkpoint."""
        for _, event in self._ledger.replay(after=self.league.num_events):
            self.league.apply(event)
        self.experiment = effective(self._written, self.league)
        starts = self.league.starts
        self._hosted = learning_players(self.league)
        self._crew.lay_out(self._hosted)
        checkpoint = self._checkpoints.load_latest()
        for name in checkpoint.damaged if checkpoint else ():
            self.faults.note(Fault("damaged_checkpoint", name), LEARNER, "an older one is used")
        self._set_begin()
        process = self._crew.start_learner()
        self.learner = RemoteLearner(
            process, self._rules.hung_after_s, self.league.decisions_of_removed, self._crew.followers
        )
        shift = Shift(self._kept, self.learner, self._num_actors)
        self.controller, self._editor = shift.controller, shift.editor
        self._upkeep, self._serving = shift.upkeep, shift.serving
        for removed in self.controller.start(starts, reason):
            self.faults.note(Fault("damaged_model", removed.reason), removed.player, "left the league")
        self.learner.wait_for_news(START_UP_S, self._stopped)
        self.controller.repeat_resets(after=checkpoint.facts["events"] if checkpoint else 0)
        self.controller.configure_learner()
        self._saved_at = self.learner.decisions
        self.controller.step()
        self._set_begin()
        self._crew.start_due()

    def _set_begin(self) -> None:
        """What workers that start now begin with."""
        self._crew.begin = Begin(
            start=self.league.starts,
            players={player: self._as_started(player) for player in self._hosted},
            spent=self.league.decisions_of_removed,
        )

    def _as_started(self, player: str) -> HostedPlayer:
        """After a start that was not the first, under a new incarnation."""
        hosted, standing = self._hosted[player], self.league.standings.get(player)
        return hosted if standing is None else replace(hosted, incarnation=standing.incarnation + 1)

    def _lose_learner(self, fault: Fault) -> str:
        """The learner is gone, and all that actors have played for it: everything has to start again."""
        pid = self._crew.learner.pid if self._crew.learner else None
        self._crew.kill_all()
        self._learner_failures += fault.own
        given_up = fault.kind == "disk" or self._learner_failures >= self._rules.most_failures
        ends = given_up or self._stopped()
        then = "the run ends" if ends else "all started again from the checkpoint"
        self.faults.note(fault, LEARNER, then, pid=pid, matches=list(self.league.matches.open_matches))
        if fault.kind == "disk":
            raise StoreError(fault.reason)
        if given_up:
            raise TrainingFailed(
                f"the learner failed {self._learner_failures} times without reaching a checkpoint, at last "
                f"with {fault.reason} (see {self.folder.logs / 'learner.log'})"
            )
        self._tally.restarts += 1
        return str(fault)

    def _note_unclean_end(self) -> None:
        """Matches are open only if the controller before us could not end in good order."""
        for _, event in self._ledger.replay(after=self.league.num_events):
            self.league.apply(event)
            if isinstance(event, MatchFinished):
                self._tally.episodes += event.result.episodes
        left = list(self.league.matches.open_matches)
        if left:
            fault = Fault("restart", "the controller before this one did not end in good order")
            self.faults.note(fault, "controller", "its matches are void", matches=left)

    # --- running ---

    def run(self, watch: Callable[[Training], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way."""
        ended = "failed"
        try:
            with stop_signals() as stopped:
                self._stopped = lambda: stopped() or self._orders.stop
                ended = self._run(watch)
            return ended
        except KeyboardInterrupt:
            ended = INTERRUPTED
            raise
        finally:
            self._status.end(ended)

    def _run(self, watch: Callable[[Training], None] | None) -> str:
        while True:
            try:
                return self._train(watch)
            except LearnerGone as gone:
                self._start(self._lose_learner(gone.fault))
                if self._stopped():  # what was learned since the latest checkpoint is lost
                    return INTERRUPTED
            except TrainingFailed:
                with suppress(LearnerGone, StoreError, OSError):
                    self._end()
                raise
            except (StoreError, OSError) as error:
                self.faults.note(Fault("disk", str(error)), "controller", "the run ends")
                raise

    def _train(self, watch: Callable[[Training], None] | None) -> str:
        while True:
            reason = self._loop(lambda: self._is_spent, watch)
            if reason == FINISHED:
                self.controller.freeze_all()
                reason = self._loop(lambda: not (self._is_spent and self.controller.is_measuring), watch)
            if reason != FINISHED or self._is_spent:  # the budget may have grown meanwhile
                break
        self._end(TIME_LIMIT if reason == TIME_LIMIT else "stopped")
        return reason

    @property
    def _is_spent(self) -> bool:
        return self.learner.decisions >= self.experiment.budget

    def _loop(self, finished: Callable[[], bool], watch: Callable[[Training], None] | None) -> str:
        while not finished():
            if self._stopped():
                return INTERRUPTED
            if self._orders.is_overdue(self.experiment.time_limit_h):
                return TIME_LIMIT
            if self.learner.stopping is not None:
                return self.learner.stopping
            try:
                self._serve()
                self._take_requests()
                self._status.publish()
                if watch is not None:
                    watch(self)
            except StopTraining as request:
                return str(request)
        return FINISHED

    def _serve(self) -> None:
        """Answer whoever asks, and look after the processes."""
        self._upkeep.resize(self._wanted_actors)
        self._crew.start_due()
        assert self._crew.learner is not None
        learner = self._crew.learner.control
        controls = {process.control: place for place, process in self._crew.working()}
        for ready in wait([*controls, learner], timeout=WAIT_S):
            assert isinstance(ready, Connection)
            if ready is learner:
                self.learner.wait_for_news(0.0)
                self._note_progress()
                continue
            place = controls[ready]
            if place.process is not None and place.process.control is ready:
                self._serving.serve(place, place.process)
        self._upkeep.look_after()

    def _take_requests(self) -> None:
        """Do what commands have asked for. Who joins or leaves changes what lies where in shared memory: then
        everything starts again, from a checkpoint of this moment."""
        actors = self._wanted_actors
        if answer_requests(self._requests, self._editor, self._orders):
            self.experiment = self._editor.now
            self.controller.change_evaluation(self.experiment.evaluation)
            if self._wanted_actors != actors:
                for place in self._crew.actors:  # another chance
                    place.given_up = False
            if self._hosted.keys() != self.league.standings.keys():
                self._save()
                self._crew.kill_all()
                self._start("league edited")
        self._orders.end_at_once()
        if self._orders.paused != self._upkeep.paused:
            self._upkeep.rest(self._orders.paused)
            self._status.publish(at_once=True)

    @property
    def _wanted_actors(self) -> int:
        """As far as there is room for them now: nodes of a cluster come and go."""
        return max(1, min(self.experiment.actors or self._num_actors, self._launcher.room))

    # --- saving and ending ---

    def _note_progress(self) -> None:
        self._notes.note(self._kept, self.learner, self.controller)
        self.controller.step()
        if self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every:
            self._save()

    def _save(self, patience_s: float | None = None) -> None:
        self.learner.ask(Save(self.league.num_events), patience_s)
        self._saved_at = self.learner.decisions
        self._learner_failures = 0

    def _end(self, reason: str = "stopped") -> None:
        """Save, and give every open match its end: nobody plays on."""
        if self._crew.learner is not None:  # else stopped while all starts again, from a new checkpoint
            self._save(self._rules.stop_within_s if self._stopped() else None)
        self.controller.void(None, reason)

    def close(self) -> None:
        self._crew.kill_all()
        self._release()

    def _release(self) -> None:
        self._ledger.close()
        self._notes.close()
        self.faults.close()
        self._launcher.close()

    # --- for who looks on ---

    @property
    def restarts(self) -> int:
        return self._tally.restarts

    @property
    def episodes(self) -> int:
        return self._tally.episodes

    @property
    def learner_pid(self) -> int:
        assert self._crew.learner is not None
        return self._crew.learner.pid

    @property
    def policy_worker_pid(self) -> int | None:
        """None where actors run the policies themselves, and while it is being started again."""
        process = self._crew.policy_worker.process
        return None if process is None else process.pid

    @property
    def buffer_worker_pid(self) -> int | None:
        """None where there is none, and while it is being started again."""
        process = self._crew.buffer_worker.process
        return None if process is None else process.pid

    @property
    def actor_pids(self) -> list[int]:
        return [place.process.pid for place in self._crew.actors if place.process is not None]

    def numbers(self) -> dict[str, float]:
        reports = self.learner.reports.values()
        return {
            "decisions": self.learner.decisions,
            "episodes": self.episodes,
            "matches": self.league.matches.finished,
            "updates": sum(report.step for report in reports),
            "restarts": self.restarts,
            "dropped_reward": float(self._launcher.parts.dropped_reward.sum()),
            **self._launcher.inference.latest,
            **self.learner.statistics,
            **self._notes.episodes,
        }


def default_actors(experiment: Experiment) -> int:
    """One for each usable core but the learner's, the buffer worker's and those that services ask for, as
    long as the share of a batch that each hands over is several steps of its tables: with smaller ones much
    of what is played is too old before it is used. At least one for each rank of the learner."""
    worth = experiment.learner.batch_size // (STEPS_PER_SHARE * experiment.actor.num_tables)
    ranks = experiment.learner.ranks
    others = ranks + experiment.learner.buffer_worker + math.ceil(cpus_of(experiment.services))
    return max(ranks, min(int(usable_cores()) - others, worth))
