"""The worker processes of a run: who has which place, who is started when, who joins and who leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ludus.local.launcher import BUFFER_WORKER, POLICY_WORKER, Launcher, SpawnOrder, rank_name
from ludus.local.supervisor import WorkerPlace
from ludus.runtime.process import HostedPlayer, WorkerProcess

LEAST_PLACES = 16


def default_places(num_actors: int) -> int:
    """Places for actors that a run has: a place that nobody takes costs next to nothing."""
    return max(LEAST_PLACES, 2 * num_actors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """What all workers begin with."""

    start: int
    """How often the run was started."""
    players: Mapping[str, HostedPlayer]
    spent: int
    """Decisions of players that have left."""


class Crew:
    """Has a fixed number of places for actors. How many are taken may change while the others play."""

    def __init__(
        self,
        launcher: Launcher,
        num_places: int,
        *,
        num_ranks: int,
        with_policy_worker: bool,
        with_buffer_worker: bool,
    ) -> None:
        self.launcher = launcher
        self.actors = [WorkerPlace(f"actor-{index}", index) for index in range(num_places)]
        self.policy_worker = WorkerPlace(POLICY_WORKER, num_places, taken=with_policy_worker)
        """Stays empty where actors run the policies themselves."""
        number = num_places + 1 + num_ranks
        self.buffer_worker = WorkerPlace(BUFFER_WORKER, number, taken=with_buffer_worker)
        """Stays empty where nothing is recomputed, or the learner does it."""
        self.learner: WorkerProcess | None = None
        self.followers: list[WorkerProcess] = []
        """The learner's other ranks, if it has several."""
        self.learner_starts = 0
        self.learner_started = 0.0
        """Unix time."""
        self.begin: Begin

    @property
    def all_places(self) -> tuple[WorkerPlace, ...]:
        return (*self.actors, *self.helpers)

    @property
    def helpers(self) -> tuple[WorkerPlace, ...]:
        """Places of workers that hold nothing of their own: they are replaced, and the others go on."""
        return (self.policy_worker, self.buffer_worker)

    @property
    def staying(self) -> list[WorkerPlace]:
        """Places of the actors that share a batch: taken, and nobody is about to leave."""
        return [place for place in self.actors if place.taken and place.leave_by is None]

    @property
    def leaving(self) -> list[WorkerPlace]:
        return [place for place in self.actors if place.taken and place.leave_by is not None]

    @property
    def sharing(self) -> int:
        """Actors that share a batch."""
        return max(1, len(self.staying))

    def free(self, count: int) -> list[WorkerPlace]:
        """Places that so many more actors would take: fewer, if there are no more for now."""
        return [place for place in self.actors if not place.taken and not place.given_up][: max(0, count)]

    # --- processes ---

    def lay_out(self, players: Mapping[str, HostedPlayer]) -> None:
        """Shared memory for all who are here; nobody may be alive. Who was about to leave has left."""
        for place in self.leaving:
            place.empty()
        for place in self.all_places:
            place.start_at = 0.0
        self.launcher.lay_out(players, len(self.actors), [place.index for place in self.staying])

    def start_learner(self) -> WorkerProcess:
        self.learner_starts += 1
        self.learner_started = time.time()
        first, *others = [
            self._spawn(rank_name(rank), worker, self.learner_starts)
            for rank, worker in enumerate(self.launcher.parts.learners)
        ]
        self.learner, self.followers = first, others
        return first

    def start_due(self) -> None:
        """Start the workers whose places are empty and who have waited long enough."""
        now = time.monotonic()
        for place in self.all_places:
            due = place.taken and place.process is None and place.start_at <= now
            if due and self.launcher.has_room(place.index):
                place.attempts += 1
                place.started = time.time()
                place.process = self._spawn(place.name, place.index, place.attempts)

    def _spawn(self, name: str, index: int, attempt: int) -> WorkerProcess:
        begin = self.begin
        return self.launcher.spawn(
            SpawnOrder(
                name=name,
                index=index,
                attempt=attempt,
                start=begin.start,
                sharing=self.sharing,
                players=dict(begin.players),
                spent=begin.spent,
            )
        )

    def end(self, place: WorkerPlace) -> WorkerProcess:
        """End the process at a place, now."""
        process, place.process = place.process, None
        assert process is not None
        process.kill()
        return process

    def kill_all(self) -> None:
        for place in self.all_places:
            if place.process is not None:
                self.end(place)
        for follower in self.followers:
            follower.kill()
        self.followers = []
        if self.learner is not None:
            self.learner.kill()
            self.learner = None

    def working(self) -> Iterator[tuple[WorkerPlace, WorkerProcess]]:
        """Who has a process now, besides the learner."""
        for place in self.all_places:
            if place.process is not None:
                yield place, place.process
