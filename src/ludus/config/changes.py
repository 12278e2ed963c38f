"""Overriding settings by path. All changes are applied at once, so that no half-changed component is validated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar, get_args

from ludus.config.annotations import ConfigError, UnknownPathError, build, field_hints, is_component, join, members
from ludus.config.conversion import convert, read_yaml, type_of
from ludus.config.encoding import decode, read
from ludus.config.listing import paths
from ludus.data.checks import nearest

ADD = "+"  # prefix of a new key of a mapping

T = TypeVar("T")
_KEEP = object()
EVERY = "*"
"""The step of a path that stands for every key of a mapping."""


@dataclass(slots=True)
class _Change:
    """The change of one node of the tree: replace it by `whole`, then change its parts."""

    whole: Any = _KEEP
    parts: dict[str, _Change] = field(default_factory=dict)

    def insert(self, value: Any) -> None:
        """A mapping without a type changes parts; any other value replaces the earlier change."""
        if isinstance(value, Mapping) and value and type_of(value) is None:
            for path, item in value.items():
                node = self
                for step in str(path).split("."):
                    node = node.parts.setdefault(step, _Change())
                node.insert(item)
        else:
            self.whole, self.parts = value, {}

    def leaves(self, path: str) -> Iterator[str]:
        if not self.parts:
            yield path
        for step, part in self.parts.items():
            yield from part.leaves(join(path, step))

    def plain(self) -> Any:
        """The change as a plain value, for a node that has no parts yet."""
        return {step: part.plain() for step, part in self.parts.items()} if self.parts else self.whole


def override(obj: T, path: str, value: Any) -> T:
    """A copy of `obj` with the setting at `path` replaced. Text is converted to the setting's type."""
    return apply_overrides(obj, {path: value})


def apply_overrides(obj: T, overrides: Mapping[str, Any]) -> T:
    """A copy of `obj` with all overrides applied: dotted paths, nested mappings, or both. A mapping changes the fields
    that it names; with `type: ClassName` it builds a new component. The later of two overrides of one path wins. In a
    mapping, `+key` adds a key and `*` stands for every key."""
    change = _Change()
    change.insert(overrides)
    try:
        changed: T = _changed(obj, type(obj), change, "") if change.parts else obj
    except _NothingThereError as error:
        raise UnknownPathError(error.explain(obj), error.path) from None
    return changed


class _NothingThereError(ConfigError):
    """`parent` has no part called `step`; `path` is the whole path of the override."""

    def __init__(self, parent: str, step: str, part: _Change, known: Iterable[str], note: str = "") -> None:
        self.path = next(part.leaves(join(parent, step)))
        self.level = f"{parent or 'the top level'} has {', '.join(known) or 'nothing'}{note}"
        super().__init__(self.path)

    def explain(self, root: Any) -> str:
        """The message, with the nearest path of the whole tree, preferably with the same last name."""
        everywhere = [setting.path for setting in paths(root)]
        last = self.path.rpartition(".")[2]
        alike = [path for path in everywhere if path.rpartition(".")[2] == last]
        close = nearest(self.path, alike or everywhere) or next(iter(alike), None)
        question = f"did you mean {close!r}? " if close else ""
        return f"unknown path {self.path!r}: {question}{self.level}"


def _changed(current: Any, hint: Any, change: _Change, path: str) -> Any:
    whole = change.whole
    if is_component(current):
        if isinstance(whole, str) and whole.lstrip().startswith("{"):
            whole = read_yaml(whole, path)
        if isinstance(whole, Mapping) and type_of(whole) is None:
            fields_only = _Change()
            fields_only.insert(whole)
            current, whole = _changed_component(current, fields_only, path), _KEEP
    if whole is not _KEEP:
        current = convert(whole, hint, path, current)
    if not change.parts:
        return current
    if is_component(current):
        return _changed_component(current, change, path)
    if isinstance(current, Mapping):
        return _changed_mapping(current, hint, change, path)
    if isinstance(current, tuple):
        return _changed_tuple(current, hint, change, path)
    return convert(change.plain(), hint, path, current)


def _changed_component(current: Any, change: _Change, path: str) -> Any:
    cls: type = type(current)
    known = [spec.name for spec in fields(cls) if spec.init]
    hints = field_hints(cls)
    values: dict[str, Any] = {}
    for name, part in change.parts.items():
        if name not in known:
            passes_on = isinstance(getattr(current, "options", None), Mapping)
            note = f"; to pass an option on: {join(path, f'options.{ADD}{name}')}" if passes_on else ""
            raise _NothingThereError(path, name, part, known, note)
        values[name] = _changed(getattr(current, name), hints[name], part, join(path, name))
    return build(partial(replace, current), values, *change.leaves(path))


def _changed_mapping(current: Mapping[Any, Any], hint: Any, change: _Change, path: str) -> dict[Any, Any]:
    arguments = next((get_args(option) for option in members(hint) if get_args(option)), (Any, Any))
    key_hint, value_hint = arguments
    keys = {str(key): key for key in current}
    sibling = next(iter(current.values()), None)
    result = dict(current)
    for step, part in change.parts.items():
        name = step.removeprefix(ADD)
        here = join(path, name)
        if name in keys or step == EVERY:
            for one in [name] if name in keys else keys:
                result[keys[one]] = _changed(result[keys[one]], value_hint, part, join(path, one))
        elif name != step:
            result[convert(name, key_hint, here)] = convert(part.plain(), value_hint, here, sibling)
        else:
            raise _NothingThereError(path, name, part, keys, f"; to add one: {join(path, ADD + name)}")
    return result


def _changed_tuple(current: tuple[Any, ...], hint: Any, change: _Change, path: str) -> tuple[Any, ...]:
    arguments = next((get_args(option) for option in members(hint) if get_args(option)), (Any, ...))
    items = list(current)
    for step, part in change.parts.items():
        if not step.isdecimal() or int(step) >= len(items):
            raise _NothingThereError(path, step, part, map(str, range(len(items))))
        index = int(step)
        item_hint = arguments[0] if arguments[-1] is Ellipsis else arguments[index]
        items[index] = _changed(items[index], item_hint, part, join(path, step))
    return tuple(items)


def apply_encoded(obj: T, settings: Mapping[str, Any]) -> T:
    """`apply_overrides` for values written by `encode`. Imports the code that they name."""
    return apply_overrides(obj, {path: _as_override(value) for path, value in settings.items()})


def apply_read(obj: T, settings: Mapping[str, Any]) -> T:
    """Like `apply_encoded`, without importing code. Changes inside a part that was not read are left out."""
    for path, value in settings.items():
        with suppress(ConfigError):
            obj = apply_overrides(obj, {path: _as_override(value, read)})
    return obj


def _as_override(value: Any, decoding: Callable[[Any], Any] = decode) -> Any:
    """The decoded value. A mapping becomes text, because a plain one would mean changes of its parts."""
    decoded = decoding(value)
    return json.dumps(value) if isinstance(decoded, Mapping) else decoded
