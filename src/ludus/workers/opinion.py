"""What a policy thinks of one seat's place: how good it is, and how likely it would do what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ludus.data.batch import Batch
from ludus.data.trees import Tree
from ludus.models.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Opinion:
    """Of one decision."""

    value: float
    """In units of reward, seen from the seat."""
    probabilities: tuple[float, ...]
    """Of every option of the first head; 0 for what is not legal."""


def opinion_of(policy: Policy, observation: Tree, legal: Tree, state: Tree, action: Tree) -> Opinion:
    """Trees of one row. `state` is the memory before the decision, `action` one that is legal: heads after
    the first may depend on it."""
    # A policy with memory takes trajectories, [T+1, B]; any other takes these too.
    leading = (1, 1)

    def in_time(tree: Tree) -> Tree:
        return {name: array.reshape(*leading, *array.shape[1:]) for name, array in tree.items()}

    never, always = np.zeros(leading, np.bool_), np.ones(leading, np.bool_)
    nothing = np.zeros(leading, np.float32)
    batch = Batch(
        observation=in_time(observation),
        legal=in_time(legal),
        action=in_time(action),
        log_prob=np.zeros((*leading, len(action)), np.float32),
        value=nothing,
        reward=nothing,
        elapsed=np.ones(leading, np.int64),
        over=never,
        valid=always,
        follows=never,
        first=never,
        version=np.zeros(leading, np.int64),
        state=state,
    )
    with torch.inference_mode():
        unrolled = policy.unroll(batch)
        first = next(iter(unrolled.log_probs.values())).exp()
    return Opinion(
        value=float(unrolled.value.reshape(-1)[0]),
        probabilities=tuple(first.reshape(-1, first.shape[-1])[0].tolist()),
    )
