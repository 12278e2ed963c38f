"""What the controller and a site tell each other."""

from __future__ import annotations

import os
import socket

import msgspec

from ludus.cluster.mirror import sees
from ludus.cluster.user_code import Luggage, ludus_digest
from ludus.runtime.process import CODE, HostedPlayer


class SiteFacts(msgspec.Struct, frozen=True):
    """Of the node, before anything is started on it."""

    host: str
    pid: int
    code: str
    digest: str
    sees_run: bool

    @classmethod
    def here(cls, run: str, facts: bytes) -> SiteFacts:
        return cls(socket.gethostname(), os.getpid(), CODE, ludus_digest(), sees(run, facts))

    def other_code(self, node: str) -> str | None:
        """Why the node cannot take part, if it has other code than this process."""
        ours = (CODE, ludus_digest())
        if (self.code, self.digest) == ours:
            return None
        return (
            f"node {node} has {self.code} (digest {self.digest}), the controller has {ours[0]} "
            f"(digest {ours[1]}): install the same version on it"
        )


class SiteOrder(msgspec.Struct, frozen=True):
    """What a site is to be."""

    run: str
    facts: bytes
    """The content of run.json."""
    luggage: list[Luggage]
    shared: bool
    """Workers use the run folder itself."""
    environment: dict[str, str]


class LayOut(msgspec.Struct, frozen=True):
    players: dict[str, HostedPlayer]
    num_places: int
    learner_site: str | None
    """Where the learner is; None: here."""
    taken: list[int]
    """Places whose actors are about to start, here or elsewhere."""


class Said(msgspec.Struct, frozen=True, array_like=True):
    """A worker has said something, or has ended."""

    name: str
    epoch: int
    content: bytes | None
    exit_code: int | None = None


class News(msgspec.Struct, frozen=True):
    said: list[Said]
    ages: dict[int, float]
    """By number of worker: seconds since its last sign of life."""
    times: dict[int, list[float]]
    """By actor, as in `SharedParts.actor_times`."""
    present: dict[int, bool]
    dropped_reward: dict[int, float]
    learner_times: list[float]
    """Of the learner, and of its buffer worker; empty where they are not."""
    buffer_times: list[float]
    inference: list[float]
    bytes: int
    """Of trajectories sent to another node so far."""
    cut_off: bool = False
    """It cannot send to the learner's node any more."""
