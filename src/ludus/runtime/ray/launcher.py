"""The launcher of a Ray cluster: starts the workers of a run on its nodes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ludus.data.trees import Array
from ludus.experiment import Experiment
from ludus.runtime.assemble import smallest_batch
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.launcher import LEARNER, LocalLauncher, SpawnOrder
from ludus.runtime.processes import STEPS_PER_SHARE, ProcessWorkers, local_training
from ludus.runtime.ray.connection import Taken
from ludus.runtime.ray.node_agent import LayOut, News
from ludus.runtime.ray.node_connection import NodeConnection, NodeLost, RemoteProcess, RemoteTeam
from ludus.runtime.ray.node_pool import NodePool
from ludus.runtime.ray.transfer import Counters, PeerLost
from ludus.runtime.status import ServiceStatus, no_services
from ludus.runtime.supervisor import default_slots
from ludus.store.run_folder import RunFolder
from ludus.system.process import WorkerProcess
from ludus.workers.messages import HostedPlayer
from ludus.workers.policy_worker import InferenceStatistics
from ludus.workers.worker import TrainingFailed


class ClusterStatistics(InferenceStatistics):
    """Statistics of the policy workers, the nodes and the traffic between them."""

    def __init__(self, counters: Array) -> None:
        super().__init__(counters)
        self.num_nodes = 0
        self.bytes = 0
        """Bytes of trajectories sent to the learner's node so far."""
        self._last = (time.monotonic(), 0)

    def update(self) -> dict[str, float]:
        super().update()
        now, (then, before) = time.monotonic(), self._last
        self._last = now, self.bytes
        self.latest |= {
            "cluster/nodes": self.num_nodes,
            "cluster/bytes_per_s": (self.bytes - before) / max(now - then, 1e-9),
        }
        return self.latest


TRIES = 3


class ClusterLauncher(LocalLauncher):
    """Starts workers on several nodes. Its own `parts` hold only a copy of the small numbers, for
    observers."""

    def __init__(self, experiment: Experiment, folder: RunFolder, taken: Taken) -> None:
        """This process has joined the cluster already; `taken`: what services use of the nodes."""
        super().__init__(experiment, folder)
        self._silent_after_s = experiment.cluster.silent_after_s
        self._layout = 0
        self._order: LayOut | None = None
        self._epoch = 0
        self._team: tuple[RemoteTeam, SpawnOrder] | None = None
        self._rank_address = ""
        self._counted = Counters()
        self._closed = False
        self._nodes = NodePool(experiment, folder, self._take_in, taken)
        try:
            self._nodes.open()
        except BaseException:
            self.close()
            raise

    # --- shared memory ---

    def lay_out(
        self,
        players: Mapping[str, HostedPlayer],
        num_slots: int,
        taken: Collection[int],
        roles: Mapping[str, Any] | None = None,
    ) -> None:
        with self._nodes.lock:  # no thread writes into what is being replaced
            self._layout += 1
            super().lay_out(players, num_slots, (), roles)
            self.inference = ClusterStatistics(self.parts.inference_counters)
        self._team = None
        lost = ""
        for _ in range(TRIES):
            count = len(self.parts.learners)
            if len(self._ranks) != count or any(node.lost is not None for node in self._ranks):
                self._nodes.start_learner(count)
            names = [node.name for node in self._ranks]
            self._order = LayOut(dict(players), num_slots, names, "", sorted(taken)[: self.room], self._roles)
            try:
                for node in dict.fromkeys(self._ranks):
                    self._lay_out_node(node)
                for node in dict.fromkeys(self._ranks):
                    self._introduce(node)
                self._lay_out_new_nodes()
                return
            except NodeLost as error:
                lost = str(error)
        raise TrainingFailed(f"a node of the learner was lost {TRIES} times, at last: {lost}")

    def _lay_out_node(self, connection: NodeConnection) -> None:
        assert self._order is not None
        connection.call("lay_out", msgspec.structs.replace(self._order, here=connection.name))
        if connection not in self._ranks:
            self._introduce(connection)
        if self.parts.paused[0]:
            connection.call("pause", True)
        connection.layout = self._layout

    def _introduce(self, connection: NodeConnection) -> None:
        """Let a node get the weights that it does not have: of rank 0, or of the learners of other players."""
        known = dict.fromkeys(self._ranks) if self.parts.per_player else self._ranks[:1]
        for node in known if self.parts.per_player or connection not in self._ranks else ():
            if node is not connection:
                node.call("know", connection.name)

    def _lay_out_new_nodes(self) -> None:
        """Lay out the nodes that have joined since as the others."""
        if self._order is None:
            return
        for connection in self._nodes.connections:
            if connection.layout == self._layout or connection.lost is not None:
                continue
            try:
                self._lay_out_node(connection)
                if self._team is not None:
                    self._join_team(connection)
            except (NodeLost, PeerLost):
                continue  # this one or the learner's is gone, which will be heard soon
            except (MemoryError, OSError, RuntimeError) as error:
                self._drop(connection, f"node {connection.node.name} cannot take part: {error}")

    def reserve(self, places: Iterable[int]) -> None:
        for place in places:
            with suppress(NodeLost):
                for node in self._nodes_of(place):
                    node.call("reserve", [place])

    def lose_learner(self, player: str) -> None:
        super().lose_learner(player)
        self._ask(self._ranks[self.parts.players.index(player)], "lose_learner", player)

    def can_restart_learner(self, player: str) -> bool:
        return self._ranks[self.parts.players.index(player)].lost is None

    def left(self, index: int) -> None:
        for node in self._nodes_of(index):
            self._ask(node, "absent", index)

    def pause(self, paused: bool) -> None:
        super().pause(paused)
        for connection in self._ready():
            self._ask(connection, "pause", paused)

    def _ask(self, connection: NodeConnection, method: str, *arguments: Any) -> None:
        """Call a method of a node; one that fails at it is treated as lost, now or when its thread notices."""
        try:
            connection.call(method, *arguments)
        except NodeLost:
            pass
        except (MemoryError, OSError, RuntimeError) as error:
            self._drop(connection, f"node {connection.node.name} has failed: {error}")

    # --- room ---

    @property
    def _ranks(self) -> list[NodeConnection]:
        """By rank of the learner, its node."""
        return self._nodes.ranks

    def _nodes_of(self, actor: int) -> list[NodeConnection]:
        """The nodes of the learners, or the rank, that this actor plays for."""
        return list(dict.fromkeys(self._ranks[one] for one in self.parts.learners_of(actor))) if self._ranks else []

    @property
    def room(self) -> int:
        return self._nodes.room

    def has_room(self, index: int) -> bool:
        if index >= self.parts.num_places:
            return True
        self._lay_out_new_nodes()
        return self._find_room(index) is not None

    def _ready(self) -> list[NodeConnection]:
        """Nodes on which workers can be started now."""
        return [
            connection
            for connection in self._nodes.connections
            if connection.layout == self._layout and connection.lost is None
        ]

    def _find_room(self, actor: int) -> NodeConnection | None:
        """A node of its learners first, since less has to travel there, then the emptiest."""
        free = [connection for connection in self._ready() if len(connection.actors) < connection.num_slots]
        near = self._nodes_of(actor)
        return max(free, key=lambda one: (one in near, one.num_slots - len(one.actors)), default=None)

    # --- workers ---

    def spawn(self, order: SpawnOrder) -> WorkerProcess:
        self.heartbeats.started(order.index)
        if order.index == self.parts.num_places:
            self._team = RemoteTeam(order.name), order
            for connection in self._ready():
                self._join_team(connection)
            return self._team[0]
        if order.index < self.parts.num_places:
            return self._start(self._find_room(order.index), order)
        if order.learns:
            return self._start(self._ranks[order.index - self.parts.learners.start], order)
        leader, *others = self._ranks
        if order.name == LEARNER and others:
            self._rank_address = ""
            with suppress(NodeLost):  # then no rank can start, for the same reason
                self._rank_address = leader.call("open_rendezvous", {*others} == {leader})
        rank = order.index - self.parts.learners.start
        with_leader = order.index not in self.parts.learners or not self._rank_address
        order = msgspec.structs.replace(order, rendezvous=self._rank_address)
        return self._start(leader if with_leader else self._ranks[rank], order)

    def _join_team(self, connection: NodeConnection) -> None:
        assert self._team is not None
        team, order = self._team
        connection.policy_heartbeat = None
        team.join(self._start(connection, order, team))

    def _start(
        self, connection: NodeConnection | None, order: SpawnOrder, team: RemoteTeam | None = None
    ) -> RemoteProcess:
        """Start a worker on a node. If that fails, it is a worker that has ended with its node."""
        self._epoch += 1
        epoch = self._epoch
        if connection is None:
            process = RemoteProcess(order.name, "nowhere", epoch, lambda _: None)
            process.has_ended(1, "no node has room for it")
            return process
        is_actor = order.index < self.parts.num_places
        process = RemoteProcess(
            order.name,
            connection.node.name,
            epoch,
            lambda one: self._end(connection, order.index, one),
            connection=connection,
            team=team,
        )
        with self._nodes.lock:
            connection.processes[order.name, epoch] = process
        if is_actor:
            connection.actors.add(order.index)
        try:
            for node in self._nodes_of(order.index) if is_actor else ():
                if node is not connection:
                    node.call("admit", order.index, epoch, connection.name)
            patience_s = 2 * self._silent_after_s + 60
            process.started(connection.call("spawn", order, epoch, patience_s=patience_s))
        except (NodeLost, PeerLost) as lost:
            process.has_ended(1, str(lost))
        except (MemoryError, OSError, RuntimeError) as error:
            self._drop(connection, f"node {connection.node.name} cannot start {order.name}: {error}")
        return process

    def _end(self, connection: NodeConnection, index: int, process: RemoteProcess) -> None:
        """End a worker. Nothing that an actor has sent comes in after this, however late."""
        with self._nodes.lock:
            connection.processes.pop((process.name, process.epoch), None)
        self._ask(connection, "kill", process.name, process.epoch)
        if index < self.parts.num_places:
            connection.actors.discard(index)
            for node in self._nodes_of(index):
                if node is not connection:
                    self._ask(node, "refuse", index)

    def _drop(self, connection: NodeConnection, why: str) -> None:
        connection.give_up(why)
        self._nodes.lose(connection)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._nodes.close()
        super().close()

    # --- news of the nodes, in their threads ---

    def _take_in(self, connection: NodeConnection, news: News) -> None:
        for said in news.said:
            process = connection.processes.get((said.name, said.epoch))
            if process is None:
                continue
            if said.content is not None:
                process.said(said.content)
            else:
                process.has_ended(said.exit_code or 0)
        with self._nodes.lock:
            if connection.layout == self._layout:
                self._note_numbers(connection, news)

    def _note_numbers(self, connection: NodeConnection, news: News) -> None:
        now, parts = time.monotonic(), self.parts
        for index, age in news.ages.items():
            if index == parts.num_places:  # one on each node: the most silent one counts
                connection.policy_heartbeat = now - age
                heartbeats = [
                    one.policy_heartbeat for one in self._nodes.connections if one.policy_heartbeat is not None
                ]
                parts.heartbeats[index] = min(heartbeats, default=connection.policy_heartbeat)
            else:
                parts.heartbeats[index] = now - age
        for actor, times in news.times.items():
            parts.actor_times[actor] += self._counted.since((connection.name, actor, "times"), times)
            dropped = self._counted.since((connection.name, actor, "dropped"), [news.dropped_reward[actor]])
            parts.dropped_reward[actor] += dropped[0]
            parts.present[actor] = news.present[actor]
        for channel, times in news.learner_times.items():
            parts.learner_times[channel] = times
        for number, generation in news.generations.items():
            parts.generations[number] = generation
        if news.buffer_times:
            parts.buffer_times[...] = news.buffer_times
        parts.inference_counters += self._counted.since((connection.name, "inference"), news.inference)
        if isinstance(self.inference, ClusterStatistics):
            self.inference.num_nodes = len(self._nodes.connections)
            self.inference.bytes += int(self._counted.since((connection.name, "bytes"), [news.bytes])[0])


def ray_training(
    experiment: Experiment,
    folder: RunFolder,
    *,
    num_actors: int | None,
    taken: Taken = dict,
    service_status: ServiceStatus = no_services,
) -> Coordinator[ProcessWorkers]:
    """A training on a Ray cluster. `num_actors`: the maximum; None for as many as the nodes have room for, also
    nodes that join later. `taken`: what services use of the nodes."""
    launcher = ClusterLauncher(experiment, folder, taken)
    slots = experiment.cluster.most_actors or default_slots(max(launcher.room, num_actors or 0))
    worth = smallest_batch(experiment) // (STEPS_PER_SHARE * experiment.actor.num_tables)
    wanted = num_actors or max(1, min(slots, worth))
    try:
        return local_training(
            experiment, folder, wanted, num_slots=slots, launcher=launcher, service_status=service_status
        )
    except BaseException:
        launcher.close()
        raise
