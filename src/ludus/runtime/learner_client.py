"""The controller's client of the learner process: requests with a time limit, and the news it sends."""

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
    """The learner has died, failed or hung: all workers start again from its checkpoint."""

    def __init__(self, fault: Fault, pid: int) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.pid = pid


class RemoteLearner:
    """The learner of another process: what it has reported so far, and requests to it."""

    def __init__(
        self, process: WorkerProcess, patience_s: float, spent: int = 0, followers: Sequence[WorkerProcess] = ()
    ) -> None:
        self._process = process
        self._followers = followers
        """Its other ranks. They send messages only when they fail, and all ranks end together."""
        self._spent = spent
        """Decisions of players that have left."""
        self._patience_s = patience_s
        self._has_news = False
        self.reports: dict[str, LearnerProgress] = {}
        self.updates: list[tuple[int, dict[str, float]]] = []
        """Updates that have not been recorded yet: the decisions after each, and its statistics."""
        self.stopping: str | None = None
        """Why the learner's middleware asks for the end of the run."""

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
        """Send a request and return its answer; news that arrive before it are kept."""
        try:
            send(self._process.control, request)
        except PeerGone:
            raise self._died(self._process) from None
        while True:
            message = self._next(self._patience_s if patience_s is None else patience_s)
            if not self._take_in(message):
                return message

    def wait_until_ready(self, patience_s: float, stopped: Callable[[], bool]) -> None:
        """Wait for the first report, which follows when the checkpoint is loaded."""
        self._take_news(self._next(patience_s, stopped))

    def take_news(self) -> bool:
        """Take what the learner has sent without being asked, and never wait. Returns whether there was a
        report since the last call, including those that came before the answer to a request."""
        while self._process.control.poll(0):
            self._take_news(self._receive())
        has_news, self._has_news = self._has_news, False
        return has_news

    def _take_news(self, message: Any) -> None:
        if not self._take_in(message):
            raise self._gone(Fault("worker_crash", f"the learner answers what nobody asked: {message}"))

    def check(self) -> None:
        """Raise `LearnerGone` if the process, or that of another rank, has ended and left no message."""
        for follower in self._followers:
            try:
                if follower.control.poll(0):
                    failed = receive(follower.control, Failed)
                    raise self._gone(Fault(failed.kind, f"{follower.name}: {failed.reason}"))
            except (PeerGone, BadMessage, OSError):
                raise self._died(follower) from None
            if follower.exit_code is not None:
                raise self._died(follower)
        if self._process.exit_code is not None and not self._process.control.poll(0):
            raise self._died(self._process)

    def _gone(self, fault: Fault) -> LearnerGone:
        return LearnerGone(fault, self.pid)

    def _died(self, process: WorkerProcess) -> LearnerGone:
        return self._gone(death_of(process, "worker_crash"))

    def _next(self, patience_s: float, stopped: Callable[[], bool] = lambda: False) -> Any:
        """The next message. Time is counted in waits, so that a pause of this process does not count."""
        waits = 0
        while not self._process.control.poll(WAIT_S):
            self.check()
            waits += 1
            if waits * WAIT_S > patience_s:
                raise self._gone(Fault("worker_hang", f"the learner did not answer for {patience_s:.0f} s"))
            if stopped():
                raise self._gone(Fault("killed", "stopped while the learner was starting"))
        return self._receive()

    def _receive(self) -> Any:
        try:
            return receive(self._process.control, FromLearner)
        except PeerGone:
            raise self._died(self._process) from None
        except BadMessage as error:
            raise self._gone(Fault("worker_crash", str(error))) from error

    def _take_in(self, message: Any) -> bool:
        """Whether the message was news, which is kept, and not an answer."""
        if isinstance(message, Failed):
            raise self._gone(Fault(message.kind, message.reason))
        if isinstance(message, Stopping):
            self.stopping = message.reason
            return True
        if not isinstance(message, Learned):
            return False
        self._has_news = True
        self.reports |= {report.player: report for report in message.reports}
        if message.statistics:
            self.updates.append((self.decisions, message.statistics))
        return True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def decisions(self) -> int:
        return self._spent + sum(report.decisions for report in self.reports.values())
