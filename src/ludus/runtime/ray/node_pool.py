"""The sites of a run: one on every node of the cluster that can take part. Nodes come and go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from ray.exceptions import RayError

from ludus.experiment import Experiment
from ludus.runtime.ray.connection import Node, Taken, alive_nodes, learner_first
from ludus.runtime.ray.node_agent import News, NodeOrder
from ludus.runtime.ray.node_connection import NodeConnection, NodeLost, NodeNotReady, RunAtHand
from ludus.runtime.ray.user_code import pack_code
from ludus.store.run_folder import MetricsFile, RunFolder
from ludus.workers.worker import TrainingFailed

SCOUT_EVERY_S = 2.0
RETRY_S = 60.0
SERVICES_FIRST_S = 30.0
"""So long a node that has joined is left to services that wait for one like it: actors would take all of it.
"""
PASSED_ON = ("LUDUS_SERVICES", "LUDUS_SERVICES_TOKEN")
"""Of the controller's environment, what workers elsewhere need too."""


class NodePool:
    """Finds nodes, starts a site on each and gives up those that are lost, in threads of its own."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        take_in: Callable[[NodeConnection, News], None],
        taken: Taken,
    ) -> None:
        """`take_in`: called with what sites tell, in a thread for each of them; `taken`: what services have
        of the nodes."""
        cluster = experiment.cluster
        self._experiment = experiment
        self._take_in = take_in
        self._taken = taken
        self._label = f"ludus-{folder.path.absolute().name}-{os.getpid()}-site"
        self._notes = MetricsFile(folder.metrics / "nodes.jsonl")
        order = NodeOrder(
            run=str(folder.path.absolute()),
            facts=(folder.path / "run.json").read_bytes(),
            luggage=pack_code(msgspec.json.decode(folder.facts.experiment)),
            shared=False,
            environment={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        self._run = RunAtHand(order, folder.models, cluster.models_kept, cluster.silent_after_s, cluster.shared_folder)
        self.lock = threading.RLock()
        self.learner: NodeConnection | None = None
        """To the site of the learner; it may be lost."""
        self._lines: dict[str, NodeConnection] = {}
        """By the id of the node."""
        self._busy: set[str] = set()
        """Nodes that have a site, or that one is being started on, or that were refused."""
        self._not_before: dict[str, float] = {}
        """When a node that was lost, or not ready, is tried again (monotonic): Ray takes a while to notice
        that one is dead."""
        self._seen: dict[str, float] = {}
        """When each node was first seen (monotonic)."""
        self._refused: dict[str, str] = {}
        """By the id of the node, why it takes no part."""
        self._num_started = 0
        self._closed = threading.Event()

    def open(self) -> None:
        """Returns once all nodes of now have their sites or were refused. Others may join from then on."""
        self.start_learner()
        self._scout()
        self._wait_for_starting()
        if not self.room:
            raise TrainingFailed(f"no node has a place for an actor: {'; '.join(self._refused.values()) or 'no cores'}")
        threading.Thread(target=self._keep_scouting, name="scout", daemon=True).start()

    @property
    def lines(self) -> list[NodeConnection]:
        with self.lock:
            return list(self._lines.values())

    @property
    def room(self) -> int:
        """Actors that the nodes of now can have."""
        return sum(line.places for line in self.lines)

    def close(self) -> None:
        """End all sites in good order."""
        with self.lock:
            self._closed.set()
        closing = [threading.Thread(target=line.close) for line in self.lines]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._notes.close()

    # --- who joins ---

    def start_learner(self) -> None:
        """The learner's site, on the best node that sees the run folder."""
        blind = []
        self._wait_for_starting()
        nodes, now = alive_nodes(self._taken()), time.monotonic()
        trusted = [node for node in nodes if self._not_before.get(node.id, 0.0) <= now]
        for node in learner_first(trusted or nodes):
            with self.lock:
                old = self._lines.get(node.id)
            if old is not None:  # one for actors alone
                old.give_up(f"the learner comes to node {node.name}")
                self.lose(old)
            with self.lock:
                self._busy.add(node.id)
            line = self._new_line(node, with_learner=True)
            if line is not None and line.sees_run:
                self.learner = line
                return
            if line is not None:
                blind.append(node.name)
                with self.lock:
                    self._lines.pop(node.id, None)
                    self._busy.discard(node.id)
                line.close()
        raise TrainingFailed(
            "there is no node for the learner: "
            + "; ".join([*self._refused.values(), *(f"{name} does not see the run folder" for name in blind)])
            + ("" if self._refused or blind else "no node of the cluster has a free core")
        )

    def _scout(self) -> None:
        """Look for nodes that have joined or left; their sites start in threads of their own."""
        taken = self._taken()
        nodes = {node.id: node for node in alive_nodes(taken)}
        alive = {node.id for node in alive_nodes()}  # those included of which services leave nothing
        with self.lock:
            now = time.monotonic()
            for node_id in nodes:
                self._seen.setdefault(node_id, now)
            joined = [
                node
                for node in nodes.values()
                if node.id not in self._busy
                and self._not_before.get(node.id, 0.0) <= now
                and not (now - self._seen[node.id] < SERVICES_FIRST_S and node.suits(taken.get("", ())))
            ]
            self._busy |= {node.id for node in joined}
            left = [line for line in self._lines.values() if line.node.id not in alive]
        for line in left:
            line.give_up(f"node {line.node.name} has left the cluster")
            self.lose(line)
        for node in joined:
            threading.Thread(target=self._new_line, args=(node,), name=node.name, daemon=True).start()

    def _keep_scouting(self) -> None:
        while not self._closed.wait(SCOUT_EVERY_S):
            with suppress(RayError, ConnectionError, RuntimeError):  # the cluster is gone: lines say so
                self._scout()

    def _wait_for_starting(self) -> None:
        """Until no site is being started."""
        while True:
            with self.lock:
                if not self._busy - self._refused.keys() - self._lines.keys():
                    return
            time.sleep(0.05)

    def _new_line(self, node: Node, *, with_learner: bool = False) -> NodeConnection | None:
        with self.lock:
            self._num_started += 1
            name = f"{self._label}-{self._num_started}"
        asked = self._experiment.actor
        device = (self._experiment.learner.device,) * with_learner
        device += (asked.inference_device,) * (asked.inference == "worker")
        with_gpus = node.gpus > 0 and any(one != "cpu" for one in device)
        try:
            line = NodeConnection(name, node, with_learner=with_learner, with_gpus=with_gpus, run=self._run)
        except Exception as error:  # whatever is wrong with one node, the others go on
            with self.lock:
                self._refused[node.id] = str(error)
                if isinstance(error, NodeNotReady | NodeLost):
                    self._try_again_later(node)
            self._note(node, "refused", str(error))
            return None
        with self.lock:
            closed = self._closed.is_set()
            if not closed:
                self._refused.pop(node.id, None)
                self._lines[node.id] = line
        if closed:
            line.close()
            return None
        self._note(node, "joined", f"{line.places} places for actors")
        line.listen(self._take_in, self.lose)
        return line

    # --- who leaves ---

    def lose(self, line: NodeConnection) -> None:
        """The site is gone: so are its workers, and the controller hears it as their end."""
        line.give_up(f"the site on node {line.node.name} was given up")
        with self.lock:
            if self._lines.get(line.node.id) is not line:
                return
            del self._lines[line.node.id]
            self._try_again_later(line.node)
            processes = list(line.processes.values())
        self._note(line.node, "lost", line.lost or "")
        for process in processes:
            process.has_ended(1, line.lost)

    def _try_again_later(self, node: Node) -> None:
        self._busy.discard(node.id)
        self._not_before[node.id] = time.monotonic() + RETRY_S

    def _note(self, node: Node, what: str, more: str) -> None:
        with self.lock, suppress(OSError, ValueError):  # the disk is full, or all is closed
            self._notes.append({"time": time.time(), "node": node.name, "what": what, "more": more})
