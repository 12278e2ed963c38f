"""Annotations of fields: resolving them, checking values against them, and describing them; and config errors."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

from ludus.data.checks import nearest
from ludus.data.schedules import LIVE
from ludus.data.unread import Unread

_WORD = re.compile(r"\w+")


class ConfigError(ValueError):
    """A setting does not exist, does not fit its type, or is rejected by its owner."""


@contextmanager
def as_config_error(*kinds: type[Exception], before: str = "", after: str = "") -> Iterator[None]:
    """Raise errors of these kinds (default: ValueError) as `ConfigError`."""
    caught = kinds or (ValueError,)
    try:
        yield
    except caught as error:
        raise ConfigError(f"{before}{error}{after}") from error


class UnknownPathError(ConfigError):
    """There is no setting at `path`."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class MismatchError(ConfigError):
    """A value does not fit this type; another member of a union may still accept it."""


def join(path: str, step: object) -> str:
    """The path of a part of the value at `path`."""
    return f"{path}.{step}" if path else str(step)


def unknown_field(name: str, known: Iterable[str], owner: type | FunctionType, path: str) -> ConfigError:
    """The error for an unknown field, with the nearest name and all fields of the owner."""
    names = list(known)
    close = nearest(name, names)
    offer = f"did you mean {close!r}? " if close else ""
    place = f"{path}: " if path else ""
    return ConfigError(f"{place}unknown field {name!r}: {offer}{owner.__name__} has {', '.join(names)}")


def build(factory: Callable[..., Any], arguments: dict[str, Any], *places: str) -> Any:
    """Call a constructor. Errors of its validation get the path in front; of several `places`, those that it names."""
    try:
        return factory(**arguments)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        message = str(error)
        words = set(_WORD.findall(message))
        path = ", ".join([place for place in places if place.rpartition(".")[2] in words] or places)
        prefix = "" if not path or message.startswith(path) else f"{path}: "
        raise ConfigError(f"{prefix}{message}") from error


@cache
def field_hints(owner: type | FunctionType) -> Mapping[str, Any]:
    """Field or argument name -> resolved annotation."""
    try:
        return typing.get_type_hints(owner)
    except NameError as error:
        raise ConfigError(
            f"the annotations of {owner.__name__} cannot be resolved: {error}; "
            "import that name at the top of its file, outside of `if TYPE_CHECKING`"
        ) from error


@cache
def live_fields(owner: type) -> frozenset[str]:
    """The fields marked as `LiveField`."""
    hints = typing.get_type_hints(owner, include_extras=True)
    return frozenset(name for name, hint in hints.items() if LIVE in getattr(hint, "__metadata__", ()))


def unwrap(hint: Any) -> Any:
    """The type behind `Annotated`, `NewType` and `type` aliases; type variables become `Any`."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return Any if isinstance(hint, TypeVar) or hint is object else hint


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, flattened; any other type is its only member."""
    hint = unwrap(hint)
    if get_origin(hint) in (Union, UnionType):
        return tuple(inner for member in get_args(hint) for inner in members(member))
    return (hint,)


def is_component(value: object) -> bool:
    """Whether it is an instance of a dataclass, a node of the tree."""
    return is_dataclass(value) and not isinstance(value, type)


def is_dataclass_type(value: object) -> TypeGuard[type]:
    return isinstance(value, type) and is_dataclass(value)


def is_component_class(hint: object) -> TypeGuard[type]:
    """Whether it is a class that components may belong to: a dataclass, a protocol or another custom class."""
    if not isinstance(hint, type) or get_origin(hint) is not None or issubclass(hint, Enum | PurePath):
        return False
    return hint.__module__ not in ("builtins", "collections.abc")


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def describe(hint: Any) -> str:
    """A type as users write it, without module names."""
    options = members(hint)
    if len(options) > 1:
        return " | ".join(describe(option) for option in options)
    hint = options[0]
    if hint in (None, NoneType):
        return "none"
    if get_origin(hint) is Literal:
        return " | ".join(repr(value) for value in get_args(hint))
    origin = get_origin(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(hint.__members__)
    if origin is None:
        return getattr(hint, "__name__", None) or str(hint)
    if origin is Callable:
        return "Callable"
    inner = ", ".join("..." if part is Ellipsis else describe(part) for part in get_args(hint))
    return f"{getattr(origin, '__name__', origin)}[{inner}]"


def matches(value: Any, hint: Any) -> bool:
    """Whether a value is of this type: an int is a float, a bool is neither, `Unread` is anything."""
    if isinstance(value, Unread):
        return True
    return any(_matches_one(value, option) for option in members(hint))


def _matches_one(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint in (None, NoneType):
        return value is None
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in arguments)
    if hint is float or hint is int:
        return isinstance(value, int | float if hint is float else int) and not isinstance(value, bool)
    if origin is type:
        wanted = unwrap(arguments[0])
        return isinstance(value, type) and (wanted is Any or _is_kind_of(value, wanted))
    if origin is Callable or hint is Callable:
        return callable(value)
    if origin is not None:
        return isinstance(origin, type) and isinstance(value, origin) and _inside_matches(value, arguments)
    if isinstance(hint, type):
        return _provides(value, hint) if is_protocol(hint) else isinstance(value, hint)
    return False


def _inside_matches(value: Any, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping):
        key_hint, value_hint = arguments
        return all(matches(key, key_hint) and matches(item, value_hint) for key, item in value.items())
    if isinstance(value, tuple) and len(arguments) != 1 and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(map(matches, value, arguments))
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return all(matches(item, arguments[0]) for item in value)
    return not isinstance(value, str | bytes)


def _is_kind_of(cls: type, wanted: Any) -> bool:
    if not isinstance(wanted, type):
        return any(_is_kind_of(cls, option) for option in members(wanted) if isinstance(option, type))
    if is_protocol(wanted):
        return all(hasattr(cls, name) for name in _protocol_members(wanted))
    return issubclass(cls, wanted)


def _provides(value: object, protocol: type) -> bool:
    """Whether the value has every member of the protocol. No property is evaluated if the class has the name."""
    cls = type(value)
    declared = getattr(cls, "__dataclass_fields__", {})
    return all(
        callable(value)
        if name == "__call__"  # every class has one, from its metaclass
        else hasattr(cls, name) or name in declared or hasattr(value, name)
        for name in _protocol_members(protocol)
    )


@cache
def _protocol_members(protocol: type) -> frozenset[str]:
    names: set[str] = set()
    for cls in protocol.__mro__:
        if is_protocol(cls) and cls.__module__ != "typing":
            names.update(vars(cls), vars(cls).get("__annotations__", {}))
    return frozenset(name for name in names if not name.startswith("_") or name == "__call__")
