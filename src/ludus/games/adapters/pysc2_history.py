"""What a seat of StarCraft II remembers of its episode: its last decision, its enemy's race and upgrades, and what it
has built, which is its strategy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import Array
from ludus.games.adapters.pysc2_actions import FUNCTION, NO_OP, OWN, FunctionCodec, Unit
from ludus.games.adapters.pysc2_library import actions, buffs, static_data, units, upgrades
from ludus.games.game import PLACE_GRID

UNIT_TYPES = sorted(static_data.UNIT_TYPES)
NUM_TYPES = len(UNIT_TYPES) + 1
"""Type 0 is for types that PySC2 does not know."""
UPGRADES = sorted(static_data.UPGRADES)
EFFECTS = sorted({f.general_id or f.ability_id for f in actions.RAW_FUNCTIONS if f.name.startswith("Effect_")})
"""Abilities that cause an effect, such as a psi storm."""

BUILD_ORDER = 20
"""Things in a build order."""
FACTS = {"built_units": NUM_TYPES, "effects": len(EFFECTS), "upgrades": len(UPGRADES)}
"""What has been built, caused and researched in an episode: the groups of facts of a strategy."""
NUM_FACTS = sum(FACTS.values())

FIVE_SECONDS = 112
"""Game steps, of which there are 22.4 a second at the speed at which people play."""

ENEMY = 4
"""PySC2's alliance of hostile units."""

_RACES = {1: units.Terran, 2: units.Zerg, 3: units.Protoss}
_NAMES = {int(unit): unit.name for race in _RACES.values() for unit in race}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_RACE_OF_TYPE = {int(unit): number for number, race in _RACES.items() for unit in race}

_FORMS = (
    "Burrowed", "Flying", "Sieged", "Lowered", "Uprooted", "Phasing", "Alternate", "SurveillanceMode", "OversightMode",
    "HighImpactMode", "AG", "Overcharged", "Rich",
)  # fmt: skip
"""Endings of names of other forms of a unit. A unit that changes its form is not built."""
_OTHER_FORMS = {"VikingAssault": "VikingFighter"} | {
    f"{building}{addon}": addon for building in ("Barracks", "Factory", "Starport") for addon in ("TechLab", "Reactor")
}
_NOT_BUILT = (
    "Larva", "Cocoon", "Broodling", "Changeling", "Interceptor", "KD8Charge", "ForceField", "ParasiticBombDummy",
    "MULE", "AutoTurret", "PointDefenseDrone", "RepairDrone", "Locust", "InfestedTerran", "AdeptPhaseShift",
    "DisruptorPhased",
)  # fmt: skip
"""Parts of the names of units that come and go by themselves."""


def _base(name: str) -> int | None:
    """The type that stands for all forms of a unit; None if it is not built."""
    if any(part in name for part in _NOT_BUILT):
        return None
    name = _OTHER_FORMS.get(name, name)
    shorter = (name.removesuffix(form) for form in _FORMS if name.endswith(form))
    return _NUMBERS[next((one for one in shorter if one in _NUMBERS), name)]


_BASES = {number: base for number, name in _NAMES.items() if (base := _base(name)) is not None}

_LINES = (
    ("Marine Marauder Reaper Ghost GhostNova", "TerranInfantryWeapons", "TerranInfantryArmors"),
    ("Hellion Hellbat WidowMine Cyclone SiegeTank Thor", "TerranVehicleWeapons", "TerranVehicleAndShipArmors"),
    ("VikingFighter Liberator Banshee Battlecruiser Medivac Raven", "TerranShipWeapons", "TerranVehicleAndShipArmors"),
    ("Zergling Baneling Ultralisk", "ZergMeleeWeapons", "ZergGroundArmors"),
    ("Roach Ravager Hydralisk Lurker Queen", "ZergMissileWeapons", "ZergGroundArmors"),
    ("Mutalisk Corruptor BroodLord", "ZergFlyerWeapons", "ZergFlyerArmors"),
    (
        "Zealot Stalker Sentry Adept HighTemplar DarkTemplar Archon Immortal Colossus Disruptor",
        "ProtossGroundWeapons",
        "ProtossGroundArmors",
    ),
    ("Phoenix VoidRay Oracle Carrier Tempest Mothership", "ProtossAirWeapons", "ProtossAirArmors"),
)
"""Units, and the upgrades of their weapons and their armour, each in three levels."""
_UPGRADES_OF_TYPE = {_NUMBERS[name]: (weapons, armour) for names, weapons, armour in _LINES for name in names.split()}
_LEVELS = (Unit.attack_upgrade_level, Unit.armor_upgrade_level, Unit.shield_upgrade_level)
_UPGRADE_OF_BUFF = {
    int(buffs.Buffs.Stimpack): upgrades.Upgrades.Stimpack,
    int(buffs.Buffs.StimpackMarauder): upgrades.Upgrades.Stimpack,
    int(buffs.Buffs.Charging): upgrades.Upgrades.Charge,
    int(buffs.Buffs.BansheeCloak): upgrades.Upgrades.CloakingField,
    int(buffs.Buffs.GhostCloak): upgrades.Upgrades.PersonalCloaking,
}
"""Buffs of a unit that only an upgrade allows."""


def type_codes(types: Array) -> NDArray[np.int64]:
    """Places of unit types in the vocabulary, 0 for types that PySC2 does not know."""
    places = np.minimum(np.searchsorted(UNIT_TYPES, types), len(UNIT_TYPES) - 1)
    return np.where(np.array(UNIT_TYPES)[places] == types, places + 1, 0)


class ActionHistory:
    """One seat's episode so far. `build_order`, `build_place` and `built` are written in place, see `StrategyView`."""

    def __init__(
        self,
        functions: FunctionCodec,
        build_order: NDArray[np.int16],
        build_place: NDArray[np.int16],
        built: NDArray[np.bool_],
    ) -> None:
        self._functions = functions.functions
        self._build_order, self._build_place, self._built = build_order, build_place, built
        self.enemy_upgrades = np.zeros(len(UPGRADES), np.bool_)
        self.begin()

    @classmethod
    def alone(cls, functions: FunctionCodec) -> ActionHistory:
        """A history with arrays of its own."""
        order, place = (np.zeros(BUILD_ORDER, np.int16) for _ in range(2))
        return cls(functions, order, place, np.zeros(NUM_FACTS, np.bool_))

    @property
    def strategy(self) -> dict[str, Any]:
        """What was built, by the names of the fields of an `Episode`."""
        return {"build_order": self._build_order, "build_place": self._build_place, "built": self._built}

    def begin(self, mmr: int = 0, *, hides_race: bool = False) -> None:
        """Start an episode. `hides_race`: the seat does not see which race its opponent asked for."""
        self.mmr, self.hides_race = mmr, hides_race
        self._acted_at: deque[int] = deque()
        """Game times of the functions called within the last 5 seconds, except `no_op`."""
        self._build_order[:] = self._build_place[:] = -1
        self._built[:] = False
        self.enemy_upgrades[:] = False
        self.enemy_race = 0
        """PySC2's number of the race of the enemy's units; 0: none was seen."""
        self.last_option: int | None = None
        self.last_queued = 0
        """0: the last function takes no such argument; 1: at once; 2: queued."""
        self._decided_at = 0
        self._known: set[tuple[int, int]] | None = None
        """Tags and types of own units, the first ones included; None before the first observation."""
        self._length = 0

    def delay(self, game_loop: int) -> int:
        """Game steps since the last decision."""
        return max(0, game_loop - self._decided_at)

    def actions_within(self, game_loop: int) -> int:
        """Functions other than `no_op` that were called in the 5 seconds before."""
        while self._acted_at and self._acted_at[0] <= game_loop - FIVE_SECONDS:
            self._acted_at.popleft()
        return len(self._acted_at)

    def decide(self, action: Mapping[str, Any], game_loop: int) -> None:
        option = int(action[FUNCTION])
        function = self._functions[option]
        self.last_option, self._decided_at = option, game_loop
        if int(function.id) != NO_OP:
            self._acted_at.append(game_loop)
        takes = any(argument.name == "queued" for argument in function.args)
        self.last_queued = 1 + int(action["queued"]) if takes else 0
        ability = function.general_id or function.ability_id
        if ability in EFFECTS:
            self._built[NUM_TYPES + EFFECTS.index(ability)] = True

    def see(self, observation: Any, side: int) -> None:
        """Take in an observation of a map with `side` positions along a side."""
        found = np.asarray(observation["raw_units"], np.int64).reshape(-1, len(Unit))
        own = found[(found[:, Unit.alliance] == OWN) & (found[:, Unit.hallucination] == 0)]
        self._see_own(own, side)
        self._see_enemy(found[found[:, Unit.alliance] == ENEMY])
        self._built[NUM_TYPES + len(EFFECTS) :] |= np.isin(UPGRADES, observation["upgrades"])

    def _see_own(self, own: Array, side: int) -> None:
        columns = own[:, [Unit.tag, Unit.unit_type, Unit.x, Unit.y]].tolist()
        seen = [(tag, _BASES[kind], x, y) for tag, kind, x, y in columns if kind in _BASES]
        first, self._known = self._known is None, set() if self._known is None else self._known
        for tag, kind, x, y in seen:
            if (tag, kind) in self._known:
                continue
            self._known.add((tag, kind))
            if first:
                continue
            code = int(type_codes(np.array(kind)))
            self._built[code] = True
            if self._length < BUILD_ORDER:
                self._build_order[self._length] = code
                self._build_place[self._length] = _place(x, y, side)
                self._length += 1

    def _see_enemy(self, enemy: Array) -> None:
        for row in np.unique(enemy[:, [Unit.unit_type, *_LEVELS, Unit.buff_id_0, Unit.buff_id_1]], axis=0).tolist():
            kind, attack, armour, shield, *marks = row
            self.enemy_race = _RACE_OF_TYPE.get(kind, self.enemy_race)
            weapons, plating = _UPGRADES_OF_TYPE.get(_BASES.get(kind, kind), ("", ""))
            for name, level in ((weapons, attack), (plating, armour), ("ProtossShields", shield)):
                for reached in range(1, min(level, 3) + 1 if name else 1):
                    self._learn(upgrades.Upgrades[f"{name}Level{reached}"])
            for mark in marks:
                if mark in _UPGRADE_OF_BUFF:
                    self._learn(_UPGRADE_OF_BUFF[mark])

    def _learn(self, upgrade: int) -> None:
        self.enemy_upgrades[UPGRADES.index(int(upgrade))] = True


def _place(x: int, y: int, side: int) -> int:
    column, row = (min(max(value * PLACE_GRID // side, 0), PLACE_GRID - 1) for value in (x, y))
    return row * PLACE_GRID + column
