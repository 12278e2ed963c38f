"""Between numpy and torch, host and GPU: tensors that share the memory of the arrays they come from, or that
went over in one transfer each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.data.trees import Array, Tree

CPU = torch.device("cpu")


def share(array: Array | Tensor) -> Tensor:
    """A tensor on the array's own memory; tensors pass through."""
    if isinstance(array, Tensor):
        return array
    if not array.flags.writeable:  # torch has no read-only tensors, so it needs a copy of its own
        array = array.copy()
    return torch.from_numpy(array)


def round_up_rows(rows: int) -> int:
    """So many rows or somewhat more: four sizes from one power of two to the next. Libraries for convolutions
    make code for each number of rows that they see, and keep it."""
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def as_float(values: Tensor) -> Tensor:
    """float32 for the network: bytes become shares of 255, other integers and booleans keep their value."""
    if values.dtype == torch.float32:
        return values
    if values.dtype == torch.uint8:
        return values.float().div_(255.0)
    return values.float()


def on_device(array: Array, device: torch.device) -> Tensor:
    """The array where the weights are: on its own memory there, or by one transfer from pinned memory."""
    tensor = share(array)
    if device.type == "cpu":
        return tensor
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_host(tensors: Mapping[str, Tensor]) -> Tree:
    """Arrays on the tensors' own memory; from a GPU all transfers are under way before one is waited for."""
    device = next(iter(tensors.values())).device
    if device.type == "cpu":
        return {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    pinned = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        for name, tensor in tensors.items()
    }
    torch.cuda.current_stream(device).synchronize()
    return {name: tensor.numpy() for name, tensor in pinned.items()}


def staging_memory(device: torch.device) -> Callable[[tuple[int, ...], np.dtype[Any]], Array]:
    """Makes arrays from which rows go to the device: pinned for a GPU, so that `on_device` copies nothing."""
    if device.type == "cpu":
        return np.zeros

    def pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        like = torch.from_numpy(np.zeros((), dtype))
        array: Array = torch.zeros(shape, dtype=like.dtype, pin_memory=True).numpy()
        return array

    return pinned
