"""Transfer between the nodes of the learner's ranks and the nodes of their actors: trajectories one way; weights, freed
slots and counts of used decisions the other way. A slot has the same number on both nodes and belongs to one side at a
time. A node with a rank gets its weights from that rank, whatever ranks its actors play for."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.records import ModelId
from ludus.data.trajectory import SlotPool
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.system.arrays import ArrayDecoder, Bytes, Compression, WireError, encode, stand_in
from ludus.system.machine import install_command
from ludus.system.shared_memory import Signal

if TYPE_CHECKING:  # service processes read models from here and must not load torch
    from ludus.runtime.shared_parts import SharedParts


class ArrayMessage(msgspec.Struct, frozen=True):
    """Named arrays on their way between nodes."""

    header: bytes
    """Describes the arrays (`system.arrays`)."""
    body: Any
    """[bytes] uint8; on arrival it lies in the memory of the object store and is read-only."""
    num_bytes: int
    """The size of the body before compression; the digest is of that too."""
    compress: Compression = "none"
    digest: bytes = b""
    """Empty: the body is not checked."""


class Draft:
    """An `ArrayMessage` that is being filled: `arrays` are views into its body."""

    def __init__(self, shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        arrays = {name: stand_in(dtype, shape) for name, (dtype, shape) in shapes.items()}
        self._header, _, num_bytes = encode(arrays, "another node")
        self._body: Bytes = np.zeros(num_bytes, np.uint8)
        self.arrays: Tree = _decode(self._header, self._body)

    def seal(self, compress: Compression = "none", *, digest: bool = False) -> ArrayMessage:
        checked = _digest(self._body) if digest else b""
        return ArrayMessage(self._header, _smaller(self._body, compress), len(self._body), compress, checked)


def pack(arrays: Mapping[str, Array]) -> ArrayMessage:
    """A message with a digest."""
    draft = Draft({name: (array.dtype, array.shape) for name, array in arrays.items()})
    for name, array in arrays.items():
        draft.arrays[name][...] = array
    return draft.seal(digest=True)


def unpack(message: ArrayMessage) -> Tree:
    """The arrays, as views. Raises `WireError` if the message is not what was sent."""
    body = _larger(message.body, message.compress)
    if len(body) != message.num_bytes:
        raise WireError(f"a message of {message.num_bytes} bytes has {len(body)}")
    if message.digest and _digest(body) != message.digest:
        raise WireError(f"a message of {len(body)} bytes does not match its digest")
    return _decode(message.header, body)


def _decode(header: bytes, body: Bytes) -> Tree:
    arrays: Tree = ArrayDecoder(dict[str, Any]).decode(header, body)
    return arrays


def _digest(body: Bytes) -> bytes:
    return hashlib.blake2b(body.data, digest_size=16).digest()


def _smaller(body: Bytes, compress: Compression) -> Bytes:
    if compress == "none":
        return body
    library = _library(compress)
    packed = library.compress(body.data) if compress == "lz4" else library.compress(body.data, 1)
    return np.frombuffer(packed, np.uint8)


def _larger(body: Bytes, compress: Compression) -> Bytes:
    return body if compress == "none" else np.frombuffer(_library(compress).decompress(body.data), np.uint8)


@cache
def _library(compress: Compression) -> Any:
    try:
        return import_module({"lz4": "lz4.frame", "zstd": "zstandard"}[compress])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"cluster.compress={compress} needs: {install_command('ray')}") from error


CODES = "codes"


def pack_slots(parts: SharedParts, codes: IntArray, compress: Compression) -> ArrayMessage:
    """Pack the entries of a ring: slots, and marks at the end of hand-overs. Only the rows of a slot that were
    written, and the one after them, are sent."""
    shapes = {CODES: (codes.dtype, codes.shape)}
    gathered = {}
    for kind, pool in enumerate(parts.pools):
        slots = _slots(parts, codes, kind)
        if not len(slots):
            continue
        rows = _rows(pool, slots, pool.slots["length"][slots])
        for name, array in pool.rows.items():
            flat = array.reshape(-1, *array.shape[2:])
            gathered[f"{kind}/row/{name}"] = (flat, rows)
            shapes[f"{kind}/row/{name}"] = (array.dtype, (len(rows), *array.shape[2:]))
        for name, array in pool.slots.items():
            gathered[f"{kind}/slot/{name}"] = (array, slots)
            shapes[f"{kind}/slot/{name}"] = (array.dtype, (len(slots), *array.shape[1:]))
    draft = Draft(shapes)
    draft.arrays[CODES][...] = codes
    for name, (array, where) in gathered.items():
        array.take(where, 0, out=draft.arrays[name], mode="clip")  # other modes take a copy more
    return draft.seal(compress)


def put_slots(parts: SharedParts, message: ArrayMessage) -> IntArray:
    """Write a message into the slots that it names; returns the codes for the ring."""
    arrays = unpack(message)
    codes: IntArray = arrays[CODES]
    for kind, pool in enumerate(parts.pools):
        slots = _slots(parts, codes, kind)
        if not len(slots):
            continue
        for name, array in pool.slots.items():
            array[slots] = arrays[f"{kind}/slot/{name}"]
        rows = _rows(pool, slots, arrays[f"{kind}/slot/length"])
        for name, array in pool.rows.items():
            array.reshape(-1, *array.shape[2:])[rows] = arrays[f"{kind}/row/{name}"]
    return codes


def _slots(parts: SharedParts, codes: IntArray, kind: int) -> IntArray:
    _, kinds, slots = parts.decode(codes[codes >= 0])
    chosen: IntArray = slots[kinds == kind]
    return chosen


def _rows(pool: SlotPool, slots: IntArray, lengths: IntArray) -> IntArray:
    """Numbers of rows, counted through all slots of the pool."""
    per_slot = pool.layout.unroll_length + 1
    counts = np.minimum(lengths.astype(np.int64) + 1, per_slot)
    before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(slots * per_slot - before, counts) + np.arange(counts.sum())
    return rows


class Counters:
    """Turns running totals of other processes into differences. A total that starts again counts in full."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, NDArray[np.float64]] = {}

    def since(self, who: Hashable, counted: Sequence[float]) -> NDArray[np.float64]:
        now = np.array(counted, np.float64)
        before = self._seen.get(who, np.zeros_like(now))
        self._seen[who] = now
        return np.where(now >= before, now - before, now)


class PeerLost(Exception):  # noqa: N818
    """The other node is gone."""


class Peer(Protocol):
    """Another node. Calls return at once and arrive in order. The answer False refuses a message."""

    def deliver(self, delivery: TrajectoryDelivery, message: ArrayMessage) -> Future[bool]: ...
    def update(self, update: NodeUpdate, weights: Any) -> Future[bool]:
        """`weights`: a result of `share`, or None."""

    def share(self, message: ArrayMessage) -> Any:
        """Put a message where many nodes can get it."""


class TrajectoryDelivery(msgspec.Struct, frozen=True):
    """Goes with the trajectories of one actor."""

    actor: int
    epoch: int
    """Counts the processes that were ever started: a late delivery of one that was given up is refused."""
    present: bool
    times: list[float]
    learner: int = 0
    """The rank, or the learner of a player, that it is for."""


class UsedUp(msgspec.Struct, frozen=True):
    """A learner's use of the trajectories of one actor."""

    actor: int
    epoch: int
    used: list[int]
    freed: bytes
    """Slot codes, int64."""
    learner: int = 0


class LearnerState(msgspec.Struct, frozen=True):
    """The learner of one player, for learners and actors of other nodes."""

    learner: int
    generation: int
    decisions: int
    held_up: list[bool]
    """By place of an actor."""


class NodeUpdate(msgspec.Struct, frozen=True):
    """From the learner's node to another one."""

    actors: list[UsedUp]
    models: list[str]
    """Of the weights that come along; their arrays are named NUMBER/NAME, by their place in this list. Without arrays
    (to a node with a rank): those that the node has to have before its actors go on."""
    learners: list[LearnerState] = []


def _answer(call: Future[bool]) -> bool | None:
    """None while the call is on its way. Raises `PeerLost` if the other node is gone, or failed at it."""
    if not call.done():
        return None
    try:
        return call.result()
    except Exception as error:
        raise PeerLost(str(error)) from error


@dataclass
class _Lane:
    """The way of one actor to the learner."""

    epoch: int
    present: bool = False
    calls: list[Future[bool]] = field(default_factory=list)


class TrajectorySender:
    """Acts as those ranks of the learner that are not here towards their actors that are."""

    def __init__(
        self,
        parts: SharedParts,
        signals: Sequence[Signal],
        ranks: Mapping[int, Peer],
        *,
        compress: Compression,
        in_flight: int,
    ) -> None:
        """`ranks`: the nodes of those that are not here."""
        self._parts = parts
        self._signals = signals
        self._ranks = ranks
        self._held: deque[NodeUpdate] = deque()
        """News that wait for the weights of the rank that is here."""
        self._compress = compress
        self._in_flight = in_flight
        self._lanes: dict[tuple[int, int], _Lane] = {}
        """By actor and learner."""
        self.bytes = 0
        """Bytes of trajectories sent."""
        self.is_full = False
        """An actor has more to send than may be on its way."""
        self.cut_off = False
        """The learner's node is gone, or does not want what comes from here. The controller will say what
        comes now."""

    def open(self, actor: int, epoch: int) -> None:
        """An actor begins here, as if there had been none. One whose rank is here needs no way to it."""
        for learner in self._parts.learners_of(actor):
            if learner not in self._ranks:
                continue
            channel = self._parts.channel_of(learner)
            for ring in (self._parts.ready[actor][channel], self._parts.free[actor][channel]):
                ring.clear()
            self._parts.used[actor, self._parts.players_of(learner)] = 0
            self._parts.present[actor] = False
            self._lanes[actor, learner] = _Lane(epoch)

    def shut(self, actor: int) -> None:
        for lane in [lane for lane in self._lanes if lane[0] == actor]:
            del self._lanes[lane]

    @property
    def woken_by(self) -> Sequence[Signal]:
        """Signals by which actors wake these ranks."""
        return [self._signals[self._parts.learners[rank]] for rank in self._ranks]

    def step(self) -> None:
        while self._held and self._has_weights(self._held[0]):
            self._pass_on(self._held.popleft())
        self.is_full = bool(self._held)
        try:
            for (actor, learner), lane in self._lanes.items() if not self.cut_off else ():
                self._send(actor, learner, lane)
        except PeerLost:
            self.cut_off = True

    def _send(self, actor: int, learner: int, lane: _Lane) -> None:
        answers = [(call, _answer(call)) for call in lane.calls]
        if any(answer is False for _, answer in answers):
            raise PeerLost(f"what actor {actor} has sent was refused, and it lives")
        lane.calls = [call for call, answer in answers if answer is None]
        present = bool(self._parts.present[actor])
        ready = self._parts.ready[actor][self._parts.channel_of(learner)]
        if not len(ready) and present == lane.present:
            return
        if len(lane.calls) >= self._in_flight:
            self.is_full = True
            return
        message = pack_slots(self._parts, ready.take(), self._compress)
        times = self._parts.actor_times[actor].tolist()
        delivery = TrajectoryDelivery(actor, lane.epoch, present, times, learner)
        lane.calls.append(self._ranks[learner].deliver(delivery, message))
        lane.present = present
        self.bytes += message.body.nbytes

    def take_in(self, update: NodeUpdate, weights: ArrayMessage | None) -> bool:
        """News of the learner: actors that waited for it go on. False: the weights have to be sent again."""
        whole = weights is None or self._publish(update.models, weights)
        if not whole or (not self._held and self._has_weights(update)):
            self._pass_on(update)
        else:
            self._held.append(update)
        return whole

    def _has_weights(self, update: NodeUpdate) -> bool:
        """Whether this node has these weights, or newer ones: an actor that goes on has to act with them."""
        named = map(ModelId.parse, update.models)
        return all((newest := self._parts.weights.newest(one.player)) and newest >= one for one in named)

    def _pass_on(self, update: NodeUpdate) -> None:
        for done in update.actors:
            lane = self._lanes.get((done.actor, done.learner))
            if lane is not None and lane.epoch == done.epoch:
                channel = self._parts.channel_of(done.learner)
                self._parts.free[done.actor][channel].put(np.frombuffer(done.freed, np.int64))
                self._parts.used[done.actor, self._parts.players_of(done.learner)] = done.used
                self._signals[done.actor].notify()
        for state in update.learners:  # after what the learner before this generation has freed
            self._parts.generations[state.learner] = state.generation
            self._parts.decisions[state.learner] = state.decisions
            self._parts.held_up[:, state.learner] = state.held_up
        for signal in self._signals if update.learners else ():
            signal.notify()

    def _publish(self, models: Sequence[str], weights: ArrayMessage) -> bool:
        try:
            arrays = unpack(weights)
        except WireError:
            return False
        for number, model in enumerate(map(ModelId.parse, models)):
            newest = self._parts.weights.newest(model.player)
            if newest is None or model > newest:  # the nodes of several ranks send the same, one after another
                self._parts.weights.publish(model, under(f"{number}/", arrays))
        return True


@dataclass
class _Far:
    """Another node, as that of a rank sees it."""

    peer: Peer
    has_rank: bool
    """It has the weights of its own rank."""
    actors: dict[int, int] = field(default_factory=dict)
    """Epoch of each."""
    call: Future[bool] | None = None
    """The latest message, until it is answered."""
    known: dict[str, ModelId] = field(default_factory=dict)
    used: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By actor and learner."""
    learners: dict[int, LearnerState] = field(default_factory=dict)


class TrajectoryReceiver:
    """Acts on a node with ranks as their actors on other nodes."""

    def __init__(
        self,
        parts: SharedParts,
        signals: Sequence[Signal],
        find_peer: Callable[[str], Peer],
        with_ranks: Collection[str] = (),
        learners: Sequence[int] | None = None,
    ) -> None:
        """`with_ranks`: names of the nodes with ranks; `learners`: those that are here, None: all."""
        self._learners = range(len(parts.learners)) if learners is None else learners
        self._parts = parts
        self._signals = signals
        self._find_peer = find_peer
        self._with_ranks = with_ranks
        self._nodes: dict[str, _Far] = {}
        self._clocks = Counters()
        self._shared: tuple[list[ModelId], Any] | None = None
        """The weights that were sent last."""
        self.is_full = False
        """A node has not taken the last message yet."""

    def know(self, node: str) -> None:
        """The node gets weights from now on: no actor can start there without."""
        if node not in self._nodes:
            # With learners of single players, each node has the weights of some of them only.
            has_rank = node in self._with_ranks and not self._parts.per_player
            self._nodes[node] = _Far(self._find_peer(node), has_rank)

    def admit(self, actor: int, epoch: int, node: str) -> None:
        """An actor is about to start on this node."""
        self.refuse(actor)
        self.know(node)
        self._nodes[node].actors[actor] = epoch

    def refuse(self, actor: int) -> None:
        """It is dead, or given up: nothing more of it comes in, however late."""
        for far in self._nodes.values():
            far.actors.pop(actor, None)
            for key in [key for key in far.used if key[0] == actor]:
                del far.used[key]

    def absent(self, actor: int) -> None:
        """The actor has left in good order: the learner waits no longer, whether its last message arrived or not."""
        self._parts.present[actor] = False
        for learner in self._parts.learners_of(actor):
            self._signals[self._parts.learners[learner]].notify()

    @property
    def woken_by(self) -> Sequence[Signal]:
        """Signals by which the learner wakes actors on other nodes."""
        return [self._signals[actor] for far in self._nodes.values() for actor in far.actors]

    def deliver(self, delivery: TrajectoryDelivery, message: ArrayMessage) -> bool:
        actor = delivery.actor
        if not any(far.actors.get(actor) == delivery.epoch for far in self._nodes.values()):
            return False
        self._parts.ready[actor][self._parts.channel_of(delivery.learner)].put(put_slots(self._parts, message))
        self._parts.actor_times[actor] += self._clocks.since(actor, delivery.times)
        self._parts.present[actor] = delivery.present
        self._signals[self._parts.learners[delivery.learner]].notify()
        return True

    def step(self) -> None:
        """Send every node its news, one message at a time."""
        self.is_full = False
        for name, far in list(self._nodes.items()):
            try:
                answer = True if far.call is None else _answer(far.call)
                if answer is False:
                    far.known.clear()
                if answer is None:
                    self.is_full = True
                else:
                    far.call = self._tell(far)
            except PeerLost:  # what it sends is refused from now on: if it lives, it tells the controller
                del self._nodes[name]

    def _tell(self, far: _Far) -> Future[bool] | None:
        done, parts = [], self._parts
        for actor, epoch in far.actors.items():
            for learner in parts.learners_of(actor):
                if learner not in self._learners:
                    continue
                freed = parts.free[actor][parts.channel_of(learner)].take()
                used = parts.used[actor, parts.players_of(learner)].tolist()
                if len(freed) or far.used.get((actor, learner)) != used:
                    far.used[actor, learner] = used
                    done.append(UsedUp(actor, epoch, used, freed.tobytes(), learner))
        states = self._states(far)
        trained = [player for learner in self._learners for player in parts.players[parts.players_of(learner)]]
        newest = {player: parts.weights.newest(player) for player in dict.fromkeys(trained)}
        fresh = {
            player: model
            for player, model in newest.items()
            if model and model != far.known.get(player) and (far.actors or player not in far.known)
        }
        if not done and not fresh and not states:
            return None
        models, weights = list(fresh.values()), None
        if fresh and not far.has_rank:
            models, weights = self._weights(far.peer, fresh)
        far.known |= {model.player: model for model in models}
        return far.peer.update(NodeUpdate(done, [str(model) for model in models], states), weights)

    def _states(self, far: _Far) -> list[LearnerState]:
        """News of the learners of single players that are here."""
        parts = self._parts
        now = [
            LearnerState(
                learner,
                int(parts.generations[learner]),
                int(parts.decisions[learner]),
                parts.held_up[:, learner].tolist(),
            )
            for learner in (self._learners if parts.per_player else ())
        ]
        news = [state for state in now if far.learners.get(state.learner) != state]
        far.learners |= {state.learner: state for state in news}
        return news

    def _weights(self, peer: Peer, fresh: dict[str, ModelId]) -> tuple[list[ModelId], Any]:
        """Weights to send, shared by all nodes that lack the same models."""
        wanted = list(fresh.values())
        if self._shared is None or self._shared[0] != wanted:
            models: list[ModelId] = []
            arrays: Tree = {}
            for number, player in enumerate(fresh):
                model, weights = self._parts.weights.fetch(player)  # may be newer by now
                models.append(model)
                arrays |= {f"{number}/{name}": array for name, array in weights.items()}
            self._shared = models, peer.share(pack(arrays))
        return self._shared
