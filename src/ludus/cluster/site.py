"""One node's part of a run: its shared memory and the worker processes on it, as in the local runtime. The
controller is elsewhere; what workers tell it is collected here until it asks."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ludus.assemble import load_experiment
from ludus.cluster.mirror import Mirror
from ludus.cluster.own_thread import OwnThread
from ludus.cluster.parcel import Parcel
from ludus.cluster.site_messages import LayOut, News, Said, SiteOrder
from ludus.cluster.traffic import Delivery, Inlet, Outlet, Peer, Update
from ludus.data.records import ModelId
from ludus.local.launcher import Launcher, SpawnOrder
from ludus.local.shared_parts import WAIT_S
from ludus.runtime.process import WorkerProcess
from ludus.store.model_pool import Variant

POLL_S = 0.5
"""The longest that the controller waits for news; an answer without any says that the site lives."""
LONELY_S = 120.0
"""Without a question of the controller for so long, nobody will ever ask: the site ends its workers."""
FULL_WAIT_S = 0.01
"""Between looks whether what was sent has arrived, while more waits for that."""
START_S = 60.0


@dataclass
class _Worker:
    process: WorkerProcess
    index: int
    epoch: int
    is_silent: bool = False
    """It has closed its connection."""


class Site:
    """All of it happens in one thread, which lives as long as the process: workers end with it."""

    def __init__(self, order: SiteOrder, find_peer: Callable[[str], Peer]) -> None:
        os.environ.update(order.environment)
        self._mirror = Mirror(order.run, order.facts, order.luggage, shared=order.shared)
        self._find_peer = find_peer
        self._experiment = load_experiment(self._mirror.folder)
        self._workers: dict[str, _Worker] = {}
        self._outlet: Outlet | None = None
        self._inlet: Inlet | None = None
        self._said: list[Said] = []
        self._news_there = threading.Condition()
        self._asked_at = time.monotonic()
        self._thread = OwnThread("site", self._wait, self._step)
        self._do = self._thread.do
        self._thread.start()
        self._launcher = self._do(lambda: Launcher(self._experiment, self._mirror.folder))

    # --- for the controller ---

    def lay_out(self, order: LayOut) -> None:
        self._do(lambda: self._lay_out(order))

    def reserve(self, places: list[int]) -> None:
        self._do(lambda: self._launcher.reserve(places))

    def spawn(self, order: SpawnOrder, epoch: int) -> int:
        """The process id of a new worker, once there are weights for it."""
        deadline = time.monotonic() + START_S
        while not self._do(self._has_weights):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no weights came for {START_S:.0f} s")
            time.sleep(0.02)
        return self._do(lambda: self._spawn(order, epoch))

    def kill(self, name: str, epoch: int) -> None:
        self._do(lambda: self._kill(name, epoch))

    def tell(self, name: str, epoch: int, content: bytes) -> None:
        self._do(lambda: self._tell(name, epoch, content))

    def keep_model(self, model: str, variant: Variant, parcel: Parcel | None, most: int) -> None:
        """Before a worker is told to use it; without a parcel, it was sent before."""
        self._do(lambda: self._mirror.keep_model(ModelId.parse(model), variant, parcel, most))

    def pause(self, paused: bool) -> None:
        self._do(lambda: self._launcher.pause(paused))

    def admit(self, actor: int, epoch: int, site: str) -> None:
        self._do(lambda: self._admit(actor, epoch, site))

    def refuse(self, actor: int) -> None:
        self._do(lambda: self._at_inlet().refuse(actor))

    def absent(self, actor: int) -> None:
        self._do(lambda: self._at_inlet().absent(actor))

    def know(self, site: str) -> None:
        self._do(lambda: self._at_inlet().know(site))

    def poll(self) -> News:
        """What is new; waits a moment for something to be."""
        with self._news_there:
            self._asked_at = time.monotonic()
            self._news_there.wait_for(lambda: self._said or self._thread.closed, POLL_S)
            said, self._said = self._said, []
        return self._do(lambda: self._news(said))

    def close(self) -> None:
        self._do(self._end)
        self._thread.join()

    # --- for other sites ---

    def deliver(self, delivery: Delivery, parcel: Parcel) -> bool:
        return self._do(lambda: self._inlet is not None and self._inlet.deliver(delivery, parcel))

    def update(self, update: Update, weights: Parcel | None) -> bool:
        return self._do(lambda: self._outlet is None or self._outlet.take_in(update, weights))

    # --- in the site's thread ---

    def _step(self) -> None:
        if self._inlet is None and self._outlet is None:
            return
        self._launcher.look()
        self._listen()
        if self._inlet is not None:
            self._inlet.step()
        if self._outlet is not None:
            self._outlet.step()
        if time.monotonic() - self._asked_at > LONELY_S:
            self._end()
            os._exit(1)

    def _wait(self) -> None:
        """Until somebody has something to say, or a moment has passed."""
        signals = [self._thread.wake]
        for part in (self._inlet, self._outlet):
            signals += part.woken_by if part is not None else ()
        by_fd = {signal.fds[0]: signal for signal in signals}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        for worker in self._workers.values():
            if not worker.is_silent:
                poll.register(worker.process.control.fileno(), select.POLLIN)
        is_full = any(part is not None and part.is_full for part in (self._inlet, self._outlet))
        for fd, _ in poll.poll(1000 * (FULL_WAIT_S if is_full else WAIT_S)):
            if fd in by_fd:
                by_fd[fd].wait(0)

    def _listen(self) -> None:
        """To what workers say, and whether they live."""
        for name, worker in list(self._workers.items()):
            control = worker.process.control
            try:
                while not worker.is_silent and control.poll(0):
                    self._say(Said(name, worker.epoch, control.recv_bytes()))
            except (OSError, EOFError):
                worker.is_silent = True
            code = worker.process.exit_code
            if code is not None and (worker.is_silent or not control.poll(0)):
                self._say(Said(name, worker.epoch, None, code))
                self._kill(name, worker.epoch)

    def _say(self, said: Said) -> None:
        with self._news_there:
            self._said.append(said)
            self._news_there.notify_all()

    def _news(self, said: list[Said]) -> News:
        now, parts = time.monotonic(), getattr(self._launcher, "parts", None)
        indices = [worker.index for worker in self._workers.values()]
        if parts is None:
            return News(said, {}, {}, {}, {}, [], [], [], 0)
        actors = [index for index in indices if index < parts.num_places]
        return News(
            said,
            ages={index: now - float(parts.hearts[index]) for index in indices},
            times={actor: parts.actor_times[actor].tolist() for actor in actors},
            present={actor: bool(parts.present[actor]) for actor in actors},
            dropped_reward={actor: float(parts.dropped_reward[actor]) for actor in actors},
            learner_times=[] if self._inlet is None else parts.learner_times.tolist(),
            buffer_times=[] if self._inlet is None else parts.buffer_times.tolist(),
            inference=parts.inference_counters.tolist(),
            bytes=0 if self._outlet is None else self._outlet.bytes,
            cut_off=self._outlet is not None and self._outlet.cut_off,
        )

    def _lay_out(self, order: LayOut) -> None:
        for name, worker in list(self._workers.items()):
            self._kill(name, worker.epoch)
        here = order.learner_site is None
        self._launcher.lay_out(order.players, order.num_places, order.taken if here else ())
        parts, signals = self._launcher.parts, self._launcher.signals
        self._inlet = self._outlet = None
        if here:
            self._inlet = Inlet(parts, signals, parts.learner_of, self._find_peer)
        else:
            cluster = self._experiment.cluster
            self._outlet = Outlet(
                parts,
                signals,
                self._find_peer(order.learner_site or ""),
                compress=cluster.compress,
                in_flight=cluster.in_flight,
            )

    def _has_weights(self) -> bool:
        """An actor that starts finds weights of every player."""
        board = self._launcher.parts.board
        return self._inlet is not None or all(map(board.newest, self._launcher.parts.players))

    def _spawn(self, order: SpawnOrder, epoch: int) -> int:
        if order.index < self._launcher.parts.num_places:
            self._launcher.reserve([order.index])
            if self._outlet is not None:
                self._outlet.open(order.index, epoch)
        process = self._launcher.spawn(order)
        self._workers[order.name] = _Worker(process, order.index, epoch)
        return process.pid

    def _kill(self, name: str, epoch: int) -> None:
        worker = self._workers.get(name)
        if worker is None or worker.epoch != epoch:
            return
        del self._workers[name]
        worker.process.kill()
        if self._outlet is not None:
            self._outlet.shut(worker.index)

    def _tell(self, name: str, epoch: int, content: bytes) -> None:
        worker = self._workers.get(name)
        if worker is not None and worker.epoch == epoch:
            with suppress(OSError):  # it has died meanwhile, which is told on its own
                worker.process.control.send_bytes(content)

    def _admit(self, actor: int, epoch: int, site: str) -> None:
        self._launcher.reserve([actor])
        self._at_inlet().admit(actor, epoch, site)

    def _at_inlet(self) -> Inlet:
        if self._inlet is None:
            raise RuntimeError("the learner is not here")
        return self._inlet

    def _end(self) -> None:
        for name, worker in list(self._workers.items()):
            self._kill(name, worker.epoch)
        self._launcher.close()
        self._mirror.close()
        self._thread.close()
        with self._news_there:
            self._news_there.notify_all()
