"""A batch: trajectories stacked, time first. Holds numpy arrays or torch tensors alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Columns [T+1, B, ...] of decisions (or [rows, ...] after `rows`).

    Row t's successor is row t+1 of the same column. Rows that are not `valid` are never trained on:
    the last row, the bootstrap row after a truncation, padding, and decisions that are too old.
    """

    observation: dict[str, Any]
    legal: dict[str, Any]
    action: dict[str, Any]
    log_prob: Any
    """[T+1, B, heads]: log-probability under the weights that acted; 0 for heads not in use."""
    value: Any
    """Value estimate of the weights that acted."""
    reward: Any
    """All reward between this decision and the seat's next one."""
    elapsed: Any
    """Time from this decision to the next: the discount is gamma ** elapsed."""
    over: Any
    """The episode ended by the rules after this decision: no bootstrap."""
    valid: Any
    follows: Any
    """Row t+1 is a decision of the same episode, so its advantage flows back into row t."""
    first: Any
    """First decision of an episode: memory starts from zero."""
    version: Any
    state: dict[str, Any]
    """[B, ...]: memory before row 0."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Columns that `Algorithm.prepare` adds: advantages, targets, reference log-probabilities."""
    progress: float = 0.0
    """Share of the training budget that is spent, for schedules."""

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """`function` on every array."""
        return self._apply(function, function)

    def rows(self, index: Any) -> Batch:
        """Single decisions by their flat index t * B + b; only without memory."""
        return self._apply(lambda array: array.reshape(-1, *array.shape[2:])[index], lambda array: array[:0])

    def columns(self, index: Any) -> Batch:
        """Whole trajectories."""
        return self._apply(lambda array: array[:, index], lambda array: array[index])

    def with_extra(self, **columns: Any) -> Batch:
        return replace(self, extra={**self.extra, **columns})

    def _apply(self, on_rows: Callable[[Any], Any], on_state: Callable[[Any], Any]) -> Batch:
        changed: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "progress":
                changed[spec.name] = value
            elif spec.name == "state":
                changed[spec.name] = {name: on_state(array) for name, array in value.items()}
            elif isinstance(value, dict):
                changed[spec.name] = {name: on_rows(array) for name, array in value.items()}
            else:
                changed[spec.name] = on_rows(value)
        return Batch(**changed)
