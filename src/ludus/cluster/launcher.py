"""Starts the workers of a run on the nodes of a Ray cluster, for a controller that does not know."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import msgspec
from ray.exceptions import RayError

from ludus.cluster.line import Line, NodeNotReady, RunAtHand, SiteLost
from ludus.cluster.nodes import Node, alive_nodes, learner_first
from ludus.cluster.remote_process import RemoteProcess, RemoteTeam
from ludus.cluster.site import LayOut, News, SiteOrder, SpawnOrder
from ludus.cluster.site_actor import ENCODE
from ludus.cluster.statistics import ClusterStatistics
from ludus.cluster.traffic import Counters
from ludus.cluster.user_code import pack_code
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.local.launcher import Launcher
from ludus.local.shared_parts import WAIT_S
from ludus.runtime.messages import FrozenFound, ToActor
from ludus.runtime.process import HostedPlayer, WorkerProcess
from ludus.runtime.supervision import TrainingFailed
from ludus.store.metrics_file import MetricsFile
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder

SCOUT_EVERY_S = 2.0
TRIES = 3
RETRY_S = 60.0
PASSED_ON = ("LUDUS_SERVICES", "LUDUS_SERVICES_TOKEN")
"""Of the controller's environment, what workers elsewhere need too."""


class ClusterLauncher(Launcher):
    """A `Launcher` whose workers are on several nodes. What it has of `parts` itself is only a copy of the
    small numbers in there, for who looks on."""

    def __init__(self, experiment: Experiment, folder: RunFolder, leave: Callable[[], None]) -> None:
        """This process has joined the cluster already; `leave` ends that."""
        super().__init__(experiment, folder)
        self._leave = leave
        self._notes = MetricsFile(folder.metrics / "nodes.jsonl")
        facts = (folder.path / "run.json").read_bytes()
        order = SiteOrder(
            run=str(folder.path.absolute()),
            facts=facts,
            luggage=pack_code(msgspec.json.decode(folder.facts.experiment)),
            shared=False,
            environment={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        cluster = experiment.cluster
        self._run = RunAtHand(
            order, folder.models, cluster.models_kept, cluster.silent_after_s, cluster.shared_folder
        )
        self._lock = threading.RLock()
        self._lines: dict[str, Line] = {}
        """By the id of the node."""
        self._busy: set[str] = set()
        """Nodes that have a site, or that one is being started on, or that were refused."""
        self._not_before: dict[str, float] = {}
        """When a node that was lost, or not ready, is tried again (monotonic): Ray takes a while to notice
        that one is dead."""
        self.refused: dict[str, str] = {}
        """By the id of the node, why it takes no part."""
        self._learner: Line | None = None
        self._layout = 0
        self._order: LayOut | None = None
        self._epoch = self._num_sites = 0
        self._carried: dict[Connection, tuple[Line, RemoteProcess, int]] = {}
        self._bell, self._ringer = Pipe(duplex=False)
        self._team: tuple[RemoteTeam, SpawnOrder] | None = None
        self._policy_hearts: dict[str, float] = {}
        self._counted = Counters()
        self._closed = False
        try:
            self._start_learner_site()
            self._scout()
            self._wait_for_first_sites()
        except BaseException:
            self.close()
            raise
        for work in (self._carry, self._keep_scouting):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    # --- sites ---

    def _start_learner_site(self) -> None:
        """On the best node that sees the run folder."""
        blind = []
        nodes, now = alive_nodes(), time.monotonic()
        trusted = [node for node in nodes if self._not_before.get(node.id, 0.0) <= now]
        for node in learner_first(trusted or nodes):
            with self._lock:
                self._busy.add(node.id)
                old = self._lines.get(node.id)
            if old is not None:
                self._lose(old)
                self._busy.add(node.id)
            line = self._new_line(node, with_learner=True)
            if line is not None and line.sees_run:
                self._learner = line
                return
            if line is not None:
                blind.append(node.name)
                line.close()
                self._lines.pop(node.id)
                self._busy.discard(node.id)
        raise TrainingFailed(
            "there is no node for the learner: "
            + "; ".join([*self.refused.values(), *(f"{name} does not see the run folder" for name in blind)])
            + ("" if self.refused or blind else "no node of the cluster has a free core")
        )

    def _scout(self) -> None:
        """Look for nodes that have joined or left; their sites start in threads of their own."""
        nodes = {node.id: node for node in alive_nodes()}
        with self._lock:
            now = time.monotonic()
            joined = [
                node
                for node in nodes.values()
                if node.id not in self._busy and self._not_before.get(node.id, 0.0) <= now
            ]
            self._busy |= {node.id for node in joined}
            left = [line for line in self._lines.values() if line.node.id not in nodes]
        for line in left:
            line.give_up(f"node {line.node.name} has left the cluster")
            self._lose(line)
        for node in joined:
            threading.Thread(target=self._new_line, args=(node,), name=node.name, daemon=True).start()

    def _keep_scouting(self) -> None:
        while not self._closed:
            time.sleep(SCOUT_EVERY_S)
            with suppress(RayError, ConnectionError, RuntimeError):  # the cluster is gone: lines say so
                if not self._closed:
                    self._scout()

    def _wait_for_first_sites(self) -> None:
        """Until all nodes of now have their sites or were refused, and there is a place for an actor."""
        while True:
            with self._lock:
                waiting = self._busy - self.refused.keys() - self._lines.keys()
                room = self.room
            if not waiting:
                break
            time.sleep(0.05)
        if not room:
            raise TrainingFailed(
                f"no node has a place for an actor: {'; '.join(self.refused.values()) or 'no cores'}"
            )

    def _new_line(self, node: Node, *, with_learner: bool = False) -> Line | None:
        with self._lock:
            self._num_sites += 1
            name = f"ludus-{self._folder.path.absolute().name}-{os.getpid()}-site-{self._num_sites}"
        asked = self._experiment.actor
        device = (self._experiment.learner.device,) * with_learner
        device += (asked.inference_device,) * (asked.inference == "worker")
        with_gpus = node.gpus > 0 and any(one != "cpu" for one in device)
        try:
            line = Line(name, node, with_learner=with_learner, with_gpus=with_gpus, run=self._run)
        except Exception as error:  # whatever is wrong with one node, the others go on
            with self._lock:
                self.refused[node.id] = str(error)
                if isinstance(error, NodeNotReady):
                    self._try_again_later(node)
            self._note(node, "refused", str(error))
            return None
        with self._lock:
            if self._closed:
                line.close()
                return None
            self._lines[node.id] = line
        self._note(node, "joined", f"{line.places} places for actors")
        line.listen(self._take_in, self._lose)
        return line

    def _lose(self, line: Line) -> None:
        """The site is gone: so are its workers, and the controller hears it as their end."""
        line.give_up(f"the site on node {line.node.name} was given up")
        with self._lock:
            if self._lines.get(line.node.id) is not line:
                return
            del self._lines[line.node.id]
            self._try_again_later(line.node)
            self._policy_hearts.pop(line.name, None)
            processes = list(line.processes.values())
        self._note(line.node, "lost", line.lost or "")
        for process in processes:
            process.has_ended(1, line.lost)

    def _try_again_later(self, node: Node) -> None:
        self._busy.discard(node.id)
        self._not_before[node.id] = time.monotonic() + RETRY_S

    def _note(self, node: Node, what: str, more: str) -> None:
        with self._lock, suppress(OSError, ValueError):  # the disk is full, or all is closed
            self._notes.append({"time": time.time(), "node": node.name, "what": what, "more": more})

    # --- the surface of a Launcher ---

    def lay_out(self, players: Mapping[str, HostedPlayer], num_places: int, taken: Collection[int]) -> None:
        super().lay_out(players, num_places, ())
        self.inference = ClusterStatistics(self.parts.inference_counters)
        self._team = None
        self._layout += 1
        lost = ""
        for _ in range(TRIES):
            if self._learner is None or self._learner.lost is not None:
                self._start_learner_site()
            assert self._learner is not None
            self._order = LayOut(dict(players), num_places, None, sorted(taken)[: self.room])
            try:
                self._lay_out_site(self._learner)
                self._settle_sites()
                return
            except SiteLost as error:
                lost = str(error)
        raise TrainingFailed(f"the learner's site was lost {TRIES} times, at last: {lost}")

    def _lay_out_site(self, line: Line) -> None:
        assert self._order is not None
        assert self._learner is not None
        learner = None if line is self._learner else self._learner.name
        line.call("lay_out", ENCODE(msgspec.structs.replace(self._order, learner_site=learner)))
        line.layout = self._layout

    def _settle_sites(self) -> None:
        """Sites that have come since are laid out like the others."""
        with self._lock:
            fresh = [line for line in self._lines.values() if line.layout != self._layout and not line.lost]
        for line in fresh if self._order is not None else ():
            with suppress(SiteLost):
                self._lay_out_site(line)
                if self._team is not None:
                    self._join_team(line)

    def reserve(self, places: Iterable[int]) -> None:
        if self._learner is not None:
            with suppress(SiteLost):
                self._learner.call("reserve", list(places))

    @property
    def room(self) -> int:
        """Actors that the nodes of now can have."""
        with self._lock:
            return sum(line.places for line in self._lines.values())

    def has_room(self, index: int) -> bool:
        if index >= self.parts.num_places:
            return True
        self._settle_sites()
        return self._find_place() is not None

    def _ready(self) -> list[Line]:
        """Sites on which workers can be started now."""
        with self._lock:
            return [line for line in self._lines.values() if line.layout == self._layout and not line.lost]

    def _find_place(self) -> Line | None:
        """The learner's node first, since nothing has to travel there, then the emptiest."""
        free = [line for line in self._ready() if len(line.actors) < line.places]
        return max(
            free, key=lambda line: (line is self._learner, line.places - len(line.actors)), default=None
        )

    def spawn(
        self,
        name: str,
        index: int,
        *,
        attempt: int,
        start: int,
        sharing: int,
        players: Mapping[str, HostedPlayer],
        spent: int,
    ) -> WorkerProcess:
        order = SpawnOrder(name, index, 0, attempt, start, sharing, dict(players), spent)
        self.life.started(index)
        if index == self.parts.num_places:
            self._policy_hearts.clear()
            self._team = RemoteTeam(name), order
            for site in self._ready():
                self._join_team(site)
            return self._team[0]
        line = self._learner if index > self.parts.num_places else self._find_place()
        return self._start(line, order)

    def _join_team(self, line: Line) -> None:
        assert self._team is not None
        team, order = self._team
        team.join(self._start(line, order))

    def _start(self, line: Line | None, order: SpawnOrder) -> RemoteProcess:
        """Start a worker on a site. If that fails, it is a worker that has ended with its node."""
        self._epoch += 1
        order = msgspec.structs.replace(order, epoch=self._epoch)
        if line is None:
            process = RemoteProcess(order.name, "nowhere", order.epoch, lambda _: None)
            process.has_ended(1, "no node has room for it")
            return process
        is_actor = order.index < self.parts.num_places
        process = RemoteProcess(
            order.name, line.node.name, order.epoch, lambda one: self._end(line, order.index, one)
        )
        with self._lock:
            line.processes[order.name, order.epoch] = process
            self._carried[process.wire] = line, process, order.index
        self._ringer.send_bytes(b"!")
        if is_actor:
            line.actors.add(order.index)
        try:
            if is_actor and line is not self._learner:
                assert self._learner is not None
                self._learner.call("admit", order.index, order.epoch, line.name)
            process.started(line.call("spawn", ENCODE(order), patience_s=2 * self._run.silent_after_s + 60))
        except SiteLost as lost:
            process.has_ended(1, str(lost))
        except (MemoryError, OSError, RuntimeError) as error:
            line.give_up(f"node {line.node.name} cannot start {order.name}: {error}")
            self._lose(line)
        return process

    def _end(self, line: Line, index: int, process: RemoteProcess) -> None:
        """End a worker. Nothing that an actor has sent comes in after this, however late."""
        with self._lock:
            line.processes.pop((process.name, process.epoch), None)
        with suppress(SiteLost):
            line.call("kill", process.name, process.epoch)
        if index < self.parts.num_places:
            line.actors.discard(index)
            if line is not self._learner and self._learner is not None:
                with suppress(SiteLost):
                    self._learner.call("refuse", index)

    def pause(self, paused: bool) -> None:
        super().pause(paused)
        for line in self._ready():
            with suppress(SiteLost):
                line.call("pause", paused)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.close()
        self._ringer.send_bytes(b"!")
        self._notes.close()
        super().close()
        self._leave()

    # --- in threads ---

    def _take_in(self, line: Line, news: News) -> None:
        """What a site has told: in the thread of its line."""
        for said in news.said:
            process = line.processes.get((said.name, said.epoch))
            if process is None:
                continue
            if said.content is not None:
                process.said(said.content)
            else:
                process.has_ended(said.exit_code or 0)
        with self._lock:
            if line.layout == self._layout:
                self._note_numbers(line, news)

    def _note_numbers(self, line: Line, news: News) -> None:
        now, parts = time.monotonic(), self.parts
        for index, age in news.ages.items():
            if index == parts.num_places:  # one on each node: the most silent one counts
                self._policy_hearts[line.name] = now - age
                parts.hearts[index] = min(self._policy_hearts.values())
            else:
                parts.hearts[index] = now - age
        for actor, times in news.times.items():
            parts.actor_times[actor] += self._counted.since((line.name, actor, "times"), times)
            dropped = self._counted.since((line.name, actor, "dropped"), [news.dropped_reward[actor]])
            parts.dropped_reward[actor] += dropped[0]
            parts.present[actor] = news.present[actor]
        if news.learner_times:
            parts.learner_times[...] = news.learner_times
        parts.inference_counters += self._counted.since((line.name, "inference"), news.inference)
        if isinstance(self.inference, ClusterStatistics):
            self.inference.num_nodes = len(self._lines)
            self.inference.bytes += int(self._counted.since((line.name, "bytes"), [news.bytes])[0])

    def _carry(self) -> None:
        """What the controller says goes to the sites."""
        while not self._closed:
            with self._lock:
                wires = dict(self._carried)
            for ready in wait([self._bell, *wires], WAIT_S):
                assert isinstance(ready, Connection)
                try:
                    content = ready.recv_bytes()
                except (OSError, EOFError):
                    with self._lock:
                        self._carried.pop(ready, None)
                    ready.close()
                    continue
                if ready is not self._bell:
                    self._carry_one(*wires[ready], content)

    def _carry_one(self, line: Line, process: RemoteProcess, index: int, content: bytes) -> None:
        if line.lost is not None:
            return
        with suppress(RayError):
            if index <= self.parts.num_places:
                answer: Any = msgspec.msgpack.decode(content, type=ToActor)
                if isinstance(answer, FrozenFound) and answer.model:
                    variant: Variant = "average" if answer.variant == "average" else "live"
                    line.send_model(ModelId.parse(answer.model), variant)
            line.tell(process, content)
