"""`@service` marks the methods of a plain class that others may call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_MARK = "__ludus_service__"
_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """How a method may be called."""

    reply: bool = True
    batch: int = 1
    max_delay_ms: float = 2.0
    idempotent: bool = False


def service(
    *, reply: bool = True, batch: int = 1, max_delay_ms: float = 2.0, idempotent: bool = False
) -> Callable[[_Method], _Method]:
    """Lets others call a method by name, through `Solver`.

    `reply=False`: the caller does not wait and gets nothing back.
    `batch=8`: up to 8 calls are gathered until the first has waited `max_delay_ms`. The method gets the list of their
    single arguments and returns as many answers; an exception among them fails that call alone.
    `idempotent=True`: a call whose process died is made again elsewhere, because doing it twice does no harm.

    An `async def` method may wait without delaying others; all other calls of an instance run one after another.
    """
    if batch < 1:
        raise ValueError(f"@service: batch must be at least 1, got {batch}")
    if not max_delay_ms >= 0:
        raise ValueError(f"@service: max_delay_ms cannot be negative, got {max_delay_ms}")

    def mark(method: _Method) -> _Method:
        if batch > 1:
            parameters = list(inspect.signature(method).parameters.values())[1:]
            plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            if len(parameters) != 1 or parameters[0].kind not in plain:
                name = method.__name__
                raise TypeError(f"@service(batch={batch}): {name} must take one argument, the list of requests")
        setattr(method, _MARK, Terms(reply=reply, batch=batch, max_delay_ms=max_delay_ms, idempotent=idempotent))
        return method

    return mark


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of an instance, with its terms."""

    name: str
    call: Callable[..., Any]
    terms: Terms


def endpoints_of(instance: object) -> dict[str, Endpoint]:
    """All methods of an object that carry the mark, by name."""
    found = {}
    for name, function in inspect.getmembers(type(instance), callable):
        terms = getattr(function, _MARK, None)
        if isinstance(terms, Terms):
            found[name] = Endpoint(name, getattr(instance, name), terms)
    if not found:
        raise TypeError(f"{type(instance).__name__} has no methods marked with @service(...)")
    return found


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


class CallRefused(ServiceError):  # noqa: N818
    """The other side does not talk to us: another protocol, or a wrong token."""
