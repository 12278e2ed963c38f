"""A run as processes of this machine. The main process is the controller; actors and the learner are its
children. An actor that dies is replaced and its matches are void; when the learner dies, everything starts
again from the latest checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from ludus.assemble import CHECKPOINT, Training, new_league
from ludus.data.records import LearnerProgress, ModelId, PlayerReset
from ludus.data.trees import Tree
from ludus.experiment import Experiment
from ludus.local.shared_parts import WAIT_S, SharedParts
from ludus.runtime.channel import Signal
from ludus.runtime.cores import usable_cores
from ludus.runtime.messages import (
    Done,
    Failed,
    FindFrozen,
    Forget,
    FromActor,
    FromLearner,
    FrozenFound,
    Learned,
    MatchFound,
    NextMatch,
    Publish,
    Published,
    Report,
    Reset,
    Save,
    Stopping,
    ToLearner,
)
from ludus.runtime.process import Launch, WorkerProcess, control_pair, receive, send
from ludus.runtime.program import StopTraining
from ludus.runtime.serial import FINISHED, INTERRUPTED, stop_signals
from ludus.runtime.shared_memory import Region, bytes_needed
from ludus.store.metrics_file import MetricsFile
from ludus.store.run_folder import RunFolder
from ludus.workers.controller import Controller
from ludus.workers.evaluator import Evaluator

HUNG_S = 60.0
"""A worker that has shown no life for so long is ended and replaced."""
MOST_FAILURES = 5
"""Errors in a row, without a finished match in between, after which the run is given up."""


class RemoteLearner:
    """The controller's way to the learner process."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self.reports: dict[str, LearnerProgress] = {}
        self.statistics: dict[str, float] = {}
        self.news: list[dict[str, float]] = []
        """Statistics of updates that have not been recorded yet."""

    def report(self, player: str) -> LearnerProgress:
        return self.reports[player]

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        answer = self.ask(Publish(player, str(parent) if parent else None))
        assert isinstance(answer, Published)
        self.reports[player] = answer.report
        return answer.report

    def reset(self, event: PlayerReset, weights: Tree | None) -> None:
        self.ask(Reset(event))

    def ask(self, request: ToLearner) -> Any:
        """Send a request; news that come before its answer are taken in."""
        send(self._control, request)
        while True:
            message = receive(self._control, FromLearner)
            if not self.take_in(message):
                return message

    def take_in(self, message: Any) -> bool:
        """True if the message was news and not an answer."""
        if isinstance(message, Failed):
            raise LearnerFailed(message.reason)
        if isinstance(message, Stopping):
            raise StopTraining(message.reason)
        if not isinstance(message, Learned):
            return False
        self.reports |= {report.player: report for report in message.reports}
        if message.statistics:
            self.statistics |= message.statistics
            self.news.append(message.statistics)
        return True

    @property
    def decisions(self) -> int:
        return sum(report.decisions for report in self.reports.values())


class LearnerFailed(RuntimeError):  # noqa: N818
    """The learner process has ended with an error of its own."""


GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""What talking to a process raises when it has died."""


class WorkersFailed(RuntimeError):  # noqa: N818
    """Workers keep failing by themselves: something is wrong with the game or the experiment."""


class LocalTraining:
    """A run as processes of this machine."""

    def __init__(self, experiment: Experiment, folder: RunFolder, num_actors: int) -> None:
        self.experiment = experiment
        self.folder = folder
        self.num_actors = num_actors
        self.league = new_league(experiment)
        self.restarts = 0
        self.episodes = 0
        self._ledger = folder.ledger()
        self._metrics = MetricsFile(folder.metrics / "train.jsonl")
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._region = Region.create(bytes_needed(lambda new: SharedParts(experiment, num_actors, new)))
        self._parts = SharedParts(experiment, num_actors, self._region.new)
        self._signals = [Signal.create() for _ in range(num_actors + 1)]
        self._attempts = [0] * (num_actors + 1)
        self._saved_at = 0
        self._learner_process: WorkerProcess | None = None
        self._actors: list[WorkerProcess] = []
        self._failures = 0
        """Errors that workers have reported since a match was last finished."""
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    # --- starting and ending processes ---

    def _start_all(self) -> None:
        """Open matches are void, players get a new incarnation, all processes start from the checkpoint."""
        for ring in (*self._parts.ready, *self._parts.free):
            ring.clear()
        self._parts.used[...] = 0
        for _, event in self._ledger.replay(after=self.league.num_events):
            self.league.apply(event)
        starts = self.league.starts
        incarnations = dict.fromkeys(self._parts.players, 0)
        if starts:
            incarnations = {p: s.incarnation + 1 for p, s in self.league.standings.items()}
        process = self._spawn("learner", self.num_actors, incarnations)
        self._learner_process = process
        self.learner = RemoteLearner(process.control)
        self.controller = Controller(
            league=self.league,
            ledger=self._ledger,
            models=self.folder.models,
            learner=self.learner,
            evaluator=Evaluator(self.experiment.evaluation, self.league),
            episodes_per_table=self.experiment.actor.episodes_per_table,
        )
        self.controller.start(starts)
        self.learner.take_in(receive(process.control, FromLearner))
        checkpoint = self._checkpoints.load_latest()
        if checkpoint is not None:
            self.controller.repeat_resets(after=checkpoint.facts["events"])
        self._saved_at = self.learner.decisions
        self.controller.step()
        self._actors = [self._spawn(f"actor-{index}", index, {}) for index in range(self.num_actors)]

    def _spawn(self, name: str, index: int, incarnations: dict[str, int]) -> WorkerProcess:
        self._attempts[index] += 1
        control, child = control_pair()
        launch = Launch(
            run=str(self.folder.path),
            role="learner" if index == self.num_actors else "actor",
            index=index,
            num_actors=self.num_actors,
            attempt=self._attempts[index],
            control_fd=child.fileno(),
            region_fd=self._region.fd,
            signal_fds=tuple(signal.fds for signal in self._signals),
            incarnations=incarnations,
            parent=os.getpid(),
        )
        fds = {child.fileno(), self._region.fd, *(fd for signal in self._signals for fd in signal.fds)}
        self._parts.hearts[index] = time.monotonic()
        process = WorkerProcess(name, launch, sorted(fds), control, self.folder.logs / f"{name}.log")
        child.close()
        return process

    def _replace_actor(self, index: int, reason: str) -> None:
        """Void what the dead actor held, let the learner forget it, start another."""
        process = self._actors[index]
        process.kill()
        self.controller.void(process.name, reason)
        self.learner.ask(Forget(index))
        self._parts.ready[index].clear()
        self._parts.free[index].clear()
        self._parts.used[index] = 0
        self.restarts += 1
        self._actors[index] = self._spawn(process.name, index, {})

    # --- running ---

    def run(self, watch: Callable[[Training], None] | None = None) -> str:
        """Train until the budget is spent or somebody stops it; the state is saved either way."""
        with stop_signals() as stopped:
            reason = self._loop(lambda: self.learner.decisions >= self.experiment.budget, stopped, watch)
            if reason == FINISHED:
                self.controller.freeze_all()
                reason = self._loop(lambda: not self.controller.is_measuring, stopped, watch)
        self._save()
        return reason

    def _loop(
        self,
        finished: Callable[[], bool],
        stopped: Callable[[], bool],
        watch: Callable[[Training], None] | None,
    ) -> str:
        while not finished():
            if stopped():
                return INTERRUPTED
            try:
                self._serve()
            except StopTraining as request:
                return str(request)
            except (LearnerFailed, *GONE) as error:
                self._recover(error)
            if watch is not None:
                watch(self)
        return FINISHED

    def _serve(self) -> None:
        """Answer whoever asks, and look after the processes."""
        learner = self._learner_process
        assert learner is not None
        controls = {process.control: index for index, process in enumerate(self._actors)}
        for ready in wait([*controls, learner.control], timeout=WAIT_S):
            if ready is learner.control:
                self.learner.take_in(receive(learner.control, FromLearner))
                self._note_progress()
            elif isinstance(ready, Connection):
                self._serve_actor(controls[ready])
        now = time.monotonic()
        for index in range(self.num_actors):
            code = self._actors[index].exit_code
            if code is not None:
                self._replace_actor(index, f"actor ended with code {code}")
            elif now - self._parts.hearts[index] > HUNG_S:
                self._replace_actor(index, f"actor hung for {HUNG_S:.0f} s")
        if learner.exit_code is not None:
            raise EOFError(f"the learner ended with code {learner.exit_code}")
        if now - self._parts.hearts[-1] > HUNG_S:
            raise EOFError(f"the learner hung for {HUNG_S:.0f} s")

    def _serve_actor(self, index: int) -> None:
        process = self._actors[index]
        try:
            request = receive(process.control, FromActor)
            if isinstance(request, NextMatch):
                send(process.control, MatchFound(self.controller.next_match(request.tables, process.name)))
            elif isinstance(request, Report):
                self.controller.report(request.result)
                self.episodes += request.result.episodes
                self._failures = 0
                send(process.control, Done())
            elif isinstance(request, FindFrozen):
                player = self.league.players[request.player]
                send(process.control, FrozenFound(player.model or "", player.weights))
            elif isinstance(request, Stopping):
                raise StopTraining(request.reason)
            else:
                self._count_failure(process.name, request.reason)
                self._replace_actor(index, request.reason)
        except GONE:
            self._replace_actor(index, "actor died")

    def _count_failure(self, worker: str, reason: str) -> None:
        """What is killed is started again; what keeps failing by itself would fail for ever."""
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise WorkersFailed(
                f"{worker} failed {self._failures} times in a row: {reason} "
                f"(see {self.folder.logs / f'{worker}.log'})"
            )

    def _note_progress(self) -> None:
        for statistics in self.learner.news:
            self._metrics.append(
                {
                    "decisions": self.learner.decisions,
                    "episodes": self.episodes,
                    "matches": self.league.matches.finished,
                    "restarts": self.restarts,
                    **statistics,
                }
            )
        self.learner.news.clear()
        self.controller.step()
        if self.learner.decisions - self._saved_at >= self.experiment.checkpoint_every:
            self._save()

    def _recover(self, error: BaseException) -> None:
        """The learner is gone: everything starts again from its latest checkpoint."""
        while True:
            self.restarts += 1
            if isinstance(error, LearnerFailed):
                self._count_failure("learner", str(error))
            self._kill_all()
            try:
                self._start_all()
                return
            except (LearnerFailed, *GONE) as again:
                error = again

    def _save(self) -> None:
        self.learner.ask(Save(self.league.num_events))
        self._saved_at = self.learner.decisions

    def _kill_all(self) -> None:
        for process in (*self._actors, *([self._learner_process] if self._learner_process else [])):
            process.kill()

    def close(self) -> None:
        self._kill_all()
        self._ledger.close()
        self._metrics.close()
        self._region.close()
        for signal in self._signals:
            signal.close()

    # --- for who looks on ---

    @property
    def learner_pid(self) -> int:
        assert self._learner_process is not None
        return self._learner_process.pid

    @property
    def actor_pids(self) -> list[int]:
        return [process.pid for process in self._actors]

    def numbers(self) -> dict[str, float]:
        reports = self.learner.reports.values()
        return {
            "decisions": self.learner.decisions,
            "episodes": self.episodes,
            "matches": self.league.matches.finished,
            "updates": sum(report.step for report in reports),
            "restarts": self.restarts,
            **self.learner.statistics,
        }


def default_actors() -> int:
    """One for each usable core but the learner's."""
    return max(1, int(usable_cores()) - 1)
