"""Flat trees of arrays: dicts from dotted name to numpy array, all with the same leading axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ArraySpec

Array = NDArray[Any]
Tree = dict[str, Array]
IntArray = NDArray[np.int64]
Leaf = TypeVar("Leaf")
"""An array, or a tensor."""


def allocate(
    specs: Mapping[str, ArraySpec],
    leading: tuple[int, ...],
    new: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.zeros,
) -> Tree:
    """One zeroed array per spec, with `leading` axes in front."""
    return {name: new(leading + spec.shape, spec.dtype) for name, spec in specs.items()}


def take(tree: Mapping[str, Array], index: Any) -> Tree:
    """`array[index]` for every array."""
    return {name: array[index] for name, array in tree.items()}


def put(target: Mapping[str, Array], index: Any, values: Mapping[str, Array]) -> None:
    """`target[index] = values`, in place, for every array of `target`."""
    for name, array in target.items():
        array[index] = values[name]


def under(prefix: str, tree: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The arrays whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): array for name, array in tree.items() if name.startswith(prefix)}
