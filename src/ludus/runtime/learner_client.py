"""The controller's clients of learner processes: requests with a time limit, and the news that learners send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ludus.data.records import LearnerProgress, ModelId, PlayerReset, Settings
from ludus.runtime.faults import START_UP_S, Fault, death_of
from ludus.runtime.shared_parts import WAIT_S
from ludus.system.process import BadMessage, PeerGone, WorkerProcess, receive, send
from ludus.workers.messages import (
    Configure,
    Failed,
    Forget,
    FromLearner,
    Learned,
    Publish,
    Published,
    ResetWeights,
    Stopping,
    ToLearner,
)


class LearnerGone(Exception):  # noqa: N818
    """A learner has died, failed or hung. If it trained one player alone, it starts again from its checkpoint;
    otherwise all workers do."""

    def __init__(self, fault: Fault, pid: int, player: str | None = None) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.pid = pid
        self.player = player
        """The only player that it trained; None: it trained all."""


class RemoteLearner:
    """The learner of another process: what it has reported so far, and requests to it."""

    unforgotten: frozenset[int] = frozenset()
    """Actors that it has yet to forget: none, because requests are waited for."""

    def __init__(
        self,
        process: WorkerProcess,
        is_hung: Callable[[], bool],
        spent: int = 0,
        followers: Sequence[WorkerProcess] = (),
        player: str | None = None,
    ) -> None:
        """`is_hung`: whether it has been silent for too long. A learner answers between two updates, which may take
        minutes, and shows life meanwhile. `player`: the only one that it trains; None: it trains all."""
        self._process = process
        self._is_hung = is_hung
        self.player = player
        self.is_ready = False
        """It has loaded its checkpoint."""
        self._followers = followers
        """Its other ranks. They send messages only when they fail, and all ranks end together."""
        self._spent = spent
        """Decisions of players that have left."""
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
        """Send a request and return its answer; news that arrive before it are kept. Waits as long as the learner
        shows life, or for `patience_s`."""
        self.send(request)
        return self.wait_for_answer(patience_s)

    def send(self, request: ToLearner) -> None:
        """Send a request. That the learner is gone shows when its answer is waited for."""
        with suppress(PeerGone):
            send(self._process.control, request)

    def wait_for_answer(self, patience_s: float | None = None) -> Any:
        while True:
            message = self._next(patience_s)
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
        return LearnerGone(fault, self.pid, self.player)

    def _died(self, process: WorkerProcess) -> LearnerGone:
        return self._gone(death_of(process, "worker_crash"))

    def _next(self, patience_s: float | None, stopped: Callable[[], bool] = lambda: False) -> Any:
        """The next message. Time is counted in waits, so that a pause of this process does not count."""
        waits = 0
        while not self._process.control.poll(WAIT_S):
            self.check()
            waits += 1
            if self._is_hung() if patience_s is None else waits * WAIT_S > patience_s:
                raise self._gone(Fault("worker_hang", f"the learner did not answer for {waits * WAIT_S:.0f} s"))
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
        self._has_news = self.is_ready = True
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


class RemoteLearners:
    """A learner process for each player: the same to the controller as one for all of them."""

    def __init__(self, members: Mapping[str, RemoteLearner], spent: int) -> None:
        self._members = dict(members)
        self._spent = spent
        self._resume: dict[str, Callable[[], None]] = {}
        """By player whose learner is being started again: called as soon as it is ready."""
        self._missed: dict[str, list[Forget]] = {player: [] for player in members}
        """By player: actors that its learner has to forget once it is ready."""
        self.updates: list[tuple[int, dict[str, float]]] = []

    def replace(self, player: str, learner: RemoteLearner, resume: Callable[[], None]) -> None:
        """The learner of a player is started again. `resume`: called as soon as it is ready."""
        learner.reports = self._members[player].reports
        self._members[player] = learner
        self._resume[player] = resume

    # --- for the controller ---

    def report(self, player: str) -> LearnerProgress:
        return self._members[player].report(player)

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        return self._ready(player).freeze(player, parent)

    def reset(self, event: PlayerReset) -> None:
        self._ready(event.player).reset(event)

    def configure(self, player: str, settings: Settings) -> None:
        self._ready(player).configure(player, settings)

    # --- messages ---

    def ask(self, request: ToLearner, patience_s: float | None = None) -> Any:
        """Ask all of them; they work on it at the same time. If one is gone, the others do so all the same: it
        starts again alone, and nobody repeats the request. One that is being started again is waited for, unless it
        can do the request later."""
        asked: list[RemoteLearner] = []
        gone: list[LearnerGone] = []
        answer = None
        for player, member in self._members.items():
            if isinstance(request, Forget) and not member.is_ready:
                self._missed[player].append(request)
                continue
            try:
                asked.append(self._ready(player))
            except LearnerGone as error:
                gone.append(error)
        for member in asked:
            member.send(request)
        for member in asked:
            try:
                answer = member.wait_for_answer(patience_s)
            except LearnerGone as error:
                gone.append(error)
        if gone:
            raise gone[0]
        return answer

    def wait_until_ready(self, patience_s: float, stopped: Callable[[], bool]) -> None:
        for member in self._members.values():
            member.wait_until_ready(patience_s, stopped)

    def take_news(self) -> bool:
        has_news = False
        for player, member in self._members.items():
            has_news |= member.take_news()
            if member.is_ready:
                self._go_on(player)
            self.updates += [(self.decisions, statistics) for _, statistics in member.updates]
            member.updates = []
        return has_news

    def check(self) -> None:
        for member in self._members.values():
            member.check()

    def _ready(self, player: str) -> RemoteLearner:
        member = self._members[player]
        if not member.is_ready:
            member.wait_until_ready(START_UP_S, lambda: False)
        self._go_on(player)
        return member

    def _go_on(self, player: str) -> None:
        missed = self._missed[player]
        while missed:
            self._members[player].ask(missed[0])
            del missed[0]
        resume = self._resume.pop(player, None)
        if resume is not None:
            resume()

    @property
    def unforgotten(self) -> frozenset[int]:
        """Actors that a learner has yet to forget. Until then no other actor may take their place: it would write into
        the rings that the learner is about to clear."""
        return frozenset(request.actor for missed in self._missed.values() for request in missed)

    @property
    def is_ready(self) -> bool:
        """None of them is being started again."""
        return all(member.is_ready for member in self._members.values())

    @property
    def stopping(self) -> str | None:
        return next((one.stopping for one in self._members.values() if one.stopping is not None), None)

    @property
    def reports(self) -> dict[str, LearnerProgress]:
        return {player: report for one in self._members.values() for player, report in one.reports.items()}

    @property
    def pid(self) -> int:
        """Of the first."""
        return next(iter(self._members.values())).pid

    @property
    def decisions(self) -> int:
        return self._spent + sum(report.decisions for report in self.reports.values())


AnyLearner = RemoteLearner | RemoteLearners
