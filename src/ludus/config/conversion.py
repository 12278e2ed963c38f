"""Conversion of text and YAML values to annotated types, and YAML experiment files."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path, PurePath
from types import FunctionType, NoneType
from typing import Any, Literal, TypeGuard, get_args, get_origin

import yaml

from ludus.config.annotations import (
    ConfigError,
    MismatchError,
    build,
    describe,
    field_hints,
    is_component_class,
    is_dataclass_type,
    is_protocol,
    join,
    matches,
    members,
    unknown_field,
)
from ludus.data.addresses import load_address
from ludus.data.checks import nearest
from ludus.public_names import find_public, load_public

_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)

Maker = type | FunctionType  # a dataclass, or a function that returns one, such as a preset


def load(address: str, path: str) -> Any:
    """The object with a public name or at an address; what is wrong with it comes with the path in front."""
    try:
        return load_address(address) if ":" in address else load_public(address)
    except Exception as error:  # whatever the file that it names may raise
        raise ConfigError(f"{path}: {error}") from error


def find_maker(name: str, allowed: tuple[type, ...], current: object, path: str) -> Maker:
    """The dataclass or function called `name`: an address, one of the `allowed`, or one beside them."""
    if ":" in name:
        found = load(name, path)
        return found if makes(found, allowed) else _require_dataclass(found, name, path)
    for cls in allowed:
        if cls.__name__ == name and not is_protocol(cls):
            return _require_dataclass(cls, name, path)
    owners = dict.fromkeys(owner.__module__ for owner in (type(current), *allowed))
    modules = [module for module in owners if module in sys.modules and module != "builtins"]
    for module in modules:
        found = getattr(sys.modules[module], name, None)
        if is_dataclass_type(found):
            return found
    beside = dict(_makers_beside(modules, {cls.__name__ for cls in allowed}))
    if name in beside:
        maker = getattr(importlib.import_module(beside[name]), name)
        return maker if makes(maker, allowed) else _require_dataclass(maker, name, path)
    if find_public(name) is not None and is_dataclass_type(public := load_public(name)):
        return public
    inside = {known for module in modules for known, cls in vars(sys.modules[module]).items() if is_dataclass_type(cls)}
    close = nearest(name, inside | set(beside))
    offer = f"did you mean {close!r}?" if close else "write package.module:Class or file.py:Class"
    raise MismatchError(f"{path}: unknown class {name!r}; {offer}")


def makes(found: object, allowed: tuple[type, ...]) -> TypeGuard[FunctionType]:
    """Whether it is a function annotated to return one of these classes."""
    return isinstance(found, FunctionType) and field_hints(found).get("return") in allowed


def _require_dataclass(found: object, name: str, path: str) -> type:
    if not is_dataclass_type(found):
        raise ConfigError(f"{path}: {name!r} is not a dataclass, so a setting cannot build it")
    return found


def _makers_beside(modules: list[str], wanted: set[str]) -> Iterator[tuple[str, str]]:
    """(name, module) of classes and makers in these folders, from the text of the files: an import may be expensive."""
    for package_name in dict.fromkeys(module.rpartition(".")[0] for module in modules):
        package = sys.modules.get(package_name)
        for folder in getattr(package, "__path__", ()):
            for file in sorted(Path(folder).glob("*.py")):
                text, module = file.read_text(encoding="utf-8"), f"{package_name}.{file.stem}"
                for match in _CLASS.finditer(text):
                    yield match[1], module
                for name in _functions_giving(wanted, text):
                    yield name, module


def _functions_giving(wanted: set[str], text: str) -> Iterator[str]:
    if not any(f"-> {name}:" in text for name in wanted):
        return  # most files: not worth parsing
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if isinstance(node.returns, ast.Name) and node.returns.id in wanted:
            yield node.name


MAX_BYTES = 256 * 1024
MAX_VALUES = 10_000  # counted with aliases expanded: a short file can expand to a very large tree


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys, which plain YAML loaders accept."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is written twice", key_node.start_mark
                )
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, what: str) -> Any:
    """The value of a YAML text; `what` names it in errors."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"{what}: more than {MAX_BYTES} bytes of YAML")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{what}{place}: not valid YAML: {getattr(error, 'problem', error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{what}: YAML nested too deeply") from error
    _require_small(value, what)
    return value


def load_yaml(path: str | Path) -> tuple[str, dict[str, Any]]:
    """(recipe, overrides) of an experiment file: `recipe: NAME`, then the differences from it. Overrides are nested
    mappings or dotted paths. The path of a recipe in a Python file may be relative to the folder of the YAML file."""
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{path}: {size} bytes; an experiment file has at most {MAX_BYTES}")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8") from error
    content = read_yaml(text, str(path))
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: an experiment file is a mapping: `recipe: NAME`, then overrides by path")
    recipe = content.pop("recipe", None)
    if not isinstance(recipe, str):
        raise ConfigError(f"{path}: names no recipe; begin with `recipe: connect_four` or FILE.py:NAME")
    place, colon, name = recipe.rpartition(":")
    if colon and place.endswith(".py") and (file.parent / place).is_file():
        recipe = f"{file.parent / place}:{name}"
    return recipe, content


def _require_small(value: Any, what: str) -> None:
    """Raise if the tree, with aliases expanded, exceeds the limit; cycles do too."""
    pending, count = [value], 0
    while pending:
        node = pending.pop()
        count += 1
        if count + len(pending) > MAX_VALUES:
            raise ConfigError(f"{what}: stands for more than {MAX_VALUES} values; write out fewer aliases")
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list | tuple | set):
            pending.extend(node)


TYPE_TAG = "type"  # the key under which a component names its class
OTHER_TYPE_TAG = "$type"  # the same for a class that has a field called `type`


def convert(value: Any, hint: Any, path: str, current: object = None) -> Any:
    """Convert `value` to the type `hint`, parsing text by that type. `current` is the value that it replaces: classes
    are also looked up next to its class."""
    if not isinstance(value, str) and matches(value, hint):
        return value
    options = members(hint)
    wrong = f"{path}: expected {describe(hint)}, got {value!r}"
    for option in sorted(options, key=_order):
        try:
            return _convert_plain(value, option, path)
        except MismatchError as error:
            if len(options) == 1 and str(error).startswith(f"{path}."):
                wrong = f"{wrong} ({error})"  # the part that is wrong, and the nearest name
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
    """The class named by `type` or `$type` in a mapping, if any."""
    name = value.get(OTHER_TYPE_TAG, value.get(TYPE_TAG))
    return name if isinstance(name, str) else None


def build_from(maker: Maker, values: Mapping[str, Any], path: str) -> Any:
    """Build a component from its fields, or the arguments of its function, each converted to its type."""
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
    """Name -> whether it is required."""
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
    """The order in which members of a union try to parse text: narrow types first, `str` last."""
    if get_origin(hint) is Literal:
        return 0
    narrow: list[Any] = [NoneType, bool, int, float]
    return narrow.index(hint) + 1 if hint in narrow else 9 if hint in (str, Any) else 8


def _convert_plain(value: Any, hint: Any, path: str) -> Any:
    """Convert to anything but components; raises MismatchError if the value does not fit."""
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


_NO = object()  # the result of a reader for a value that is not of its type


def _read_int(value: Any) -> Any:
    """Also accepts 1e6 and 1_000_000, but no fractions."""
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


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    NoneType: _read_text_as({"none": None, "null": None}),
    bool: _read_text_as({"true": True, "false": False}),
    int: _read_int,
    float: _read_float,
    str: lambda value: value if isinstance(value, str) else _NO,
    Any: lambda value: read_yaml(value, "the value") if isinstance(value, str) else value,
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
    """From a list, `[1, 2]` or `1,2`. Abstract types become tuples, which are immutable."""
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
    """From `ClassName`, an address, {type: ClassName, field: value} or, if only one class fits, its fields."""
    if isinstance(value, str):
        if ":" in value and not value.lstrip().startswith("{"):
            found = load(value.strip(), path)
            is_maker = is_dataclass_type(found) or makes(found, allowed)
            return build_from(found, {}, path) if is_maker else found
        value = read_yaml(value, path) if value.lstrip().startswith("{") else {TYPE_TAG: value.strip()}
        assert isinstance(value, Mapping)
    name = type_of(value)
    if name is not None:
        tag = OTHER_TYPE_TAG if OTHER_TYPE_TAG in value else TYPE_TAG
        rest = {key: item for key, item in value.items() if key != tag}
        return build_from(find_maker(name, allowed, current, path), rest, path)
    concrete = [cls for cls in allowed if is_dataclass_type(cls)]
    known = {cls: {field.name for field in fields(cls) if field.init} for cls in concrete}
    fitting = [cls for cls in concrete if set(required_fields(cls)) <= set(value) <= known[cls]]
    for only in (fitting, concrete):  # if there is only one candidate, its error names the wrong field
        if len(only) == 1:
            return build_from(only[0], value, path)
    names = " or ".join(f"type: {cls.__name__}" for cls in fitting or concrete) or "type: ClassName"
    raise MismatchError(f"{path}: say which class it is: {names}")
