"""PySC2's observations as parts: nothing is mixed up, categories stay apart, lists are cut and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pysc2")

from ludus.data.specs import Entities
from ludus.data.trees import Array, allocate
from ludus.games.adapters.pysc2 import EFFECT_X, EFFECT_Y, UNIT_X, UNIT_Y, PySC2
from ludus.games.adapters.pysc2_actions import FunctionCodec
from ludus.games.adapters.pysc2_history import ActionHistory
from ludus.games.adapters.pysc2_library import actions, buffs, features, units as unit_types, upgrades
from ludus.games.adapters.pysc2_observations import (
    NUM_TYPES,
    UNIT_CATEGORIES,
    UNIT_TYPES,
    Layers,
    ObservationCodec,
    SeenUnits,
    Unit,
    write_units,
)
from ludus.games.seat_rows import GameError


def planes_of(layers: Any, values: dict[str, Array], known: Any) -> dict[str, Array]:
    """Plane by name, of PySC2 layers that are zero but for the given ones."""
    stack = np.zeros((len(known), 4, 4), np.int32)
    for name, value in values.items():
        stack[getattr(known, name).index] = value
    planes = np.full((len(layers.names), 4, 4), 77, np.uint8)
    layers.write(stack, planes)
    return dict(zip(layers.names, planes, strict=True))


def test_scalars_become_shares_and_few_categories_flags() -> None:
    chosen = ("unit_hit_points", "height_map", "player_relative", "selected")
    layers = Layers(features.SCREEN_FEATURES, chosen, "the screen")
    relative = np.arange(16).reshape(4, 4) % 5
    hit_points = np.full((4, 4), 1599)
    planes = planes_of(
        layers,
        {
            "player_relative": relative,
            "unit_hit_points": hit_points,
            "height_map": np.full((4, 4), 200),
            "selected": relative == 1,
        },
        features.SCREEN_FEATURES,
    )
    assert list(planes)[2:] == [f"player_relative_{value}" for value in (1, 2, 3, 4)] + ["selected_1"]
    assert (planes["unit_hit_points"] == 255).all()
    assert (planes["height_map"] == 200).all()
    for value in (1, 2, 3, 4):
        assert (planes[f"player_relative_{value}"] == (relative == value) * 255).all()


def test_every_unit_type_has_bits_of_its_own() -> None:
    layers = Layers(features.SCREEN_FEATURES, ("unit_type",), "the screen")
    codes = set()
    for first in range(0, len(UNIT_TYPES), 16):
        chunk = np.resize(UNIT_TYPES[first : first + 16], 16).reshape(4, 4)
        planes = planes_of(layers, {"unit_type": chunk}, features.SCREEN_FEATURES)
        bits = np.stack(list(planes.values())).reshape(len(planes), 16).T
        assert set(np.unique(bits)) <= {0, 255}
        codes.update(map(tuple, bits))
    unknown = planes_of(layers, {"unit_type": np.full((4, 4), 3)}, features.SCREEN_FEATURES)
    codes.add(tuple(plane[0, 0] for plane in unknown.values()))
    nothing = planes_of(layers, {}, features.SCREEN_FEATURES)
    codes.add(tuple(plane[0, 0] for plane in nothing.values()))
    assert len(codes) == len(UNIT_TYPES) + 2


def test_a_wrong_layer_is_answered_with_the_nearest() -> None:
    with pytest.raises(GameError, match="the minimap has no layer 'player_relativ'; did you mean 'player_rel"):
        Layers(features.MINIMAP_FEATURES, ("player_relativ",), "the minimap")


def units(*rows: tuple[int, int]) -> Array:
    """PySC2's rows by type and alliance."""
    found = np.zeros((len(rows), len(Unit)), np.int64)
    for row, (kind, alliance) in enumerate(rows):
        found[row, [Unit.unit_type, Unit.alliance]] = kind, alliance
        found[row, [Unit.x, Unit.y, Unit.health_ratio]] = 10, 20, 255
    return found


def test_a_unit_is_its_type_then_flags_and_shares() -> None:
    rows = np.zeros((2, 37), np.float32)
    write_units(rows, units((48, 1), (9999, 4)), 40)
    assert UNIT_TYPES[int(rows[0, 0]) - 1] == 48  # a marine
    assert rows[1, 0] == 0  # of no known type
    assert rows[0, 1:5].tolist() == [1, 0, 0, 0]
    assert rows[1, 1:5].tolist() == [0, 0, 0, 1]
    assert (rows[0, UNIT_X], rows[0, UNIT_Y], rows[0, UNIT_Y + 1]) == (0.25, 0.5, 1.0)


def test_too_many_units_are_counted_and_own_ones_stay() -> None:
    seen = SeenUnits.of(units((48, 3), (48, 4), (48, 1), (48, 3), (48, 1)), 3)
    assert seen.unit_of_row.tolist() == [1, 2, 4]
    assert seen.alliance.tolist() == [4, 1, 1]
    assert seen.dropped == 2
    assert seen.row_of_unit == {1: 0, 2: 1, 4: 2}


def test_observations_of_the_mock_fill_every_array() -> None:
    source = PySC2(map_name="Simple64", screen=16, minimap=16, max_units=8, mock=True, builtin_bots=False)
    batch = source.tables(1)
    batch.reset(np.array([0]), np.array([0], np.uint64))
    view = batch.view.observation[0]
    assert view["units_length"][0].tolist() == [1, 1]
    part = source.spec.kinds[0].observation.parts["units"]
    assert isinstance(part, Entities)
    assert part.types == NUM_TYPES
    assert view["minimap"][0, 0].any()  # the camera
    np.testing.assert_allclose(view["scalars"][0, 0, :2], np.log1p([20, 50]))  # minerals, vespene
    batch.close()


def test_rows_behind_the_last_unit_are_zero() -> None:
    source = PySC2(map_name="Simple64", screen=16, minimap=16, max_units=4, mock=True, builtin_bots=False)
    codec, kind = ObservationCodec(source), source.spec.kinds[0]
    rows = allocate(kind.observation.arrays, ())
    rows["units"][:] = 7
    observation = {
        "feature_screen": np.zeros((27, 16, 16), np.int32),
        "feature_minimap": np.zeros((11, 16, 16), np.int32),
        "player": np.zeros(11),
        "game_loop": np.zeros(1),
        "home_race_requested": [1],
        "away_race_requested": [4],
        "upgrades": [],
        "feature_units": units((48, 1)),
    }
    assert codec.write(rows, observation).dropped == 0
    assert rows["units_length"] == 1
    assert not rows["units"][1:].any()
    assert rows["scalars"][-8:].tolist() == [1, 0, 0, 0, 0, 0, 0, 1]


def test_the_published_inputs() -> None:
    source = PySC2(
        map_name="Simple64",
        interface="raw",
        inputs="published",
        screen=0,
        minimap=0,
        max_units=4,
        max_delay=16,
        raw_resolution=40,
    )
    kind, codec, functions = source.spec.kinds[0], ObservationCodec(source), FunctionCodec(source)
    rows, history = allocate(kind.observation.arrays, ()), ActionHistory.alone(functions)
    marine, zealot = int(unit_types.Terran.Marine), int(unit_types.Protoss.Zealot)
    found = units((marine, 1), (marine, 1), (zealot, 4))
    stop = actions.RAW_FUNCTIONS.Stop_quick
    found[0, [Unit.order_length, Unit.order_id_0, Unit.order_progress_1]] = 1, int(stop.id), 50
    found[0, [Unit.buff_id_1, Unit.addon_unit_type]] = int(buffs.Buffs.Stimpack), int(unit_types.Terran.TechLab)
    found[2, Unit.shield_upgrade_level] = 1
    observation = {
        "player": np.arange(11),
        "game_loop": np.array([16 * 300]),
        "home_race_requested": [1],
        "away_race_requested": [4],
        "upgrades": [int(upgrades.Upgrades.Stimpack)],
        "raw_units": found,
        "raw_effects": np.array([[1, 4, 2, 2, 10, 30]]),
        "score_cumulative": np.arange(13),
    }
    queued = next(place for place, one in enumerate(functions.functions) if one.name == "Attack_pt")
    history.decide(dict.fromkeys(kind.action.heads, 0) | {"function": queued, "queued": 1}, 16 * 300 - 3)
    history.see(observation, 40)
    seen = codec.write(rows, observation, history)
    legal = allocate(kind.legal_arrays, ())
    functions.write_legal(legal, observation, seen.alliance, {int(stop.ability_id)})
    codec.write_available(rows, legal)
    np.testing.assert_allclose(rows["statistics"], np.log1p(np.arange(1, 11)))
    assert rows["home_race"].tolist() == [True, False, False, False]
    assert rows["away_race"].tolist() == [False, False, True, False]  # asked for random, and showed a zealot
    assert rows["time"][0] == 0.5
    np.testing.assert_allclose(rows["time"][[1, 33]], [np.sin(4800), np.cos(4800)], atol=1e-4)
    assert rows["upgrades"].sum() == rows["enemy_upgrades"].sum() == 1
    assert not (rows["upgrades"] & rows["enemy_upgrades"]).any()
    place = UNIT_TYPES.index(marine) + 1
    assert rows["unit_counts"][place] == pytest.approx(2**0.5)
    assert np.count_nonzero(rows["unit_counts"]) == 1
    assert [rows[name].nonzero()[0].tolist() for name in ("last_action", "last_delay", "last_queued")] == [
        [queued], [3], [2],
    ]  # fmt: skip
    names = [functions.functions[place].name for place in rows["available_actions"].nonzero()[0]]
    assert {"no_op", "raw_move_camera", "Stop_quick"} <= set(names)
    assert len(names) < 6
    first = rows["units"][0]
    categories = first[-len(UNIT_CATEGORIES) :].astype(int).tolist()
    assert (categories < np.array(UNIT_CATEGORIES)).all()
    assert categories[:4] == [int(stop.id), 0, 0, 0]
    assert categories[4] == 0
    assert categories[5] > 0
    assert UNIT_TYPES[categories[6] - 1] == int(unit_types.Terran.TechLab)
    assert first[-len(UNIT_CATEGORIES) - 3] == 0.5
    assert rows["effects_length"] == 1
    effect = rows["effects"][0]
    assert (effect[0], effect[EFFECT_X], effect[EFFECT_Y]) == (1, 0.25, 0.75)
    assert effect[1:5].tolist() == [0, 0, 0, 1]
