"""How a run is spread over the nodes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Compression = Literal["none", "lz4", "zstd"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Settings of the nodes and of what travels between them; a run on one machine needs none of them."""

    network_interface: str | None = None
    """Through which the learner's ranks talk to one another; None: the one that routes to the others."""
    most_actors: int | None = None
    """Places for actors, those of nodes included that join later; None: twice as many as there are at the
    start, and 16 at least."""
    in_flight: int = 2
    """Deliveries of an actor on the way to another node, after which it waits until one has arrived."""
    compress: Compression = "zstd"
    """How trajectories are made smaller on their way between nodes."""
    shared_folder: bool = True
    """Nodes that see the run folder read models from it and write logs into it. False: none of them looks;
    only the learner's node has to see it, and models are sent to the others."""
    models_kept: int = 64
    """Frozen models in the cache of a node that does not see the run folder."""
    silent_after_s: float = 20.0
    """A node that has not answered for so long is given up: its matches are void, the others go on."""

    def __post_init__(self) -> None:
        for name, lowest in (("in_flight", 1), ("models_kept", 4), ("silent_after_s", 1)):
            if getattr(self, name) < lowest:
                raise ValueError(f"cluster.{name} must be at least {lowest}, got {getattr(self, name)}")
        if self.most_actors is not None and self.most_actors < 1:
            raise ValueError(f"cluster.most_actors must be at least 1, got {self.most_actors}")
        if self.compress not in get_args(Compression):
            raise ValueError(
                f"cluster.compress must be one of {', '.join(get_args(Compression))}, got {self.compress!r}"
            )
