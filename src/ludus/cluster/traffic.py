"""What goes between the learner's node and the others: trajectories one way; weights, freed slots and how
much was used the other way. The same slot has the same number on both nodes, and belongs to one side at a
time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.cluster.parcel import DamagedParcel, Parcel, pack, unpack
from ludus.cluster.trajectories import pack_slots, put_slots
from ludus.data.records import ModelId
from ludus.data.trees import Tree, under
from ludus.local.shared_parts import SharedParts
from ludus.runtime.channel import Signal
from ludus.runtime.cluster_config import Compression


class Counters:
    """Turns what others have counted so far into what was added since; a count that begins again adds all."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, NDArray[np.float64]] = {}

    def since(self, who: Hashable, counted: Sequence[float]) -> NDArray[np.float64]:
        now = np.array(counted, np.float64)
        before = self._seen.get(who, np.zeros_like(now))
        self._seen[who] = now
        return np.where(now >= before, now - before, now)


class PeerLost(Exception):  # noqa: N818
    """A site that something was sent to is gone."""


class Ticket(Protocol):
    """A call that is on its way."""

    def answer(self) -> bool | None:
        """None while it is on its way; False: what came was no good. Raises `PeerLost` if nobody is there."""


class Peer(Protocol):
    """Another site, wherever it is. Calls return at once and arrive in order."""

    def deliver(self, delivery: Delivery, parcel: Parcel) -> Ticket: ...
    def update(self, update: Update, weights: Any) -> Ticket:
        """`weights`: what `share` gave, or None."""

    def share(self, parcel: Parcel) -> Any:
        """Something that many sites will be sent."""


class Delivery(msgspec.Struct, frozen=True):
    """Goes with the trajectories of one actor."""

    actor: int
    epoch: int
    """Counts the processes that were ever started: a late delivery of one that was given up is refused."""
    present: bool
    times: list[float]


class UsedUp(msgspec.Struct, frozen=True):
    """What the learner has done with the trajectories of one actor."""

    actor: int
    epoch: int
    used: list[int]
    freed: bytes
    """Slot codes, int64."""


class Update(msgspec.Struct, frozen=True):
    """From the learner's site to another one."""

    actors: list[UsedUp]
    models: list[str]
    """Of the weights that come along; their arrays are named NUMBER/NAME, by their place in this list."""


@dataclass
class _Lane:
    """The way of one actor to the learner."""

    epoch: int
    present: bool = False
    tickets: list[Ticket] = field(default_factory=list)


class Outlet:
    """Of a site without the learner: takes its part towards the actors."""

    def __init__(
        self,
        parts: SharedParts,
        signals: Sequence[Signal],
        learner: Peer,
        *,
        compress: Compression,
        in_flight: int,
    ) -> None:
        self._parts = parts
        self._signals = signals
        self._learner = learner
        self._compress = compress
        self._in_flight = in_flight
        self._lanes: dict[int, _Lane] = {}
        self.bytes = 0
        """Of trajectories sent."""
        self.is_full = False
        """An actor has more to send than may be on its way."""
        self.cut_off = False
        """The learner's site is gone, or does not want what comes from here. The controller will say what
        comes now."""

    def open(self, actor: int, epoch: int) -> None:
        """An actor begins here, as if there had been none."""
        for ring in (self._parts.ready[actor], self._parts.free[actor]):
            ring.clear()
        self._parts.used[actor] = 0
        self._parts.present[actor] = False
        self._lanes[actor] = _Lane(epoch)

    def shut(self, actor: int) -> None:
        self._lanes.pop(actor, None)

    @property
    def woken_by(self) -> Sequence[Signal]:
        """Those by which actors wake a learner."""
        return self._signals[self._parts.num_places + 1 :]

    def step(self) -> None:
        self.is_full = False
        try:
            for actor, lane in self._lanes.items() if not self.cut_off else ():
                self._send(actor, lane)
        except PeerLost:
            self.cut_off = True

    def _send(self, actor: int, lane: _Lane) -> None:
        answers = [(ticket, ticket.answer()) for ticket in lane.tickets]
        if any(answer is False for _, answer in answers):
            raise PeerLost(f"what actor {actor} has sent was refused, and it lives")
        lane.tickets = [ticket for ticket, answer in answers if answer is None]
        present = bool(self._parts.present[actor])
        if not len(self._parts.ready[actor]) and present == lane.present:
            return
        if len(lane.tickets) >= self._in_flight:
            self.is_full = True
            return
        parcel = pack_slots(self._parts, self._parts.ready[actor].take(), self._compress)
        times = self._parts.actor_times[actor].tolist()
        lane.tickets.append(self._learner.deliver(Delivery(actor, lane.epoch, present, times), parcel))
        lane.present = present
        self.bytes += parcel.body.nbytes

    def take_in(self, update: Update, weights: Parcel | None) -> bool:
        """News of the learner: actors that waited for it go on. False: the weights have to be sent again."""
        whole = weights is None or self._publish(update.models, weights)
        for done in update.actors:  # only now: who goes on has to act with the weights that came along
            lane = self._lanes.get(done.actor)
            if lane is not None and lane.epoch == done.epoch:
                self._parts.free[done.actor].put(np.frombuffer(done.freed, np.int64))
                self._parts.used[done.actor] = done.used
                self._signals[done.actor].notify()
        return whole

    def _publish(self, models: Sequence[str], weights: Parcel) -> bool:
        try:
            arrays = unpack(weights)
        except DamagedParcel:
            return False
        for number, model in enumerate(models):
            self._parts.board.publish(ModelId.parse(model), under(f"{number}/", arrays))
        return True


@dataclass
class _Far:
    """Another site, as the learner's one sees it."""

    peer: Peer
    actors: dict[int, int] = field(default_factory=dict)
    """Epoch of each."""
    ticket: Ticket | None = None
    known: dict[str, ModelId] = field(default_factory=dict)
    used: dict[int, list[int]] = field(default_factory=dict)


class Inlet:
    """Of the learner's site: takes the part of actors that are elsewhere."""

    def __init__(
        self,
        parts: SharedParts,
        signals: Sequence[Signal],
        learner_of: Callable[[int], int],
        find_peer: Callable[[str], Peer],
    ) -> None:
        """`learner_of`: actor -> number of the worker that learns from it."""
        self._parts = parts
        self._signals = signals
        self._learner_of = learner_of
        self._find_peer = find_peer
        self._sites: dict[str, _Far] = {}
        self._clocks = Counters()
        self._shared: tuple[list[ModelId], Any] | None = None
        """The weights that were sent last."""
        self.is_full = False
        """A site has not taken yet what it was told last."""

    def know(self, site: str) -> None:
        """It gets weights from now on: nobody can start there without."""
        if site not in self._sites:
            self._sites[site] = _Far(self._find_peer(site))

    def admit(self, actor: int, epoch: int, site: str) -> None:
        """An actor is about to start at this site."""
        self.refuse(actor)
        self.know(site)
        self._sites[site].actors[actor] = epoch

    def refuse(self, actor: int) -> None:
        """It is dead, or given up: nothing more of it comes in, however late."""
        for far in self._sites.values():
            far.actors.pop(actor, None)
            far.used.pop(actor, None)

    def absent(self, actor: int) -> None:
        """It has left in good order: nobody waits for it, whether its last word came in or not."""
        self._parts.present[actor] = False
        self._signals[self._learner_of(actor)].notify()

    @property
    def woken_by(self) -> Sequence[Signal]:
        """Those by which the learner wakes actors that are elsewhere."""
        return [self._signals[actor] for far in self._sites.values() for actor in far.actors]

    def deliver(self, delivery: Delivery, parcel: Parcel) -> bool:
        actor = delivery.actor
        if not any(far.actors.get(actor) == delivery.epoch for far in self._sites.values()):
            return False
        self._parts.ready[actor].put(put_slots(self._parts, parcel))
        self._parts.actor_times[actor] += self._clocks.since(actor, delivery.times)
        self._parts.present[actor] = delivery.present
        self._signals[self._learner_of(actor)].notify()
        return True

    def step(self) -> None:
        """Tell every site what is new, one message at a time."""
        self.is_full = False
        for name, far in list(self._sites.items()):
            try:
                answer = True if far.ticket is None else far.ticket.answer()
                if answer is False:
                    far.known.clear()
                if answer is None:
                    self.is_full = True
                else:
                    far.ticket = self._tell(far)
            except PeerLost:  # what it sends is refused from now on: if it lives, it tells the controller
                del self._sites[name]

    def _tell(self, far: _Far) -> Ticket | None:
        done = []
        for actor, epoch in far.actors.items():
            freed, used = self._parts.free[actor].take(), self._parts.used[actor].tolist()
            if len(freed) or far.used.get(actor) != used:
                far.used[actor] = used
                done.append(UsedUp(actor, epoch, used, freed.tobytes()))
        newest = {player: self._parts.board.newest(player) for player in self._parts.players}
        fresh = {
            player: model
            for player, model in newest.items()
            if model and model != far.known.get(player) and (far.actors or player not in far.known)
        }
        if not done and not fresh:
            return None
        models, weights = self._weights(far.peer, fresh) if fresh else ([], None)
        far.known |= {model.player: model for model in models}
        return far.peer.update(Update(done, [str(model) for model in models]), weights)

    def _weights(self, peer: Peer, fresh: dict[str, ModelId]) -> tuple[list[ModelId], Any]:
        """Shared with all sites that have fallen behind by the same."""
        wanted = list(fresh.values())
        if self._shared is None or self._shared[0] != wanted:
            models: list[ModelId] = []
            arrays: Tree = {}
            for number, player in enumerate(fresh):
                model, weights = self._parts.board.fetch(player)  # may be newer by now
                models.append(model)
                arrays |= {f"{number}/{name}": array for name, array in weights.items()}
            self._shared = models, peer.share(pack(arrays))
        return self._shared
