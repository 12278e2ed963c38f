"""Games on a game server. The client, which needs gRPC, is loaded only for these."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ludus.data.addresses import load_address
from ludus.games.game import GameSource
from ludus.games.seat_rows import GameError
from ludus.system.machine import install_command

REMOTE = "remote://"
SERVER_VARIABLE = "LUDUS_GAME_SERVER"
_SOURCE = "ludus.games.remote.source"


def server_is_named() -> bool:
    return bool(os.environ.get(SERVER_VARIABLE))


def pointed_at_server(game: GameSource) -> GameSource:
    """The game at the server that LUDUS_GAME_SERVER names, or the game itself if it names none."""
    return _of_remote("at_server")(game) if server_is_named() else game


def remote_game(address: str, options: Mapping[str, Any]) -> GameSource:
    """The game at `remote://HOST:PORT/GAME`. Any other address is a game at the server that LUDUS_GAME_SERVER names."""
    if address.startswith(REMOTE):
        return _of_remote("from_address")(address, **options)  # type: ignore[no-any-return]
    return _of_remote("Remote")(game=address, options=options)  # type: ignore[no-any-return]


def _of_remote(name: str) -> Any:
    try:
        return load_address(f"{_SOURCE}:{name}")
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise GameError(f"a game on a server needs 'grpcio'; {install_command('server')} adds it") from error
