"""What worker processes and the controller say to each other. Trajectories and weights never travel here."""

from __future__ import annotations

import sys

import msgspec

from ludus.data.records import LearnerProgress, Match, PlayerReset, Result, Settings
from ludus.system.machine import installed_version

PROTOCOL = 6
"""Counts up when messages, or what lies in shared memory, change their meaning."""


class Request(msgspec.Struct, frozen=True, tag_field="message"):
    """Begins a conversation; answered unless it says otherwise."""


class NextMatch(Request, frozen=True, tag="next_match"):
    tables: int


class ReportResult(Request, frozen=True, tag="report"):
    """Answered when the result is on disk."""

    result: Result


class VoidMatch(Request, frozen=True, tag="void_match"):
    """A table of the match was lost: it ends without a result. Answered when that is on disk."""

    match_id: int
    reason: str


class FindFrozen(Request, frozen=True, tag="find_frozen"):
    player: str


class Failed(Request, frozen=True, tag="failed"):
    """The worker ends because of this error."""

    reason: str
    kind: str = "worker_crash"
    """Whose error it is: env_crash, worker_crash, damaged_model, disk."""


class Stopping(Request, frozen=True, tag="stopping"):
    """Middleware of the worker asks for the end of the run; not answered."""

    reason: str


class Leaving(Request, frozen=True, tag="leaving"):
    """An actor that gets no more matches has ended all that it had; not answered."""


class Learned(Request, frozen=True, tag="learned"):
    """News of the learner; not answered."""

    reports: tuple[LearnerProgress, ...]
    statistics: dict[str, float]


class Publish(Request, frozen=True, tag="publish"):
    """To the learner: put the player's weights into the model pool as they are now."""

    player: str
    parent: str | None


class ResetWeights(Request, frozen=True, tag="reset"):
    event: PlayerReset


class Configure(Request, frozen=True, tag="configure"):
    """To the learner: train a player with these settings of the experiment changed."""

    player: str
    settings: Settings


class Save(Request, frozen=True, tag="save"):
    """To the learner: write a checkpoint; `events` is how many the league has seen."""

    events: int


class Forget(Request, frozen=True, tag="forget"):
    """To the learner: this actor has died; what it handed over and was not used is lost."""

    actor: int
    gone: bool = True
    """Nobody begins in its place now. Else those who take turns with it wait for the next one."""


class Reply(msgspec.Struct, frozen=True, tag_field="message"):
    """The end of a request."""


class Done(Reply, frozen=True, tag="done"):
    pass


class MatchFound(Reply, frozen=True, tag="match"):
    match: Match | None
    """None: there is nothing more to play for this actor, which ends once its open matches have."""
    sharing: int
    """Actors that share a batch now: each hands over after its part of it."""


class FrozenFound(Reply, frozen=True, tag="frozen"):
    model: str
    variant: str


class Published(Reply, frozen=True, tag="published"):
    report: LearnerProgress


FromActor = NextMatch | ReportResult | VoidMatch | FindFrozen | Failed | Stopping | Leaving
FromHelper = FindFrozen | Failed | Stopping
"""From the policy worker or the buffer worker."""
ToLearner = Publish | ResetWeights | Configure | Save | Forget
FromLearner = Learned | Done | Published | Failed | Stopping
ToActor = MatchFound | FrozenFound | Done


CODE = f"ludus {installed_version()}, protocol {PROTOCOL}"
"""What processes must have in common to understand each other: a long run may outlive an installation."""


OTHER_CODE = 76
"""Exit code of a worker that does not understand its controller."""


class HostedPlayer(msgspec.Struct, frozen=True, kw_only=True):
    """A learning player, as a learner begins with it."""

    number: int
    """Among all learning players that ever joined: its chances follow from it."""
    start: str | None
    """The model it joined with; None: fresh weights."""
    value_only: int = 0
    """Decisions on which it trains its value alone when it starts from a model."""
    incarnation: int = 0
    """Under which it goes on."""


class Launch(msgspec.Struct, frozen=True):
    """What a worker process is told on its command line. Numbers of descriptors are those it inherits."""

    run: str
    role: str
    index: int
    num_places: int
    """For actors; not all of them have to be taken."""
    sharing: int
    """Actors that share a batch, as they start."""
    attempt: int
    """How often this worker was started: another start, other chances."""
    start: int
    """How often the run was started: the same."""
    control_fd: int
    region_fd: int
    signal_fds: tuple[tuple[int, int], ...]
    players: dict[str, HostedPlayer]
    spent: int
    """Decisions of players that have left."""
    parent: int
    rendezvous: str = ""
    """Where ranks of the learner find each other, if there are several."""
    rank_fds: tuple[int, ...] = ()
    """Sockets to the other ranks, of rank 0, or to rank 0."""
    code: str = CODE


class _Stamp(msgspec.Struct):
    """The one part of a `Launch` that every version understands."""

    code: str = "an unknown version"


def read_launch(text: str) -> Launch:
    """What a worker is told on its command line; one of another version says so and ends."""
    told = msgspec.json.decode(text, type=_Stamp).code
    if told != CODE:
        print(f"the run is of {told}, but {CODE} is installed now", file=sys.stderr)
        sys.exit(OTHER_CODE)
    return msgspec.json.decode(text, type=Launch)


def worker_command(launch: Launch) -> list[str]:
    """The command line of a worker process."""
    return [sys.executable, "-m", "ludus.runtime", msgspec.json.encode(launch).decode()]
