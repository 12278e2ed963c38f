"""What worker processes and the controller say to each other. Trajectories and weights never travel here."""

from __future__ import annotations

import msgspec

from ludus.data.records import LearnerProgress, Match, PlayerReset, Result, Settings

PROTOCOL = 6
"""Counts up when messages, or what lies in shared memory, change their meaning."""


class Request(msgspec.Struct, frozen=True, tag_field="message"):
    """Begins a conversation; answered unless it says otherwise."""


class NextMatch(Request, frozen=True, tag="next_match"):
    tables: int


class Report(Request, frozen=True, tag="report"):
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


class Reset(Request, frozen=True, tag="reset"):
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


class Answer(msgspec.Struct, frozen=True, tag_field="message"):
    """The end of a request."""


class Done(Answer, frozen=True, tag="done"):
    pass


class MatchFound(Answer, frozen=True, tag="match"):
    match: Match | None
    """None: there is nothing more to play for this actor, which ends once its open matches have."""
    sharing: int
    """Actors that share a batch now: each hands over after its part of it."""


class FrozenFound(Answer, frozen=True, tag="frozen"):
    model: str
    variant: str


class Published(Answer, frozen=True, tag="published"):
    report: LearnerProgress


FromActor = NextMatch | Report | VoidMatch | FindFrozen | Failed | Stopping | Leaving
FromHelper = FindFrozen | Failed | Stopping
"""From the policy worker or the buffer worker."""
ToLearner = Publish | Reset | Configure | Save | Forget
FromLearner = Learned | Done | Published | Failed | Stopping
ToActor = MatchFound | FrozenFound | Done
