"""Players of the stack as policies, for what algorithms prepare before the gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from ludus.algorithms.actor_critic import A2C
from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.gumbel_alphazero import GumbelAlphaZero
from ludus.algorithms.ppo import PPO
from ludus.data.batch import Batch
from ludus.models.decisions import Recorded
from ludus.models.network_policy import NetworkPolicy
from ludus.models.policy import Unrolled
from ludus.models.tensors import DeferredChecks
from ludus.workers.device.rollout import Weights

_MOST_ROWS_AT_ONCE = 65536
"""Rows of one call of a network."""


class PlayerView:
    """One player of the stack as a policy, for `Algorithm.prepare`."""

    value_scale = None

    def __init__(self, policy: NetworkPolicy, weights: Weights, precise: Callable[[], torch.autocast]) -> None:
        self.kind = policy.kind
        self.state_arrays = policy.state_arrays
        self.numbers = policy.numbers
        self._policy, self._weights, self._precise = policy, weights, precise

    @torch.no_grad()
    def unroll(self, batch: Batch) -> Unrolled:
        """[T+1, B], in parts of some trajectories: all at once would take gigabytes in layers over maps."""
        most = max(1, _MOST_ROWS_AT_ONCE // len(batch.first))
        width = batch.first.shape[1]
        parts = [self._unroll(batch.columns(slice(at, at + most))) for at in range(0, width, most)]
        return parts[0] if len(parts) == 1 else _joined(parts, 1)

    def _unroll(self, batch: Batch) -> Unrolled:
        leading = tuple(batch.first.shape)

        def rows(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.flatten(0, 1) for name, tensor in tree.items()}

        given = (rows(batch.observation), rows(batch.legal), batch.state, Recorded(rows(batch.action), batch.valid))
        with self._precise(), DeferredChecks(collect=False):
            decisions, values, _ = functional_call(self._policy, self._weights, (*given, batch.first))
        unrolled: Unrolled = decisions.unrolled(values.float(), leading, rewards=len(self._policy.kind.rewards))
        return unrolled


def reads_rows(algorithm: Algorithm) -> bool:
    """Whether `prepare` runs networks, and so needs the observations of the whole batch. That of A2C and PPO does so
    only if it is asked to, that of GumbelAlphaZero never."""
    known = type(algorithm) in (PPO, A2C, GumbelAlphaZero)
    return not known or bool(algorithm.references) or getattr(algorithm, "recompute_values", False)


def _joined(parts: Sequence[Unrolled], axis: int) -> Unrolled:
    """Parts of a batch of trajectories as one."""
    values = [part.values for part in parts if part.values is not None]
    action_values = [part.action_values for part in parts if part.action_values is not None]
    return Unrolled(
        log_prob=torch.cat([part.log_prob for part in parts], axis),
        entropy=torch.cat([part.entropy for part in parts], axis),
        value=torch.cat([part.value for part in parts], axis),
        log_probs={head: torch.cat([part.log_probs[head] for part in parts], axis) for head in parts[0].log_probs},
        in_use=torch.cat([part.in_use for part in parts], axis),
        values=torch.cat(values, axis) if values else None,
        action_values=torch.cat(action_values, axis) if action_values else None,
    )
