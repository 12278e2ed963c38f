"""Messages between worker processes and the controller. Trajectories and weights travel in shared memory."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ludus.data.records import LearnerProgress, Match, PlayerReset, Result, Settings
from ludus.system.machine import installed_version

PROTOCOL = 8
"""Increased when messages or the layout of shared memory change."""


class Request(msgspec.Struct, frozen=True, tag_field="message"):
    """A request, which is answered unless its docstring says otherwise."""


class NextMatch(Request, frozen=True, tag="next_match"):
    tables: int


class ReportResult(Request, frozen=True, tag="report"):
    """Answered when the result is on disk."""

    result: Result


class VoidMatch(Request, frozen=True, tag="void_match"):
    """The match ends without a result: a table of it was lost, or a model of it could not be had. Answered when that
    is on disk."""

    match_id: int
    reason: str
    kind: str = "game_lost"
    """game_lost or models_unreachable."""


class FindFrozen(Request, frozen=True, tag="find_frozen"):
    player: str


class Failed(Request, frozen=True, tag="failed"):
    """The worker ends because of this error."""

    reason: str
    kind: str = "worker_crash"
    """env_crash, worker_crash, damaged_model, models_unreachable or disk."""


class Stopping(Request, frozen=True, tag="stopping"):
    """Middleware of the worker requests the end of the run; not answered."""

    reason: str


class Leaving(Request, frozen=True, tag="leaving"):
    """An actor that gets no more matches has finished all of its own; not answered."""


class Learned(Request, frozen=True, tag="learned"):
    """Progress of the learner; not answered."""

    reports: tuple[LearnerProgress, ...]
    statistics: dict[str, float]


class Publish(Request, frozen=True, tag="publish"):
    """To the learner: put the player's current weights into the model pool."""

    player: str
    parent: str | None


class ResetWeights(Request, frozen=True, tag="reset"):
    event: PlayerReset


class Configure(Request, frozen=True, tag="configure"):
    """To the learner: change these settings of the experiment for one player."""

    player: str
    settings: Settings


class Save(Request, frozen=True, tag="save"):
    """To the learner: write a checkpoint. `events` is the number of events that the league has applied, and `chain` the
    digest of the last of them in the ledger."""

    events: int
    chain: str = ""


class Forget(Request, frozen=True, tag="forget"):
    """To the learner: this actor has died, and its unused trajectories are lost."""

    actor: int
    gone: bool = True
    """It is not replaced now. Otherwise actors that take turns with it wait for its replacement."""


class Reply(msgspec.Struct, frozen=True, tag_field="message"):
    """The answer to a request."""


class Done(Reply, frozen=True, tag="done"):
    pass


class MatchFound(Reply, frozen=True, tag="match"):
    match: Match | None
    """None: the actor gets no more matches and ends after its open ones."""
    sharing: int
    """Number of actors that share a batch; each hands over after its share."""


class FrozenFound(Reply, frozen=True, tag="frozen"):
    model: str
    variant: str
    role: str | None = None
    """The role of the player that was trained to it; None: the model comes from outside."""


class Published(Reply, frozen=True, tag="published"):
    report: LearnerProgress


FromActor = NextMatch | ReportResult | VoidMatch | FindFrozen | Failed | Stopping | Leaving
FromHelper = FindFrozen | Failed | Stopping
"""From the policy worker or the buffer worker."""
ToLearner = Publish | ResetWeights | Configure | Save | Forget
FromLearner = Learned | Done | Published | Failed | Stopping
ToActor = MatchFound | FrozenFound | Done

CODE = f"ludus {installed_version()}, protocol {PROTOCOL}"
"""Version that all processes of a run must share. An installation may be updated during a long run."""
OTHER_CODE = 76
"""Exit code of a worker whose version differs from that of its controller."""


class HostedPlayer(msgspec.Struct, frozen=True, kw_only=True):
    """How a learner starts with a learning player."""

    number: int
    """Its number among all learning players that ever joined, from which its seed follows."""
    role: str
    start: str | None
    """The model that it starts from; None: fresh weights."""
    value_only: int = 0
    """Decisions on which only its value is trained if it starts from a model."""
    incarnation: int = 0


class Launch(msgspec.Struct, frozen=True):
    """The command line of a worker process. Descriptors are those that it inherits."""

    run: str
    role: str
    index: int
    num_places: int
    """Places for actors, some of which may be free."""
    sharing: int
    """Number of actors that share a batch at the start."""
    attempt: int
    """How often this worker was started; part of its seed."""
    start: int
    """How often the run was started; part of the seed."""
    control_fd: int
    region_fd: int
    signal_fds: tuple[tuple[int, int], ...]
    players: dict[str, HostedPlayer]
    spent: int
    """Decisions of players that have left."""
    parent: int
    rendezvous: str = ""
    """Address at which the ranks of the learner find each other, if there are several."""
    learns: str = ""
    """Of a learner: the only player that it trains; "" for all."""
    roles: dict[str, Any] = {}
    """By role, encoded: its model, algorithm and learner as they are now, if it has its own."""
    models: str = ""
    """The address of the run's models, if the worker does not see the run folder."""
    code: str = CODE


class _Stamp(msgspec.Struct):
    """The field of a `Launch` that every version can read."""

    code: str = "an unknown version"


def read_launch(text: str) -> Launch:
    """Read the command line of a worker. A worker of another version exits with `OTHER_CODE`."""
    told = msgspec.json.decode(text, type=_Stamp).code
    if told != CODE:
        print(f"the run is of {told}, but {CODE} is installed now", file=sys.stderr)
        sys.exit(OTHER_CODE)
    return msgspec.json.decode(text, type=Launch)


def worker_command(launch: Launch) -> list[str]:
    return [sys.executable, "-m", "ludus.runtime", msgspec.json.encode(launch).decode()]
