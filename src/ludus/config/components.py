"""Finding the class or function that a setting names: by address, among the types that fit, or next to their
code."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, TypeGuard

from ludus.config.annotations import field_hints, is_dataclass_type, is_protocol
from ludus.config.errors import ConfigError, MismatchError, nearest
from ludus.data.files import load_address

_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)

Maker = type | FunctionType
"""What builds a component: a dataclass, or a function that gives one, such as a preset."""


def load(address: str, path: str) -> Any:
    """The object at an address; what is wrong with it comes with the path in front."""
    try:
        return load_address(address)
    except Exception as error:  # whatever the file that it names may raise
        raise ConfigError(f"{path}: {error}") from error


def find_maker(name: str, allowed: tuple[type, ...], current: object, path: str) -> Maker:
    """The dataclass called `name`: an address, one of the `allowed`, or one that lives beside them or
    beside the current value (same file first, then the other files of its folder). Or a function beside them
    that gives one of the `allowed`."""
    if ":" in name:
        found = load(name, path)
        return found if makes(found, allowed) else _require_dataclass(found, name, path)
    for cls in allowed:
        if cls.__name__ == name and not is_protocol(cls):
            return _require_dataclass(cls, name, path)
    modules = _home_modules(allowed, current)
    for module in modules:
        found = getattr(sys.modules[module], name, None)
        if is_dataclass_type(found):
            return found
    beside = dict(_makers_beside(modules, {cls.__name__ for cls in allowed}))
    if name in beside:
        maker = getattr(importlib.import_module(beside[name]), name)
        return maker if makes(maker, allowed) else _require_dataclass(maker, name, path)
    inside = {
        known
        for module in modules
        for known, cls in vars(sys.modules[module]).items()
        if is_dataclass_type(cls)
    }
    close = nearest(name, inside | set(beside))
    offer = f"did you mean {close!r}?" if close else "write package.module:Class or file.py:Class"
    raise MismatchError(f"{path}: unknown class {name!r}; {offer}")


def makes(found: object, allowed: tuple[type, ...]) -> TypeGuard[FunctionType]:
    """Whether it is a function that says it gives one of these classes."""
    return isinstance(found, FunctionType) and field_hints(found).get("return") in allowed


def _require_dataclass(found: object, name: str, path: str) -> type:
    if not is_dataclass_type(found):
        raise ConfigError(f"{path}: {name!r} is not a dataclass, so a setting cannot build it")
    return found


def _home_modules(allowed: tuple[type, ...], current: object) -> list[str]:
    """Where a class may live that the setting does not spell out; the current value's file comes first."""
    owners = [type(current), *allowed]
    modules = dict.fromkeys(owner.__module__ for owner in owners)
    return [name for name in modules if name in sys.modules and name != "builtins"]


def _makers_beside(modules: list[str], wanted: set[str]) -> Iterator[tuple[str, str]]:
    """(name, module) of the classes in the folders of these modules, and of the functions that give a wanted
    one, read from the text: importing every file to look for a name would load libraries that the run has no
    use for."""
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
