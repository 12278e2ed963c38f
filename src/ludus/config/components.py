"""Finding the class that a setting names: by address, among the types that fit, or next to their code."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.config.annotations import is_dataclass_type, is_protocol
from ludus.config.errors import ConfigError, MismatchError, nearest
from ludus.data.files import load_address

_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def load(address: str, path: str) -> Any:
    """The object at an address; what is wrong with it comes with the path in front."""
    try:
        return load_address(address)
    except Exception as error:  # whatever the file that it names may raise
        raise ConfigError(f"{path}: {error}") from error


def find_class(name: str, allowed: tuple[type, ...], current: object, path: str) -> type:
    """The dataclass called `name`: an address, one of the `allowed`, or one that lives beside them or
    beside the current value (same file first, then the other files of its folder)."""
    if ":" in name:
        return _require_dataclass(load(name, path), name, path)
    for cls in allowed:
        if cls.__name__ == name and not is_protocol(cls):
            return _require_dataclass(cls, name, path)
    modules = _home_modules(allowed, current)
    for module in modules:
        found = getattr(sys.modules[module], name, None)
        if is_dataclass_type(found):
            return found
    beside = dict(_classes_beside(modules))
    if name in beside:
        return _require_dataclass(getattr(importlib.import_module(beside[name]), name), name, path)
    inside = {
        known
        for module in modules
        for known, cls in vars(sys.modules[module]).items()
        if is_dataclass_type(cls)
    }
    close = nearest(name, inside | set(beside))
    offer = f"did you mean {close!r}?" if close else "write package.module:Class or file.py:Class"
    raise MismatchError(f"{path}: unknown class {name!r}; {offer}")


def _require_dataclass(found: object, name: str, path: str) -> type:
    if not is_dataclass_type(found):
        raise ConfigError(f"{path}: {name!r} is not a dataclass, so a setting cannot build it")
    return found


def _home_modules(allowed: tuple[type, ...], current: object) -> list[str]:
    """Where a class may live that the setting does not spell out; the current value's file comes first."""
    owners = [type(current), *allowed]
    modules = dict.fromkeys(owner.__module__ for owner in owners)
    return [name for name in modules if name in sys.modules and name != "builtins"]


def _classes_beside(modules: list[str]) -> Iterator[tuple[str, str]]:
    """(class name, module) in the folders of these modules, read from the text: importing every file to
    look for a name would load libraries that the run has no use for."""
    for package_name in dict.fromkeys(module.rpartition(".")[0] for module in modules):
        package = sys.modules.get(package_name)
        for folder in getattr(package, "__path__", ()):
            for file in sorted(Path(folder).glob("*.py")):
                for match in _CLASS.finditer(file.read_text(encoding="utf-8")):
                    yield match[1], f"{package_name}.{file.stem}"
