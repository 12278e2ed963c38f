"""The smallest policy that learns: a table of logits and values, one row per state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ludus.data.batch import Batch
from ludus.data.specs import ActionSpec, ArraySpec, Choice, ObservationSpec, SeatKind, Vector
from ludus.data.trees import Array, Tree
from ludus.models.policy import Acted, Unrolled, ValueScale


class TabularPolicy(nn.Module):
    """Independent heads; a head with `when` is in use where that earlier head's action says so."""

    def __init__(
        self,
        num_states: int,
        heads: Mapping[str, Choice],
        *,
        value_scale: ValueScale | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.kind = SeatKind(
            name="player",
            observation=ObservationSpec(parts={"state": Vector(size=1, dtype="int64")}),
            action=ActionSpec(heads=heads),
        )
        self.logits = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(num_states, head.num, dtype=dtype)) for name, head in heads.items()}
        )
        self.values = nn.Parameter(torch.zeros(num_states, dtype=dtype))
        self.value_scale = value_scale

    @property
    def state_arrays(self) -> Mapping[str, ArraySpec]:
        return {}

    @property
    def num_draws(self) -> int:
        return len(self.logits)

    def initial_state(self, rows: int) -> Tree:
        return {}

    @torch.no_grad()
    def act(
        self,
        observation: Tree,
        legal: Tree,
        state: Tree,
        uniforms: Array,
        *,
        greedy: bool = False,
        want_value: bool = True,
    ) -> Acted:
        states = torch.from_numpy(observation["state"])[..., 0]
        masks = {name: torch.from_numpy(mask) for name, mask in legal.items()}
        action: dict[str, Tensor] = {}
        for index, (name, log_p) in enumerate(self._log_probs(states, masks).items()):
            above = log_p.exp().cumsum(-1) <= torch.from_numpy(uniforms)[:, index, None]
            action[name] = log_p.argmax(-1) if greedy else above.sum(-1).clamp(max=log_p.shape[-1] - 1)
        log_prob, _ = self._chosen(self._log_probs(states, masks), action)
        return Acted(
            action={name: chosen.numpy() for name, chosen in action.items()},
            log_prob=log_prob.numpy(),
            value=self._value(states).numpy(),
            state={},
        )

    def unroll(self, batch: Batch) -> Unrolled:
        states = batch.observation["state"][..., 0]
        log_probs = self._log_probs(states, batch.legal)
        log_prob, in_use = self._chosen(log_probs, batch.action)
        entropy = torch.stack([-(log_p.exp() * log_p).sum(-1) for log_p in log_probs.values()], -1)
        return Unrolled(
            log_prob=log_prob,
            entropy=torch.where(in_use, entropy, 0.0),
            value=self._value(states),
            log_probs=log_probs,
            in_use=in_use,
        )

    def _value(self, states: Tensor) -> Tensor:
        value = self.values[states]
        return value if self.value_scale is None else self.value_scale.denormalise(value)

    def _log_probs(self, states: Tensor, legal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name in self.kind.action.heads:
            logits = self.logits[name][states]
            if name in legal:
                logits = torch.where(legal[name], logits, torch.finfo(logits.dtype).min)
            found[name] = torch.log_softmax(logits, -1)
        return found

    def _chosen(self, log_probs: Mapping[str, Tensor], action: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """[..., heads]: log-probabilities of the actions, and where each head is in use."""
        log_prob, in_use = [], []
        for name, spec in self.kind.action.heads.items():
            chosen = action[name].long()
            used = torch.ones_like(chosen, dtype=torch.bool)
            if spec.when is not None:
                used = torch.isin(action[spec.when.head], torch.tensor(spec.when.values))
            found = log_probs[name].gather(-1, chosen[..., None])[..., 0]
            log_prob.append(torch.where(used, found, 0.0))
            in_use.append(used)
        return torch.stack(log_prob, -1), torch.stack(in_use, -1)


def random_batch(
    policy: TabularPolicy, T: int, B: int, seed: int = 0, *, legal: Mapping[str, Tensor] | None = None
) -> Batch:
    """Actions of the policy in random states, with random rewards and ends."""
    rng = np.random.default_rng(seed)
    num_states = len(policy.values)
    states = rng.integers(0, num_states, ((T + 1) * B, 1))
    masks = {} if legal is None else {name: mask.reshape(-1, mask.shape[-1]) for name, mask in legal.items()}
    acted = policy.act(
        {"state": states},
        {name: mask.numpy() for name, mask in masks.items()},
        {},
        rng.random((len(states), policy.num_draws)),
    )

    def column(array: Array) -> Tensor:
        return torch.from_numpy(array).reshape(T + 1, B, *array.shape[1:])

    over = rng.random((T + 1, B)) < 0.3
    valid = rng.random((T + 1, B)) < 0.8
    valid[-1] = False
    return Batch(
        observation={"state": column(states)},
        legal=dict(legal or {}),
        action={name: column(chosen) for name, chosen in acted.action.items()},
        log_prob=column(acted.log_prob),
        value=column(acted.value),
        reward=torch.from_numpy(rng.normal(size=(T + 1, B))).to(policy.values.dtype),
        elapsed=torch.ones(T + 1, B),
        over=torch.from_numpy(over),
        valid=torch.from_numpy(valid),
        follows=torch.from_numpy(~over),
        first=torch.zeros(T + 1, B, dtype=torch.bool),
        version=torch.zeros(T + 1, B, dtype=torch.int64),
        state={},
    )
