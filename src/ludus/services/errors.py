"""What can go wrong between a caller and a service. Each message says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ServiceError(RuntimeError):
    """A call that brought no answer, or services that cannot be reached."""


class UnknownService(ServiceError, LookupError):  # noqa: N818
    """No service, or no method of it, has this name."""


class NoInstance(ServiceError):  # noqa: N818
    """The service is known, but none of its processes can be reached."""


class InstanceLost(ServiceError):  # noqa: N818
    """The process died during the call: whether it was done, nobody knows."""


class TimeLimit(ServiceError, TimeoutError):  # noqa: N818
    """The answer did not come in time; it may still be worked on."""


class CallFailed(ServiceError):  # noqa: N818
    """The method raised an error; `kind` is its class, `text` what it says."""

    def __init__(self, message: str, kind: str, text: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.text = text


class BadFrame(ServiceError, ValueError):  # noqa: N818
    """Bytes that are no message of ours, or larger than allowed."""


class Refused(ServiceError):  # noqa: N818
    """The other side does not talk to us: another protocol, or a wrong token."""


def offer(wrong: str, known: Iterable[str]) -> str:
    """The known name that is most like the wrong one, or all of them, as the end of a message."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(names)}" if names else "; there are none"
