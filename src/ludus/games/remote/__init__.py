"""Games on another machine or in another environment: the game server, and the way to it.

The protocol is in docs/game-server.md and `game_server.proto`.
"""

import os

# Read once, when gRPC is first imported. A round trip is a third quicker without its own pool of polling threads; its
# fork handlers only write warnings where every child runs another program; and what it would log we say ourselves.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
