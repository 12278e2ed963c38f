"""PySC2's observations as the parts of our specs: layers, scalars, units, effects, and what a seat remembers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, Entities, Part, Planes, Vector, length_name
from ludus.data.trees import Array, Tree
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_actions import FUNCTION, OWN, UNITS, FunctionCodec, Unit
from ludus.games.adapters.pysc2_history import NUM_TYPES, UNIT_TYPES, UPGRADES, ActionHistory, type_codes
from ludus.games.adapters.pysc2_library import actions, features, find_map, static_data
from ludus.games.seat_rows import GameError, nearest

FEW = 8
"""A category with at most this many values has a plane per value, else a plane per bit."""

VOCABULARIES = {"unit_type": UNIT_TYPES, "buffs": sorted(static_data.BUFFS)}
"""Layers with sparse numbers -> the known numbers in order."""

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

_ORDERS = [Unit.order_id_0, Unit.order_id_1, Unit.order_id_2, Unit.order_id_3]
_BUFFS = [Unit.buff_id_0, Unit.buff_id_1]
_FURTHER_SHARES = {"order_progress_1": 100, "buff_duration_remain": 500, "buff_duration_max": 500}
_NUM_ORDERS = 1 + max(actions.RAW_ABILITY_ID_TO_FUNC_ID.values())
_BUFF_CODES = np.array(VOCABULARIES["buffs"])
UNIT_CATEGORIES = (_NUM_ORDERS,) * len(_ORDERS) + (len(_BUFF_CODES) + 1,) * len(_BUFFS) + (NUM_TYPES,)
"""Number of values of each order (a raw function), each buff, and the add-on of a unit."""

EFFECTS = "effects"
MAX_EFFECTS = 32
_NUM_EFFECTS = len(features.Effects)
_EFFECT_FEATURES = 1 + len(_ALLIANCES) + 3
"""The type, the alliance, x, y and the radius."""

MAX_DELAY = 128
"""Longest delay since the last decision that is told apart, if decisions do not choose theirs."""
_RATINGS = 7
"""Ratings in thousands, 6,000 and above together."""
_TIME_WAVES = 32
"""Pairs of waves of the encoding of the time, with periods up to 10,000 game steps."""

_RACES = np.arange(1, 5)
_LOOPS = 16 * 600
"""Ten minutes of the game's own time."""
SCALARS = len(features.Player) - 1 + 1 + 2 * len(_RACES)
"""The player's numbers (logarithms), the time, and both sides' races."""

Effect = features.EffectPos

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
        self._published = source.inputs == "published"
        if self._published:
            self.parts |= _published_vectors(len(FunctionCodec(source).functions), source.max_delay or MAX_DELAY)
        else:
            self.parts["scalars"] = Vector(size=SCALARS)
            if self._upgrades:
                self.parts["upgrades"] = Vector(size=len(UPGRADES), dtype="bool")
        if source.max_units:
            further = len(_FURTHER_SHARES) + len(UNIT_CATEGORIES) if self._published else 0
            self.parts[UNITS] = Entities(
                maximum=source.max_units,
                features=UNIT_FEATURES + further,
                types=NUM_TYPES,
                categories=UNIT_CATEGORIES if self._published else (),
            )
        if self._published:
            self.parts[EFFECTS] = Entities(maximum=MAX_EFFECTS, features=_EFFECT_FEATURES, types=_NUM_EFFECTS)
        self.critic: dict[str, Part] = {}
        """What only a critic sees: the other seat's observation, and both seats' scores."""
        if source.critic_state:
            self.critic = {**self.parts, SCORES: Vector(size=2 * len(features.ScoreCumulative))}

    def write(self, rows: Mapping[str, Array], observation: Any, history: ActionHistory | None = None) -> SeenUnits:
        """Write all parts but the available actions and the critic's. Published inputs need a `history`."""
        for name, layers in self._layers.items():
            layers.write(observation[f"feature_{name}"], rows[name])
        if self._published:
            assert history is not None
            _write_published(rows, observation, history)
            write_effects(rows, observation["raw_effects"], self._place_scale)
        else:
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

    def write_available(self, rows: Mapping[str, Array], legal: Mapping[str, Array]) -> None:
        """Show the legal functions as the available actions, where inputs are the published ones."""
        if self._published:
            rows["available_actions"][:] = legal[FUNCTION]

    def write_critic(self, rows: Mapping[str, Array], observation: Any, other: tuple[Tree, Any] | None) -> None:
        """Show the critic the `other` seat's rows and observation; None: nobody else can be observed."""
        if not self.critic:
            return
        for name, array in rows.items():
            if name.startswith(CRITIC_PREFIX):
                array[...] = 0 if other is None else other[0].get(name.removeprefix(CRITIC_PREFIX), 0)
        scores = [observation["score_cumulative"]]
        scores += [np.zeros_like(scores[0]) if other is None else other[1]["score_cumulative"]]
        rows[CRITIC_PREFIX + SCORES][:] = np.log1p(np.maximum(np.concatenate(scores), 0))


SCORES = "scores"


def _published_vectors(functions: int, delays: int) -> dict[str, Part]:
    """The vectors of AlphaStar's publication, except for the strategy."""
    return {
        "statistics": Vector(size=len(features.Player) - 1),
        "home_race": Vector(size=len(_RACES), dtype="bool"),
        "away_race": Vector(size=len(_RACES), dtype="bool"),
        "time": Vector(size=1 + 2 * _TIME_WAVES),
        "upgrades": Vector(size=len(UPGRADES), dtype="bool"),
        "enemy_upgrades": Vector(size=len(UPGRADES), dtype="bool"),
        "unit_counts": Vector(size=NUM_TYPES),
        "mmr": Vector(size=_RATINGS, dtype="bool"),
        "available_actions": Vector(size=functions, dtype="bool"),
        "last_action": Vector(size=functions, dtype="bool"),
        "last_delay": Vector(size=delays, dtype="bool"),
        "last_queued": Vector(size=3, dtype="bool"),
    }


def _write_published(rows: Mapping[str, Array], observation: Any, history: ActionHistory) -> None:
    game_loop = int(np.asarray(observation["game_loop"])[0])
    home, away = (int(observation[f"{side}_race_requested"][0]) for side in ("home", "away"))
    rows["statistics"][:] = np.log1p(np.maximum(np.asarray(observation["player"])[1:], 0))
    rows["home_race"][:] = home == _RACES
    # The units of an opponent whose race is hidden, or who plays random, show it.
    rows["away_race"][:] = (history.enemy_race or (0 if history.hides_race else away)) == _RACES
    rows["mmr"][:] = np.arange(_RATINGS) == min(history.mmr // 1_000, _RATINGS - 1)
    angle = game_loop / 10_000.0 ** (np.arange(_TIME_WAVES) / _TIME_WAVES)
    rows["time"][:] = np.concatenate(([game_loop / _LOOPS], np.sin(angle), np.cos(angle)))
    rows["upgrades"][:] = np.isin(UPGRADES, observation["upgrades"])
    rows["enemy_upgrades"][:] = history.enemy_upgrades
    units = np.asarray(observation["raw_units"], np.int64).reshape(-1, len(Unit))
    own = type_codes(units[units[:, Unit.alliance] == OWN, Unit.unit_type])
    rows["unit_counts"][:] = np.sqrt(np.bincount(own, minlength=NUM_TYPES))
    for name in ("last_action", "last_delay", "last_queued"):
        rows[name][:] = False
    if history.last_option is not None:
        rows["last_action"][history.last_option] = True
        rows["last_delay"][min(history.delay(game_loop), len(rows["last_delay"]) - 1)] = True
        rows["last_queued"][history.last_queued] = True


def write_effects(rows: Mapping[str, Array], effects: Any, place_scale: int) -> None:
    """Write PySC2's [effects, columns] into the list of effects, up to `MAX_EFFECTS`."""
    found = np.asarray(effects, np.int64).reshape(-1, len(Effect))[:MAX_EFFECTS]
    kinds = found[:, Effect.effect]
    rows[EFFECTS][:] = 0
    rows[length_name(EFFECTS)][...] = len(found)
    columns = (
        np.where(kinds < _NUM_EFFECTS, kinds, 0)[:, None],
        found[:, Effect.alliance, None] == _ALLIANCES,
        found[:, [Effect.x, Effect.y]] / place_scale,
        found[:, Effect.radius, None] / _SHARES["radius"],
    )
    rows[EFFECTS][: len(found)] = np.concatenate(columns, 1)


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
    """Write PySC2's [units, columns] into [units, UNIT_FEATURES], or with more shares and `UNIT_CATEGORIES`."""
    rows[:, 0] = type_codes(units[:, Unit.unit_type])
    column = 1
    for values, categories in ((units[:, Unit.alliance], _ALLIANCES), (units[:, Unit.cloak], _CLOAKS)):
        rows[:, column : column + len(categories)] = values[:, None] == categories
        column += len(categories)
    rows[:, column : column + 2] = units[:, [Unit.x, Unit.y]] / place_scale
    rows[:, column + 2 : UNIT_FEATURES] = units[:, _COLUMNS] / _LARGEST
    if rows.shape[1] == UNIT_FEATURES:
        return
    further = np.array([int(Unit[name]) for name in _FURTHER_SHARES])
    buffs = np.minimum(np.searchsorted(_BUFF_CODES, units[:, _BUFFS]), len(_BUFF_CODES) - 1)
    columns = (
        units[:, further] / [*_FURTHER_SHARES.values()],
        np.clip(units[:, _ORDERS], 0, _NUM_ORDERS - 1),
        np.where(_BUFF_CODES[buffs] == units[:, _BUFFS], buffs + 1, 0),
        type_codes(units[:, Unit.addon_unit_type])[:, None],
    )
    rows[:, UNIT_FEATURES:] = np.concatenate(columns, 1)


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
