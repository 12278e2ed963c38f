"""The options of a game as plain values: how a client tells them, and which ones a server lets it set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from ludus.games.game import GameSource
from ludus.games.isolation.source import Isolated
from ludus.games.lift import Lifted

_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
"""Neither the address of code nor a path out of the game's own folder."""
_NOT_PLAIN = object()


def plain_options(source: GameSource) -> dict[str, Any]:
    """Every option of the game that is a plain value; tuples become lists, as in JSON."""
    made: Any = source
    if isinstance(made, Isolated):
        options: Mapping[str, Any] = made.options
    elif isinstance(made, Lifted):
        options = made.factory.keywords if isinstance(made.factory, partial) else {}
    elif isinstance(inner := getattr(made, "game", None), GameSource):
        return plain_options(inner)
    elif is_dataclass(made):
        options = {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    else:
        options = {}
    written = {name: _plain(value) for name, value in options.items()}
    return {name: value for name, value in written.items() if value is not _NOT_PLAIN}


def with_client_options(
    source: GameSource,
    options: Mapping[str, Any],
    change: Callable[[GameSource, Mapping[str, Any]], GameSource],
) -> GameSource:
    """The game with options that came from a client; raises ValueError for those that it may not set. What
    is as the client wants it anyhow may be anything. `change` sets options of a game, checking their types.
    """
    own = plain_options(source)
    changed = {name: value for name, value in options.items() if name not in own or own[name] != value}
    for name, value in changed.items():
        _require_harmless(name, value)
    return _changed(source, changed, change) if changed else source


def _changed(
    source: GameSource,
    options: Mapping[str, Any],
    change: Callable[[GameSource, Mapping[str, Any]], GameSource],
) -> GameSource:
    made: Any = source
    if isinstance(made, Isolated):
        return replace(made, options={**made.options, **options})
    if isinstance(inner := getattr(made, "game", None), GameSource):
        wrapped: GameSource = replace(made, game=_changed(inner, options, change))
        return wrapped
    return change(source, options)


def _require_harmless(name: str, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _require_harmless(name, item)
    elif isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise ValueError(
                f"option {name!r}: clients may set numbers and plain words, not {value[:80]!r}; "
                f"start the server with --set {name}=..."
            )
    elif value is not None and not isinstance(value, bool | int | float):
        raise ValueError(f"option {name!r}: clients may set numbers and plain words only")


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if any(item is _NOT_PLAIN for item in items) else items
    return value if value is None or isinstance(value, bool | int | float | str) else _NOT_PLAIN
