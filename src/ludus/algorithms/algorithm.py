"""The algorithm interface: from a batch to a loss. Algorithms hold no state and own no optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ludus.data.batch import Batch
from ludus.data.checks import nearest, require_in
from ludus.data.specs import SeatKind
from ludus.models.policy import Policy, Unrolled


def require_known(owner: object, known: Iterable[str], what: str, **settings: str) -> None:
    """Settings that name something; `what` says what is known."""
    options = list(known)
    for name, value in settings.items():
        if value not in options:
            close = nearest(value, options)
            hint = f"did you mean {close!r}?" if close else f"there are {', '.join(options) or 'none'}"
            raise ValueError(f"{type(owner).__name__}.{name}: {value!r} is not one of the {what}; {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A scalar to minimise and what it was made of."""

    total: Tensor
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached scalars by name (`policy_loss`, `value_loss`, `entropy`, ...)."""
    details: Callable[[], Mapping[str, Tensor]] | None = None
    """More of them that cost passes of their own (`kl`, `clip_fraction`, `explained_variance`, ...): the
    learner asks for them in its last pass over a batch only, where they tell how far it went."""

    @torch.no_grad()
    def measured(self) -> dict[str, Tensor]:
        """Statistics and details together."""
        return {**self.statistics, **(self.details() if self.details is not None else {})}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A slowly changing copy of the weights that the learner keeps for the algorithm."""

    copy_every: int = 0
    """Copy the live weights after this many updates (0: never)."""
    decay: float = 0.0
    """Or follow them: new = decay * old + (1 - decay) * live after each update (0: do not follow)."""
    fixed: bool = False
    """Or never change: the weights that the player first started from, whatever it is reset to later. Any
    other reference begins anew with the weights of a reset."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", decay=self.decay)
        require_in(self, "[0, inf]", copy_every=self.copy_every)
        if self.fixed and (self.copy_every or self.decay):
            raise ValueError(
                f"Reference.fixed is for copies that never change, got copy_every={self.copy_every} and "
                f"decay={self.decay}"
            )


class Algorithm(Protocol):
    """Two pure steps. `prepare` runs once per batch without gradient; `loss` once per minibatch.

    A subclass has to give these two only.
    """

    @property
    def needs_sequences(self) -> bool:
        """`loss` wants whole trajectories [T+1, B] instead of single decisions [rows]."""
        return False

    @property
    def stackable(self) -> bool:
        """`loss` may run under `torch.vmap`, for several players at once: it computes with whole tensors and
        never looks at their numbers (`if`, `int()`, `tensor[mask]`)."""
        return False

    @property
    def takes_further_rewards(self) -> bool:
        """Trains on `batch.rewards` too; otherwise a game that has some is refused."""
        return False

    @property
    def recomputable(self) -> tuple[str, ...]:
        """What `learner.recompute` may ask for: "values" if `prepare` reads those of the batch, "advantages"
        if they come from `advantage_columns`, "teacher" if there is one."""
        return ("values",)

    @property
    def references(self) -> Mapping[str, Reference]:
        """Copies of the weights that `prepare` needs, by name."""
        return {}

    def check(self, kinds: Sequence[SeatKind]) -> None:
        """Raise a ValueError if a setting names what these kinds of seat do not have. Called before a run."""
        return

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        """Add columns to `batch.extra`; torch tensors on the learner's device."""
        ...

    def loss(self, policy: Policy, batch: Batch) -> Loss: ...


MOST_ROWS = 4096
"""That a network without memory is asked about at once: a batch has several times as many decisions as a
minibatch, and its layers over maps would take gigabytes."""


@torch.no_grad()
def log_prob_columns(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """For `Batch.with_extra`."""

    def read(unrolled: Unrolled) -> dict[str, Tensor]:
        return {f"{name}.{head}": log_p for head, log_p in unrolled.log_probs.items()}

    return asked_about(policy, batch, batch.valid, read)


@torch.no_grad()
def asked_about(
    policy: Policy, batch: Batch, needed: Tensor, read: Callable[[Unrolled], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """What `read` finds in the answers of a policy to a batch, as columns [T+1, B, ...]. Without memory, it
    is asked about the `needed` rows only and others are 0: after a synchronous hand-over most of the batch is
    padding."""
    if policy.state_arrays:
        return dict(read(policy.unroll(batch)))
    flat = batch.flat()
    index = torch.nonzero(needed.swapaxes(0, 1).reshape(-1)).squeeze(1)
    if not len(index):  # all of it is too old, but a network needs a row to run on
        index = index.new_zeros(1)
    found: dict[str, Tensor] = {}
    for rows in torch.split(index, MOST_ROWS):
        for name, column in read(policy.unroll(flat.pick(rows))).items():
            if name not in found:
                found[name] = column.new_zeros(len(flat.valid), *column.shape[1:])
            found[name][rows] = column
    num_rows, num_columns = batch.valid.shape
    return {
        name: column.reshape(num_columns, num_rows, *column.shape[1:]).swapaxes(0, 1) for name, column in found.items()
    }


def log_probs_beside(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """By head, from a batch that has been given these columns."""
    return {head: batch.extra[f"{name}.{head}"] for head in policy.kind.action.heads}
