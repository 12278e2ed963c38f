"""Replays of single episodes, the episodes taken from them, and the columns of datasets made from those. A replay holds
the seed and the actions of one episode: a table is a function of both, so playing it again gives the observations. The
file is compressed msgpack after a header with a checksum. Reading it never executes anything; the reader looks up the
game that it names."""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, ArraySpec, Choice, Entities, Planes, SeatKind, array_spec, length_name
from ludus.data.trees import Array, IntArray, Tree

Outcome = Literal["win", "draw", "loss"]
OUTCOMES: dict[Outcome, float] = {"win": 1.0, "draw": 0.0, "loss": -1.0}

StrategySizes = tuple[int, int] | tuple[int, int, bool]
"""Length of a build order, number of facts of what was built, and whether it is known where (default: no)."""

SUFFIX = ".replay"
_FORMAT = 1
MAGIC = b"\x89LUDUS\r\n"

_HEAD = struct.Struct("<8sHQ16s")  # magic, format, length of the body, checksum of format and body
MOST_BYTES = 32 * 2**20
"""The largest replay when it is unpacked: more than a million decisions."""
_LONGEST_TEXT = 4_000
_INTEGERS = frozenset(("uint8", "int8", "int16", "int32", "int64"))
_REAL = "float32"


class ReplayError(ValueError):
    """The file is not a replay, is damaged or has another format."""


class Packed(msgspec.Struct, frozen=True):
    """An array of integers, or of float32."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Array) -> Packed:
        """Pack integers in the smallest type that holds the values."""
        if array.dtype.kind == "f":
            return cls(_REAL, array.shape, np.ascontiguousarray(array, np.dtype(_REAL)).tobytes())
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        small = np.ascontiguousarray(array, smallest_type(low, high))
        return cls(small.dtype.name, small.shape, small.tobytes())

    def array(self) -> Array:
        if self.dtype not in (*_INTEGERS, _REAL) or any(size < 0 for size in self.shape):
            raise ReplayError(f"it holds an array of {self.dtype}{list(self.shape)}")
        if math.prod(self.shape) * np.dtype(self.dtype).itemsize != len(self.data):
            raise ReplayError(f"an array of {self.dtype}{list(self.shape)} has {len(self.data)} bytes")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class SeatPlayer(msgspec.Struct, frozen=True):
    """The player on a seat."""

    name: str
    model: str = ""
    """Its model id; empty for a bot."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """One episode."""

    game: str
    """Name or address of the game."""
    options: dict[str, Any]
    version: str
    """Version of the game's rules."""
    map: str
    seed: int
    seats: tuple[SeatPlayer, ...]
    teams: tuple[int, ...]
    """Per seat."""
    score: tuple[float, ...]
    """Per team."""
    truncated: bool
    """The episode was cut off rather than ended by the rules."""
    num_steps: int
    """Calls of `GameBatch.step`."""
    seen: int
    """Digest of all observations of the decisions, which playback must reproduce."""
    step: Packed
    """Per decision, in order: the step that it precedes, and its seat."""
    seat: Packed
    action: tuple[dict[str, Packed], ...]
    """Per kind of seat: head -> the actions of its decisions, in order."""

    @property
    def matchup(self) -> tuple[str, ...]:
        """The player of each team; the players of a mixed team are joined by "+"."""
        return tuple(
            "+".join(dict.fromkeys(seat.name for seat, own in zip(self.seats, self.teams, strict=True) if own == team))
            for team in range(len(self.score))
        )

    def outcome(self, seat: int) -> Outcome | None:
        """None in a game of one team."""
        if len(self.score) < 2:
            return None
        own = self.score[self.teams[seat]]
        others = [score for team, score in enumerate(self.score) if team != self.teams[seat]]
        return "win" if own > max(others) else "draw" if own == max(others) else "loss"

    def decisions(self) -> tuple[IntArray, IntArray]:
        """(step, seat) of all decisions, in order."""
        return self.step.array().astype(np.int64), self.seat.array().astype(np.int64)


def encode_replay(replay: Replay) -> bytes:
    content = msgspec.msgpack.encode(replay)
    if len(content) > MOST_BYTES:
        raise ReplayError(f"an episode of {len(content):,} bytes is too long for a replay: at most {MOST_BYTES:,}")
    body = zlib.compress(content, 6)
    return _HEAD.pack(MAGIC, _FORMAT, len(body), _checksum(_FORMAT, body)) + body


def decode_replay(content: bytes) -> Replay:
    """Raises `ReplayError` with the reason."""
    if not content.startswith(MAGIC[: len(content)]) or not content:
        raise ReplayError("not a replay" if content else "empty")
    if len(content) < _HEAD.size:
        raise ReplayError(f"cut short: {len(content)} bytes")
    _, written, length, checksum = _HEAD.unpack_from(content)
    body = content[_HEAD.size :]
    if checksum != _checksum(written, body) or length != len(body):
        reason = "cut short" if len(body) < length else "damaged"
        raise ReplayError(f"{reason}: its checksum is wrong")
    if written != _FORMAT:
        raise ReplayError(f"format {written}; this version of ludus reads {_FORMAT}")
    try:
        replay = msgspec.msgpack.decode(_unpacked(body), type=Replay)
        _require_sense(replay)
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ReplayError(f"damaged: {error}") from error
    return replay


def _unpacked(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(body, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ReplayError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    if not unpacker.eof:
        raise ReplayError("damaged: it ends too soon")
    return content


def _checksum(written: int, body: bytes) -> bytes:
    return hashlib.blake2b(written.to_bytes(2, "little") + body, digest_size=16).digest()


def _require_sense(replay: Replay) -> None:
    """Check what readers rely on, since any program may have written the file."""
    names = {"game": replay.game, "version": replay.version, "map": replay.map}
    for what, text in names.items():  # they are shown in errors
        if len(text) > _LONGEST_TEXT:
            raise ReplayError(f"its {what} is a text of {len(text):,} characters, at most {_LONGEST_TEXT:,}")
    if not {replay.step.dtype, replay.seat.dtype} <= _INTEGERS:
        raise ReplayError("damaged: its decisions make no sense")
    step, seat = replay.decisions()
    fits = (
        step.ndim == 1
        and step.shape == seat.shape
        and len(replay.seats) == len(replay.teams) > 0
        and (step >= 0).all()
        and (step < replay.num_steps).all()
        and (np.diff(step) >= 0).all()
        and (seat >= 0).all()
        and (seat < len(replay.seats)).all()
        and all(0 <= team < len(replay.score) for team in replay.teams)
        and 0 <= replay.seed < 2**64
        and 0 <= replay.seen < 2**64
        and len(np.unique(step * len(replay.seats) + seat)) == len(step)
    )
    if not fits:
        raise ReplayError("damaged: its decisions make no sense")
    for heads in replay.action:
        for packed in heads.values():
            packed.array()


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeFacts:
    """One seat's part in one episode, without observations."""

    replay: str
    game: str
    map: str
    version: str
    """Version of the game."""
    matchup: tuple[str, ...]
    """The player, or race, of each team."""
    player: str
    seat: int
    outcome: Outcome | None
    """None in a game of one team."""
    score: float
    length: int
    """Decisions of the seat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One seat's part in one episode, as a dataset stores it."""

    facts: EpisodeFacts
    columns: Tree
    """Name -> [rows, ...], see `column_specs`: one row per decision, in time."""
    has_bootstrap: bool = False
    """The episode was cut off, and the last row is its final observation rather than a decision."""
    build_order: NDArray[np.int16] | None = None
    """What the seat built until the end, see `games.game.StrategyView`."""
    built: NDArray[np.bool_] | None = None
    build_place: NDArray[np.int16] | None = None

    @property
    def num_decisions(self) -> int:
        return len(self.columns["reward"]) - self.has_bootstrap


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedReplay:
    """The episodes taken from one replay."""

    name: str
    episodes: tuple[Episode, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Filter -> seats that it dropped."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> actions that the dataset cannot represent."""
    skipped: str = ""
    """Why the replay was skipped: damaged, another version, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeFilter:
    """Selects the seats of a dataset. None and empty values select everything."""

    map: str | None = None
    matchup: tuple[str, ...] = ()
    """Players, in any order."""
    player: tuple[str, ...] = ()
    outcome: Outcome | None = None
    min_length: int = 0
    max_length: int | None = None
    game_version: str | None = None

    def drops(self, facts: EpisodeFacts) -> str | None:
        """The first filter that drops this seat; None if it is selected."""
        dropped = {
            "map": self.map not in (None, facts.map),
            "game_version": self.game_version not in (None, facts.version),
            "matchup": self.matchup and sorted(facts.matchup) != sorted(self.matchup),
            "player": self.player and facts.player not in self.player,
            "outcome": self.outcome not in (None, facts.outcome),
            "min_length": facts.length < self.min_length,
            "max_length": self.max_length is not None and facts.length > self.max_length,
        }
        return next((name for name, drops in dropped.items() if drops), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOp:
    """The value of a head that means to do nothing."""

    head: str
    value: int = 0


EVERY = 8  # decisions to do nothing are kept if this divides their number


def kept_decisions(is_no_op: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the decisions of an episode to keep: all that do something, the first, the last and every eighth."""
    kept = ~is_no_op
    kept[::EVERY] = True
    kept[:1] = kept[-1:] = True
    return kept


def first_choice(kind: SeatKind) -> str | None:
    """The first head that chooses one of several options."""
    return next((name for name, head in kind.action.heads.items() if isinstance(head, Choice)), None)


class EpisodeSource(Protocol):
    """The source of the episodes of a dataset."""

    @property
    def game(self) -> str: ...
    @property
    def kind(self) -> SeatKind: ...  # of all its seats
    @property
    def strategy(self) -> StrategySizes | None:
        """Sizes of what was built; None: episodes do not have it."""

    def replays(self) -> Sequence[str]: ...  # the names of all replays, always in the same order
    def decode(self, names: Sequence[str], wanted: EpisodeFilter) -> Iterator[DecodedReplay]:
        """Decode these replays in order. Dropped seats are counted; a damaged replay is skipped with the reason."""


FORMAT = 1
INDEX = "dataset.json"
REPLAYS = "replays.jsonl"
STRATEGIES = "strategies.npz"
MOST_CODES = 256

Storage = Literal["raw", "bits", "codes", "ragged"]


class DatasetError(Exception):
    """A dataset is missing, damaged or does not fit. The message says which and what to do."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a dataset. `raw`: plain rows, possibly in a smaller type. `bits`: eight bools per byte.
    `codes`: indices into `codes`. `ragged`: the real rows of entity lists, concatenated."""

    name: str  # as in a trajectory (`observation.NAME`, `legal.NAME`, `action.NAME`, `reward`), or `episode.NAME`
    file: str
    storage: Storage
    dtype: str  # type when read
    shape: tuple[int, ...]  # shape of one row when read
    stored: str  # type in the file
    width: int  # values per stored row
    items: int = 0  # valid stored rows
    crc: int = 0  # checksum of the valid bytes
    codes: tuple[int, ...] = ()  # for `codes`: the bits of the value of each index

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.stored).itemsize

    @property
    def num_bytes(self) -> int:
        return self.items * self.row_bytes


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a dataset."""

    format: int
    game: str
    kind: dict[str, Any]  # see `specs.kind_to_json`
    settings: dict[str, Any]  # how replays were selected and thinned out; the same for the whole dataset
    columns: tuple[Column, ...]
    replays: Column  # the list of replays, one per line, skipped ones included
    names: tuple[str, ...] = ()  # names of players, match-ups, maps and versions. Episodes refer to them by index.


class ReplayLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replay in the list of a dataset; see `DecodedReplay`."""

    name: str
    episodes: int = 0
    dropped: dict[str, int] = {}
    left_out: dict[str, int] = {}
    skipped: str = ""


def column_specs(kind: SeatKind) -> dict[str, ArraySpec]:
    """The columns of one seat's decisions, as they are read and as a decoded episode gives them."""
    scalar = {"reward": "float32", "elapsed": "int32", "over": "bool"}
    rewards = {"rewards": array_spec((len(kind.rewards),), "float32")} if kind.rewards else {}
    return {**kind.decision_arrays, **{name: array_spec((), dtype) for name, dtype in scalar.items()}, **rewards}


def new_columns(kind: SeatKind, strategy: StrategySizes | None) -> list[Column]:
    """All columns of an empty dataset. `strategy`: see `EpisodeSource.strategy`."""
    critic = {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}
    parts = {f"observation.{name}": part for name, part in {**kind.observation.parts, **critic}.items()}
    lengths = {length_name(name): part for name, part in parts.items() if isinstance(part, Entities)}
    found: list[Column] = []
    for name, spec in column_specs(kind).items():
        part = parts.get(name)
        if isinstance(part, Entities):
            found.append(_column(name, spec, "ragged", part.dtype, part.features))
            found.append(_column(start_name(name), array_spec((), "int64"), "raw", "int64", 1))
        elif name in lengths:
            found.append(_column(name, spec, "raw", smallest_type(0, lengths[name].maximum), 1))
        elif name.startswith("action.") and spec.dtype != np.float32:
            options = kind.num_options(name.removeprefix("action."))
            found.append(_column(name, spec, "raw", smallest_type(-1, options), _size(spec)))
        elif spec.dtype == np.bool_ and spec.shape:
            found.append(_column(name, spec, "bits", "uint8", -(-_size(spec) // 8)))
        elif isinstance(part, Planes) and spec.dtype == np.float32:
            found.append(_column(name, spec, "codes", "uint8", _size(spec)))
        else:
            found.append(_column(name, spec, "raw", spec.dtype.name, _size(spec)))
    return found + _episode_columns(strategy)


def start_name(entities: str) -> str:
    """The column with the offset of each row's entities in a `ragged` file."""
    return f"{entities}.start"


def _episode_columns(strategy: StrategySizes | None) -> list[Column]:
    dtypes = {
        **dict.fromkeys(("rows", "decisions", "length", "seat"), "int32"),
        **dict.fromkeys(("outcome", "score"), "float32"),
        **dict.fromkeys(("replay", "player", "matchup", "map", "version"), "int32"),
    }
    found = [_column(f"episode.{name}", array_spec((), dtype), "raw", dtype, 1) for name, dtype in dtypes.items()]
    if strategy is not None:
        places, facts = strategy[:2]
        found.append(_column("episode.build_order", array_spec((places,), "int16"), "raw", "int16", places))
        if any(strategy[2:]):
            found.append(_column("episode.build_place", array_spec((places,), "int16"), "raw", "int16", places))
        found.append(_column("episode.built", array_spec((facts,), "bool"), "bits", "uint8", -(-facts // 8)))
    return found


def as_stored(column: Column, rows: Array, lengths: Array | None = None) -> Array:
    """Rows of an episode as [stored rows, width]. `ragged` needs `lengths`, `codes` a code for every value."""
    if column.storage == "bits":
        return np.packbits(rows.reshape(len(rows), -1), axis=1)
    if column.storage == "codes":
        known = np.array(column.codes, np.uint32)
        order = np.argsort(known)
        places = order[np.searchsorted(known, _bits(rows).reshape(-1), sorter=order)]
        return places.astype(np.uint8).reshape(len(rows), column.width)
    if column.storage == "ragged":
        assert lengths is not None
        real = np.arange(column.shape[0]) < lengths[:, None]
        return np.ascontiguousarray(rows[real])
    return np.ascontiguousarray(rows.reshape(len(rows), column.width), np.dtype(column.stored))


def as_read(column: Column, stored: Array) -> Array:
    """The inverse of `as_stored`, except that the rows of `ragged` columns stay concatenated."""
    shape = (len(stored), *column.shape)
    if column.storage == "bits":
        bits = np.unpackbits(stored, axis=1, count=int(np.prod(column.shape)))
        return bits.view(np.bool_).reshape(shape)
    if column.storage == "codes":
        values = np.array(column.codes or (0,), np.uint32).view(np.float32)
        return values.take(stored).reshape(shape)
    if column.storage == "ragged":
        return stored
    return stored.reshape(shape).astype(column.dtype, copy=False)


def new_codes(column: Column, rows: Array) -> tuple[int, ...]:
    """The bits of the values in `rows` that have no code yet, in order."""
    bits = _bits(rows).reshape(-1)
    known = np.sort(np.array(column.codes, np.uint32))
    if len(known):
        places = np.minimum(np.searchsorted(known, bits), len(known) - 1)
        bits = bits[known[places] != bits]
    return tuple(np.unique(bits).tolist())


def uncoded(column: Column) -> Column:
    """The column as `raw`, empty and in another file, for more different values than there are codes."""
    file = column.file.removesuffix(".bin") + ".raw.bin"
    return msgspec.structs.replace(column, storage="raw", stored=column.dtype, file=file, items=0, crc=0, codes=())


def smallest_type(lowest: int, highest: int) -> str:
    """The smallest integer type that holds both."""
    for name in ("uint8", "int8", "int16", "int32"):
        if np.iinfo(name).min <= lowest and highest <= np.iinfo(name).max:
            return name
    return "int64"


def _bits(rows: Array) -> NDArray[np.uint32]:
    return np.ascontiguousarray(rows, np.float32).view(np.uint32)


def _column(name: str, spec: ArraySpec, storage: Storage, stored: str, width: int) -> Column:
    file, dtype = f"{quote(name, safe='')}.bin", spec.dtype.name
    return Column(name=name, file=file, storage=storage, dtype=dtype, shape=spec.shape, stored=stored, width=width)


def _size(spec: ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))
