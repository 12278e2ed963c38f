"""Weights that other programs wrote: torch checkpoints and safetensors. Nothing in them is ever executed."""

from __future__ import annotations

import difflib
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ludus.store.files import StoreError
from ludus.store.tensors import Arrays

WHOLE_FILE = "(top)"
"""The place of weights that lie in a checkpoint without a name around them."""

_TORCH_STARTS = (b"PK\x03\x04", b"\x80")
_NEEDED = re.compile(r"(?:GLOBAL|class|function) (\w+(?:\.\w+)+)")


class BadCheckpoint(StoreError):  # noqa: N818
    """A file that holds no weights, or would have to be executed to open."""


class ForeignWeights:
    """The tensors of a file, by place: the path of names that leads to a group of them."""

    def __init__(self, path: Path, tree: Mapping[str, Any]) -> None:
        self.path = path
        self._tree = tree
        try:
            self.places = {place: len(tensors) for place, tensors in _groups(tree, ())}
        except RecursionError:
            raise BadCheckpoint(f"{path} holds names inside names without an end: refused") from None

    def find_place(self) -> str:
        """The only place that can be a model's; an error that lists them if there are several."""
        if len(self.places) == 1:
            return next(iter(self.places))
        if not self.places:
            raise BadCheckpoint(f"{self.path} holds no tensors by name")
        listed = ", ".join(f"{place} ({count} tensors)" for place, count in self.places.items())
        raise BadCheckpoint(f"{self.path} holds weights in several places; say which by --place: {listed}")

    def tensors(self, place: str) -> dict[str, Tensor]:
        """All below a place, names joined by dots."""
        node = _below(self._tree, place)
        found = dict(_tensors(node, ())) if node is not None else {}
        if not found:
            near = difflib.get_close_matches(place, self.places, n=1)
            offer = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.places)}"
            raise BadCheckpoint(f"{self.path} has no weights at {place!r}; {offer}")
        return found

    def arrays(self, place: str) -> Arrays:
        """The same as arrays; what numpy does not know (bfloat16) as float32."""
        limit = self.path.stat().st_size
        return {name: _array(name, tensor, limit) for name, tensor in self.tensors(place).items()}


def read_foreign(path: Path) -> ForeignWeights:
    """Open a torch checkpoint or a safetensors file, told apart by how it begins."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(_TORCH_STARTS):
        return ForeignWeights(path, _read_checkpoint(path))
    try:
        return ForeignWeights(path, safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise BadCheckpoint(
            f"{path} is neither a torch checkpoint nor a safetensors file: {error}"
        ) from error


def _read_checkpoint(path: Path) -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old ways of writing, which are read all the same
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = _NEEDED.search(str(error))
        needs = f"needs {named[1]} to open" if named else "needs more than weights to open"
        raise BadCheckpoint(
            f"{path} {needs}, which could execute anything: refused, nothing of it was run. Where it comes "
            "from, save the weights alone: torch.save(model.state_dict(), FILE)"
        ) from None
    except OSError:
        raise
    except Exception as error:  # a reader of damaged or hostile bytes may stumble in any way
        if "TorchScript" in str(error):
            raise BadCheckpoint(f"{path} is a TorchScript archive, which is a program: refused") from None
        raise BadCheckpoint(f"{path} is damaged, or a pickle or archive of another kind") from error
    if not isinstance(content, Mapping):
        raise BadCheckpoint(f"{path} holds a {type(content).__name__}, not weights by name")
    return content


def _groups(node: Mapping[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[str, list[Tensor]]]:
    """The mappings that hold tensors, reached by names alone: those of an optimiser's state are numbered.
    Lone numbers, such as a step, make no group."""
    own = [value for key, value in node.items() if isinstance(key, str) and isinstance(value, Tensor)]
    if any(tensor.ndim for tensor in own):
        yield "/".join(path) or WHOLE_FILE, own
    for key, value in node.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            yield from _groups(value, (*path, key))


def _tensors(node: Mapping[Any, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    for key, value in node.items():
        if isinstance(key, str) and isinstance(value, Tensor):
            yield ".".join((*path, key)), value
        elif isinstance(key, str) and isinstance(value, Mapping):
            yield from _tensors(value, (*path, key))


def _below(tree: Mapping[Any, Any], place: str) -> Mapping[Any, Any] | None:
    """The mapping at a place. A name may itself contain a slash, so they are tried, not cut."""
    if place == WHOLE_FILE:
        return tree
    for key, value in tree.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            if place == key:
                return value
            if place.startswith(f"{key}/"):
                found = _below(value, place.removeprefix(f"{key}/"))
                if found is not None:
                    return found
    return None


def _array(name: str, tensor: Tensor, limit: int) -> np.ndarray[Any, Any]:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise BadCheckpoint(
            f"tensor {name!r} is sparse, quantised or empty of values: only plain ones are taken"
        )
    if tensor.numel() * tensor.element_size() > limit:
        raise BadCheckpoint(f"tensor {name!r} claims shape {tuple(tensor.shape)}, more than its file holds")
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    return np.array(tensor.numpy(), order="C")
