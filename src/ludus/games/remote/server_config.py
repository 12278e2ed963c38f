"""What a game server plays, where it listens, and how much it lets clients have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.games.game import GameSource
from ludus.games.remote.messages import DEFAULT_PORT, MESSAGE_BYTES


@dataclass(frozen=True, kw_only=True)
class ServedGame:
    """What a server plays."""

    name: str
    source: GameSource
    with_options: Callable[[Mapping[str, Any]], GameSource]
    """The game with a client's options; raises ValueError for those that a client may not set."""

    def chosen(self, name: str, options: Mapping[str, Any]) -> GameSource:
        if name and name != self.name:
            raise ValueError(f"this server plays {self.name!r}, not {name!r}")
        return self.with_options(options) if options else self.source


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Where a server listens, and how much it lets clients have."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    tls: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Private key and certificate chain, both PEM."""
    tables_max: int = 4096
    clients_max: int = 128
    matches_max: int = 64
    message_bytes: int = MESSAGE_BYTES
