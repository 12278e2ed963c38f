"""Game servers for tests: in this process, at any free port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ludus.games.catalog import resolve
from ludus.games.game import GameSource
from ludus.games.remote.server import GameServer, ServedGame, ServerConfig


@contextmanager
def serving(
    game: str | GameSource,
    *,
    name: str | None = None,
    told: list[str] | None = None,
    why_not_ready: Callable[[], str | None] = lambda: None,
    **config: Any,
) -> Iterator[str]:
    """HOST:PORT of a server of the game, for as long as this lasts."""
    source = resolve(game) if isinstance(game, str) else game

    def with_options(options: Any) -> GameSource:
        made: Any = source
        changed: GameSource = replace(made, **options)
        return changed

    server = GameServer(
        ServedGame(
            name=name or (game if isinstance(game, str) else source.spec.name), source=source, with_options=with_options
        ),
        ServerConfig(**{"port": 0, **config}),
        why_not_ready=why_not_ready,
        tell=(told if told is not None else []).append,
    )
    port = server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop()


def eventually(condition: Callable[[], bool], most_s: float = 20.0) -> bool:
    """Whether it comes true; looks often, and gives up late."""
    until = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
