"""Conversions between numpy and torch and between host and GPU, without copies or by one transfer each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.data.trees import Array, Tree

CPU = torch.device("cpu")


def share(array: Array | Tensor) -> Tensor:
    """A tensor that shares the array's memory; tensors pass through."""
    if isinstance(array, Tensor):
        return array
    if not array.flags.writeable:  # torch has no read-only tensors
        array = array.copy()
    return torch.from_numpy(array)


def round_up_rows(rows: int) -> int:
    """Round up to one of four sizes per power of two: convolution libraries keep code for every number of rows."""
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def as_float(values: Tensor) -> Tensor:
    """float32 for the network: bytes are divided by 255, other integers and booleans keep their value."""
    if values.dtype == torch.float32:
        return values
    if values.dtype == torch.uint8:
        return values.float().div_(255.0)
    return values.float()


def on_device(array: Array, device: torch.device) -> Tensor:
    """The array on the device: on its own memory for a CPU, else by one transfer from pinned memory."""
    tensor = share(array)
    if device.type == "cpu":
        return tensor
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_host(tensors: Mapping[str, Tensor]) -> Tree:
    """Arrays that share the tensors' memory; from a GPU all transfers are started before waiting."""
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
    """An allocator of arrays to transfer to the device: pinned for a GPU, so that `on_device` does not copy."""
    if device.type == "cpu":
        return np.zeros

    def pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        like = torch.from_numpy(np.zeros((), dtype))
        array: Array = torch.zeros(shape, dtype=like.dtype, pin_memory=True).numpy()
        return array

    return pinned


class DeferredChecks:
    """While one is active in a thread, networks compute every row and option and never wait for the device, as a
    compiled function or a CUDA graph needs: shapes do not depend on data, and what a network would raise for is
    collected. `collect=False`: it is not, because all rows are known to be legal."""

    def __init__(self, *, collect: bool = True) -> None:
        self.collects = collect
        self._failed: list[Tensor] = []
        self._outer: DeferredChecks | None = None

    @staticmethod
    def active() -> DeferredChecks | None:
        return _ACTIVE.checks

    def __enter__(self) -> DeferredChecks:
        self._outer = _ACTIVE.checks
        _ACTIVE.checks = self
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.checks = self._outer

    def add(self, failed: Tensor) -> None:
        """Collect the rows that failed a check."""
        if self.collects:
            self._failed.append(failed.any())

    def any_failed(self, device: torch.device) -> Tensor:
        """A single bool, on the device."""
        return torch.stack(self._failed).any() if self._failed else torch.zeros((), dtype=torch.bool, device=device)


class _Active(threading.local):  # not a `ContextVar`, which cannot be compiled
    def __init__(self) -> None:
        self.checks: DeferredChecks | None = None


_ACTIVE = _Active()
