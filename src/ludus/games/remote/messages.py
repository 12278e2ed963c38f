"""Messages between game servers and their clients, and the frames that carry them.

A frame is a JSON header and the bytes of arrays, as the protobuf message `Frame`. The message has two fields. Encoding
it by hand saves a dependency, and a copy of the arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeVar, cast

import msgspec
import numpy as np

from ludus.data.specs import GameSpec
from ludus.data.trees import Array, Tree, allocate
from ludus.games.game import Actions, NewArray, TableView, allocate_actions
from ludus.system.arrays import ArrayCutter, Buffer, Bytes, WireError, bytes_of, in_order

PROTOCOL = 1  # counts up when the format changes
SERVICE = "ludus.GameServer"
DEFAULT_PORT = 23432
MESSAGE_BYTES = 64 * 2**20  # the default of a server for the longest frame
LONGEST_MESSAGE_BYTES = 2**30  # the upper bound of that setting

CHANNEL_OPTIONS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 2**20),
    ("grpc.http2.max_frame_size", 2**20),
)
"""Options of gRPC on both sides: a view is sent in few pieces, a quarter faster at 50 kB and a third at 300 kB."""


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


class GameFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The game of a server."""

    protocol: int
    server: str
    game: str
    spec: dict[str, Any]
    bots: list[str]


class Welcome(GameFacts, ServerAnswer, frozen=True, kw_only=True, tag="welcome"):
    pictures: bool
    shortcut: Shortcut | None = None


class View(ServerAnswer, frozen=True, tag="view"):
    """Arrays: the view of the tables that were asked about."""

    lost: dict[str, str] = {}
    """Every table that is lost now, with the reason."""


class ChosenActions(ServerAnswer, frozen=True, tag="actions"):
    """Arrays: the actions of the rows, by head."""


class Picture(ServerAnswer, frozen=True, tag="picture"):
    """Arrays: uint8 [height, width, 3], RGB."""

    height: int
    width: int


class Problem(ServerAnswer, frozen=True, tag="error"):
    """Only from an engine, which has no status of gRPC: why it gives no other answer."""

    text: str


AnyAnswer = Welcome | View | ChosenActions | Picture | Problem


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


class Description(GameFacts, frozen=True, kw_only=True):
    """The game, limits and load of a server."""

    clients: int
    tables: int
    tables_max: int
    message_bytes: int
    program: str | None = None
    """The state of the outside program, if the server has one."""


_HEADER, _ARRAYS = b"\x0a", b"\x12"  # the tags of fields 1 and 2, both of wire type 2: a length, then as many bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf

Frame = bytes | bytearray
"""A frame that has arrived."""


class TooLongError(WireError):
    """A frame above the server's limit."""


def pack(header: msgspec.Struct, arrays: Sequence[Buffer] = ()) -> bytes:
    """A frame; the arrays must be contiguous."""
    text = msgspec.json.encode(header)
    parts: list[Buffer] = [_HEADER, _varint(len(text)), text]
    if arrays:
        size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in arrays)
        parts += [_ARRAYS, _varint(size), *arrays]
    return b"".join(cast("list[bytes]", parts))  # arrays are buffers too


def unpack(frame: Frame) -> tuple[Frame, memoryview]:
    """Header and arrays; raises `WireError`."""
    if frame[:1] == _HEADER and len(frame) > 2:  # the fast path for frames of `pack`
        length, start = _read_varint(frame, 1)
        end = start + length
        if frame[end : end + 1] == _ARRAYS:
            size, place = _read_varint(frame, end + 1)
            if place + size == len(frame):
                return frame[start:end], memoryview(frame)[place:]
    header: bytes = b""
    arrays = memoryview(b"")
    for number, content in _fields(memoryview(frame)):
        if number == 1:
            header = bytes(content)
        elif number == 2:
            arrays = content
    return header, arrays


def read_header(header: Frame, kind: Any) -> Any:
    """A header as one of its messages; raises `WireError`."""
    try:
        return _decoder(kind).decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{bytes(header[:80])!r} is no message: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Cached, because making a decoder takes ten times as long as decoding a message."""
    return msgspec.json.Decoder(kind)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(frame: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of the fields that hold bytes; others are skipped, as protobuf asks."""
    place = 0
    while place < len(frame):
        tag, place = _read_varint(frame, place)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, place = _read_varint(frame, place)
            continue
        if wire_type == _BYTES:
            size, place = _read_varint(frame, place)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise WireError(f"no frame: wire type {wire_type} at byte {place}")
        if size > len(frame) - place:
            raise WireError(f"no frame: {size} bytes announced, {len(frame) - place} follow")
        if wire_type == _BYTES:
            yield tag >> 3, frame[place : place + size]
        place += size


def _read_varint(frame: memoryview | Frame, place: int) -> tuple[int, int]:
    if place < len(frame) and (byte := frame[place]) < 0x80:
        return byte, place + 1
    value = 0
    for index in range(10):
        if place + index >= len(frame):
            raise WireError("no frame: it ends in the middle of a number")
        byte = frame[place + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, place + index + 1
    raise WireError("no frame: a number has more than ten bytes")


ALIGNMENT = 8  # the alignment of the arrays in a frame (docs/game-server.md)
_INTEGERS = {"tables": np.dtype(np.int64), "seats": np.dtype(np.int64), "seeds": np.dtype(np.uint64)}
_Cut = TypeVar("_Cut")

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("games are served and played from afar on little-endian machines only")


class Shared:
    """Arrays in one buffer, so that the body of a frame is taken over with a single copy."""

    def __init__(self, build: Callable[[NewArray], object]) -> None:
        self.content: Bytes = np.zeros(bytes_of(build, ALIGNMENT), np.uint8)
        self.new = ArrayCutter(self.content, ALIGNMENT).new

    def take(self, body: memoryview) -> None:
        if len(body) != len(self.content):
            raise WireError(f"the arrays have {len(body)} bytes; {len(self.content)} were expected")
        self.content[:] = np.frombuffer(body, np.uint8)


class SharedView(Shared):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(partial(TableView.allocate, spec, num_tables))
        self.view = TableView.allocate(spec, num_tables, self.new)


class SharedActions(Shared):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(partial(allocate_actions, spec, num_tables))
        self.actions = allocate_actions(spec, num_tables, self.new)

    def fill(self, given: Actions) -> None:
        """Raises ValueError for actions that do not fit the game."""
        if isinstance(given, Mapping) or len(given) != len(self.actions):
            raise ValueError(f"actions are a tuple of {len(self.actions)}, a mapping for each kind of seat")
        for kind, (target, tree) in enumerate(zip(self.actions, given, strict=True)):
            if not isinstance(tree, Mapping) or tree.keys() != target.keys():
                found = ", ".join(tree) if isinstance(tree, Mapping) else type(tree).__name__
                raise ValueError(f"actions[{kind}] has the heads {', '.join(target)}, not {found}")
            for head, array in target.items():
                chosen = np.asarray(tree[head])
                is_float = array.dtype.kind == "f"
                if chosen.shape != array.shape or chosen.dtype.kind not in ("f" if is_float else "iu"):
                    raise ValueError(
                        f"actions[{kind}][{head!r}] holds {'numbers' if is_float else 'integers'} of shape "
                        f"{array.shape}, not {chosen.dtype} of shape {chosen.shape}"
                    )
                if not is_float and (chosen != chosen.astype(array.dtype)).any():
                    raise ValueError(f"actions[{kind}][{head!r}] holds numbers that are no {array.dtype}")
                array[...] = chosen


def array_parts(arrays: Iterable[Array]) -> list[Buffer]:
    """The arrays as parts of a frame."""
    return in_order(arrays, ALIGNMENT)


def view_parts(view: TableView, rows: Array | None = None) -> list[Buffer]:
    """The view of these tables, or of all, as parts of a frame."""
    arrays = view.named().values()
    return array_parts(arrays if rows is None else (array[rows] for array in arrays))


def _cut(body: memoryview, build: Callable[[NewArray], _Cut]) -> _Cut:
    """What `build` makes of the arrays in a body, which are views. Raises `WireError` if the body does not fit."""
    cutter = ArrayCutter(body, ALIGNMENT)
    made = build(cutter.new)
    cutter.finish()
    return made


def read_view(spec: GameSpec, num_rows: int, body: memoryview) -> TableView:
    return _cut(body, partial(TableView.allocate, spec, num_rows))


def action_parts(actions: Actions) -> list[Buffer]:
    return array_parts(array for tree in actions for array in tree.values())


def read_row_actions(spec: GameSpec, kind: int, num_rows: int, body: memoryview) -> Tree:
    """Actions of rows that are all of one kind."""
    tree = _cut(body, partial(allocate, spec.kinds[kind].action.arrays, (num_rows,)))
    return {name: array.copy() for name, array in tree.items()}


def read_integers(body: memoryview, **counts: int) -> list[Array]:
    """Arrays of `tables`, `seats` or `seeds`, with so many each."""
    return _cut(body, lambda new: [new((count,), _INTEGERS[name]).copy() for name, count in counts.items()])
