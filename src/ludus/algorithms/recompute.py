"""What is computed again for trajectories that wait in a buffer or are used more than once: values and
probabilities under the newest weights, and what a teacher thinks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ludus.algorithms.reference_columns import asked_about
from ludus.algorithms.teacher import TEACHER, teacher_columns
from ludus.data.batch import Batch
from ludus.models.policy import Policy, Unrolled

Recomputed = Literal["values", "advantages", "teacher"]
"""What an experiment may ask for. Advantages take the values along, since one pass gives both."""
VALUE, LOG_PROB = "recomputed.value", "recomputed.log_prob"
LOG_RATIO = "log_ratio"
"""[T+1, B], beside a batch while it is prepared: how much likelier the newest weights make each action. It
is there if advantages are to be corrected for that."""


@torch.no_grad()
def recomputed_columns(
    what: Collection[Recomputed], policy: Policy, teacher: Policy | None, batch: Batch
) -> dict[str, Tensor]:
    """Columns [T+1, B, ...] by name, to lie beside the batch. `policy` has the newest weights."""
    found: dict[str, Tensor] = {}
    if "values" in what or "advantages" in what:
        with_log_prob = "advantages" in what

        def read(unrolled: Unrolled) -> dict[str, Tensor]:
            value = {VALUE: unrolled.value}
            return value | ({LOG_PROB: unrolled.log_prob} if with_log_prob else {})

        found |= asked_about(policy, batch, _with_value(batch), read)
    if "teacher" in what:
        assert teacher is not None
        found |= teacher_columns(teacher, batch)
    return found


def _with_value(batch: Batch) -> Tensor:
    """Rows whose value counts: decisions, those too old to be trained on included, and what comes after."""
    needed: Tensor = batch.valid | batch.follows
    needed = needed.clone()
    needed[1:] |= needed[:-1].clone()
    return needed


def apply_recomputed(batch: Batch) -> Batch:
    """Let what lies beside the batch take the place of what the weights that acted have left."""
    extra: dict[str, Any] = dict(batch.extra)
    value, log_prob = extra.pop(VALUE, None), extra.pop(LOG_PROB, None)
    if log_prob is not None:
        log_ratio = (log_prob - batch.log_prob).sum(-1)
        extra[LOG_RATIO] = torch.where(batch.valid, log_ratio, 0.0)
    return replace(batch, extra=extra, value=batch.value if value is None else value)


def is_recomputed(what: Collection[Recomputed], batch: Batch) -> bool:
    """Whether a buffer worker has done all of it."""
    wanted = {"values": VALUE, "advantages": LOG_PROB, "teacher": f"{TEACHER}."}
    return all(any(name.startswith(wanted[one]) for name in batch.extra) for one in what)
