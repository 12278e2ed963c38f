"""Checks on the settings of algorithms, with errors that say which one is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def require_between(owner: object, low: float, high: float, **settings: float) -> None:
    for name, value in settings.items():
        if not low <= value <= high:
            raise ValueError(f"{type(owner).__name__}.{name} must be from {low:g} to {high:g}, got {value}")


def require_above(owner: object, bound: float, **settings: float | None) -> None:
    """None means that the setting is off."""
    for name, value in settings.items():
        if value is not None and not value > bound:
            raise ValueError(f"{type(owner).__name__}.{name} must be above {bound:g}, got {value}")


def require_one_of(owner: object, options: Sequence[str], **settings: str) -> None:
    for name, value in settings.items():
        if value not in options:
            nearest = difflib.get_close_matches(value, options, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"{type(owner).__name__}.{name} is {value!r}, not one of {list(options)}{hint}")


def require_known(owner: object, known: Iterable[str], what: str, **settings: str) -> None:
    """Settings that name something; `what` says what is known."""
    options = list(known)
    for name, value in settings.items():
        if value not in options:
            nearest = difflib.get_close_matches(value, options, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(options) or 'none'}"
            raise ValueError(f"{type(owner).__name__}.{name}: {value!r} is not one of the {what}; {hint}")
