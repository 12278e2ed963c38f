"""Which nodes a cluster has, and what each may be used for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import ray

from ludus.services.resources import Resources

ACTOR, LEARNER = "ludus_actor", "ludus_learner"
"""Resources by which a node says what it is for: places for actors, and whether the learner may be there."""


Taken = Callable[[], Mapping[str, Sequence[Resources]]]
"""What services have of the nodes now, by the id of the node; under "" what others need that wait for one."""


@dataclass(frozen=True)
class Node:
    """A node that is alive."""

    id: str
    host: str
    cores: float
    gpus: float
    actor_places: int | None
    """As the node itself says, less what services have; None: it does not."""
    learns: bool
    """It says so itself."""
    is_own: bool
    """The controller's."""

    @property
    def name(self) -> str:
        """For people: several nodes may be on one host."""
        return node_name(self.host, self.id)

    def places(self, *, with_learner: bool) -> int:
        """For actors: as many as it says, or one for each core that the learner leaves."""
        if self.actor_places is not None:
            return self.actor_places
        return max(0, int(self.cores) - with_learner)

    def suits(self, services: Iterable[Resources]) -> bool:
        """Whether one of them may be about to start here."""
        return any(one.cpus <= self.cores and one.gpus <= self.gpus for one in services)

    def bundle(self, *, with_learner: bool, with_gpus: bool) -> dict[str, float]:
        """What a site takes of it, in Ray's words."""
        places = self.places(with_learner=with_learner)
        wanted = {"CPU": min(self.cores, float(places + with_learner))}
        if self.actor_places:
            wanted[ACTOR] = float(self.actor_places)
        if self.learns and with_learner:
            wanted[LEARNER] = 1.0
        if with_gpus:
            wanted["GPU"] = self.gpus
        return {name: amount for name, amount in wanted.items() if amount}


def node_name(host: str, node_id: str) -> str:
    return f"{host}/{node_id[:6]}"


def alive_nodes(taken: Mapping[str, Sequence[Resources]] = MappingProxyType({})) -> list[Node]:
    """Those that may be of use; where some say what they are for, the others are for nothing. `taken`: what
    services have of them, by the id of the node."""
    own = ray.get_runtime_context().get_node_id()
    found = [node for node in ray.nodes() if node["Alive"]]
    described = any({ACTOR, LEARNER} & set(node["Resources"]) for node in found)
    nodes = []
    for node in found:
        has, services = node["Resources"], taken.get(node["NodeID"], ())
        nodes.append(
            Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cores=max(0.0, has.get("CPU", 0.0) - sum(one.cpus for one in services)),
                gpus=_whole(max(0.0, has.get("GPU", 0.0) - sum(one.gpus for one in services))),
                actor_places=_places_left(has, sum(one.cpus for one in services)) if described else None,
                learns=LEARNER in has,
                is_own=node["NodeID"] == own,
            )
        )
    return [node for node in nodes if node.learns or node.places(with_learner=False)]


def _places_left(has: Mapping[str, float], cores: float) -> int:
    """Of the places for actors that a node states, where services have so many cores of it: the cores that no
    worker was to have are theirs first."""
    stated = int(has.get(ACTOR, 0))
    spare = max(0.0, has.get("CPU", 0.0) - stated - (LEARNER in has))
    return max(0, stated - math.ceil(max(0.0, cores - spare)))


def _whole(gpus: float) -> float:
    """Ray gives shares of one GPU only."""
    return float(int(gpus)) if gpus > 1 else gpus


def learner_first(nodes: Iterable[Node]) -> list[Node]:
    """Those that say they learn, then those with a GPU, then the controller's own, then the largest."""
    return sorted(nodes, key=lambda node: (node.learns, node.gpus > 0, node.is_own, node.cores), reverse=True)
