"""The nodes of a run: an agent on every node of the cluster that can take part. Nodes come and go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from ray.exceptions import RayError

from ludus.experiment import ClusterConfig, Experiment
from ludus.runtime.assemble import num_learners
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
        self._per_player = experiment.learner.placement == "per_player"
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
        self.ranks: list[NodeConnection] = []
        """By rank of the learner, the connection to its node; it may be lost."""
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
        self.start_learner(num_learners(self._experiment))
        self._scout()
        self._wait_for_starting()
        if not self.room:
            raise TrainingFailed(f"no node has a place for an actor: {'; '.join(self._refused.values()) or 'no cores'}")
        if self.room < len(self.ranks) and not self._per_player:
            raise TrainingFailed(
                f"learner.ranks={len(self.ranks)} needs as many actors at least, but the nodes have room for "
                f"{self.room}: lower it or add nodes"
            )
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

    def start_learner(self, count: int) -> None:
        """Start the agents of `count` ranks: of rank 0 on the best node that sees the run folder, of the others
        there while it has room, then on the next nodes. After a loss, the nodes that are left take all ranks. Learners
        of single players are placed as ranks are, but only on nodes that see the run folder."""
        self._wait_for_starting()
        nodes, now = alive_nodes(self._taken()), time.monotonic()
        trusted = [node for node in nodes if self._not_before.get(node.id, 0.0) <= now]
        left = learner_first(trusted or nodes)
        blind: dict[str, str] = {}
        first = not self.ranks
        while True:
            leading = [node for node in left if node.id not in blind]
            if not leading:
                break
            order = [*leading, *(node for node in left if node.id in blind and not self._per_player)]
            plan = self._plan(order, count, overfull=self._per_player or not first)
            chosen = {
                node.id: self._with_ranks(node, plan[node.id], leads=self._per_player or node is order[0])
                for node in order
                if node.id in plan
            }
            blinded = [one for one in chosen.values() if one is not None and one.leads and not one.sees_run]
            for one in blinded:
                blind[one.node.id] = one.node.name
                with self.lock:
                    self._connections.pop(one.node.id, None)
                    self._busy.discard(one.node.id)
                one.close()
            left = [node for node in left if chosen.get(node.id, True) is not None]
            if not blinded and None not in chosen.values():
                self.ranks = [one for one in chosen.values() if one is not None for _ in range(plan[one.node.id])]
                for one in self.connections:  # an earlier plan may have wanted them
                    if one.ranks and one.node.id not in plan:
                        self._with_ranks(one.node, 0, leads=False)
                for one in self.ranks if not first and self.room < len(self.ranks) else ():
                    one.num_slots = max(one.num_slots, one.ranks)  # more workers than cores, but the run goes on
                return
        raise TrainingFailed(
            "there is no node for the learner: "
            + "; ".join([*self._refused.values(), *(f"{name} does not see the run folder" for name in blind.values())])
            + ("" if self._refused or blind else "no node of the cluster has a free core")
        )

    def _plan(self, nodes: Sequence[Node], count: int, *, overfull: bool) -> dict[str, int]:
        learner = self._experiment.learner
        if learner.buffer_worker:  # it shares the memory of all ranks
            return {nodes[0].id: count}
        return place_ranks(nodes, count, self._experiment.cluster, learner.device, overfull=overfull)

    def _with_ranks(self, node: Node, ranks: int, *, leads: bool) -> NodeConnection | None:
        """A connection to the node with so many ranks: the present one, or a new one in its place."""
        with self.lock:
            old = self._connections.get(node.id)
        if old is not None and old.lost is None and (old.ranks, old.leads) == (ranks, leads):
            return old
        if old is not None:
            old.give_up(f"the learner comes to node {node.name}")
            self.lose(old)
        with self.lock:
            self._not_before.pop(node.id, None)
            self._busy.add(node.id)
        return self._connect(node, ranks=ranks, leads=leads)

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

    def _connect(self, node: Node, *, ranks: int = 0, leads: bool = False) -> NodeConnection | None:
        with self.lock:
            self._num_started += 1
            name = f"{self._label}-{self._num_started}"
        asked = self._experiment.actor
        device = (self._experiment.learner.device,) * bool(ranks)
        device += (asked.inference_device,) * (asked.inference == "worker")
        with_gpus = node.gpus > 0 and any(one != "cpu" for one in device)
        try:
            connection = NodeConnection(
                name, node, self._order, self._experiment.cluster, ranks=ranks, leads=leads, with_gpus=with_gpus
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


def place_ranks(
    nodes: Sequence[Node], count: int, cluster: ClusterConfig, device: str, *, overfull: bool = False
) -> dict[str, int]:
    """Ranks of the learner for each node, by its id: as many as the first has room for, and one at least, then the
    next. If some nodes state that they learn, no others do. `overfull`: if there is not room for all, nodes take
    more; else `TrainingFailed` names what there is."""
    most, stated = cluster.ranks_per_node or count, any(node.learns for node in nodes)
    room = {node.id: min(node.room_for_ranks(device), most) if node.learns or not stated else 0 for node in nodes}
    room[nodes[0].id] = max(room[nodes[0].id], 1)
    placed = dict.fromkeys(room, 0)
    for node_id, fits in room.items():
        placed[node_id] = min(fits, count - sum(placed.values()))
    left, takers = count - sum(placed.values()), [one for one, fits in room.items() if fits]
    if left and not (overfull and takers):
        has = ", ".join(f"{node.name} {room[node.id]}" for node in nodes) or "none"
        limit = "" if cluster.ranks_per_node is None else f" (cluster.ranks_per_node is {cluster.ranks_per_node})"
        raise TrainingFailed(
            f"learner.ranks={count}, but the nodes of the cluster have room for {sum(room.values())}: {has}{limit}; "
            "a rank takes a core, or a GPU where there are GPUs. Lower learner.ranks or add nodes"
        )
    for number in range(left):
        placed[takers[number % len(takers)]] += 1
    return {node_id: ranks for node_id, ranks in placed.items() if ranks}
