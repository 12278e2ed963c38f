"""Checks of settings and names. Their errors name the setting, the value and the nearest right name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable


def nearest(wrong: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most similar to `wrong`, ignoring case; None if no name is similar."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of an error message about an unknown name: the nearest known name, else `otherwise`, else some names."""
    names = list(known)
    if close := nearest(wrong, names):
        return f"; did you mean {close!r}?"
    if otherwise is not None:
        return otherwise and f"; {otherwise}"
    return f"; there are {', '.join(names[:8])}{', ...' * (len(names) > 8)}" if names else "; there are none"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The error message for a name that does not exist. It offers the nearest name, or lists the first twelve."""
    names = list(known)
    close = nearest(name, names, cutoff=0.5)
    if close is not None:
        return f"unknown {kind} {name!r}; did you mean {close!r}?"
    listed = ", ".join(map(repr, names[:12])) or "none"
    return f"unknown {kind} {name!r}; known: {listed}{', ...' if len(names) > 12 else ''}"


def require_in(owner: object, interval: str, **settings: float | None) -> None:
    """Raise a ValueError for a setting of `owner` outside of an interval such as "[0, 1)". None passes."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in settings.items():
        if value is None:
            continue
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            raise ValueError(f"{type(owner).__name__}.{name} must be {_in_words(interval, low, high)}, got {value}")


def require_one_of(owner: object, options: Collection[str], **settings: str) -> None:
    """Raise a ValueError for a setting of `owner` that is none of the options."""
    for name, value in settings.items():
        if value not in options:
            hint = did_you_mean(value, options, otherwise="")
            raise ValueError(f"{type(owner).__name__}.{name} is {value!r}, not one of {list(options)}{hint}")


def _in_words(interval: str, low: float, high: float) -> str:
    if high == math.inf:
        finite = " and finite" if interval[-1] == ")" else ""
        return f"{'at least' if interval[0] == '[' else 'above'} {low:g}{finite}"
    return f"from {low:g} to {high:g}" if interval[0] + interval[-1] == "[]" else f"in {interval}"
