"""What a service process is told on its command line, and what it says to whoever has started it."""

from __future__ import annotations

import msgspec

from ludus.services.user_services import Option

RUN_VARIABLE = "LUDUS_RUN"
"""The environment variable by which a service finds the folder of its run."""
BEAT_EVERY_S = 1.0
"""How often a service process shows that its loop turns."""
FAILED_TO_START = 78
"""Its exit code if its class cannot be loaded or made."""


class ServiceLaunch(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    name: str
    address: str
    """Of the class."""
    options: dict[str, Option]
    registry: str
    """Its address."""
    folder: str
    """For the socket."""
    host: str
    """Listen on TCP at this address of the machine; empty: on a unix socket."""
    control_fd: int = -1
    parent: int = -1
    """These two are known once it starts."""


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sign of life, with what is new."""

    ready_at: str = ""
    """It can be called at this address."""
    failed: str = ""
    """Why its class cannot be loaded or made."""

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


class HeardLines:
    """What comes in pieces, put together."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, content: bytes) -> list[Said]:
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [msgspec.json.decode(line, type=Said) for line in lines]
