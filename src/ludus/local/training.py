"""A run as processes of this machine. The main process is the controller; actors and the learner are its
children. An actor that dies is replaced and its matches are void; when the learner dies, everything starts
again from the latest checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from msgspec.structs import replace

from ludus.assemble import CHECKPOINT, Training, learning_players, new_league, surroundings
from ludus.data.records import MatchFinished
from ludus.experiment import Experiment
from ludus.live.edits import Editor, answer_requests
from ludus.live.settings import effective
from ludus.local.faults import Fault, FaultLog, death_of
from ludus.local.launcher import LEARNER, POLICY_WORKER, Launcher
from ludus.local.remote_learner import LearnerGone, RemoteLearner
from ludus.local.shared_parts import WAIT_S
from ludus.local.supervisor import START_UP_S, WorkerPlace
from ludus.runtime.cores import usable_cores
from ludus.runtime.messages import (
    Done,
    FindFrozen,
    Forget,
    FromActor,
    FromPolicyWorker,
    FrozenFound,
    MatchFound,
    NextMatch,
    Report,
    Save,
    Stopping,
    VoidMatch,
)
from ludus.runtime.process import BadMessage, HostedPlayer, PeerGone, WorkerProcess, receive, send
from ludus.runtime.program import StopTraining
from ludus.runtime.serial import FINISHED, INTERRUPTED, stop_signals
from ludus.runtime.supervision import LearningWatch, TrainingFailed
from ludus.store.files import StoreError
from ludus.store.metrics_file import MetricsFile
from ludus.store.requests import RequestFolder
from ludus.store.run_folder import RunFolder
from ludus.workers.controller import Controller
from ludus.workers.evaluation_book import EvaluationBook
from ludus.workers.evaluator import Evaluator

STEPS_PER_SHARE = 4
"""Steps of its tables that an actor should make at least for its share of a batch."""


class LocalTraining:
    """A run as processes of this machine."""

    def __init__(self, experiment: Experiment, folder: RunFolder, num_actors: int) -> None:
        self._written = self.experiment = experiment
        self.folder = folder
        self.league = new_league(experiment)
        self.restarts = 0
        self.episodes = 0
        self.faults = FaultLog(folder.metrics / "faults.jsonl")
        self._rules = experiment.supervision
        self._ledger = folder.ledger()
        self._metrics = MetricsFile(folder.metrics / "train.jsonl")
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._requests = RequestFolder(folder.requests)
        self._launcher = Launcher(experiment, folder)
        self._places = [WorkerPlace(f"actor-{index}") for index in range(num_actors)]
        self._policy_place = WorkerPlace(POLICY_WORKER)
        """Stays empty where actors run the policies themselves."""
        self._learner_process: WorkerProcess | None = None
        self._learner_starts = 0
        self._learner_failures = 0
        """Of its own, since a checkpoint was last written."""
        self._saved_at = 0
        self._watch_learning = LearningWatch(self._rules.most_refused)
        self._stopped: Callable[[], bool] = lambda: False
        try:
            self._note_unclean_end()
            self._start("restart")
        except BaseException:
            self.close()
            raise

    # --- starting and ending processes ---

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
        self._launcher.lay_out(self._hosted, len(self._places))
        checkpoint = self._checkpoints.load_latest()
        for name in checkpoint.damaged if checkpoint else ():
            self.faults.note(Fault("damaged_checkpoint", name), LEARNER, "an older one is used")
        self._learner_starts += 1
        process = self._spawn(LEARNER, len(self._places) + 1, self._learner_starts)
        self._learner_process = process
        self.learner = RemoteLearner(process, self._rules.hung_after_s, self.league.decisions_of_removed)
        self.controller = Controller(
            league=self.league,
            ledger=self._ledger,
            models=self.folder.models,
            learner=self.learner,
            evaluator=Evaluator(self.experiment.evaluation, self.league),
            evaluations=EvaluationBook(self.folder),
            episodes_per_table=self.experiment.actor.episodes_per_table,
        )
        self._editor = Editor(self.controller, surroundings(self._written, self.folder))
        for removed in self.controller.start(starts, reason):
            self.faults.note(Fault("damaged_model", removed.reason), removed.player, "left the league")
        self.learner.wait_for_news(START_UP_S, self._stopped)
        self.controller.repeat_resets(after=checkpoint.facts["events"] if checkpoint else 0)
        self.controller.configure_learner()
        self._saved_at = self.learner.decisions
        self.controller.step()
        for place in (*self._places, self._policy_place):
            place.start_at = 0.0
        self._start_due()

    def _start_due(self) -> None:
        """Start the workers whose places are empty and who have waited long enough."""
        now = time.monotonic()
        asked = self.experiment.actor.inference == "worker"
        for index, place in enumerate((*self._places, self._policy_place) if asked else self._places):
            if place.process is None and place.start_at <= now:
                place.attempts += 1
                place.process = self._spawn(place.name, index, place.attempts)

    def _spawn(self, name: str, index: int, attempt: int) -> WorkerProcess:
        return self._launcher.spawn(
            name,
            index,
            attempt=attempt,
            start=self.league.starts,
            players={player: self._as_started(player) for player in self._hosted},
            spent=self.league.decisions_of_removed,
        )

    def _as_started(self, player: str) -> HostedPlayer:
        """After a start that was not the first, under a new incarnation."""
        hosted, standing = self._hosted[player], self.league.standings.get(player)
        return hosted if standing is None else replace(hosted, incarnation=standing.incarnation + 1)

    # --- faults ---

    def _replace_actor(self, place: WorkerPlace, fault: Fault) -> None:
        """Void what the actor held, let the learner forget it, and start another, sooner or later."""
        process, place.process = place.process, None
        assert process is not None
        process.kill()
        matches = self.controller.void(place.name, str(fault))
        if fault.own:
            place.failed(self._rules, self.learner.decisions)
        given_up = place.failures >= self._rules.quarantine_after
        then = "quarantined" if given_up else "started again"
        self.faults.note(fault, place.name, then, pid=process.pid, matches=matches)
        if fault.kind == "damaged_model":
            for removed in self.controller.remove_damaged():
                self.faults.note(Fault("damaged_model", removed.reason), removed.player, "left the league")
        if given_up:
            self._quarantine(place, fault)
            return
        self.restarts += 1
        index = self._places.index(place)
        self.learner.ask(Forget(index))

    def _replace_policy_worker(self, fault: Fault) -> None:
        """Start another: it finds what was asked and not answered in the actors' areas."""
        place = self._policy_place
        process, place.process = place.process, None
        assert process is not None
        process.kill()
        if fault.own:
            place.failed(self._rules, self.learner.decisions)
        given_up = place.failures >= self._rules.most_failures
        then = "the run ends" if given_up else "started again"
        self.faults.note(fault, place.name, then, pid=process.pid)
        if given_up:
            raise TrainingFailed(
                f"the policy worker failed {place.failures} times without a match being finished, at last "
                f"with {fault.reason} (see {self.folder.logs / f'{place.name}.log'})"
            )
        self.restarts += 1

    def _quarantine(self, place: WorkerPlace, fault: Fault) -> None:
        """Its game fails again and again: go on without it, if anybody else plays."""
        failed = (
            f"{place.name} failed {place.failures} times without finishing a match, at last with "
            f"{fault.reason} (see {self.folder.logs / f'{place.name}.log'})"
        )
        if len(self._places) == 1:
            raise TrainingFailed(f"no actor is left: {failed}")
        self._save()
        self._kill_all()
        self._places.remove(place)
        self._start("quarantine")

    def _lose_learner(self, fault: Fault) -> str:
        """The learner is gone, and all that actors have played for it: everything has to start again."""
        process = self._learner_process
        pid = process.pid if process else None
        self._kill_all()
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
        self.restarts += 1
        return str(fault)

    def _note_unclean_end(self) -> None:
        """Matches are open only if the controller before us could not end in good order."""
        for _, event in self._ledger.replay(after=self.league.num_events):
            self.league.apply(event)
            if isinstance(event, MatchFinished):
                self.episodes += event.result.episodes
        left = list(self.league.matches.open_matches)
        if left:
            fault = Fault("restart", "the controller before this one did not end in good order")
            self.faults.note(fault, "controller", "its matches are void", matches=left)

    # --- running ---

    def run(self, watch: Callable[[Training], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way."""
        with stop_signals() as stopped:
            self._stopped = stopped
            while True:
                try:
                    return self._train(watch)
                except LearnerGone as gone:
                    self._start(self._lose_learner(gone.fault))
                    if stopped():  # what was learned since the latest checkpoint is lost
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
        self._end()
        return reason

    @property
    def _is_spent(self) -> bool:
        return self.learner.decisions >= self.experiment.budget

    def _loop(self, finished: Callable[[], bool], watch: Callable[[Training], None] | None) -> str:
        while not finished():
            if self._stopped():
                return INTERRUPTED
            if self.learner.stopping is not None:
                return self.learner.stopping
            try:
                self._serve()
                self._take_requests()
                if watch is not None:
                    watch(self)
            except StopTraining as request:
                return str(request)
        return FINISHED

    def _serve(self) -> None:
        """Answer whoever asks, and look after the processes."""
        self._start_due()
        assert self._learner_process is not None
        learner = self._learner_process.control
        places = (*self._places, self._policy_place)
        controls = {place.process.control: place for place in places if place.process is not None}
        for ready in wait([*controls, learner], timeout=WAIT_S):
            assert isinstance(ready, Connection)
            if ready is learner and self._learner_process.control is learner:
                self.learner.wait_for_news(0.0)
                self._note_progress()
            elif ready in controls:
                place = controls[ready]
                if place.process is not None and place.process.control is ready:
                    serve = self._serve_policy_worker if place is self._policy_place else self._serve_actor
                    serve(place, place.process)
        self._look_after()

    def _take_requests(self) -> None:
        """Do what commands have asked for. Who joins or leaves changes what lies where in shared memory: then
        everything starts again, from a checkpoint of this moment."""
        if answer_requests(self._requests, self._editor):
            self.experiment = self._editor.now
            self.controller.change_evaluation(self.experiment.evaluation)
            if self._hosted.keys() != self.league.standings.keys():
                self._save()
                self._kill_all()
                self._start("league edited")

    def _look_after(self) -> None:
        """Replace who has died or shows no life."""
        self._launcher.life.look()
        hung = f"no sign of life for {self._rules.hung_after_s:g} s"
        for index, place in enumerate(list(self._places)):
            process = place.process
            if process is None:
                continue
            if process.exit_code is not None and not process.control.poll(0):
                self._replace_actor(place, death_of(process, "env_crash"))
            elif self._launcher.life.is_hung(index):
                self._replace_actor(place, Fault("env_hang", hung))
            else:
                continue
            return  # the places may have changed; the others are looked at in a moment
        policy_worker = self._policy_place.process
        if policy_worker is not None:
            if policy_worker.exit_code is not None and not policy_worker.control.poll(0):
                self._replace_policy_worker(death_of(policy_worker, "worker_crash"))
            elif self._launcher.life.is_hung(len(self._places)):
                self._replace_policy_worker(Fault("worker_hang", hung))
        self.learner.check()
        if self._launcher.life.is_hung(-1):
            raise LearnerGone(Fault("worker_hang", hung))

    def _serve_actor(self, place: WorkerPlace, process: WorkerProcess) -> None:
        try:
            request = receive(process.control, FromActor)
            if isinstance(request, NextMatch):
                send(process.control, MatchFound(self.controller.next_match(request.tables, place.name)))
            elif isinstance(request, Report):
                if not self._report(place, request):
                    return
                send(process.control, Done())
            elif isinstance(request, VoidMatch):
                if not self._void(place, request):
                    return
                send(process.control, Done())
            elif isinstance(request, FindFrozen):
                send(process.control, self._find_frozen(request))
            elif isinstance(request, Stopping):
                raise StopTraining(request.reason)
            else:
                self._replace_actor(place, Fault(request.kind, request.reason))
        except PeerGone:
            self._replace_actor(place, death_of(process, "env_crash"))
        except BadMessage as error:
            self._replace_actor(place, Fault("worker_crash", str(error)))

    def _serve_policy_worker(self, place: WorkerPlace, process: WorkerProcess) -> None:
        try:
            request = receive(process.control, FromPolicyWorker)
            if isinstance(request, FindFrozen):
                send(process.control, self._find_frozen(request))
            elif isinstance(request, Stopping):
                raise StopTraining(request.reason)
            else:
                self._replace_policy_worker(Fault(request.kind, request.reason))
        except PeerGone:
            self._replace_policy_worker(death_of(process, "worker_crash"))
        except BadMessage as error:
            self._replace_policy_worker(Fault("worker_crash", str(error)))

    def _find_frozen(self, request: FindFrozen) -> FrozenFound:
        player = self.league.players[request.player]
        return FrozenFound(player.model or "", player.weights)

    def _report(self, place: WorkerPlace, request: Report) -> bool:
        """Record a result; what cannot be one is refused, and its sender is replaced."""
        try:
            self.controller.report(request.result)
        except (ValueError, LookupError) as error:
            self._replace_actor(place, Fault("bad_result", str(error)))
            return False
        self.episodes += request.result.episodes
        for working in (place, self._policy_place):
            working.forgive(self.learner.decisions)
        return True

    def _void(self, place: WorkerPlace, request: VoidMatch) -> bool:
        """A game was lost; the actor that plays it goes on, unless it has no such match."""
        try:
            self.controller.void_match(request.match_id, request.reason)
        except (ValueError, LookupError) as error:
            self._replace_actor(place, Fault("bad_result", str(error)))
            return False
        fault = Fault("game_lost", request.reason)
        self.faults.note(fault, place.name, "the match is void", matches=[request.match_id])
        return True

    def _note_progress(self) -> None:
        for decisions, statistics in self.learner.news:
            self._metrics.append(
                {
                    "decisions": decisions,
                    "episodes": self.episodes,
                    "matches": self.league.matches.finished,
                    "restarts": self.restarts,
                    "dropped_reward": float(self._launcher.parts.dropped_reward.sum()),
                    **self._launcher.inference.update(),
                    **statistics,
                }
            )
            self._watch_learning.see(statistics)
        self.learner.news.clear()
        self.controller.step()
        if self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every:
            self._save()

    def _save(self, patience_s: float | None = None) -> None:
        self.learner.ask(Save(self.league.num_events), patience_s)
        self._saved_at = self.learner.decisions
        self._learner_failures = 0

    def _end(self) -> None:
        """Save, and give every open match its end: nobody plays on."""
        if self._learner_process is not None:  # else stopped while all starts again, from a new checkpoint
            self._save(self._rules.stop_within_s if self._stopped() else None)
        self.controller.void(None, "stopped")

    def _kill_all(self) -> None:
        for place in (*self._places, self._policy_place):
            if place.process is not None:
                place.process.kill()
                place.process = None
        if self._learner_process is not None:
            self._learner_process.kill()
            self._learner_process = None

    def close(self) -> None:
        self._kill_all()
        self._ledger.close()
        self._metrics.close()
        self.faults.close()
        self._launcher.close()

    # --- for who looks on ---

    @property
    def learner_pid(self) -> int:
        assert self._learner_process is not None
        return self._learner_process.pid

    @property
    def policy_worker_pid(self) -> int | None:
        """None where actors run the policies themselves, and while it is being started again."""
        process = self._policy_place.process
        return None if process is None else process.pid

    @property
    def actor_pids(self) -> list[int]:
        return [place.process.pid for place in self._places if place.process is not None]

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
        }


def default_actors(experiment: Experiment) -> int:
    """One for each usable core but the learner's, as long as the share of a batch that each hands over is
    several steps of its tables: with smaller ones much of what is played is too old before it is used."""
    worth = experiment.learner.batch_size // (STEPS_PER_SHARE * experiment.actor.num_tables)
    return max(1, min(int(usable_cores()) - 1, worth))
