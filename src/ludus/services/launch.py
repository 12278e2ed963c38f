"""What a service process is told on its command line."""

from __future__ import annotations

import msgspec

from ludus.services.user_services import Option

BEAT_EVERY_S = 1.0
"""How often a service process shows that its loop turns."""
READY = b"!"
"""What it says when it can be called."""
FAILED = b"?"
"""What it says, and then why, if its class cannot be loaded or made."""
FAILED_TO_START = 78
"""Its exit code then."""


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
    control_fd: int
    parent: int
