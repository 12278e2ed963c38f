"""What actors and their helpers ask of the controller, and its answers."""

from __future__ import annotations

from ludus.local.crew import Crew
from ludus.local.faults import Fault, FaultLog, death_of
from ludus.local.remote_learner import RemoteLearner
from ludus.local.supervisor import WorkerPlace
from ludus.local.upkeep import Tally, Upkeep
from ludus.runtime.messages import (
    Done,
    FindFrozen,
    FromActor,
    FromHelper,
    FrozenFound,
    Leaving,
    MatchFound,
    NextMatch,
    Report,
    Stopping,
    VoidMatch,
)
from ludus.runtime.process import BadMessage, PeerGone, WorkerProcess, receive, send
from ludus.runtime.program import StopTraining
from ludus.workers.controller import Controller


class Serving:
    """From one start of all workers to the next. What cannot be answered is its sender's fault."""

    def __init__(
        self,
        *,
        crew: Crew,
        controller: Controller,
        learner: RemoteLearner,
        upkeep: Upkeep,
        faults: FaultLog,
        tally: Tally,
    ) -> None:
        self._crew = crew
        self._controller = controller
        self._learner = learner
        self._upkeep = upkeep
        self._faults = faults
        self._tally = tally

    def serve(self, place: WorkerPlace, process: WorkerProcess) -> None:
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

    def _serve_actor(self, place: WorkerPlace, process: WorkerProcess) -> None:
        request = receive(process.control, FromActor)
        if isinstance(request, NextMatch):
            leaves = place.leave_by is not None
            match = None if leaves else self._controller.next_match(request.tables, place.name)
            send(process.control, MatchFound(match, self._crew.sharing))
        elif isinstance(request, Report):
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

    def _serve_helper(self, place: WorkerPlace, process: WorkerProcess) -> None:
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

    def _report(self, place: WorkerPlace, request: Report) -> bool:
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

    def _void(self, place: WorkerPlace, request: VoidMatch) -> bool:
        """A game was lost; the actor that plays it goes on, unless it has no such match."""
        try:
            self._controller.void_match(request.match_id, request.reason)
        except (ValueError, LookupError) as error:
            self._upkeep.replace(place, Fault("bad_result", str(error)))
            return False
        fault = Fault("game_lost", request.reason)
        self._faults.note(fault, place.name, "the match is void", matches=[request.match_id])
        return True
