"""The nodes of a run: an agent on every node of the cluster that can take part. Nodes come and go."""

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
from ludus.runtime.ray.node_connection import NodeConnection, NodeLost, NodeNotReady
from ludus.runtime.ray.user_code import pack_code
from ludus.store.run_folder import MetricsFile, RunFolder
from ludus.workers.worker import TrainingFailed

SCOUT_EVERY_S = 2.0
RETRY_S = 60.0
SERVICES_FIRST_S = 30.0
"""Seconds that a new node is reserved for services waiting for its resources: actors would take all of it."""
PASSED_ON = ("LUDUS_SERVICES", "LUDUS_SERVICES_TOKEN")
"""Variables of the controller's environment that workers on other nodes need too."""


class NodePool:
    """Finds nodes, starts an agent on each and gives up those that are lost, in threads of its own."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, take_in: Callable[[NodeConnection, News], None], taken: Taken
    ) -> None:
        """`take_in`: called with the news of each node, in a thread of its own; `taken`: what services use of the
        nodes."""
        self._experiment = experiment
        self._take_in = take_in
        self._taken = taken
        self._label = f"ludus-{folder.path.absolute().name}-{os.getpid()}-site"
        self._notes = MetricsFile(folder.metrics / "nodes.jsonl")
        self._order = NodeOrder(
            run=str(folder.path.absolute()),
            facts=(folder.path / "run.json").read_bytes(),
            code=pack_code(msgspec.json.decode(folder.facts.experiment)),
            shared=False,
            models=experiment.models.address(folder),
            environment={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        self.lock = threading.RLock()
        self.learner: NodeConnection | None = None
        """To the learner's node; it may be lost."""
        self._connections: dict[str, NodeConnection] = {}
        """By the id of the node."""
        self._busy: set[str] = set()
        """Nodes that have an agent, or on which one is being started, or that were refused."""
        self._not_before: dict[str, float] = {}
        """When a node that was lost, or not ready, is tried again (monotonic): Ray takes a while to notice
        that one is dead."""
        self._seen: dict[str, float] = {}
        """When each node was first seen (monotonic)."""
        self._refused: dict[str, str] = {}
        """By the id of the node, why it does not take part."""
        self._num_started = 0
        self._closed = threading.Event()

    def open(self) -> None:
        """Returns once all present nodes have their agents or were refused. Others may join from then on."""
        self.start_learner()
        self._scout()
        self._wait_for_starting()
        if not self.room:
            raise TrainingFailed(f"no node has a place for an actor: {'; '.join(self._refused.values()) or 'no cores'}")
        threading.Thread(target=self._keep_scouting, name="scout", daemon=True).start()

    @property
    def connections(self) -> list[NodeConnection]:
        with self.lock:
            return list(self._connections.values())

    @property
    def room(self) -> int:
        """Actors that the present nodes can run."""
        return sum(connection.num_slots for connection in self.connections)

    def close(self) -> None:
        """End all agents in good order."""
        with self.lock:
            self._closed.set()
        closing = [threading.Thread(target=connection.close) for connection in self.connections]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._notes.close()

    # --- joining ---

    def start_learner(self) -> None:
        """Start the learner's agent, on the best node that sees the run folder."""
        blind = []
        self._wait_for_starting()
        nodes, now = alive_nodes(self._taken()), time.monotonic()
        trusted = [node for node in nodes if self._not_before.get(node.id, 0.0) <= now]
        for node in learner_first(trusted or nodes):
            with self.lock:
                old = self._connections.get(node.id)
            if old is not None:  # one for actors alone
                old.give_up(f"the learner comes to node {node.name}")
                self.lose(old)
            with self.lock:
                self._busy.add(node.id)
            connection = self._connect(node, with_learner=True)
            if connection is not None and connection.sees_run:
                self.learner = connection
                return
            if connection is not None:
                blind.append(node.name)
                with self.lock:
                    self._connections.pop(node.id, None)
                    self._busy.discard(node.id)
                connection.close()
        raise TrainingFailed(
            "there is no node for the learner: "
            + "; ".join([*self._refused.values(), *(f"{name} does not see the run folder" for name in blind)])
            + ("" if self._refused or blind else "no node of the cluster has a free core")
        )

    def _scout(self) -> None:
        """Look for nodes that have joined or left; their agents start in threads of their own."""
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
            left = [connection for connection in self._connections.values() if connection.node.id not in alive]
        for connection in left:
            connection.give_up(f"node {connection.node.name} has left the cluster")
            self.lose(connection)
        for node in joined:
            threading.Thread(target=self._connect, args=(node,), name=node.name, daemon=True).start()

    def _keep_scouting(self) -> None:
        while not self._closed.wait(SCOUT_EVERY_S):
            with suppress(RayError, ConnectionError, RuntimeError):  # the cluster is gone: the connections notice
                self._scout()

    def _wait_for_starting(self) -> None:
        """Wait until no agent is being started."""
        while True:
            with self.lock:
                if not self._busy - self._refused.keys() - self._connections.keys():
                    return
            time.sleep(0.05)

    def _connect(self, node: Node, *, with_learner: bool = False) -> NodeConnection | None:
        with self.lock:
            self._num_started += 1
            name = f"{self._label}-{self._num_started}"
        asked = self._experiment.actor
        device = (self._experiment.learner.device,) * with_learner
        device += (asked.inference_device,) * (asked.inference == "worker")
        with_gpus = node.gpus > 0 and any(one != "cpu" for one in device)
        try:
            connection = NodeConnection(
                name, node, self._order, self._experiment.cluster, with_learner=with_learner, with_gpus=with_gpus
            )
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
                self._connections[node.id] = connection
        if closed:
            connection.close()
            return None
        self._note(node, "joined", f"{connection.num_slots} places for actors")
        connection.listen(self._take_in, self.lose)
        return connection

    # --- leaving ---

    def lose(self, connection: NodeConnection) -> None:
        """The node is gone, and so are its workers: the controller is told that they have ended."""
        connection.give_up(f"node {connection.node.name} was given up")
        with self.lock:
            if self._connections.get(connection.node.id) is not connection:
                return
            del self._connections[connection.node.id]
            self._try_again_later(connection.node)
            processes = list(connection.processes.values())
        self._note(connection.node, "lost", connection.lost or "")
        for process in processes:
            process.has_ended(1, connection.lost)

    def _try_again_later(self, node: Node) -> None:
        self._busy.discard(node.id)
        self._not_before[node.id] = time.monotonic() + RETRY_S

    def _note(self, node: Node, what: str, more: str) -> None:
        with self.lock, suppress(OSError, ValueError):  # the disk is full, or all is closed
            self._notes.append({"time": time.time(), "node": node.name, "what": what, "more": more})
