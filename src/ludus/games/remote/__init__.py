"""Games on another machine or in another environment: the game server, and the way to it.

The protocol is in docs/game-server.md and `game_server.proto`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.games.remote.client import GameClient
    from ludus.games.remote.messages import Camp, MatchConfig

__all__ = ["Camp", "GameClient", "MatchConfig"]

# Read once, when gRPC is first imported. A round trip is a third quicker without its own pool of polling
# threads; its fork handlers only write warnings where every child runs another program; and what it would
# log we say ourselves.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_HOME = {
    "Camp": "ludus.games.remote.messages",
    "GameClient": "ludus.games.remote.client",
    "MatchConfig": "ludus.games.remote.messages",
}
"""Loaded when first asked for: the messages need no gRPC."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
