"""The agent of a node: a Ray actor with the shared memory and worker processes of the local runtime. The controller is
on another node; the agent collects messages of workers until the controller asks for them."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import msgspec
import ray

from ludus.runtime.assemble import load_experiment
from ludus.runtime.launcher import LocalLauncher, SpawnOrder
from ludus.runtime.ray.connection import NAMESPACE
from ludus.runtime.ray.transfer import (
    ArrayMessage,
    NodeUpdate,
    Peer,
    PeerLost,
    TrajectoryDelivery,
    TrajectoryReceiver,
    TrajectorySender,
)
from ludus.runtime.ray.user_code import CodeArchive, Mirror, NodeFacts
from ludus.runtime.shared_parts import WAIT_S
from ludus.system.network import address_of
from ludus.system.process import WorkerProcess
from ludus.system.shared_memory import Signal
from ludus.workers.messages import HostedPlayer
from ludus.workers.ranks import LOOPBACK

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class OwnThread:
    """A thread that loops (`wait`, then `step`) and in between runs calls of other threads, which wait for them.
    If a round fails, the thread ends, and later calls raise its error."""

    def __init__(self, name: str, wait: Callable[[], None], step: Callable[[], None]) -> None:
        """`wait`: returns at the latest when there is a signal in `wake`."""
        self.wake = Signal.create()
        self.closed = False
        self._wait = wait
        self._step = step
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._calling = threading.Lock()
        self._why = f"the {name} is closed"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, call: Callable[[], T]) -> T:
        """Run the call in that thread; returns its result or raises its error."""
        if threading.current_thread() is self._thread:
            return call()
        done: Future[T] = Future()
        with self._calling:
            if self.closed:
                raise RuntimeError(self._why)
            self._calls.append((call, done))
        self.wake.notify()
        return done.result()

    def close(self) -> None:
        """Called in that thread: this round is the last."""
        self.closed = True

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self.closed:
                self._wait()
                self._obey()
                if not self.closed:
                    self._step()
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
            raise
        finally:  # a caller that still waits must not do so for ever
            with self._calling:
                self.closed = True
            while self._calls:
                self._calls.popleft()[1].set_exception(RuntimeError(self._why))

    def _obey(self) -> None:
        while self._calls and not self.closed:
            call, done = self._calls.popleft()
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)


class NodeOrder(msgspec.Struct, frozen=True):
    """The order that starts an agent."""

    run: str
    facts: bytes
    """The content of run.json."""
    code: list[CodeArchive]
    shared: bool
    """Workers use the run folder itself."""
    models: str
    """Where they read models otherwise: `ModelStorage.address`."""
    environment: dict[str, str]


class LayOut(msgspec.Struct, frozen=True):
    players: dict[str, HostedPlayer]
    num_slots: int
    ranks: list[str]
    """By rank of the learner, the agent of its node."""
    here: str
    """This agent."""
    taken: list[int]
    """Slots whose actors are about to start, on any node."""
    roles: dict[str, Any] = {}
    """What roles have of their own, encoded."""


class WorkerNews(msgspec.Struct, frozen=True, array_like=True):
    """A worker has sent a message, or has ended."""

    name: str
    epoch: int
    content: bytes | None
    exit_code: int | None = None


class News(msgspec.Struct, frozen=True):
    said: list[WorkerNews]
    ages: dict[int, float]
    """By number of worker: seconds since its last sign of life."""
    times: dict[int, list[float]]
    """By actor, as in `SharedParts.actor_times`."""
    present: dict[int, bool]
    dropped_reward: dict[int, float]
    learner_times: dict[int, list[float]]
    """Of the learners that are here, by channel, and of the buffer worker; empty on other nodes."""
    buffer_times: list[float]
    inference: list[float]
    bytes: int
    """Bytes of trajectories sent to another node so far."""
    cut_off: bool = False
    """It cannot send to the learner's node any more."""
    generations: dict[int, int] = {}
    """Of the learners of single players that are here."""


POLL_S = 0.5
"""The longest that the controller waits for news; an empty answer shows that the agent lives."""
LONELY_S = 120.0
"""The controller has not asked for so long that it is gone: the agent ends its workers."""
FULL_WAIT_S = 0.01
"""Wait between two checks whether what was sent has arrived, while more waits to be sent."""
START_S = 60.0


@dataclass
class _Worker:
    process: WorkerProcess
    index: int
    epoch: int
    is_silent: bool = False
    """It has closed its connection."""


def _in_own_thread(method: F) -> F:
    """Run the method in the thread of the agent, whichever thread of Ray calls it."""

    @wraps(method)
    def call(agent: NodeAgent, *arguments: Any) -> Any:
        return agent._thread.do(lambda: method(agent, *arguments))

    return cast("F", call)


def _in_group(name: str) -> Callable[[F], F]:
    """Ray runs the calls of a group in order, one at a time; methods without a name are one group too."""
    grouped: Callable[[F], F] = ray.method(concurrency_group=name)
    return grouped


class NodeAgent:
    """Runs everything in one thread, which lives as long as the process: workers end with it."""

    _launcher: LocalLauncher

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._sender: TrajectorySender | None = None
        self._receiver: TrajectoryReceiver | None = None
        self._leads = False
        """Rank 0 of the learner is here."""
        self._learners: list[int] = []
        """Ranks, or learners of single players, that are here."""
        self._said: list[WorkerNews] = []
        self._news_there = threading.Condition()
        self._asked_at = time.monotonic()
        self._thread = OwnThread("node agent", self._wait, self._step)
        self._thread.start()

    # --- for the controller ---

    def facts(self, run: str, facts: bytes) -> NodeFacts:
        return NodeFacts.here(run, facts)

    def begin(self, order: NodeOrder) -> None:
        os.environ.update(order.environment)
        self._mirror = Mirror(order.run, order.facts, order.code, shared=order.shared)
        self._experiment = load_experiment(self._mirror.folder)
        self._launcher = self._thread.do(lambda: LocalLauncher(self._experiment, self._mirror.folder))
        self._launcher.models = "" if order.shared else order.models

    @_in_own_thread
    def lay_out(self, order: LayOut) -> None:
        for name, worker in list(self._workers.items()):
            self.kill(name, worker.epoch)
        count, self._leads = len(order.ranks), order.ranks[0] == order.here
        self._learners = [number for number, node in enumerate(order.ranks) if node == order.here]
        per_player = self._experiment.learner.placement == "per_player"
        taken = [actor for actor in order.taken if per_player or order.ranks[actor % count] == order.here]
        self._launcher.lay_out(order.players, order.num_slots, taken if self._learners else (), order.roles)
        parts, signals = self._launcher.parts, self._launcher.signals
        self._receiver = self._sender = None
        if self._learners:
            self._receiver = TrajectoryReceiver(parts, signals, RayPeer, order.ranks, self._learners)
        peers = {node: RayPeer(node) for node in order.ranks if node != order.here}
        if peers:
            cluster = self._experiment.cluster
            elsewhere = {rank: peers[node] for rank, node in enumerate(order.ranks) if node in peers}
            self._sender = TrajectorySender(
                parts, signals, elsewhere, compress=cluster.compress, in_flight=cluster.in_flight
            )

    @_in_own_thread
    def open_rendezvous(self, alone: bool) -> str:
        """Where the ranks of the next learner find each other. `alone`: all of them are on this node."""
        asked = self._experiment.cluster.network_interface
        own: str = LOOPBACK if alone else ray.util.get_node_ip_address()
        return self._launcher.open_rendezvous(address_of(asked) if asked and not alone else own)

    @_in_own_thread
    def reserve(self, slots: list[int]) -> None:
        self._launcher.reserve(slots)

    def spawn(self, order: SpawnOrder, epoch: int) -> int:
        """Start a worker, one that plays once there are weights for it; returns its process id."""
        deadline = time.monotonic() + START_S
        while order.index <= self._launcher.parts.num_places and not self._has_weights():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no weights came for {START_S:.0f} s")
            time.sleep(0.02)
        return self._spawn(order, epoch)

    @_in_own_thread
    def _has_weights(self) -> bool:
        """An actor that starts finds weights of every player."""
        return all(map(self._launcher.parts.weights.newest, self._launcher.parts.players))

    @_in_own_thread
    def _spawn(self, order: SpawnOrder, epoch: int) -> int:
        if order.index < self._launcher.parts.num_places:
            self._launcher.reserve([order.index])
            if self._sender is not None:
                self._sender.open(order.index, epoch)
        process = self._launcher.spawn(order)
        self._workers[order.name] = _Worker(process, order.index, epoch)
        return process.pid

    @_in_own_thread
    def kill(self, name: str, epoch: int) -> None:
        worker = self._workers.get(name)
        if worker is None or worker.epoch != epoch:
            return
        del self._workers[name]
        worker.process.kill()
        if self._sender is not None:
            self._sender.shut(worker.index)

    @_in_own_thread
    def tell(self, name: str, epoch: int, content: bytes) -> None:
        worker = self._workers.get(name)
        if worker is not None and worker.epoch == epoch:
            with suppress(OSError):  # it has died meanwhile, which is told on its own
                worker.process.control.send_bytes(content)

    @_in_own_thread
    def lose_learner(self, player: str) -> None:
        self._launcher.lose_learner(player)

    @_in_own_thread
    def pause(self, paused: bool) -> None:
        self._launcher.pause(paused)

    @_in_own_thread
    def admit(self, actor: int, epoch: int, node: str) -> None:
        self._launcher.reserve([actor])
        self._require_receiver().admit(actor, epoch, node)

    @_in_own_thread
    def refuse(self, actor: int) -> None:
        self._require_receiver().refuse(actor)

    @_in_own_thread
    def absent(self, actor: int) -> None:
        self._require_receiver().absent(actor)

    @_in_own_thread
    def know(self, node: str) -> None:
        self._require_receiver().know(node)

    @_in_group("news")
    def poll(self) -> News:
        """The news since the last call; waits a moment for some."""
        with self._news_there:
            self._asked_at = time.monotonic()
            self._news_there.wait_for(lambda: self._said or self._thread.closed, POLL_S)
            said, self._said = self._said, []
        return self._news(said)

    def close(self) -> None:
        self._end()
        self._thread.join()

    # --- for other nodes ---

    @_in_group("traffic")
    @_in_own_thread
    def deliver(self, delivery: TrajectoryDelivery, message: ArrayMessage) -> bool:
        return self._receiver is not None and self._receiver.deliver(delivery, message)

    @_in_group("traffic")
    @_in_own_thread
    def update(self, update: NodeUpdate, weights: ArrayMessage | None) -> bool:
        return self._sender is None or self._sender.take_in(update, weights)

    # --- in the agent's thread ---

    def _step(self) -> None:
        if self._receiver is None and self._sender is None:
            return
        self._launcher.look()
        self._listen()
        if self._receiver is not None:
            self._receiver.step()
        if self._sender is not None:
            self._sender.step()
        if time.monotonic() - self._asked_at > LONELY_S:
            self._end()
            os._exit(1)

    def _wait(self) -> None:
        """Wait until there is a message or a signal, or a moment has passed."""
        signals = [self._thread.wake]
        for part in (self._receiver, self._sender):
            signals += part.woken_by if part is not None else ()
        by_fd = {signal.fds[0]: signal for signal in signals}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        for worker in self._workers.values():
            if not worker.is_silent:
                poll.register(worker.process.control.fileno(), select.POLLIN)
        is_full = any(part is not None and part.is_full for part in (self._receiver, self._sender))
        for fd, _ in poll.poll(1000 * (FULL_WAIT_S if is_full else WAIT_S)):
            if fd in by_fd:
                by_fd[fd].wait(0)

    def _listen(self) -> None:
        """Collect messages of workers, and notice those that have ended."""
        for name, worker in list(self._workers.items()):
            control = worker.process.control
            try:
                while not worker.is_silent and control.poll(0):
                    self._say(WorkerNews(name, worker.epoch, control.recv_bytes()))
            except (OSError, EOFError):
                worker.is_silent = True
            code = worker.process.exit_code
            if code is not None and (worker.is_silent or not control.poll(0)):
                self._say(WorkerNews(name, worker.epoch, None, code))
                self.kill(name, worker.epoch)

    def _say(self, said: WorkerNews) -> None:
        with self._news_there:
            self._said.append(said)
            self._news_there.notify_all()

    @_in_own_thread
    def _news(self, said: list[WorkerNews]) -> News:
        parts = getattr(self._launcher, "parts", None)
        indices = [worker.index for worker in self._workers.values()]
        if parts is None:
            return News(said, {}, {}, {}, {}, {}, [], [], 0)
        actors = [index for index in indices if index < parts.num_places]
        return News(
            said,
            ages={index: self._launcher.heartbeats.silence(index) for index in indices},
            times={actor: parts.actor_times[actor].tolist() for actor in actors},
            present={actor: bool(parts.present[actor]) for actor in actors},
            dropped_reward={actor: float(parts.dropped_reward[actor]) for actor in actors},
            learner_times={
                channel: parts.learner_times[channel].tolist()
                for channel in (self._learners if parts.per_player else range(self._leads))
            },
            generations={number: int(parts.generations[number]) for number in self._learners if parts.per_player},
            buffer_times=parts.buffer_times.tolist() if self._leads else [],
            inference=parts.inference_counters.tolist(),
            bytes=0 if self._sender is None else self._sender.bytes,
            cut_off=self._sender is not None and self._sender.cut_off,
        )

    def _require_receiver(self) -> TrajectoryReceiver:
        if self._receiver is None:
            raise RuntimeError("the learner is not here")
        return self._receiver

    @_in_own_thread
    def _end(self) -> None:
        for name, worker in list(self._workers.items()):
            self.kill(name, worker.epoch)
        self._launcher.close()
        self._mirror.close()
        self._thread.close()
        with self._news_there:
            self._news_there.notify_all()


NODE_AGENT: Any = ray.remote(max_restarts=0, concurrency_groups={"news": 1, "traffic": 1})(NodeAgent)


class RayPeer(Peer):
    """The agent of another node, by its name."""

    def __init__(self, name: str) -> None:
        try:
            self._agent = ray.get_actor(name, NAMESPACE)
        except ValueError as error:
            raise PeerLost(str(error)) from error

    def deliver(self, delivery: TrajectoryDelivery, message: ArrayMessage) -> Future[bool]:
        return self._call("deliver", delivery, message)

    def update(self, update: NodeUpdate, weights: Any) -> Future[bool]:
        return self._call("update", update, weights)

    def share(self, message: ArrayMessage) -> Any:
        return ray.put(message)

    def _call(self, method: str, *arguments: Any) -> Future[bool]:
        # A handle from `get_actor` does not know the group of a method. Without it the weights that `spawn` waits
        # for would wait for `spawn`.
        call = getattr(self._agent, method).options(concurrency_group="traffic")
        answer: Future[bool] = call.remote(*arguments).future()
        return answer
