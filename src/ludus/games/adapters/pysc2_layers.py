"""PySC2's feature layers as planes of bytes, which networks read as shares of 255.

A scalar layer fills one plane. A category with up to eight values gets a plane for each value but 0, which
means nothing there; one with more, such as the type of a unit, gets the bits of its number.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array
from ludus.games.adapters.pysc2_library import features, static_data
from ludus.games.seat_rows import GameError

FEW = 8
"""Values of a category up to which each has a plane."""

VOCABULARIES = {"unit_type": sorted(static_data.UNIT_TYPES), "buffs": sorted(static_data.BUFFS)}
"""Layers whose numbers are far apart: the known ones in order."""


class Layers:
    """Some of the layers of a screen or minimap, in the order asked for."""

    def __init__(self, known: Sequence[Any], chosen: Sequence[str], where: str) -> None:
        by_name = {layer.name: layer for layer in known}
        for name in chosen:
            if name not in by_name:
                raise GameError(f"{where} has no layer {name!r}{nearest(name, list(by_name))}")
        self._encoders = [_Encoder(by_name[name]) for name in chosen]
        self.names = tuple(name for encoder in self._encoders for name in encoder.names)
        """Of the planes."""

    def write(self, layers: Array, planes: NDArray[np.uint8]) -> None:
        """From PySC2's [layers, height, width] into [planes, height, width]."""
        layers = np.asarray(layers)
        start = 0
        for encoder in self._encoders:
            stop = start + len(encoder.names)
            encoder.write(layers[encoder.index], planes[start:stop])
            start = stop


class _Encoder:
    def __init__(self, layer: Any) -> None:
        self.index: int = layer.index
        self._scale: int = layer.scale
        self._is_scalar = layer.type is features.FeatureType.SCALAR
        self._vocabulary = VOCABULARIES.get(layer.name)
        self._code: NDArray[np.int64] | None = None
        if self._vocabulary is not None:
            # 0 is nothing, then the known numbers in order; the last number is for all others.
            self._scale = len(self._vocabulary) + 2
            self._code = np.full(max(self._vocabulary) + 2, self._scale - 1, np.int64)
            self._code[0] = 0
            self._code[self._vocabulary] = np.arange(1, self._scale - 1)
        self._bits = (self._scale - 1).bit_length()
        if self._is_scalar:
            self.names = [layer.name]
        elif self._scale <= FEW:
            self.names = [f"{layer.name}_{value}" for value in range(1, self._scale)]
        else:
            self.names = [f"{layer.name}_bit_{bit}" for bit in range(self._bits)]

    def write(self, layer: Array, planes: NDArray[np.uint8]) -> None:
        if self._code is not None:
            layer = self._code[np.clip(layer, 0, len(self._code) - 1)]
        layer = np.clip(layer, 0, self._scale - 1)
        if self._is_scalar:
            planes[0] = layer if self._scale == 256 else layer * 255 // (self._scale - 1)
        elif self._scale <= FEW:
            planes[:] = (layer == np.arange(1, self._scale)[:, None, None]) * np.uint8(255)
        else:
            planes[:] = (layer >> np.arange(self._bits)[:, None, None] & 1) * np.uint8(255)


def screen_layers(chosen: Sequence[str]) -> Layers:
    return Layers(features.SCREEN_FEATURES, chosen, "the screen")


def minimap_layers(chosen: Sequence[str]) -> Layers:
    return Layers(features.MINIMAP_FEATURES, chosen, "the minimap")


def nearest(wrong: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    """What to add to an error about a wrong name; with a `cutoff` of 0 always the most similar one."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
