"""PySC2's functions as heads: every function both ways, and PySC2 takes what our masks allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pysc2")

from ludus.data.specs import Choice, Point, Pointer
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_actions import FUNCTION, FunctionCodec, UnknownFunctionError
from ludus.games.adapters.pysc2_library import actions, features, messages, mock_sc2_env, sc2_env
from ludus.games.adapters.pysc2_tables import interface_options
from ludus.games.seat_rows import GameError

ON_SCREEN = PySC2(map_name="Simple64", screen=32, minimap=16, specific_functions=True, mock=True)
RAW = PySC2(
    map_name="Simple64",
    interface="raw",
    screen=0,
    minimap=0,
    max_units=40,
    max_selected=5,
    raw_resolution=24,
    specific_functions=True,
    mock=True,
)
UNIT_OF_ROW = np.arange(40)[::-1]
"""Rows are not in PySC2's order, so that a mix-up shows."""
ROW_OF_UNIT = {int(unit): row for row, unit in enumerate(UNIT_OF_ROW)}


def features_of(source: PySC2) -> Any:
    interface = features.parse_agent_interface_format(**interface_options(source))
    players = [sc2_env.Agent(sc2_env.Race.terran)]
    env = mock_sc2_env.SC2TestEnv(players=players, agent_interface_format=interface)
    (found,) = env._features
    found._raw_tags = np.arange(1000, 1040)  # what PySC2 remembers of the units it has shown
    return found


def random_action(codec: FunctionCodec, option: int, rng: np.random.Generator) -> dict[str, Any]:
    """With random arguments; heads that do not count are left blank."""
    action = codec.blank()
    action[FUNCTION] = option
    for name, head in codec.spec.heads.items():
        if name == FUNCTION or (head.when is not None and option not in head.when.values):
            continue
        if isinstance(head, Choice):
            action[name] = int(rng.integers(head.num))
        elif isinstance(head, Point):
            action[name] = int(rng.integers(head.height * head.width))
        elif head.picks == 1:
            action[name] = int(rng.integers(40))
        else:
            count = int(rng.integers(1, head.picks + 1))
            action[name] = [*rng.permutation(40)[:count].tolist(), *[-1] * (head.picks - count)]
    return action


@pytest.mark.parametrize(("source", "count"), [(ON_SCREEN, 573), (RAW, 564)], ids=["on the screen", "raw"])
def test_every_function_goes_both_ways_and_pysc2_takes_it(source: PySC2, count: int) -> None:
    codec, shown, rng = FunctionCodec(source), features_of(source), np.random.default_rng(0)
    valid = shown.action_spec()
    assert len(codec.functions) == len(valid.functions) == count
    for option, function in enumerate(valid.functions):
        action = random_action(codec, option, rng)
        call = codec.decode(action, UNIT_OF_ROW)
        assert int(call.function) == int(function.id)
        for argument, values in zip(function.args, call.arguments, strict=True):
            if argument.name in ("unit_tags", "target_unit_tag"):
                assert all(0 <= value < 40 for value in values)
            else:
                assert len(values) == len(argument.sizes), argument
                assert all(0 <= value < size for value, size in zip(values, argument.sizes, strict=True))
        message = shown.transform_action(None, call, skip_available=True)
        assert isinstance(message, messages.Action)
        assert codec.encode(call, ROW_OF_UNIT) == action


@pytest.mark.parametrize("source", [ON_SCREEN, RAW], ids=["on the screen", "raw"])
def test_heads_have_the_sizes_of_the_arguments(source: PySC2) -> None:
    codec, types = FunctionCodec(source), features_of(source).action_spec().types
    assert [name for name in codec.spec.heads if name != FUNCTION] != []
    assert set(codec.spec.heads) - {FUNCTION} == set(types._fields)
    for name, head in codec.spec.heads.items():
        if name == FUNCTION:
            continue
        sizes = getattr(types, name).sizes
        if isinstance(head, Choice):
            assert (head.num,) == sizes
        elif isinstance(head, Point):
            assert (head.width, head.height) == sizes
        assert head.when is not None
        takes = [name in [one.name for one in function.args] for function in codec.functions]
        assert head.when.values == tuple(np.flatnonzero(takes))


def test_what_the_game_reports_of_an_action_is_that_action() -> None:
    """The way that actions take in replays: PySC2's message, reversed by PySC2, then encoded."""
    codec, shown, rng = FunctionCodec(ON_SCREEN), features_of(ON_SCREEN), np.random.default_rng(1)
    differ = set()
    for option, function in enumerate(codec.functions):
        action = random_action(codec, option, rng)
        message = shown.transform_action(None, codec.decode(action), skip_available=True)
        again = codec.encode(shown.reverse_action(message))
        if function.name == "select_rect":  # the game has the corners in order
            action, again = ({FUNCTION: one[FUNCTION], "select_add": one["select_add"]} for one in (action, again))
        if again != action:
            differ.add(function.name)
    # Two functions have the same ability and arguments as another one: PySC2 cannot tell them apart.
    twins = {
        function.name
        for function in codec.functions
        if function.ability_id
        and sum(
            other.ability_id == function.ability_id and other.function_type is function.function_type
            for other in codec.functions
        )
        > 1
    }
    assert differ <= twins


def test_a_choice_of_functions_keeps_only_their_arguments() -> None:
    source = PySC2(map_name="MoveToBeacon", functions=("select_army", "Move_screen"), mock=True)
    codec = FunctionCodec(source)
    assert [function.name for function in codec.functions] == ["no_op", "select_army", "Move_screen"]
    assert list(codec.spec.heads) == [FUNCTION, "queued", "select_add", "screen"]
    with pytest.raises(UnknownFunctionError, match="Attack_screen is not among the functions"):
        codec.encode(actions.FUNCTIONS.Attack_screen("now", [1, 1]))


def test_a_wrong_function_is_answered_with_the_nearest() -> None:
    with pytest.raises(GameError, match="no function 'move_screen'; did you mean 'Move_screen'"):
        PySC2(map_name="MoveToBeacon", functions=("move_screen",), mock=True).spec  # noqa: B018


def observed(**lists: int) -> dict[str, Any]:
    names = ("multi_select", "build_queue", "production_queue", "cargo")
    found: dict[str, Any] = {name: np.zeros((lists.get(name, 0), 7)) for name in names}
    wanted = ("no_op", "select_unit", "build_queue", "unload", "Attack_screen")
    found["available_actions"] = [int(actions.FUNCTIONS[name].id) for name in wanted]
    return found


def legal_of(codec: FunctionCodec, observation: Any, alliance: Any) -> dict[str, Any]:
    sizes = {name: getattr(head, "num", 40) for name, head in codec.spec.heads.items() if head.masked}
    legal = {name: np.ones(size, np.bool_) for name, size in sizes.items()}
    codec.write_legal(legal, observation, np.asarray(alliance))
    return legal


def test_what_is_available_is_legal_and_lists_have_as_many_options_as_rows() -> None:
    codec = FunctionCodec(ON_SCREEN)
    legal = legal_of(codec, observed(multi_select=3, production_queue=2), [])
    names = [codec.functions[option].name for option in np.flatnonzero(legal[FUNCTION])]
    assert names == ["no_op", "select_unit", "build_queue", "Attack_screen"]  # nobody is there to unload
    assert legal["select_unit_id"].sum() == 3
    assert legal["build_queue_id"].sum() == 2


def test_raw_actions_are_for_own_units_and_targets_are_any() -> None:
    codec = FunctionCodec(RAW)
    legal = legal_of(codec, {}, [1, 4, 1, 3])
    assert np.flatnonzero(legal["unit_tags"]).tolist() == [0, 2]
    assert np.flatnonzero(legal["target_unit_tag"]).tolist() == [0, 1, 2, 3]
    assert legal[FUNCTION].all()
    without_own = legal_of(codec, {}, [4, 3])
    names = [codec.functions[option].name for option in np.flatnonzero(without_own[FUNCTION])]
    assert names == ["no_op", "raw_move_camera"]


def test_units_beyond_the_picks_are_left_out() -> None:
    codec = FunctionCodec(RAW)
    assert isinstance(codec.spec.heads["unit_tags"], Pointer)
    call = actions.RAW_FUNCTIONS.Stop_quick("now", [3, 5, 3, 99, 7, 9, 11, 13])
    assert codec.encode(call, ROW_OF_UNIT)["unit_tags"] == [ROW_OF_UNIT[unit] for unit in (3, 5, 7, 9, 11)]
    with pytest.raises(UnknownFunctionError, match="none of the units"):
        codec.encode(actions.RAW_FUNCTIONS.Stop_quick("now", [99]), ROW_OF_UNIT)
