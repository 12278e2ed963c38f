"""The rows of the matrix: which fault, injected how, and what must hold. A row is a function that injects it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from matrix.subject import Bench

Inject = Callable[[Bench, Random], Mapping[str, float] | None]
"""Gives what it has measured, in seconds."""
EVERYWHERE = ("local", "ray")
DEVICE = "device"
ON_DEVICE = (6, 9, 16, 17, 18, 19, 20, 21, 22, 23, 30, 33, 35, 36, 39, 40, 41, 42, 43, 44)
"""Rows that apply to the device runtime, which is one process: no actor, learner or game of its own can be lost."""


@dataclass(frozen=True)
class Row:
    number: int
    fault: str
    injected: str
    holds: str
    inject: Inject
    runtimes: tuple[str, ...] = EVERYWHERE
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """By runtime, why it does not apply there."""
    limit_s: float = 240.0


ROWS: dict[int, Row] = {}


def row(number: int, fault: str, injected: str, holds: str, **more: object) -> Callable[[Inject], Inject]:
    def add(inject: Inject) -> Inject:
        assert number not in ROWS
        ROWS[number] = Row(number, fault, injected, holds, inject, **more)  # type: ignore[arg-type]
        return inject

    return add


def all_rows() -> dict[int, Row]:
    """Rows 1 to 36 are those of the reference; those from 37 on are ours."""
    from matrix import disk_rows, process_rows, surrounding_rows  # noqa: F401 - they add theirs

    here = {number: replace(ROWS[number], runtimes=(*ROWS[number].runtimes, DEVICE)) for number in ON_DEVICE}
    return dict(sorted({**ROWS, **here}.items()))
