"""PySC2's observations as parts: planes of the screen and the minimap, scalars, and a list of units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import Entities, Part, Planes, Vector, length_name
from ludus.data.trees import Array
from ludus.games.adapters.pysc2_actions import OWN, UNITS
from ludus.games.adapters.pysc2_layers import VOCABULARIES, Layers
from ludus.games.adapters.pysc2_library import features, static_data

Unit = features.FeatureUnit

UNIT_TYPES = VOCABULARIES["unit_type"]
NUM_TYPES = len(UNIT_TYPES) + 1
"""0 is for types that PySC2 does not know."""
UPGRADES = sorted(static_data.UPGRADES)

_SHARES: tuple[tuple[Any, float], ...] = (
    (Unit.health_ratio, 255),
    (Unit.shield_ratio, 255),
    (Unit.energy_ratio, 255),
    (Unit.health, 500),
    (Unit.shield, 500),
    (Unit.energy, 200),
    (Unit.build_progress, 100),
    (Unit.facing, 2 * math.pi),
    (Unit.radius, 10),
    (Unit.is_selected, 1),
    (Unit.is_blip, 1),
    (Unit.is_powered, 1),
    (Unit.is_on_screen, 1),
    (Unit.is_in_cargo, 1),
    (Unit.hallucination, 1),
    (Unit.active, 1),
    (Unit.mineral_contents, 1800),
    (Unit.vespene_contents, 2250),
    (Unit.cargo_space_taken, 8),
    (Unit.cargo_space_max, 8),
    (Unit.assigned_harvesters, 16),
    (Unit.ideal_harvesters, 16),
    (Unit.weapon_cooldown, 32),
    (Unit.order_length, 5),
    (Unit.order_progress_0, 100),
    (Unit.attack_upgrade_level, 3),
    (Unit.armor_upgrade_level, 3),
    (Unit.shield_upgrade_level, 3),
)
"""Features of a unit as shares of a usual largest value."""
_COLUMNS = np.array([int(column) for column, _ in _SHARES])
_LARGEST = np.array([largest for _, largest in _SHARES])
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
"""By alliance: the order in which units stay when there are too many."""


class ObservationCodec:
    """Writes what a seat sees into its rows."""

    def __init__(
        self,
        *,
        screen: Layers | None,
        minimap: Layers | None,
        sizes: Mapping[str, int],
        max_units: int,
        raw: bool,
        upgrades: bool,
    ) -> None:
        self._planes = {
            name: (layers, sizes[name])
            for name, layers in (("screen", screen), ("minimap", minimap))
            if layers is not None
        }
        self._units = "raw_units" if raw else "feature_units"
        self._place_scale = sizes["world" if raw else "screen"]
        self._max_units = max_units
        self._upgrades = upgrades
        self.parts: dict[str, Part] = {
            name: Planes(channels=len(layers.names), height=size, width=size, dtype="uint8")
            for name, (layers, size) in self._planes.items()
        }
        self.parts["scalars"] = Vector(size=SCALARS)
        if upgrades:
            self.parts["upgrades"] = Vector(size=len(UPGRADES), dtype="bool")
        if max_units:
            self.parts[UNITS] = Entities(maximum=max_units, features=UNIT_FEATURES, types=NUM_TYPES)

    def write(self, rows: Mapping[str, Array], observation: Any) -> SeenUnits:
        for name, (layers, _) in self._planes.items():
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


class SeenUnits:
    """Which of PySC2's units are in which row of the list."""

    def __init__(self, unit_of_row: NDArray[np.int64], alliance: NDArray[np.int64], dropped: int) -> None:
        self.unit_of_row = unit_of_row
        self.alliance = alliance
        """By row."""
        self.dropped = dropped
        """Units for which there was no row."""

    @classmethod
    def of(cls, units: Array, maximum: int) -> SeenUnits:
        """In PySC2's order; if there are too many, own ones stay, then hostile ones."""
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
    """From PySC2's [units, columns] into [units, UNIT_FEATURES]."""
    types = np.searchsorted(UNIT_TYPES, units[:, Unit.unit_type])
    types = np.minimum(types, len(UNIT_TYPES) - 1)
    known = np.array(UNIT_TYPES)[types] == units[:, Unit.unit_type]
    rows[:, 0] = np.where(known, types + 1, 0)
    column = 1
    for values, categories in (
        (units[:, Unit.alliance], _ALLIANCES),
        (units[:, Unit.cloak], _CLOAKS),
    ):
        rows[:, column : column + len(categories)] = values[:, None] == categories
        column += len(categories)
    rows[:, column : column + 2] = units[:, [Unit.x, Unit.y]] / place_scale
    rows[:, column + 2 :] = units[:, _COLUMNS] / _LARGEST
