"""What a server does not do, said as a gRPC status."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NoReturn

import grpc

from ludus.games.remote.frames import TooLongError, WireError
from ludus.games.remote.match_book import UnknownMatch
from ludus.games.remote.match_table import MatchRefused
from ludus.games.remote.messages import PROTOCOL

SERVER = f"ludus {version('ludus')}"
_LONGEST_REASON = 1_000
"""Clients take no more than a few thousand bytes beside the messages."""


class Refused(Exception):  # noqa: N818 - no error of ours
    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def require_protocol(spoken: int) -> None:
    if spoken != PROTOCOL:
        raise Refused(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"this server speaks protocol {PROTOCOL} ({SERVER}), the client {spoken}: "
            "use the same version of ludus on both sides",
        )


def abort(context: Any, error: Exception) -> NoReturn:
    """Ends the call with what is wrong; never with more of the server than that."""
    reason = " ".join(str(error).split())
    if isinstance(error, Refused):
        code = error.code
    elif isinstance(error, UnknownMatch):
        code = grpc.StatusCode.NOT_FOUND
    elif isinstance(error, MatchRefused):
        code = grpc.StatusCode.FAILED_PRECONDITION
    elif isinstance(error, TooLongError):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, WireError):
        code = grpc.StatusCode.INVALID_ARGUMENT
    else:
        code, reason = grpc.StatusCode.ABORTED, f"{type(error).__name__}: {reason}"
    context.abort(code, reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ...")
    raise error
