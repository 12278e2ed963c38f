"""Finds games by address and lists those that ship. Imports a game only when it is asked for.

The built-in game `connect_four` is the class `ConnectFour` in `builtin/connect_four.py`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ludus.data.files import load_address
from ludus.games import builtin
from ludus.games.game import GameSource
from ludus.games.lift import Lifted


@dataclass(frozen=True, kw_only=True, slots=True)
class GameEntry:
    """One line of the catalog."""

    address: str
    description: str
    library: str | None = None
    """The library it belongs to; None: it is built in."""
    install: str | None = None
    """The command that adds what is missing; None if the game can be played now."""

    @property
    def installed(self) -> bool:
        return self.install is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """Games of another library: `PREFIX:NAME` makes the source with NAME as its `argument`. A library
    with a single game has no argument and is named by the prefix alone."""

    source: str
    argument: str | None
    library: str
    install: str
    example: str
    description: str


ADAPTERS: Mapping[str, Adapter] = {
    "gymnasium": Adapter(
        source="ludus.games.adapters.gymnasium:Gymnasium",
        argument="env_id",
        library="gymnasium",
        install="pip install 'ludus[games]'",
        example="gymnasium:CartPole-v1",
        description="Any Gymnasium environment with discrete actions, as a game with one seat.",
    ),
    "pysc2": Adapter(
        source="ludus.games.adapters.pysc2:PySC2",
        argument="map_name",
        library="pysc2",
        install="pip install 'ludus[sc2]'",
        example="pysc2:MoveToBeacon",
        description="StarCraft II: mini-games with one seat, ladder maps with two. Needs the game itself.",
    ),
}


def resolve(address: str, **options: Any) -> GameSource:
    """The game at an address, with options.

    `connect_four` (built in), `gymnasium:CartPole-v1` (of another library), `path/to/file.py:Name` or
    `package.module:Name`, where Name is a `GameSource` or a class of them, a `Game` class, or a function
    that returns one of these.
    """
    prefix, colon, name = address.partition(":")
    if prefix in ADAPTERS:
        return _adapted(ADAPTERS[prefix], prefix, name, options)
    if colon:
        return _as_source(load_address(address), options, address)
    known = _builtin_names()
    if address not in known:
        if address.endswith(".py"):
            raise ValueError(f"which game of {address!r}? write {address}:CLASS")
        raise ValueError(f"no game {address!r}{_nearest(address, [*known, *ADAPTERS])}")
    module = importlib.import_module(f"{builtin.__name__}.{address}")
    return _as_source(getattr(module, _class_name(address)), options, address)


def list_games() -> list[GameEntry]:
    """The built-in games by name, then the libraries whose games can be played."""
    games = [GameEntry(address=name, description=text) for name, text in _builtin_games().items()]
    for adapter in ADAPTERS.values():
        missing = importlib.util.find_spec(adapter.library) is None
        games.append(
            GameEntry(
                address=adapter.example,
                description=adapter.description,
                library=adapter.library,
                install=adapter.install if missing else None,
            )
        )
    return games


def _adapted(adapter: Adapter, prefix: str, name: str, options: Mapping[str, Any]) -> GameSource:
    if importlib.util.find_spec(adapter.library) is None:
        raise ModuleNotFoundError(
            f"{adapter.library!r} is not installed; {adapter.install} adds it", name=adapter.library
        )
    if adapter.argument is None and name:
        raise ValueError(f"{prefix!r} is a single game: nothing comes after the colon, got {name!r}")
    if adapter.argument is not None and not name:
        raise ValueError(f"name a game after the colon, such as {adapter.example!r}")
    named = {} if adapter.argument is None else {adapter.argument: name}
    return _as_source(load_address(adapter.source), {**named, **options}, adapter.example)


def _as_source(found: Any, options: Mapping[str, Any], address: str) -> GameSource:
    if _is_source(found) and not isinstance(found, type):
        return _with_options(found, options, address)
    if not callable(found):
        kind = "a table of its own, so name its class" if _is_game(found) else f"{found!r}"
        raise TypeError(f"{address!r} is {kind}; expected a GameSource, a Game class or a function")
    _require_known(found, options, address)
    factory: Callable[[], Any] = partial(found, **options) if options else found
    if isinstance(found, type) and _is_game(found):
        return Lifted(factory)
    made = factory()
    if _is_game(made) and not isinstance(made, type):
        getattr(made, "close", lambda: None)()
        return Lifted(factory)  # what the function makes is one table, which is all that lifting needs
    if not _is_source(made) and not _is_game(made):
        raise TypeError(f"{address!r} returns {reprlib.repr(made)}; expected a GameSource or a Game")
    return _as_source(made, {}, address)


def _is_source(found: Any) -> bool:
    return hasattr(found, "tables") and hasattr(found, "bots")


def _is_game(found: Any) -> bool:
    return not _is_source(found) and hasattr(found, "reset") and hasattr(found, "step")


def _with_options(source: Any, options: Mapping[str, Any], address: str) -> GameSource:
    if not options:
        return source  # type: ignore[no-any-return]
    if not is_dataclass(source) or isinstance(source, type):
        raise TypeError(f"{address!r} takes no options, got {', '.join(options)}")
    _require_known(type(source), options, address)
    changed: Any = replace(source, **options)
    return changed  # type: ignore[no-any-return]


def _require_known(maker: Callable[..., Any], options: Mapping[str, Any], address: str) -> None:
    if not options:
        return
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise ValueError(f"{address!r} has no option {name!r}{_nearest(name, list(parameters))}")


def _class_name(game: str) -> str:
    return "".join(word.capitalize() for word in game.split("_"))


def _builtin_names() -> list[str]:
    return list(_builtin_games())


def _builtin_games() -> dict[str, str]:
    """Name -> first line of its docstring, read from the files without importing them."""
    games: dict[str, str] = {}
    for found in pkgutil.iter_modules(builtin.__path__):
        place = Path(builtin.__path__[0]) / found.name
        file = place / "__init__.py" if found.ispkg else place.with_suffix(".py")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.ClassDef) and node.name == _class_name(found.name) for node in tree.body):
            games[found.name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return games


def _nearest(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else "; there are none"
