"""Codecs between PySC2 and our specs: `ObservationCodec` (layers, scalars, units) and `FunctionCodec` (actions)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, Entities, Head, Part, Planes, Point, Pointer, Vector, When, length_name
from ludus.data.trees import Array
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_library import actions, features, find_map, static_data
from ludus.games.seat_rows import GameError, nearest

FEW = 8
"""A category with at most this many values has a plane per value, else a plane per bit."""

VOCABULARIES = {"unit_type": sorted(static_data.UNIT_TYPES), "buffs": sorted(static_data.BUFFS)}
"""Layers with sparse numbers -> the known numbers in order."""

FUNCTION, DELAY, UNITS = "function", "delay", "units"
NO_OP = 0
"""The option of the head `function`, and PySC2's number."""

_COUNTED = {
    "select_unit_id": ("multi_select",),
    "build_queue_id": ("build_queue", "production_queue"),
    "unload_id": ("cargo",),
}
"""Arguments that name a row of a list on the screen -> the lists; only existing rows are legal."""
_ORDER = (
    "queued", "control_group_act", "control_group_id", "select_point_act", "select_add", "select_worker",
    "select_unit_act", "select_unit_id", "build_queue_id", "unload_id", "screen", "screen2", "minimap", "unit_tags",
    "target_unit_tag", "world",
)  # fmt: skip
"""Arguments in the order in which they are decided."""

OWN = 1
"""PySC2's alliance of a seat's own units."""

Unit = features.FeatureUnit

UNIT_TYPES = VOCABULARIES["unit_type"]
NUM_TYPES = len(UNIT_TYPES) + 1
"""Type 0 is for types that PySC2 does not know."""
UPGRADES = sorted(static_data.UPGRADES)

_SHARES = {
    "health_ratio": 255, "shield_ratio": 255, "energy_ratio": 255, "health": 500, "shield": 500, "energy": 200,
    "build_progress": 100, "facing": 2 * math.pi, "radius": 10, "is_selected": 1, "is_blip": 1, "is_powered": 1,
    "is_on_screen": 1, "is_in_cargo": 1, "hallucination": 1, "active": 1, "mineral_contents": 1800,
    "vespene_contents": 2250, "cargo_space_taken": 8, "cargo_space_max": 8, "assigned_harvesters": 16,
    "ideal_harvesters": 16, "weapon_cooldown": 32, "order_length": 5, "order_progress_0": 100,
    "attack_upgrade_level": 3, "armor_upgrade_level": 3, "shield_upgrade_level": 3,
}  # fmt: skip
"""Features of a unit, each divided by a usual largest value."""
_COLUMNS = np.array([int(Unit[name]) for name in _SHARES])
_LARGEST = np.array([*_SHARES.values()])
_ALLIANCES = np.array([OWN, 2, 3, 4])
"""Own, allied, neutral, hostile."""
_CLOAKS = np.array([1, 2])
"""Cloaked; cloaked, but detected."""
UNIT_FEATURES = 1 + len(_ALLIANCES) + len(_CLOAKS) + 2 + len(_SHARES)
"""The type, the alliance, the cloak, x, y, and the shares."""

_RACES = np.arange(1, 5)
_LOOPS = 16 * 600
"""Ten minutes of the game's own time."""
SCALARS = len(features.Player) - 1 + 1 + 2 * len(_RACES)
"""The player's numbers (logarithms), the time, and both sides' races."""

_RANK = np.array([4, 0, 2, 3, 1])
"""By alliance: priority of units when there are too many."""


class ObservationCodec:
    """Writes the observation of a seat into its rows."""

    def __init__(self, source: PySC2) -> None:
        raw = source.interface == "raw"
        self._layers: dict[str, Layers] = {}
        self._units = "raw_units" if raw else "feature_units"
        self._place_scale = source.raw_resolution if raw else source.screen
        self._max_units = source.max_units
        self._upgrades = find_map(source.map_name).players != 1
        self.parts: dict[str, Part] = {}
        for name, size, known, chosen in (
            ("screen", source.screen, features.SCREEN_FEATURES, source.screen_layers),
            ("minimap", source.minimap, features.MINIMAP_FEATURES, source.minimap_layers),
        ):
            if size and chosen:
                layers = self._layers[name] = Layers(known, chosen, f"the {name}")
                self.parts[name] = Planes(channels=len(layers.names), height=size, width=size, dtype="uint8")
        self.parts["scalars"] = Vector(size=SCALARS)
        if self._upgrades:
            self.parts["upgrades"] = Vector(size=len(UPGRADES), dtype="bool")
        if source.max_units:
            self.parts[UNITS] = Entities(maximum=source.max_units, features=UNIT_FEATURES, types=NUM_TYPES)

    def write(self, rows: Mapping[str, Array], observation: Any) -> SeenUnits:
        for name, layers in self._layers.items():
            layers.write(observation[f"feature_{name}"], rows[name])
        rows["scalars"][:] = scalars(observation)
        if self._upgrades:
            rows["upgrades"][:] = np.isin(UPGRADES, observation["upgrades"])
        if not self._max_units:
            return NOTHING_SEEN
        units = np.asarray(observation[self._units], np.int64).reshape(-1, len(Unit))
        seen = SeenUnits.of(units, self._max_units)
        units = units[seen.unit_of_row]
        rows[length_name(UNITS)][...] = len(units)
        rows[UNITS][:] = 0
        write_units(rows[UNITS][: len(units)], units, self._place_scale)
        return seen


class SeenUnits(NamedTuple):
    """The units in the rows of the list."""

    unit_of_row: NDArray[np.int64]
    alliance: NDArray[np.int64]
    dropped: int
    """Number of units without a row."""

    @classmethod
    def of(cls, units: Array, maximum: int) -> SeenUnits:
        """Units in PySC2's order; if there are too many, own units stay, then hostile ones."""
        alliance = units[:, Unit.alliance]
        rows = np.arange(len(units))
        if len(units) > maximum:
            rows = np.sort(np.argsort(_RANK[np.clip(alliance, 0, 4)], kind="stable")[:maximum])
        return cls(rows, alliance[rows], len(units) - len(rows))

    @property
    def row_of_unit(self) -> dict[int, int]:
        return {int(unit): row for row, unit in enumerate(self.unit_of_row)}


NOTHING_SEEN = SeenUnits(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)


def scalars(observation: Any) -> NDArray[np.float32]:
    player = np.log1p(np.maximum(np.asarray(observation["player"])[1:], 0))
    races = [observation[f"{side}_race_requested"][0] == _RACES for side in ("home", "away")]
    time = np.asarray(observation["game_loop"]) / _LOOPS
    return np.concatenate([player, time, *races]).astype(np.float32)


def write_units(rows: Array, units: Array, place_scale: int) -> None:
    """Write PySC2's [units, columns] into [units, UNIT_FEATURES]."""
    types = np.searchsorted(UNIT_TYPES, units[:, Unit.unit_type])
    types = np.minimum(types, len(UNIT_TYPES) - 1)
    known = np.array(UNIT_TYPES)[types] == units[:, Unit.unit_type]
    rows[:, 0] = np.where(known, types + 1, 0)
    column = 1
    for values, categories in ((units[:, Unit.alliance], _ALLIANCES), (units[:, Unit.cloak], _CLOAKS)):
        rows[:, column : column + len(categories)] = values[:, None] == categories
        column += len(categories)
    rows[:, column : column + 2] = units[:, [Unit.x, Unit.y]] / place_scale
    rows[:, column + 2 :] = units[:, _COLUMNS] / _LARGEST


class Layers:
    """Chosen layers of the screen or minimap, in the given order."""

    def __init__(self, known: Sequence[Any], chosen: Sequence[str], where: str) -> None:
        by_name = {layer.name: layer for layer in known}
        for name in chosen:
            if name not in by_name:
                raise GameError(f"{where} has no layer {name!r}{nearest(name, by_name)}")
        self._encoders = [_Encoder(by_name[name]) for name in chosen]
        self.names = tuple(name for encoder in self._encoders for name in encoder.names)

    def write(self, layers: Array, planes: NDArray[np.uint8]) -> None:
        """Write PySC2's [layers, height, width] into [planes, height, width]."""
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
            # Code 0 is nothing, then come the known numbers; the last code is for all others.
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


class FunctionCodec:
    """Converts the actions of a seat to PySC2's function calls and back."""

    def __init__(self, source: PySC2) -> None:
        self.raw = source.interface == "raw"
        self._table = actions.RAW_FUNCTIONS if self.raw else actions.FUNCTIONS
        self.functions = _choose(self._table, source.functions, source.specific_functions)
        """Functions by option of the head `function`."""
        self.option_of = {int(function.id): option for option, function in enumerate(self.functions)}
        self._sizes = {"screen": source.screen, "minimap": source.minimap, "world": source.raw_resolution}
        self._sizes["screen2"] = source.screen
        """Length of the sides of what an argument points at."""
        self._picks = source.max_selected
        heads: dict[str, Head] = {FUNCTION: Choice(num=len(self.functions))}
        if source.max_delay:
            heads[DELAY] = Choice(num=source.max_delay, masked=False)
        types = actions.RAW_TYPES if self.raw else actions.TYPES
        arguments = [{argument.name for argument in function.args} for function in self.functions]
        self._takes: dict[str, list[int]] = {}
        """Argument -> the options of the functions that take it."""
        for name in _ORDER:
            options = [option for option, taken in enumerate(arguments) if name in taken]
            if options:
                self._takes[name] = options
                heads[name] = self._head(getattr(types, name), When(head=FUNCTION, values=tuple(options)))
        self.spec = ActionSpec(heads=heads)

    def _head(self, argument: Any, when: When) -> Head:
        if argument.name in self._sizes:
            size = self._sizes[argument.name]
            return Point(height=size, width=size, when=when)
        if argument.name == "unit_tags":
            return Pointer(into=UNITS, picks=self._picks, when=when)
        if argument.name == "target_unit_tag":
            return Pointer(into=UNITS, when=when)
        return Choice(num=argument.sizes[0], when=when, masked=argument.name in _COUNTED)

    def blank(self) -> dict[str, Any]:
        """The action that does nothing; heads that do not count are 0, or -1 throughout."""
        arrays = self.spec.arrays
        return {name: [-1] * array.shape[0] if array.shape else 0 for name, array in arrays.items()}

    def decode(self, action: Mapping[str, Any], unit_of_row: Sequence[int] | Array = ()) -> Any:
        """PySC2's call. `unit_of_row`: for raw actions, PySC2's index of the unit in each row of `units`."""
        function = self.functions[int(action[FUNCTION])]
        arguments = []
        for argument in function.args:
            value = action[argument.name]
            if argument.name in self._sizes:
                y, x = divmod(int(value), self._sizes[argument.name])
                arguments.append([x, y])
            elif argument.name == "unit_tags":
                arguments.append([int(unit_of_row[row]) for row in np.atleast_1d(value) if row >= 0])
            elif argument.name == "target_unit_tag":
                arguments.append([int(unit_of_row[int(value)])])
            else:
                arguments.append([int(value)])
        return actions.FunctionCall(function.id, arguments)

    def encode(self, call: Any, row_of_unit: Mapping[int, int] | None = None) -> dict[str, Any]:
        """Our action for a PySC2 call, with delay 0; units beyond the number of picks are left out."""
        function = int(call.function)
        if function not in self.option_of:
            raise UnknownFunctionError(f"{self._table[function].name} is not among the functions of this game")
        action = self.blank()
        action[FUNCTION] = self.option_of[function]
        rows = row_of_unit or {}
        for argument, values in zip(self.functions[action[FUNCTION]].args, call.arguments, strict=True):
            name = argument.name
            if name in self._sizes:
                size = self._sizes[name]
                x, y = (min(max(int(value), 0), size - 1) for value in values)
                action[name] = y * size + x
            elif name in ("unit_tags", "target_unit_tag"):
                places = [rows[int(unit)] for unit in values if int(unit) in rows]
                if not places:
                    raise UnknownFunctionError(f"none of the units of its {name} is among those seen")
                if name == "target_unit_tag" or self._picks == 1:
                    action[name] = places[0]
                else:
                    places = list(dict.fromkeys(places))[: self._picks]
                    action[name] = places + [-1] * (self._picks - len(places))
            else:
                action[name] = int(values[0])
        return action

    def write_legal(self, legal: Mapping[str, NDArray[np.bool_]], observation: Any, alliance: Array) -> None:
        """Write the masks of one seat. `alliance`: PySC2's number for each row of `units`, 1 for its own."""
        function = legal[FUNCTION]
        if self.raw:
            function[:] = True
            for name, rows in (("unit_tags", alliance == OWN), ("target_unit_tag", alliance > 0)):
                if name in self._takes:
                    legal[name][:] = False
                    legal[name][: len(rows)] = rows
                    if not rows.any():
                        function[self._takes[name]] = False
            return
        function[:] = False
        options = [self.option_of.get(int(number), NO_OP) for number in observation["available_actions"]]
        function[options] = True
        function[NO_OP] = True
        for name, lists in _COUNTED.items():
            if name in self._takes:
                count = max(len(observation[listed]) for listed in lists)
                legal[name][:] = np.arange(len(legal[name])) < count
                if not count:
                    function[self._takes[name]] = False


def _choose(table: Any, names: Sequence[str], specific: bool) -> list[Any]:
    """The functions by option: `no_op` and the named ones, or all; `specific` includes special cases of general
    functions, such as the cancelling of one certain building."""
    if not names:
        return [function for function in table if specific or not function.general_id]
    known = {function.name: function for function in table}
    for name in names:
        if name not in known:
            raise GameError(f"StarCraft II has no function {name!r}{nearest(name, known, cutoff=0.0)}")
    return [table[NO_OP], *(known[name] for name in dict.fromkeys(names) if int(known[name].id) != NO_OP)]


class UnknownFunctionError(ValueError):
    """A called function is not among the chosen ones, or an argument has no place in our heads."""
