"""Between numpy and torch: tensors that share the memory of the arrays they come from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ludus.data.trees import Array


def share(array: Array | Tensor) -> Tensor:
    """A tensor on the array's own memory; tensors pass through."""
    if isinstance(array, Tensor):
        return array
    if not array.flags.writeable:  # torch has no read-only tensors, so it needs a copy of its own
        array = array.copy()
    return torch.from_numpy(array)


def as_float(values: Tensor) -> Tensor:
    """float32 for the network: bytes become shares of 255, other integers and booleans keep their value."""
    if values.dtype == torch.float32:
        return values
    if values.dtype == torch.uint8:
        return values.float().div_(255.0)
    return values.float()


def to_numpy(tensor: Tensor) -> Any:
    """The tensor's own memory as an array, where it lives on the host."""
    return tensor.detach().cpu().numpy()
