"""From what a person writes (text, YAML values) to a value of the annotated type."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from ludus.config.annotations import (
    describe,
    field_hints,
    is_component_class,
    is_dataclass_type,
    matches,
    members,
)
from ludus.config.components import Maker, find_maker, load, makes
from ludus.config.errors import ConfigError, MismatchError, build, join, unknown_field
from ludus.config.yaml_files import read_yaml

TYPE_TAG = "$type"


def convert(value: Any, hint: Any, path: str, current: object = None) -> Any:
    """`value` as the type that `hint` names; text is read by that type.

    `current` is the value that it replaces: classes are also looked for next to its own.
    """
    if not isinstance(value, str) and matches(value, hint):
        return value
    options = members(hint)
    wrong = f"{path}: expected {describe(hint)}, got {value!r}"
    for option in sorted(options, key=_order):
        try:
            return _convert_plain(value, option, path)
        except MismatchError as error:
            if len(options) == 1 and str(error).startswith(f"{path}."):
                wrong = f"{wrong} ({error})"  # which part of it is wrong, and what is near
    classes = tuple(option for option in options if is_component_class(option))
    if classes and isinstance(value, str | Mapping) and (str not in options or isinstance(value, Mapping)):
        try:
            made = _component(value, classes, path, current)
        except MismatchError as error:
            raise MismatchError(f"{wrong} ({str(error).removeprefix(path + ': ')})") from error
        if matches(made, hint):
            return made
        wrong = f"{wrong}, but {type(made).__name__} is none"
    raise MismatchError(wrong)


def type_of(value: Mapping[Any, Any]) -> str | None:
    """The class that a mapping names with `type` or `$type`, if any."""
    name = value.get(TYPE_TAG, value.get("type"))
    return name if isinstance(name, str) else None


def build_from(maker: Maker, values: Mapping[str, Any], path: str) -> Any:
    """A component from its fields, or from the arguments of its function, each converted to its type."""
    known = _parameters(maker)
    hints = field_hints(maker)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_field(str(name), known, maker, path)
        arguments[name] = convert(value, hints[name], join(path, name))
    for name, is_required in known.items():
        if is_required and name not in arguments:
            raise ConfigError(f"{path}: {maker.__name__} needs {name!r} ({describe(hints[name])})")
    return build(maker, arguments, path)


def _parameters(maker: Maker) -> dict[str, bool]:
    """Name -> whether it must be given."""
    if isinstance(maker, type):
        required = required_fields(maker)
        return {field.name: field.name in required for field in fields(maker) if field.init}
    parameters = inspect.signature(maker).parameters.values()
    return {one.name: one.default is inspect.Parameter.empty for one in parameters}


def required_fields(cls: type) -> list[str]:
    return [
        field.name
        for field in fields(cls)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    ]


def _order(hint: Any) -> int:
    """Which member of a union reads a text first: the narrower before the wider, `str` last."""
    if get_origin(hint) is Literal:
        return 0
    narrow: list[Any] = [NoneType, bool, int, float]
    return narrow.index(hint) + 1 if hint in narrow else 9 if hint in (str, Any) else 8


def _convert_plain(value: Any, hint: Any, path: str) -> Any:
    """Everything but components; a MismatchError if this type cannot take the value."""
    origin = get_origin(hint)
    reader = _READERS.get(hint) if isinstance(hint, type) or hint is Any else None
    if reader is not None:
        result = reader(value)
    elif origin is Literal:
        result = next((option for option in get_args(hint) if str(option) == str(value)), _NO)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        result = next((option for option in hint if value in (option.name, option.value)), _NO)
    elif isinstance(hint, type) and issubclass(hint, PurePath):
        result = hint(value) if isinstance(value, str) else _NO
    elif (origin or hint) in (type, Callable):
        result = load(value, path) if isinstance(value, str) and ":" in value else _NO
    else:
        container = origin or hint
        if isinstance(container, type) and not is_component_class(container):
            if issubclass(container, Mapping):
                return _mapping(value, get_args(hint) or (Any, Any), path)
            if issubclass(container, Collection):
                return _sequence(value, container, get_args(hint), path)
        result = _NO
    if result is _NO or not matches(result, hint):
        raise MismatchError(f"{path}: expected {describe(hint)}, got {value!r}")
    return result


_NO = object()
"""What a reader gives for a value that is not of its type."""


def _read_int(value: Any) -> Any:
    """Also 1e6 and 1_000_000, as long as nothing is lost."""
    try:
        return int(value) if isinstance(value, str) else _integral(value)
    except ValueError:
        return _integral(value)


def _integral(value: Any) -> Any:
    number = _read_float(value)
    return int(number) if number is not _NO and math.isfinite(number) and number.is_integer() else _NO


def _read_float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return _NO
    try:
        return float(value)
    except (ValueError, OverflowError):
        return _NO


def _read_text_as(words: Mapping[str, Any]) -> Callable[[Any], Any]:
    return lambda value: words.get(value.strip().lower(), _NO) if isinstance(value, str) else _NO


def _read_anything(value: Any) -> Any:
    return read_yaml(value, "the value") if isinstance(value, str) else value


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    NoneType: _read_text_as({"none": None, "null": None}),
    bool: _read_text_as({"true": True, "false": False}),
    int: _read_int,
    float: _read_float,
    str: lambda value: value if isinstance(value, str) else _NO,
    Any: _read_anything,
}


def _mapping(value: Any, hints: tuple[Any, ...], path: str) -> dict[Any, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = read_yaml(value, path)
    if not isinstance(value, Mapping):
        raise MismatchError(f"{path}: expected a mapping such as {{key: value}}, got {value!r}")
    key_hint, value_hint = hints
    return {
        convert(key, key_hint, join(path, key)): convert(item, value_hint, join(path, key))
        for key, item in value.items()
    }


def _sequence(value: Any, container: type, hints: tuple[Any, ...], path: str) -> Any:
    """From a list, `[1, 2]` or `1,2`; abstract types become tuples, which cannot change either."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(("[", "(")):
            value = read_yaml(f"[{text[1:-1]}]", path)
        else:
            value = [part.strip() for part in text.split(",")] if text else []
    if not isinstance(value, list | tuple | set | frozenset):
        raise MismatchError(f"{path}: expected a list such as [1, 2], got {value!r}")
    if container is tuple and hints and hints[-1] is not Ellipsis:
        if len(value) != len(hints):
            raise MismatchError(f"{path}: expected {len(hints)} values, got {len(value)} in {value!r}")
        items = hints
    else:
        items = (hints[0] if hints else Any,) * len(value)
    made = (convert(part, items[index], join(path, index)) for index, part in enumerate(value))
    return container(made) if container in (list, set, frozenset) else tuple(made)


def _component(value: str | Mapping[str, Any], allowed: tuple[type, ...], path: str, current: object) -> Any:
    """From `ClassName`, an address, {type: ClassName, field: value} or, where one fits, its fields."""
    if isinstance(value, str):
        if ":" in value and not value.lstrip().startswith("{"):
            found = load(value.strip(), path)
            is_maker = is_dataclass_type(found) or makes(found, allowed)
            return build_from(found, {}, path) if is_maker else found
        value = read_yaml(value, path) if value.lstrip().startswith("{") else {TYPE_TAG: value.strip()}
        assert isinstance(value, Mapping)
    name = type_of(value)
    if name is not None:
        tag = TYPE_TAG if TYPE_TAG in value else "type"
        rest = {key: item for key, item in value.items() if key != tag}
        return build_from(find_maker(name, allowed, current, path), rest, path)
    concrete = [cls for cls in allowed if is_dataclass_type(cls)]
    fitting = [cls for cls in concrete if _could_be(cls, value)]
    for only in (fitting, concrete):  # The only one that it can be also says what is wrong with a field.
        if len(only) == 1:
            return build_from(only[0], value, path)
    names = " or ".join(f"type: {cls.__name__}" for cls in fitting or concrete) or "type: ClassName"
    raise MismatchError(f"{path}: say which class it is: {names}")


def _could_be(cls: type, values: Mapping[str, Any]) -> bool:
    return set(required_fields(cls)) <= set(values) <= {field.name for field in fields(cls) if field.init}
