"""Teachers (the weights that a player started from, towards which its policy is pulled), and recomputed columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ludus.algorithms.algorithm import Reference, evaluate_rows, log_prob_columns, log_probs_beside, require_known
from ludus.algorithms.losses import kl_by_head, numbers_of
from ludus.data.batch import Batch
from ludus.data.schedules import Schedule, at
from ludus.data.specs import SeatKind
from ludus.models.policy import Policy, Unrolled

TEACHER = "teacher"


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyGame:
    """The beginning of an episode, recognised by a number in the observation, such as the time."""

    part: str
    """The part of the observation that holds the number: a `Vector`."""
    feature: int = 0
    """Index of the number in the part."""
    least: float | None = None
    """It is early while the number is at least this: for the remaining time."""
    most: float | None = None
    """It is early while the number is at most this: for the elapsed time."""
    strategy: str | None = "z"
    """Only while the first number of this part shows that there is a strategy; None: always."""
    weight: Schedule = 0.1
    """Weight of the divergence of the first head, added to the teacher's own."""

    def __post_init__(self) -> None:
        if self.least is None and self.most is None:
            raise ValueError("EarlyGame needs least or most: the number until which it is early")

    def check(self, kind: SeatKind) -> None:
        arrays = kind.observation.arrays
        vectors = {name: spec.shape[0] for name, spec in arrays.items() if len(spec.shape) == 1}
        named = {"part": self.part} | ({} if self.strategy is None else {"strategy": self.strategy})
        require_known(self, vectors, f"vectors that {kind.name!r} sees", **named)
        if not 0 <= self.feature < vectors[self.part]:
            raise ValueError(
                f"EarlyGame.feature must be from 0 to {vectors[self.part] - 1}, the numbers of "
                f"{self.part!r}, got {self.feature}"
            )

    def rows(self, batch: Batch) -> Tensor:
        """Mask of the early rows, like `batch.valid`."""
        number = batch.observation[self.part][..., self.feature]
        early = torch.ones_like(number, dtype=torch.bool)
        if self.least is not None:
            early = early & (number >= self.least)
        if self.most is not None:
            early = early & (number <= self.most)
        if self.strategy is not None:
            early = early & (batch.observation[self.strategy][..., 0] > 0)
        return early


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """Adds weight * KL(teacher || policy) to a loss, so that the teacher's actions stay likely."""

    weight: Schedule = 2e-3
    """Weight of the divergence of each head, given the earlier heads' actions."""
    heads: Mapping[str, Schedule] = field(default_factory=dict)
    """Weights of single heads."""
    early: EarlyGame | None = None
    """Adds to the weight of the first head at the beginning of an episode."""

    @property
    def reference(self) -> Reference:
        return Reference(fixed=True)

    def check(self, kinds: Sequence[SeatKind]) -> None:
        known = dict.fromkeys(head for kind in kinds for head in kind.action.heads)
        for head in self.heads:
            require_known(self, known, "heads of the game", heads=head)
        if self.early is not None:
            for kind in kinds:
                self.early.check(kind)

    def columns(self, teacher: Policy, batch: Batch) -> dict[str, Tensor]:
        """The teacher's log-probabilities of all options, unless the batch has them already."""
        known = all(f"{TEACHER}.{head}" in batch.extra for head in teacher.kind.action.heads)
        return {} if known else teacher_columns(teacher, batch)

    def divergences(self, policy: Policy, unrolled: Unrolled, batch: Batch) -> dict[str, Tensor]:
        """KL(teacher || policy) per row and head."""
        heads, teacher = policy.kind.action.heads, log_probs_beside(TEACHER, policy, batch)
        numbers = numbers_of(policy)
        return kl_by_head(teacher, unrolled.log_probs, unrolled.in_use, heads, batch.action, numbers)

    def loss(self, divergences: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The weighted sum over the heads, per row."""
        progress = batch.progress
        first = next(iter(divergences))
        weighted = [at(self.heads.get(head, self.weight), progress) * kl for head, kl in divergences.items()]
        if self.early is not None:
            early = torch.where(self.early.rows(batch), divergences[first], 0.0)
            weighted.append(at(self.early.weight, progress) * early)
        return torch.stack(weighted).sum(0)


@torch.no_grad()
def teacher_columns(teacher: Policy, batch: Batch) -> dict[str, Tensor]:
    """The teacher's log-probabilities of all options. Its memory starts from zero, as in its own training."""
    state = {name: torch.zeros_like(array) for name, array in batch.state.items()}
    return log_prob_columns(TEACHER, teacher, replace(batch, state=state))


Recomputed = Literal["values", "advantages", "teacher"]
"""What `learner.recompute` may name. "advantages" includes the values, since one pass gives both."""
VALUE, LOG_PROB = "recomputed.value", "recomputed.log_prob"
LOG_RATIO = "log_ratio"
"""The extra column [T+1, B] with the log-ratio of the newest weights to the acting ones, if it is to be corrected."""


@torch.no_grad()
def recomputed_columns(
    what: Collection[Recomputed], policy: Policy, teacher: Policy | None, batch: Batch
) -> dict[str, Tensor]:
    """The recomputed columns [T+1, B, ...], for `Batch.extra`. `policy` has the newest weights."""
    found: dict[str, Tensor] = {}
    if "values" in what or "advantages" in what:
        with_log_prob = "advantages" in what

        def read(unrolled: Unrolled) -> dict[str, Tensor]:
            value = {VALUE: unrolled.value}
            return value | ({LOG_PROB: unrolled.log_prob} if with_log_prob else {})

        found |= evaluate_rows(policy, batch, _with_value(batch), read)
    if "teacher" in what:
        assert teacher is not None
        found |= teacher_columns(teacher, batch)
    return found


def _with_value(batch: Batch) -> Tensor:
    """Rows whose value counts: decisions, including those too old to train on, and their successors."""
    needed: Tensor = batch.valid | batch.follows
    needed = needed.clone()
    needed[1:] |= needed[:-1].clone()
    return needed


def apply_recomputed(batch: Batch) -> Batch:
    """Replace values, and add log-ratios, by the recomputed columns of the batch."""
    extra: dict[str, Any] = dict(batch.extra)
    value, log_prob = extra.pop(VALUE, None), extra.pop(LOG_PROB, None)
    if log_prob is not None:
        log_ratio = (log_prob - batch.log_prob).sum(-1)
        extra[LOG_RATIO] = torch.where(batch.valid, log_ratio, 0.0)
    return replace(batch, extra=extra, value=batch.value if value is None else value)


def is_recomputed(what: Collection[Recomputed], batch: Batch) -> bool:
    """Whether a buffer worker has recomputed everything in `what`."""
    wanted = {"values": VALUE, "advantages": LOG_PROB, "teacher": f"{TEACHER}."}
    return all(any(name.startswith(wanted[one]) for name in batch.extra) for one in what)
