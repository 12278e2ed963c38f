"""Where a running FightingICE listens. Needs nothing of pyftg."""

from __future__ import annotations

import socket

from ludus.games.seat_rows import GameError

_NOTHING = b"\x00"
"""What a new connection is for: a kind that the game does not know and passes over."""


def connect(host: str, port: int, limit_s: float) -> socket.socket:
    """Raises `GameError` if nothing listens there."""
    try:
        return socket.create_connection((host, port), limit_s)
    except OSError as error:
        raise GameError(
            f"no FightingICE at {host}:{port} ({error.strerror or error}); start it with --pyftg-mode --port "
            f"{port}, see docs/games/fightingice.md"
        ) from None


def probe(host: str, port: int, limit_s: float) -> None:
    """Whether it is there; raises `GameError` if not."""
    with connect(host, port, limit_s) as connection:
        connection.sendall(_NOTHING)  # a connection that ends without a byte would end the game's server
