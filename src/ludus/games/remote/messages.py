"""Messages between game servers and their clients: the headers of frames."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PROTOCOL = 1
"""Counts up when the format changes."""
SERVICE = "ludus.GameServer"
DEFAULT_PORT = 23432
MESSAGE_BYTES = 64 * 2**20
"""The default of a server for the longest frame."""
LONGEST_MESSAGE_BYTES = 2**30
"""The upper bound of that setting."""

CHANNEL_OPTIONS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 2**20),
    ("grpc.http2.max_frame_size", 2**20),
)
"""Options of gRPC on both sides: a view is sent at once and in few pieces, a quarter faster at 50 kB and a third at
300 kB."""


class ClientRequest(msgspec.Struct, frozen=True, tag_field="message"):
    """A message from a client, in a stream of play."""


class Hello(ClientRequest, frozen=True, tag="hello"):
    """Asks for tables; with 0 tables only for a description of the game."""

    protocol: int
    game: str
    """As the server names it; empty: the one that it serves."""
    options: dict[str, Any]
    tables: int


class Join(ClientRequest, frozen=True, tag="join"):
    """Takes a camp of a match that waits for its player."""

    protocol: int
    match: str
    camp: int


class Reset(ClientRequest, frozen=True, tag="reset"):
    """Arrays: int64 tables [rows], uint64 seeds [rows]. Answered with the view of these tables."""

    rows: int


class Step(ClientRequest, frozen=True, tag="step"):
    """Arrays: the actions of all tables. Answered with the view of all tables."""


class Act(ClientRequest, frozen=True, tag="act"):
    """Arrays: int64 tables [rows], int64 seats [rows], uint64 seed [1]. Answered with actions."""

    bot: str
    rows: int


class Draw(ClientRequest, frozen=True, tag="draw"):
    """Answered with a picture."""

    table: int
    seat: int | None = None


class Switch(ClientRequest, frozen=True, tag="switch"):
    """Further requests come through the shortcut, which the client has reached. Has no answer."""


AnyRequest = Hello | Join | Reset | Step | Act | Draw | Switch


class Shortcut(msgspec.Struct, frozen=True):
    """A socket that replaces gRPC for clients on the machine of the server."""

    name: str
    """The name of a unix socket in the abstract namespace of Linux."""
    key: str
    """The first bytes of the client there, in hexadecimal; valid for this stream only."""


class ServerAnswer(msgspec.Struct, frozen=True, tag_field="message"):
    """A message from the server, one to each request."""


class Welcome(ServerAnswer, frozen=True, tag="welcome"):
    protocol: int
    server: str
    game: str
    spec: dict[str, Any]
    bots: list[str]
    pictures: bool
    shortcut: Shortcut | None = None


class View(ServerAnswer, frozen=True, tag="view"):
    """Arrays: the view of the tables that were asked about."""

    lost: dict[str, str] = {}
    """Every table that is lost now, with the reason."""


class Actions(ServerAnswer, frozen=True, tag="actions"):
    """Arrays: the actions of the rows, by head."""


class Picture(ServerAnswer, frozen=True, tag="picture"):
    """Arrays: uint8 [height, width, 3], RGB."""

    height: int
    width: int


AnyAnswer = Welcome | View | Actions | Picture


class Camp(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a match."""

    bot: str | None = None
    """A bot of the server; None: a player joins over the network."""
    heroes: tuple[int | str, ...] = ()
    """Heroes by seat, for a game with the option `heroes`."""


class MatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A match that the server plays by itself."""

    camps: tuple[Camp, ...]
    options: dict[str, Any] = {}
    """Options of the game, such as its mode."""
    episodes: int = 1
    frame_limit: int | None = None
    """Steps after which an episode is cut off."""
    evaluation: bool = False
    """Repeated in the result: the match measures strength, and trains nobody."""
    seed: int = 0
    join_seconds: float = 60.0
    """How long the match waits for players to join."""
    move_seconds: float = 60.0
    """How long it waits for a decision of theirs."""


MatchState = Literal["waiting", "playing", "finished", "stopped", "void"]
ENDED = ("finished", "stopped", "void")


class MatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a match, so far or final."""

    match: str
    state: MatchState
    reason: str | None = None
    """Why it is void or was stopped."""
    scores: tuple[tuple[float, ...], ...] = ()
    """Per finished episode, the score of each camp."""
    steps: int = 0
    """Steps of all episodes."""
    cut_off: int = 0
    """Episodes that a limit has truncated."""
    evaluation: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class StartRequest(msgspec.Struct, frozen=True):
    match: str
    config: MatchConfig


class MatchRequest(msgspec.Struct, frozen=True):
    match: str
    seconds: float = 0.0
    """How long to wait for its end, at most 30."""


class ExistsAnswer(msgspec.Struct, frozen=True):
    exists: bool


class MatchList(msgspec.Struct, frozen=True):
    matches: tuple[MatchResult, ...]


class Nothing(msgspec.Struct, frozen=True):
    """An empty object."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The game, limits and load of a server."""

    protocol: int
    server: str
    game: str
    spec: dict[str, Any]
    bots: list[str]
    clients: int
    tables: int
    tables_max: int
    message_bytes: int
    program: str | None = None
    """The state of the outside program, if the server has one."""
