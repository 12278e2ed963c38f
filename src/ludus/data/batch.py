"""Batches: trajectories stacked, time first, as numpy arrays or torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

_IN_TIME = ("reward", "rewards", "elapsed", "over", "follows", "idle", "version")
"""Columns that relate a row to its successor. Single decisions do not have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Columns [T+1, B, ...] of trajectories; after `flat` or `pick` single decisions [rows, ...]. Row t's successor is
    row t+1 of the same column. Rows that are not `valid` are never trained on: the last row, the bootstrap row after a
    truncation, padding, and decisions that are too old."""

    observation: dict[str, Any]
    legal: dict[str, Any]
    action: dict[str, Any]
    log_prob: Any = None
    """[T+1, B, heads]: log-probability under the weights that acted; 0 for heads not in use."""
    value: Any = None
    """Value estimate of the weights that acted."""
    reward: Any = None
    """All reward between this decision and the seat's next one. None for single decisions, like `rewards`,
    `elapsed`, `over`, `follows` and `version`; `Algorithm.prepare` adds what the loss needs of them."""
    elapsed: Any = None
    """Time from this decision to the next: the discount is gamma ** elapsed."""
    over: Any = None
    """The episode ended by the rules after this decision: no bootstrap."""
    valid: Any
    follows: Any = None
    """Row t+1 is a decision of the same episode, so its advantage flows back into row t."""
    first: Any
    """First decision of an episode: memory starts from zero."""
    idle: Any = None
    """Rows in which the seat did not decide, because others moved: returns pass through them as if they were not there.
    Their value is that of the next decision, their reward and `elapsed` are 0. None: there are none."""
    version: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    """[B, ...]: memory before row 0."""
    rewards: Any = None
    """[T+1, B, names]: the further rewards of the kind of seat, if it has any."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Columns that `Algorithm.prepare` adds: advantages, targets, reference log-probabilities."""
    progress: Any = 0.0
    """Share of the training budget that is spent, for schedules: a float, or a tensor in a CUDA graph."""
    all_valid: bool = False
    """Every row is known to be valid."""
    fixed_shapes: bool = False
    """No shape may depend on the numbers of a tensor, as in a CUDA graph: all rows are computed, valid or not."""
    over_ranks: Callable[[Any], Any] | None = None
    """Sums an array over the learner's ranks while `Algorithm.prepare` runs, if this batch is one rank's part.
    Means over the whole batch must use it, in every rank."""

    @property
    def mask(self) -> Any:
        """The rows that count; None if all do, so that losses skip the masking."""
        return None if self.all_valid else self.valid

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """Apply `function` to every array."""
        return self._apply(function, function)

    def flat(self) -> Batch:
        """All rows as single decisions, without memory: row t of trajectory b becomes b * (T+1) + t. Usually a view."""
        in_time: dict[str, Any] = dict.fromkeys(_IN_TIME)
        without = replace(self, state={}, **in_time)
        return without._apply(lambda array: array.swapaxes(0, 1).reshape(-1, *array.shape[2:]), _itself)

    def pick(self, index: Any, *, all_valid: bool = False) -> Batch:
        """Some single decisions of a flat batch."""

        def select(array: Any) -> Any:
            # `index_select` of tensors copies whole rows and is several times faster.
            by_rows = getattr(array, "index_select", None)
            return array[index] if by_rows is None else by_rows(0, index)

        return replace(self._apply(select, _itself), all_valid=all_valid)

    def rows(self, index: Any) -> Batch:
        """Single decisions of a batch of trajectories by their number t * B + b; only without memory."""
        num_rows, num_columns = self.valid.shape[:2]
        return self.flat().pick(index % num_columns * num_rows + index // num_columns)

    def columns(self, index: Any) -> Batch:
        """Some whole trajectories."""
        return self._apply(lambda array: array[:, index], lambda array: array[index])

    def as_stack(self, num_models: int) -> Batch:
        """Split [M * rows] or [T+1, M * B], ordered by model, into arrays with a leading model axis."""

        def in_time(array: Any) -> Any:
            return array.reshape(len(array), num_models, -1, *array.shape[2:]).swapaxes(0, 1)

        def split(array: Any) -> Any:
            return array.reshape(num_models, -1, *array.shape[1:])

        return self._apply(in_time if len(self.valid.shape) > 1 else split, split)

    def with_extra(self, **columns: Any) -> Batch:
        return replace(self, extra={**self.extra, **columns})

    def _apply(self, on_rows: Callable[[Any], Any], on_state: Callable[[Any], Any]) -> Batch:
        changed: dict[str, Any] = {}
        for name in _COLUMNS:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, dict):
                on_array = on_state if name == "state" else on_rows
                changed[name] = {key: on_array(array) for key, array in value.items()}
            else:
                changed[name] = on_rows(value)
        return replace(self, **changed)


_COLUMNS = tuple(
    spec.name for spec in fields(Batch) if spec.name not in ("progress", "all_valid", "fixed_shapes", "over_ranks")
)


def _itself(array: Any) -> Any:
    return array
