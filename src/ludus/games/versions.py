"""What tells recordings of a game apart: the version of its rules, and the map it was played on."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from ludus.games.game import GameSource
from ludus.games.lift import Lifted

_MAP_OPTIONS = ("map_name", "map", "mode")


def game_version(source: GameSource) -> str:
    """What the source states as its `version`; else a digest of its file and of the files beside it that
    it imports, which changes with every letter of them."""
    stated = getattr(source, "version", None)
    if isinstance(stated, str | int):
        return str(stated)
    digest = hashlib.sha256()
    for file in sorted(_files(_home(source)), key=lambda file: file.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return f"code-{digest.hexdigest()[:12]}"


def map_name(source: GameSource) -> str:
    """The option that chooses a map or a mode; the name of a game that has none."""
    for option in _MAP_OPTIONS:
        if isinstance(value := getattr(source, option, None), str):
            return value
    return source.spec.name


def _home(source: GameSource) -> Path | None:
    """The file that the game is written in."""
    maker: Any = source.factory if isinstance(source, Lifted) else source
    while isinstance(maker, functools.partial):
        maker = maker.func
    owner = maker if isinstance(maker, type | FunctionType) else type(maker)
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return None if file is None else Path(file)


def _files(start: Path | None) -> set[Path]:
    found: set[Path] = set()
    waiting = [] if start is None else [start]
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.add(file)
            waiting += [file.with_name(f"{name}.py") for name in _imported(file)]
    return found


def _imported(file: Path) -> Iterator[str]:
    """Names that may be those of files beside it."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[2] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").rpartition(".")[2]
            yield from (alias.name for alias in node.names)
