"""Trees as JSON and back, exactly. Reading imports the code that the tree names: trusted files only.

A component is {"$type": address, field: value, ...}, a tuple a list, a class or function {"$ref": address};
what JSON has no word for carries a tag of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any

from ludus.config.annotations import (
    ConfigError,
    build,
    describe,
    field_hints,
    is_component,
    is_dataclass_type,
    join,
    matches,
    unknown_field,
)
from ludus.config.conversion import TYPE_TAG, load, required_fields
from ludus.data.addresses import address_of


def encode(obj: Any) -> Any:
    """`obj` in plain JSON values."""
    return _encode(obj, "")


def decode(data: Any) -> Any:
    """The tree that `encode` was given; fields are checked against their annotations."""
    return _decode(data, "")


def _encode(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return {"$enum": _address(type(value), path), "name": value.name}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    for plain in (int, str):
        if isinstance(value, plain):
            return plain(value)
    if is_component(value):
        encoded = {TYPE_TAG: _address(type(value), path)}
        for field in fields(value):
            if field.init:
                encoded[field.name] = _encode(getattr(value, field.name), join(path, field.name))
        return encoded
    if isinstance(value, Mapping):
        return _encode_mapping(value, path)
    if isinstance(value, tuple | list | frozenset | set):
        items = sorted(value, key=repr) if isinstance(value, frozenset | set) else value
        encoded_items = [_encode(item, join(path, index)) for index, item in enumerate(items)]
        return encoded_items if isinstance(value, tuple) else {f"${type(value).__name__}": encoded_items}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, type | FunctionType):
        return {"$ref": _address(value, path)}
    raise ConfigError(
        f"{path or 'the root'}: cannot write {value!r} ({type(value).__name__}) down; "
        "a tree holds dataclasses, plain values, tuples, mappings, classes and functions"
    )


def _encode_mapping(value: Mapping[Any, Any], path: str) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(item, join(path, key)) for key, item in value.items()}
    return {"$map": [[_encode(key, join(path, key)), _encode(item, join(path, key))] for key, item in value.items()]}


def _address(obj: Any, path: str) -> str:
    try:
        return address_of(obj)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path or 'the root'}: {error}") from error


def _decode(data: Any, path: str) -> Any:
    if isinstance(data, list):
        return tuple(_decode(item, join(path, index)) for index, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    tags = [key for key in data if key.startswith("$")]
    if not tags:
        return {key: _decode(item, join(path, key)) for key, item in data.items()}
    if tags[0] == TYPE_TAG:
        return _decode_component(data, path)
    if tags[0] not in _DECODERS:
        raise ConfigError(f"{path or 'the root'}: unknown tag {tags[0]!r}")
    return _DECODERS[tags[0]](data, path)


def _decode_component(data: dict[str, Any], path: str) -> Any:
    cls = load(data[TYPE_TAG], path or "the root")
    if not is_dataclass_type(cls):
        raise ConfigError(f"{path or 'the root'}: {data[TYPE_TAG]!r} is not a dataclass")
    hints = field_hints(cls)
    known = [field.name for field in fields(cls) if field.init]
    values: dict[str, Any] = {}
    for name, item in data.items():
        if name == TYPE_TAG:
            continue
        if name not in known:
            raise unknown_field(name, known, cls, path)
        value = _decode(item, join(path, name))
        if not matches(value, hints[name]):
            raise ConfigError(f"{join(path, name)}: expected {describe(hints[name])}, got {value!r}")
        values[name] = value
    for name in required_fields(cls):
        if name not in values:
            raise ConfigError(f"{path or 'the root'}: {cls.__name__} needs {name!r} ({describe(hints[name])})")
    return build(cls, values, path)


def _decode_enum(data: dict[str, Any], path: str) -> Any:
    cls = load(data["$enum"], path)
    if not isinstance(cls, type) or not issubclass(cls, Enum) or data.get("name") not in cls.__members__:
        raise ConfigError(f"{path}: {data['$enum']!r} has no member {data.get('name')!r}")
    return cls[data["name"]]


_DECODERS: Mapping[str, Callable[[dict[str, Any], str], Any]] = {
    "$enum": _decode_enum,
    "$float": lambda data, path: float(data["$float"]),
    "$path": lambda data, path: Path(data["$path"]),
    "$ref": lambda data, path: load(data["$ref"], path),
    "$list": lambda data, path: list(_decode(data["$list"], path)),
    "$set": lambda data, path: set(_decode(data["$set"], path)),
    "$frozenset": lambda data, path: frozenset(_decode(data["$frozenset"], path)),
    "$map": lambda data, path: dict(_decode(data["$map"], path)),
}
