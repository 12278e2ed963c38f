"""Listing the settings of a tree with type, value and docstring, and the differences between two trees."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ludus.config.annotations import describe, field_hints, is_component, join, live_fields


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING: Final = _Missing()  # the value, in a difference, of a setting that one tree does not have


class Setting(NamedTuple):
    """One setting of a tree."""

    path: str
    type_name: str
    value: Any
    doc: str
    live: bool = False
    """It may change while a run trains."""


def paths(obj: Any) -> list[Setting]:
    """Every setting below `obj`, components before their own fields."""
    return list(_settings(obj, "", live=False))


def diff(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """(path, value in a, value in b) of all differences, as deep as both trees have the same shape."""
    return list(_differences(a, b, ""))


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Field name -> the string literal after the field in the source of the class."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError, SyntaxError):
            continue  # No source: built at a prompt or in C.
        body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
        for statement, after in pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[statement.target.id] = inspect.cleandoc(after.value.value)
    return docs


def _settings(obj: Any, path: str, *, live: bool) -> Iterator[Setting]:
    if is_component(obj):
        cls: type = type(obj)
        hints, docs, marked = field_hints(cls), field_docs(cls), live_fields(cls)
        for field in fields(obj):
            if field.init:
                value, here = getattr(obj, field.name), join(path, field.name)
                is_live = live or field.name in marked
                yield Setting(here, describe(hints[field.name]), value, docs.get(field.name, ""), is_live)
                yield from _settings(value, here, live=is_live)
    else:
        for step, item in _items(obj):
            yield Setting(join(path, step), type(item).__name__, item, "", live)
            yield from _settings(item, join(path, step), live=live)


def _items(obj: Any) -> list[tuple[Any, Any]]:
    """The parts of a mapping, or of a tuple that holds components."""
    if isinstance(obj, Mapping):
        return list(obj.items())
    return list(enumerate(obj)) if isinstance(obj, tuple) and any(map(_holds_components, obj)) else []


def _holds_components(obj: Any) -> bool:
    parts = obj.values() if isinstance(obj, Mapping) else obj if isinstance(obj, tuple) else ()
    return is_component(obj) or any(map(_holds_components, parts))


def _differences(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    parts_a, parts_b = _parts(a), _parts(b)
    alike = type(a) is type(b) or (isinstance(a, Mapping) and isinstance(b, Mapping))
    if alike and parts_a is not None and parts_b is not None:
        for step in dict.fromkeys((*parts_a, *parts_b)):
            yield from _differences(parts_a.get(step, MISSING), parts_b.get(step, MISSING), join(path, step))
    elif isinstance(a, bool) != isinstance(b, bool) or not (a == b or (a != a and b != b)):
        yield path, a, b


def _parts(obj: Any) -> Mapping[Any, Any] | None:
    if is_component(obj):
        return {field.name: getattr(obj, field.name) for field in fields(obj)}
    if isinstance(obj, Mapping):
        return obj
    return dict(_items(obj)) or None
