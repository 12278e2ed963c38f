"""What a seat of StarCraft II remembers: its last decision, its enemy, and what it has built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pysc2")

from ludus.data.trees import Array
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_actions import FunctionCodec, Unit
from ludus.games.adapters.pysc2_history import EFFECTS, FACTS, NUM_TYPES, UPGRADES, ActionHistory, type_codes
from ludus.games.adapters.pysc2_library import actions, buffs, units, upgrades

CODEC = FunctionCodec(PySC2(map_name="Simple64", interface="raw", max_units=16, max_delay=8))
OWN, ENEMY = 1, 4
SIDE = 64
Terran, Zerg, Protoss = units.Terran, units.Zerg, units.Protoss


def unit(kind: Any, tag: int, alliance: int = OWN, **facts: int) -> dict[str, int]:
    return {"unit_type": int(kind), "tag": tag, "alliance": alliance, **facts}


def seen(*found: dict[str, int], researched: tuple[Any, ...] = ()) -> dict[str, Array]:
    rows = np.zeros((len(found), len(Unit)), np.int64)
    for row, facts in enumerate(found):
        for name, value in facts.items():
            rows[row, Unit[name]] = value
    return {"raw_units": rows, "upgrades": np.array([int(one) for one in researched], np.int32)}


def code(kind: Any) -> int:
    return int(type_codes(np.array(int(kind))))


def known_upgrades(history: ActionHistory) -> set[str]:
    return {upgrades.Upgrades(UPGRADES[place]).name for place in np.flatnonzero(history.enemy_upgrades)}


def facts(history: ActionHistory, group: str) -> list[int]:
    """The places of a group whose facts are true."""
    start = sum(size for name, size in list(FACTS.items())[: list(FACTS).index(group)])
    return np.flatnonzero(history.strategy["built"][start : start + FACTS[group]]).tolist()


def option(name: str) -> int:
    return next(place for place, function in enumerate(CODEC.functions) if function.name == name)


def test_a_build_order_is_what_appears_after_the_start() -> None:
    history = ActionHistory.alone(CODEC)
    first = [unit(Terran.CommandCenter, 1), unit(Terran.SCV, 2)]
    history.see(seen(*first), SIDE)
    assert (history.strategy["build_order"] == -1).all()
    depot = unit(Terran.SupplyDepot, 3, x=32, y=16)
    history.see(seen(*first, depot), SIDE)
    history.see(seen(*first, depot, unit(Terran.Marine, 4), unit(Terran.Marine, 5)), SIDE)
    assert history.strategy["build_order"][:4].tolist() == [
        code(Terran.SupplyDepot), code(Terran.Marine), code(Terran.Marine), -1,
    ]  # fmt: skip
    assert history.strategy["build_place"][:2].tolist() == [32 * 128 + 64, 0]
    assert facts(history, "built_units") == sorted((code(Terran.SupplyDepot), code(Terran.Marine)))
    for number in range(6, 40):
        history.see(seen(unit(Terran.Marine, number)), SIDE)
    assert (history.strategy["build_order"] >= 0).all()
    history.begin()
    assert (history.strategy["build_order"] == -1).all()
    assert not history.strategy["built"].any()


def test_another_form_of_a_unit_is_not_built_but_a_morph_is() -> None:
    history = ActionHistory.alone(CODEC)
    history.see(seen(unit(Terran.Barracks, 1), unit(Zerg.Zergling, 2), unit(Zerg.Larva, 3)), SIDE)
    history.see(seen(unit(Terran.BarracksFlying, 1), unit(Zerg.ZerglingBurrowed, 2), unit(Zerg.Cocoon, 3)), SIDE)
    history.see(seen(unit(Terran.Barracks, 1), unit(Zerg.BanelingCocoon, 2), unit(Zerg.Broodling, 4)), SIDE)
    assert (history.strategy["build_order"] == -1).all()
    history.see(seen(unit(Zerg.Baneling, 2), unit(Zerg.Drone, 3), unit(Protoss.Zealot, 5, hallucination=1)), SIDE)
    assert history.strategy["build_order"][:3].tolist() == [code(Zerg.Baneling), code(Zerg.Drone), -1]


def test_effects_and_upgrades_are_facts_too() -> None:
    history = ActionHistory.alone(CODEC)
    action = dict.fromkeys(CODEC.spec.heads, 0)
    history.decide(action | {"function": option("Train_Marine_quick")}, 5)
    assert facts(history, "effects") == []
    storm = option("Effect_PsiStorm_pt")
    history.decide(action | {"function": storm, "queued": 1}, 9)
    ability = int(CODEC.functions[storm].ability_id)
    assert [EFFECTS[place] for place in facts(history, "effects")] == [ability]
    history.see(seen(researched=(upgrades.Upgrades.Blink,)), SIDE)
    assert [UPGRADES[place] for place in facts(history, "upgrades")] == [int(upgrades.Upgrades.Blink)]
    assert (history.last_option, history.last_queued, history.delay(20)) == (storm, 2, 11)
    history.decide(action | {"function": 0}, 12)
    assert (history.last_option, history.last_queued, history.delay(12)) == (0, 0, 0)


def test_specific_effects_count_as_the_general_one() -> None:
    every = FunctionCodec(PySC2(map_name="Simple64", interface="raw", max_units=16, specific_functions=True))
    history = ActionHistory.alone(every)
    place = next(place for place, one in enumerate(every.functions) if one.name == "Effect_Stim_Marine_quick")
    history.decide(dict.fromkeys(every.spec.heads, 0) | {"function": place}, 0)
    (found,) = facts(history, "effects")
    assert EFFECTS[found] == int(actions.RAW_FUNCTIONS.Effect_Stim_quick.ability_id)


def test_upgrades_of_the_enemy_are_read_off_its_units_and_kept() -> None:
    history = ActionHistory.alone(CODEC)
    marine = unit(Terran.Marine, 1, ENEMY, attack_upgrade_level=2)
    history.see(seen(unit(Terran.Marine, 9, attack_upgrade_level=3), marine), SIDE)
    assert history.enemy_race == 1
    assert known_upgrades(history) == {"TerranInfantryWeaponsLevel1", "TerranInfantryWeaponsLevel2"}
    history.begin()
    stalker = unit(Protoss.Stalker, 1, ENEMY, armor_upgrade_level=1, shield_upgrade_level=1)
    zealot = unit(Protoss.Zealot, 2, ENEMY, buff_id_1=int(buffs.Buffs.Charging))
    history.see(seen(stalker, zealot), SIDE)
    history.see(seen(), SIDE)
    assert history.enemy_race == 3
    assert known_upgrades(history) == {"ProtossGroundArmorsLevel1", "ProtossShieldsLevel1", "Charge"}


def test_types_that_pysc2_does_not_know_have_code_0() -> None:
    assert type_codes(np.array([9999, 0, int(Terran.Marine)])).tolist()[:2] == [0, 0]
    assert {code(kind) for race in (Terran, Zerg, Protoss) for kind in race} <= set(range(1, NUM_TYPES))
