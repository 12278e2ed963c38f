"""Trees as JSON and back, exactly.

A component is {"type": name, field: value, ...}, a tuple a list, a class or function {"$ref": name}; what
JSON has no word for carries a tag of its own. A name is the public name of a class of Ludus (`PPO`), or the
address of any other (`my_file.py:Mine`).

`decode` imports the code that the tree names: for trusted files only. `read` imports nothing but the rules of
leagues, which are Ludus' own; everything else becomes an `Unread`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
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
from ludus.config.conversion import OTHER_TYPE_TAG, TYPE_TAG, load, required_fields
from ludus.data.addresses import address_of
from ludus.data.unread import Unread
from ludus.public_names import find_public, load_public, public_name


def encode(obj: Any) -> Any:
    """`obj` in plain JSON values."""
    return _encode(obj, "")


def decode(data: Any) -> Any:
    """The tree that `encode` was given; fields are checked against their annotations."""
    return _decode(data, "", _component)


def read(data: Any) -> Any:
    """The tree, without importing or executing what it names: what is not a rule of a league is `Unread`."""
    return _decode(data, "", _unread_component)


def is_plain(data: Any) -> bool:
    """Whether encoded data is of plain values alone: `decode` then imports nothing for it."""
    if isinstance(data, dict):
        return all(not str(key).startswith("$") and key != TYPE_TAG and is_plain(item) for key, item in data.items())
    return all(map(is_plain, data)) if isinstance(data, list | tuple) else True


def code_named_by(data: Any) -> list[str]:
    """What an encoded tree names that is not Ludus' own and that would be executed: addresses of code, interpreters
    of games, and commands of bots."""
    named = (text for name, text in _texts(data, "") if _is_foreign(name, text))
    return list(dict.fromkeys(named))


def _is_foreign(field: str, text: str) -> bool:
    if field == "python":
        return True
    if field in (TYPE_TAG, OTHER_TYPE_TAG):
        return find_public(text) is None
    if field in _CODE_TAGS:
        return not text.startswith("ludus.")
    if field in _LIBRARY_FIELDS and ":" in text:
        return True
    return text.startswith(_COMMAND) or (_is_code(text) and not text.startswith("ludus."))


def _texts(data: Any, field: str) -> Iterator[tuple[str, str]]:
    """All texts, each with the name of its field."""
    if isinstance(data, str):
        yield field, data
    elif isinstance(data, dict):
        for name, item in data.items():
            yield from _texts(item, name)
    elif isinstance(data, list):
        for item in data:
            yield from _texts(item, field)


def _is_code(text: str) -> bool:
    """Whether a text may be the address of code; `main:0:12`, the id of a model, is none."""
    return _CODE.fullmatch(text) is not None


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
        names = [field.name for field in fields(value)]
        tag = OTHER_TYPE_TAG if TYPE_TAG in names else TYPE_TAG
        encoded = {tag: _address(type(value), path)}
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
    if all(type(key) is str and not key.startswith("$") and key != TYPE_TAG for key in value):
        return {key: _encode(item, join(path, key)) for key, item in value.items()}
    return {"$map": [[_encode(key, join(path, key)), _encode(item, join(path, key))] for key, item in value.items()]}


def _address(obj: Any, path: str) -> str:
    try:
        return public_name(obj) or address_of(obj)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path or 'the root'}: {error}") from error


def _decode(data: Any, path: str, component: _Builder) -> Any:
    if isinstance(data, list):
        return tuple(_decode(item, join(path, index), component) for index, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    for tag in (OTHER_TYPE_TAG, TYPE_TAG):
        if isinstance(data.get(tag), str):
            rest = {name: item for name, item in data.items() if name != tag}
            return component(data[tag], rest, path)
    tags = [key for key in data if key.startswith("$")]
    if not tags:
        return {key: _decode(item, join(path, key), component) for key, item in data.items()}
    if tags[0] in _CODE_TAGS and component is _unread_component:
        return Unread(str(data[tags[0]]), {})
    if tags[0] not in _DECODERS:
        raise ConfigError(f"{path or 'the root'}: unknown tag {tags[0]!r}")
    return _DECODERS[tags[0]](data, path, component)


def _component(name: str, data: Mapping[str, Any], path: str) -> Any:
    cls = load(name, path or "the root")
    if not is_dataclass_type(cls):
        raise ConfigError(f"{path or 'the root'}: {name!r} is not a dataclass")
    return _build(cls, data, path, _component)


def _unread_component(name: str, data: Mapping[str, Any], path: str) -> Any:
    public = find_public(name)
    names_code = any(isinstance(item, str) and _is_code(item) for item in data.values())
    if public is None or not public.address.startswith(_READABLE) or names_code:
        fields = {key: _decode(item, join(path, key), _unread_component) for key, item in data.items()}
        return Unread(name, fields)
    cls: type = load_public(name)
    return _build(cls, data, path, _unread_component)


def _build(cls: type, data: Mapping[str, Any], path: str, component: _Builder) -> Any:
    hints = field_hints(cls)
    known = [field.name for field in fields(cls) if field.init]
    values: dict[str, Any] = {}
    for name, item in data.items():
        if name not in known:
            raise unknown_field(name, known, cls, path)
        value = _decode(item, join(path, name), component)
        if not matches(value, hints[name]):
            raise ConfigError(f"{join(path, name)}: expected {describe(hints[name])}, got {value!r}")
        values[name] = value
    for name in required_fields(cls):
        if name not in values:
            raise ConfigError(f"{path or 'the root'}: {cls.__name__} needs {name!r} ({describe(hints[name])})")
    return build(cls, values, path)


def _decode_enum(data: dict[str, Any], path: str, component: _Builder) -> Any:
    cls = load(data["$enum"], path)
    if not isinstance(cls, type) or not issubclass(cls, Enum) or data.get("name") not in cls.__members__:
        raise ConfigError(f"{path}: {data['$enum']!r} has no member {data.get('name')!r}")
    return cls[data["name"]]


_Builder = Callable[[str, Mapping[str, Any], str], Any]
"""Makes a component from the name of its class, its encoded fields and its path."""
_CODE = re.compile(r"[^:]+:[A-Za-z_][\w.]*")  # a path may hold any character
_COMMAND = "program:"  # begins the address of a bot that is another program
_LIBRARY_FIELDS = ("id", "env", "name")  # with a colon, the name that a library is given may be the address of code
_CODE_TAGS = ("$enum", "$ref")  # tags that name code
_READABLE = ("ludus.league.", "ludus.data.")  # where the rules of leagues are, which need neither PyTorch nor a game
_DECODERS: Mapping[str, Callable[[dict[str, Any], str, _Builder], Any]] = {
    "$enum": _decode_enum,
    "$float": lambda data, path, component: float(data["$float"]),
    "$path": lambda data, path, component: Path(data["$path"]),
    "$ref": lambda data, path, component: load(data["$ref"], path),
    "$list": lambda data, path, component: list(_decode(data["$list"], path, component)),
    "$set": lambda data, path, component: set(_decode(data["$set"], path, component)),
    "$frozenset": lambda data, path, component: frozenset(_decode(data["$frozenset"], path, component)),
    "$map": lambda data, path, component: dict(_decode(data["$map"], path, component)),
}
