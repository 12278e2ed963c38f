"""The algorithm interface, from a batch to a loss, without state, and columns that policies add to a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ludus.data.batch import Batch
from ludus.data.checks import nearest, require_in
from ludus.data.search import GumbelSearch
from ludus.data.specs import SeatKind
from ludus.models.policy import Policy, Unrolled


def require_known(owner: object, known: Iterable[str], what: str, **settings: str) -> None:
    """Raise for a setting that names something unknown; `what` describes the known names."""
    options = list(known)
    for name, value in settings.items():
        if value not in options:
            close = nearest(value, options)
            hint = f"did you mean {close!r}?" if close else f"there are {', '.join(options) or 'none'}"
            raise ValueError(f"{type(owner).__name__}.{name}: {value!r} is not one of the {what}; {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A scalar to minimise, and statistics of its terms."""

    total: Tensor
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """Detached scalars by name (`policy_loss`, `value_loss`, `entropy`, ...)."""
    details: Callable[[], Mapping[str, Tensor]] | None = None
    """Further statistics that are expensive (`kl`, `clip_fraction`, `explained_variance`, ...). The learner
    computes them only in its last pass over a batch."""

    @torch.no_grad()
    def measured(self) -> dict[str, Tensor]:
        return {**self.statistics, **(self.details() if self.details is not None else {})}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """A slowly changing copy of the weights, which the learner keeps for the algorithm."""

    copy_every: int = 0
    """Copy the live weights after this many updates (0: never)."""
    decay: float = 0.0
    """Or follow them: new = decay * old + (1 - decay) * live after each update (0: do not follow)."""
    fixed: bool = False
    """Or never change: the weights that the player first started from, even after resets. Any other reference
    starts again from the weights of a reset."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", decay=self.decay)
        require_in(self, "[0, inf]", copy_every=self.copy_every)
        if self.fixed and (self.copy_every or self.decay):
            raise ValueError(
                f"Reference.fixed is for copies that never change, got copy_every={self.copy_every} and "
                f"decay={self.decay}"
            )


class Algorithm(Protocol):
    """Two pure functions: `prepare` once per batch without gradient, and `loss` once per minibatch."""

    @property
    def needs_sequences(self) -> bool:
        """`loss` needs whole trajectories [T+1, B] instead of single decisions [rows]."""
        return False

    @property
    def stackable(self) -> bool:
        """`loss` may run under `torch.vmap` for several players at once: it never branches on the numbers of a
        tensor (`if`, `int()`, `tensor[mask]`)."""
        return False

    @property
    def takes_further_rewards(self) -> bool:
        """Also trains on `batch.rewards`; otherwise games with further rewards are rejected."""
        return False

    @property
    def recomputable(self) -> tuple[str, ...]:
        """What `learner.recompute` may name: "values" if `prepare` reads those of the batch, "advantages" if they
        come from `advantage_columns`, "teacher" if there is one."""
        return ("values",)

    @property
    def search(self) -> GumbelSearch | None:
        """The search by which learning players act; the batch then has the column `search_policy`."""
        return None

    @property
    def references(self) -> Mapping[str, Reference]:
        """Copies of the weights that `prepare` needs, by name."""
        return {}

    def check(self, kinds: Sequence[SeatKind]) -> None:
        """Raise a ValueError if a setting does not fit these kinds of seat. Called before a run."""
        return

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        """Add columns to `batch.extra`; torch tensors on the learner's device."""
        ...

    def loss(self, policy: Policy, batch: Batch) -> Loss: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticAlgorithm(Algorithm):
    """The settings that policy gradients with a critic have in common."""

    stackable: ClassVar[bool] = True
    gamma: float = 0.99
    """Discount of what comes later, per step of the game's clock."""
    lambda_: float = 1.0
    """How far an advantage looks ahead: 0 to the next decision, 1 to the end."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    huber: float | None = None
    """Value errors above this count linearly; in units of the policy's value scale."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", gamma=self.gamma, lambda_=self.lambda_)
        require_in(self, "(0, inf]", huber=self.huber)

    @property
    def recomputable(self) -> tuple[str, ...]:
        return ("values", "advantages")


MOST_ROWS = 4096
"""Rows per call of a network without memory. A whole batch would take gigabytes in layers over maps."""


@torch.no_grad()
def log_prob_columns(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """The policy's log-probabilities of all options, as columns NAME.HEAD for `Batch.with_extra`."""

    def read(unrolled: Unrolled) -> dict[str, Tensor]:
        return {f"{name}.{head}": log_p for head, log_p in unrolled.log_probs.items()}

    return evaluate_rows(policy, batch, batch.valid, read)


@torch.no_grad()
def evaluate_rows(
    policy: Policy, batch: Batch, needed: Tensor, read: Callable[[Unrolled], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Columns [T+1, B, ...] that `read` takes from an unrolled policy; without memory, 0 in rows not `needed`."""
    if policy.state_arrays or batch.fixed_shapes:
        return dict(read(policy.unroll(batch)))
    flat = batch.flat()
    index = torch.nonzero(needed.swapaxes(0, 1).reshape(-1)).squeeze(1)
    if not len(index):  # everything is too old, but a network needs at least one row
        index = index.new_zeros(1)
    found: dict[str, Tensor] = {}
    for rows in torch.split(index, MOST_ROWS):
        for name, column in read(policy.unroll(flat.pick(rows))).items():
            if name not in found:
                found[name] = column.new_zeros(len(flat.valid), *column.shape[1:])
            found[name][rows] = column
    shape = batch.valid.shape[::-1]
    return {name: column.reshape(*shape, *column.shape[1:]).swapaxes(0, 1) for name, column in found.items()}


def log_probs_beside(name: str, policy: Policy, batch: Batch) -> dict[str, Tensor]:
    """The columns of `log_prob_columns` by head, from a prepared batch."""
    return {head: batch.extra[f"{name}.{head}"] for head in policy.kind.action.heads}
