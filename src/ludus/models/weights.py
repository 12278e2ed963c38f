"""A policy's weights as plain arrays: taken out, put in, and the digest of the architecture they fit."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ludus.data.trees import Array, Tree, under
from ludus.models.tensors import share

if TYPE_CHECKING:
    from ludus.models.policy import Policy


def weights_of(policy: Policy) -> Tree:
    """Copies of all parameters and buffers by name."""
    return {name: np.array(tensor.cpu().numpy(), order="C") for name, tensor in policy.state_dict().items()}


def replace_weights(policy: Policy, weights: Mapping[str, Array], *, model: int | None = None) -> None:
    """Copy `weights` into the policy in place, all or none; `model` names one of a stack."""
    own = policy.state_dict()
    if model is not None:
        own = {name: tensor[model] for name, tensor in own.items()}
    for name, tensor in own.items():
        if name not in weights:
            raise ValueError(f"weight {name!r} is missing{_nearest(name, weights)}")
        given, needed = tuple(weights[name].shape), tuple(tensor.shape)
        if given != needed:
            raise ValueError(f"weight {name!r} has shape {given}, the policy needs {needed}")
    for name in weights:
        if name not in own:
            raise ValueError(f"weight {name!r} is not one of the policy's{_nearest(name, own)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(share(weights[name]))


def join_kinds(policies: Sequence[Policy], trees: Iterable[Tree]) -> Tree:
    """The weights of a player, named KIND/PARAMETER, from those of its policies."""
    return {
        f"{policy.kind.name}/{name}": array
        for policy, tree in zip(policies, trees, strict=True)
        for name, array in tree.items()
    }


def load_weights(policies: Sequence[Policy], weights: Mapping[str, Array]) -> None:
    """Copy the weights of a player into its policies; the way back from `join_kinds`."""
    for policy in policies:
        replace_weights(policy, under(f"{policy.kind.name}/", weights))


def architecture_digest(policy: Policy) -> str:
    """Equal for policies whose weights fit each other and mean the same: the key of stacks."""
    described = [type(policy).__qualname__, getattr(policy, "signature", ""), repr(policy.kind)]
    for name, tensor in policy.state_dict().items():
        described.append(f"{name} {tuple(tensor.shape)} {tensor.dtype}")
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def _nearest(name: str, names: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; the nearest name is {close[0]!r}" if close else ""
