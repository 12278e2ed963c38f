"""Patterns of seats, as settings write them: which one holds for which seat."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase


def patterns_of_seats(
    patterns: Collection[str], seats: Sequence[Sequence[str]], setting: str
) -> tuple[str, ...]:
    """Per seat, given by its names, the first pattern that fits one of them. Every seat needs one, and every
    pattern a seat."""
    fitting = [
        [pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)]
        for names in seats
    ]
    for names, found in zip(seats, fitting, strict=True):
        if not found:
            raise ValueError(
                f"{setting}: no pattern fits {names[0]}, only {', '.join(patterns) or 'none'} given; "
                "put '*' last for all other seats"
            )
    for pattern in patterns:
        if not any(pattern in found for found in fitting):
            shown = ", ".join(" = ".join(names) for names in seats)
            raise ValueError(f"{setting}: {pattern!r} fits no seat; the seats are {shown}")
        if not any(found[0] == pattern for found in fitting):
            raise ValueError(
                f"{setting}: every seat that {pattern!r} fits has an earlier pattern; the first one holds"
            )
    return tuple(found[0] for found in fitting)
