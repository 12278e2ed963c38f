"""The controller's way to the learner process: asks, and never waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ludus.data.records import LearnerProgress, ModelId, PlayerReset, Settings
from ludus.runtime.faults import Fault, death_of
from ludus.runtime.shared_parts import WAIT_S
from ludus.system.process import BadMessage, PeerGone, WorkerProcess, receive, send
from ludus.workers.messages import (
    Configure,
    Failed,
    FromLearner,
    Learned,
    Publish,
    Published,
    ResetWeights,
    Stopping,
    ToLearner,
)


class LearnerGone(Exception):  # noqa: N818
    """The learner has died, failed or hung: everything starts again from its checkpoint."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class RemoteLearner:
    """What the learner has told so far, and requests to it."""

    def __init__(
        self,
        process: WorkerProcess,
        patience_s: float,
        spent: int = 0,
        followers: Sequence[WorkerProcess] = (),
    ) -> None:
        self._process = process
        self._followers = followers
        """Its other ranks. They speak only when they fail, and all ranks end together."""
        self._spent = spent
        """Decisions of players that have left."""
        self._patience_s = patience_s
        self.reports: dict[str, LearnerProgress] = {}
        self.statistics: dict[str, float] = {}
        self.news: list[tuple[int, dict[str, float]]] = []
        """Of updates that have not been recorded yet: decisions after it, and its statistics."""
        self.stopping: str | None = None
        """Why its middleware asks for the end of the run."""

    # --- for the controller ---

    def report(self, player: str) -> LearnerProgress:
        return self.reports[player]

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        answer = self.ask(Publish(player, str(parent) if parent else None))
        assert isinstance(answer, Published)
        self.reports[player] = answer.report
        return answer.report

    def reset(self, event: PlayerReset) -> None:
        self.ask(ResetWeights(event))

    def configure(self, player: str, settings: Settings) -> None:
        self.ask(Configure(player, settings))

    # --- messages ---

    def ask(self, request: ToLearner, patience_s: float | None = None) -> Any:
        """Send a request; news that come before its answer are taken in."""
        try:
            send(self._process.control, request)
        except PeerGone:
            raise LearnerGone(death_of(self._process, "worker_crash")) from None
        while True:
            message = self._next(self._patience_s if patience_s is None else patience_s)
            if not self._take_in(message):
                return message

    def wait_for_news(self, patience_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        message = self._next(patience_s, stopped)
        if not self._take_in(message):
            raise LearnerGone(Fault("worker_crash", f"the learner answers what nobody asked: {message}"))

    def check(self) -> None:
        """Raises `LearnerGone` if the process, or that of another rank, has ended and has nothing more to
        say."""
        for follower in self._followers:
            self._check_follower(follower)
        if self._process.exit_code is not None and not self._process.control.poll(0):
            raise LearnerGone(death_of(self._process, "worker_crash"))

    def _check_follower(self, follower: WorkerProcess) -> None:
        try:
            if follower.control.poll(0):
                failed = receive(follower.control, Failed)
                raise LearnerGone(Fault(failed.kind, f"{follower.name}: {failed.reason}"))
        except (PeerGone, BadMessage, OSError):
            raise LearnerGone(death_of(follower, "worker_crash")) from None
        if follower.exit_code is not None:
            raise LearnerGone(death_of(follower, "worker_crash"))

    def _next(self, patience_s: float, stopped: Callable[[], bool] = lambda: False) -> Any:
        """The next message. Time is counted in waits, so that a pause of this process does not count."""
        control = self._process.control
        waits = 0
        while not control.poll(WAIT_S):
            self.check()
            waits += 1
            if waits * WAIT_S > patience_s:
                raise LearnerGone(Fault("worker_hang", f"the learner did not answer for {patience_s:.0f} s"))
            if stopped():
                raise LearnerGone(Fault("killed", "stopped while the learner was starting"))
        try:
            return receive(control, FromLearner)
        except PeerGone:
            raise LearnerGone(death_of(self._process, "worker_crash")) from None
        except BadMessage as error:
            raise LearnerGone(Fault("worker_crash", str(error))) from error

    def _take_in(self, message: Any) -> bool:
        """True if the message was news and not an answer."""
        if isinstance(message, Failed):
            raise LearnerGone(Fault(message.kind, message.reason))
        if isinstance(message, Stopping):
            self.stopping = message.reason
            return True
        if not isinstance(message, Learned):
            return False
        self.reports |= {report.player: report for report in message.reports}
        if message.statistics:
            self.statistics |= message.statistics
            self.news.append((self.decisions, message.statistics))
        return True

    @property
    def decisions(self) -> int:
        return self._spent + sum(report.decisions for report in self.reports.values())
