"""The controller's connection to one node: its agent, its worker processes, and messages to them."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ludus.experiment import ClusterConfig
from ludus.runtime.ray.connection import NAMESPACE, Node
from ludus.runtime.ray.node_agent import NODE_AGENT, News, NodeOrder
from ludus.runtime.ray.user_code import NodeFacts
from ludus.system.process import WorkerProcess

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _RemoteControl(Connection):
    """The controller's end of the connection to a worker on another node."""

    def __init__(self, handle: int, tell: Callable[[bytes], None]) -> None:
        """`tell`: sends a message to the node."""
        super().__init__(handle)
        self._tell = tell

    def send_bytes(self, buf: Buffer, offset: int = 0, size: int | None = None) -> None:
        if self.closed:
            raise OSError("the connection is closed")
        self._tell(bytes(buf))


class RemoteProcess(WorkerProcess):
    """A worker process on another node."""

    def __init__(
        self,
        name: str,
        node: str | None,
        epoch: int,
        end: Callable[[RemoteProcess], None],
        *,
        connection: NodeConnection | None = None,
        team: RemoteTeam | None = None,
    ) -> None:
        """`end`: ends the process where it is."""
        self.name = name
        self.node = node
        self.epoch = epoch
        self.lost: str | None = None
        self._connection = connection
        self._team = team
        self._end = end
        self._pid = 0
        self._exit_code: int | None = None
        self._has_ended = threading.Event()
        ours, far = socket.socketpair()
        self.control = _RemoteControl(ours.detach(), self.tell)
        self._far = Connection(far.detach())
        self._writing = threading.Lock()

    def started(self, pid: int) -> None:
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    def kill(self) -> None:
        self._end(self)
        self.control.close()
        self._hang_up()

    def wait_end(self, most_s: float) -> int | None:
        self._has_ended.wait(most_s)
        return self._exit_code

    # --- messages ---

    def tell(self, content: bytes) -> None:
        """Send the worker a message of the controller."""
        if self._exit_code is not None:
            raise BrokenPipeError(f"{self.name} has ended")
        if self._connection is not None:
            self._connection.tell(self, content)

    def said(self, content: bytes) -> None:
        """The worker has sent this to the controller."""
        if self._team is not None:
            self._team.asked(self, content)
            return
        with self._writing, suppress(OSError):  # the controller gave it up meanwhile
            self._far.send_bytes(content)

    def has_ended(self, exit_code: int, lost: str | None = None) -> None:
        """`lost`: why its node is gone, if the process has not ended by itself."""
        if self._exit_code is None:
            self.lost = lost
            self._exit_code = exit_code
            self._has_ended.set()
        self._hang_up()

    def _hang_up(self) -> None:
        """The controller receives what was sent before, then the end of the connection."""
        with self._writing:
            self._far.close()


class RemoteTeam(RemoteProcess):
    """The policy workers, one on each node, as one process. Their requests arrive on one connection, and each
    gets its own answer."""

    def __init__(self, name: str) -> None:
        super().__init__(name, None, 0, lambda _: self._kill_members())
        self._members: list[RemoteProcess] = []
        self._asked: deque[RemoteProcess] = deque()
        self._asking = threading.Lock()

    def join(self, member: RemoteProcess) -> None:
        self._members.append(member)

    @property
    def pid(self) -> int:
        return self._members[0].pid if self._members else 0

    @property
    def exit_code(self) -> int | None:
        """Of the first that has ended by itself; a node that is lost takes its own with it."""
        codes = [one.exit_code for one in self._members if one.exit_code is not None and one.lost is None]
        return codes[0] if codes else None

    def wait_end(self, most_s: float) -> int | None:
        for member in self._members:
            if member.lost is None and self.exit_code is None:
                member.wait_end(most_s / len(self._members))
        return self.exit_code

    def asked(self, member: RemoteProcess, content: bytes) -> None:
        """A member has sent a request; the nodes of several may do so at once."""
        with self._asking:
            self._asked.append(member)
            self.said(content)

    def tell(self, content: bytes) -> None:
        """Answer the member that has waited longest, unless it has ended meanwhile."""
        if self._asked:
            with suppress(OSError):
                self._asked.popleft().tell(content)

    def _kill_members(self) -> None:
        for member in self._members:
            member.kill()


START_UP_S = 120.0
"""How long a node may take until its agent answers: a placement group, a process, imports."""


LOOK_S = 1.0
"""Time is counted in waits of this length, so that a pause of this process does not count."""


class NodeLost(Exception):  # noqa: N818
    """The node does not answer any more."""


class NodeRefused(Exception):  # noqa: N818
    """The node cannot take part; the message names it and says why."""


class NodeNotReady(NodeRefused):
    """The node may be able to take part later."""


class NodeConnection:
    """A connection to the agent of one node, from its start to its loss. `num_slots`: for actors."""

    def __init__(
        self,
        name: str,
        node: Node,
        order: NodeOrder,
        cluster: ClusterConfig,
        *,
        leads: bool = False,
        ranks: int,
        with_gpus: bool,
    ) -> None:
        """Starts the agent, which takes a while. `ranks`: of the learner, that are to run there;
        `leads`: rank 0 is one of them, and needs the run folder."""
        self.name = name
        self.node = node
        self.leads = leads
        self.ranks = ranks
        self.num_slots = node.places(ranks)
        self.actors: set[int] = set()
        """Numbers of the actors on this node."""
        self.lost: str | None = None
        self.processes: dict[tuple[str, int], RemoteProcess] = {}
        self.layout = -1
        """Number of the layout that the node has now."""
        self.policy_heartbeat: float | None = None
        """When its policy worker last showed life (monotonic)."""
        self._cut_off_since: float | None = None
        self._order = order
        self._cluster = cluster
        self._outbox = ThreadPoolExecutor(1, "messages")
        self._closed = False
        bundle = node.bundle(ranks=ranks, with_gpus=with_gpus)
        self._group = placement_group([bundle], strategy="STRICT_PACK", _soft_target_node_id=node.id)
        try:
            self._begin(with_gpus=with_gpus)
        except BaseException:
            self._let_go()
            raise

    def _begin(self, *, with_gpus: bool) -> None:
        node, order = self.node, self._order
        try:
            ray.get(self._group.ready(), timeout=START_UP_S)
            self._agent = NODE_AGENT.options(
                name=self.name,
                namespace=NAMESPACE,
                num_cpus=0,
                num_gpus=node.gpus if with_gpus else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, 0),
            ).remote()
            facts: NodeFacts = ray.get(self._agent.facts.remote(order.run, order.facts), timeout=START_UP_S)
        except GetTimeoutError:
            raise NodeNotReady(
                f"node {node.name} has no room, or did not start its agent within {START_UP_S:.0f} s"
            ) from None
        except RayError as error:
            raise NodeNotReady(f"node {node.name} cannot start its agent: {_short(error)}") from error
        if facts.node_id != node.id:  # Ray treats the target node as a wish
            raise NodeNotReady(f"node {node.name} has no room now")
        if (other := facts.other_code) is not None:
            raise NodeRefused(other)
        self.sees_run = facts.sees_run
        self.is_shared = facts.sees_run and (self._cluster.shared_folder or self.leads)
        self.call("begin", msgspec.structs.replace(order, shared=self.is_shared), patience_s=START_UP_S)

    def listen(self, take_in: Callable[[NodeConnection, News], None], lose: Callable[[NodeConnection], None]) -> None:
        """Take news of the node in a thread of its own, until it is lost or closed."""

        def ask() -> None:
            while not self._closed:
                try:
                    news = self.call("poll")
                    self._note_way(news.cut_off)
                    take_in(self, news)
                except NodeLost:
                    break
                except Exception as error:  # an error of the agent itself
                    self.give_up(f"node {self.node.name} has failed: {_short(error)}")
                    break
            if not self._closed:
                lose(self)

        threading.Thread(target=ask, name=self.name, daemon=True).start()

    def _note_way(self, cut_off: bool) -> None:
        """Give up a node that cannot send to a learner that lives. (If the learner's node is gone, all nodes soon
        get another layout.)"""
        now = time.monotonic()
        self._cut_off_since = (self._cut_off_since or now) if cut_off else None
        if self._cut_off_since is not None and now - self._cut_off_since > self._cluster.silent_after_s:
            self.give_up(f"node {self.node.name} cannot send to the learner's node")

    # --- calls ---

    def call(self, method: str, *arguments: Any, patience_s: float | None = None) -> Any:
        """Wait for the answer. Raises `NodeLost`, or what the agent has raised."""
        if self.lost is not None:
            raise NodeLost(self.lost)
        patience = self._cluster.silent_after_s if patience_s is None else patience_s
        try:
            answer = getattr(self._agent, method).remote(*arguments)
            for _ in range(math.ceil(patience / LOOK_S)):
                with suppress(GetTimeoutError):
                    return ray.get(answer, timeout=LOOK_S)
            self.give_up(f"node {self.node.name} did not answer for {patience:.0f} s")
        except RayTaskError as error:
            raise _cause(error) from None
        except RayError as error:
            self.give_up(f"node {self.node.name} is lost: {_short(error)}")
        raise NodeLost(self.lost)

    def tell(self, process: RemoteProcess, content: bytes) -> None:
        """Send a message to a worker without waiting. Messages to one node arrive in order."""
        self._outbox.submit(self._tell, process, content)

    def _tell(self, process: RemoteProcess, content: bytes) -> None:
        if self.lost is not None:
            return
        try:
            self._agent.tell.remote(process.name, process.epoch, content)
        except Exception as error:  # a worker must not wait for ever for an answer that was not sent
            self.give_up(f"node {self.node.name} cannot be told anything: {type(error).__name__}: {error}")

    # --- the end ---

    def give_up(self, why: str) -> None:
        """It is dead or does not answer: whatever it still sends is ignored."""
        if self.lost is None:
            self.lost = why
            self._let_go()

    def close(self) -> None:
        """End the agent and all its workers in good order."""
        self._closed = True
        if self.lost is None:
            with suppress(Exception):  # whatever is wrong with it, it ends now
                self.call("close")
            self.give_up("closed")

    def _let_go(self) -> None:
        with suppress(RayError, ValueError, AttributeError):
            ray.kill(self._agent)
        with suppress(RayError, ValueError):
            remove_placement_group(self._group)


def _cause(error: Exception) -> Exception:
    """The error that the agent has raised, if it is one."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    return cause if isinstance(cause, Exception) else error


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
