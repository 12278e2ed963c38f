"""How a dataset of replays lies on disk: one flat file per column, and an index that says how much counts.

Files only ever grow, and the index is replaced in one piece: what lies behind the length that it states was
never finished. Values are stored as small as they go without loss: masks as bits, actions in as few bytes as
their options need, entity lists without padding, planes of few different values as codes.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, ArraySpec, Entities, Planes, SeatKind, length_name
from ludus.data.trees import Array

FORMAT = 1
INDEX = "dataset.json"
REPLAYS = "replays.jsonl"
STRATEGIES = "strategies.npz"
MOST_CODES = 256

Storage = Literal["raw", "bits", "codes", "ragged"]


class DatasetError(Exception):
    """A dataset is missing, damaged or does not fit; the message says which and what to do."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `raw`: rows as they are read, maybe in a smaller type. `bits`: eight bools to a byte.
    `codes`: numbers into `codes`. `ragged`: the real rows of an entity list, one list after the other."""

    name: str
    """As in a trajectory (`observation.NAME`, `legal.NAME`, `action.NAME`, `reward`), or `episode.NAME`."""
    file: str
    storage: Storage
    dtype: str
    """As it is read."""
    shape: tuple[int, ...]
    """Of one row as it is read."""
    stored: str
    """Type in the file."""
    width: int
    """Values of one stored row."""
    items: int = 0
    """Stored rows that count."""
    crc: int = 0
    """Of the bytes that count."""
    codes: tuple[int, ...] = ()
    """Of `codes`: the bits of the value behind each number."""

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.stored).itemsize

    @property
    def num_bytes(self) -> int:
        return self.items * self.row_bytes


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a dataset but its columns' values."""

    format: int
    game: str
    kind: dict[str, Any]
    """See `kind_json`."""
    settings: dict[str, Any]
    """How replays were chosen and thinned out: all of a dataset in the same way."""
    columns: tuple[Column, ...]
    replays: Column
    """The list of replays, a line each, those that were skipped included."""
    names: tuple[str, ...] = ()
    """Of players, match-ups, maps and versions: episodes give their places here."""


class ReplayLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one replay."""

    name: str
    episodes: int = 0
    dropped: dict[str, int] = {}
    """Filter -> seats that it left out."""
    left_out: dict[str, int] = {}
    """Reason -> actions of its players that have no place here."""
    skipped: str = ""
    """Why nothing could be taken from it."""


def column_specs(kind: SeatKind) -> dict[str, ArraySpec]:
    """The columns of one seat's decisions, as they are read and as a decoded episode gives them."""
    scalar = {"reward": "float32", "elapsed": "int32", "over": "bool"}
    rewards = {"rewards": _spec((len(kind.rewards),), "float32")} if kind.rewards else {}
    return {
        **{f"observation.{name}": spec for name, spec in kind.observation.arrays.items()},
        **{f"legal.{name}": spec for name, spec in kind.legal_arrays.items()},
        **{f"action.{name}": spec for name, spec in kind.action.arrays.items()},
        **{name: _spec((), dtype) for name, dtype in scalar.items()},
        **rewards,
    }


def new_columns(kind: SeatKind, strategy: tuple[int, int] | None) -> list[Column]:
    """All columns of a dataset, empty. `strategy`: places of a build order, and facts of what was built."""
    critic = {CRITIC_PREFIX + name: part for name, part in kind.observation.critic.items()}
    parts = {f"observation.{name}": part for name, part in {**kind.observation.parts, **critic}.items()}
    lengths = {length_name(name): part for name, part in parts.items() if isinstance(part, Entities)}
    found: list[Column] = []
    for name, spec in column_specs(kind).items():
        part = parts.get(name)
        if isinstance(part, Entities):
            found.append(_column(name, spec, "ragged", part.dtype, part.features))
            found.append(_column(start_name(name), _spec((), "int64"), "raw", "int64", 1))
        elif name in lengths:
            found.append(_column(name, spec, "raw", smallest_type(0, lengths[name].maximum), 1))
        elif name.startswith("action."):
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
    """The column that says where in a `ragged` file a row's entities begin."""
    return f"{entities}.start"


def _episode_columns(strategy: tuple[int, int] | None) -> list[Column]:
    dtypes = {
        "rows": "int32",
        "decisions": "int32",
        "length": "int32",
        "seat": "int32",
        "outcome": "float32",
        "score": "float32",
        **dict.fromkeys(("replay", "player", "matchup", "map", "version"), "int32"),
    }
    found = [_column(f"episode.{name}", _spec((), dtype), "raw", dtype, 1) for name, dtype in dtypes.items()]
    if strategy is not None:
        places, facts = strategy
        found.append(_column("episode.build_order", _spec((places,), "int16"), "raw", "int16", places))
        found.append(_column("episode.built", _spec((facts,), "bool"), "bits", "uint8", -(-facts // 8)))
    return found


def as_stored(column: Column, rows: Array, lengths: Array | None = None) -> Array:
    """[stored rows, width] of rows as a decoded episode has them; `lengths` of a `ragged` column. Codes must
    know all values."""
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
    """The way back from `as_stored`, but for `ragged` columns, whose rows stay together."""
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
    """The values of `rows` that have no code yet, in order."""
    bits = _bits(rows).reshape(-1)
    known = np.sort(np.array(column.codes, np.uint32))
    if len(known):
        places = np.minimum(np.searchsorted(known, bits), len(known) - 1)
        bits = bits[known[places] != bits]
    return tuple(np.unique(bits).tolist())


def uncoded(column: Column) -> Column:
    """The same column for more different values than codes can tell apart: empty, and in another file."""
    file = column.file.removesuffix(".bin") + ".raw.bin"
    return msgspec.structs.replace(
        column, storage="raw", stored=column.dtype, file=file, items=0, crc=0, codes=()
    )


def smallest_type(lowest: int, highest: int) -> str:
    """The smallest integer type that holds both."""
    for name in ("uint8", "int8", "int16", "int32"):
        if np.iinfo(name).min <= lowest and highest <= np.iinfo(name).max:
            return name
    return "int64"


def _bits(rows: Array) -> NDArray[np.uint32]:
    return np.ascontiguousarray(rows, np.float32).view(np.uint32)


def _column(name: str, spec: ArraySpec, storage: Storage, stored: str, width: int) -> Column:
    return Column(
        name=name,
        file=f"{quote(name, safe='')}.bin",
        storage=storage,
        dtype=spec.dtype.name,
        shape=spec.shape,
        stored=stored,
        width=width,
    )


def _spec(shape: tuple[int, ...], dtype: str) -> ArraySpec:
    return ArraySpec(shape=shape, dtype=np.dtype(dtype))


def _size(spec: ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))
