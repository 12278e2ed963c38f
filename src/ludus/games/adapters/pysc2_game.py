"""From the settings of a `PySC2` game to its spec and its tables."""

from __future__ import annotations

from typing import Any

from ludus.data.specs import ActionSpec, GameSpec, ObservationSpec
from ludus.games.adapters.pysc2 import PySC2
from ludus.games.adapters.pysc2_library import sc2_env
from ludus.games.adapters.pysc2_observations import (
    DELAY,
    FUNCTION,
    FunctionCodec,
    ObservationCodec,
    minimap_layers,
    screen_layers,
)
from ludus.games.adapters.pysc2_tables import GameSetup, Rules, SC2Tables, find_map
from ludus.games.seat_rows import GameError

_MINI_GAME_SECONDS = {
    "BuildMarines": 900,
    "CollectMineralsAndGas": 420,
    "CollectMineralShards": 120,
    "DefeatRoaches": 120,
    "DefeatZerglingsAndBanelings": 120,
    "FindAndDefeatZerglings": 180,
    "MoveToBeacon": 120,
}
"""After which these maps end by themselves; PySC2 says that they have no limit."""
_STEPS_A_SECOND = 16


def spec_of(source: PySC2) -> GameSpec:
    seats = num_seats(source)
    actions = action_codec(source)
    if source.builtin_bots and seats == 2 and not _has_mark(actions.spec):
        raise GameError("built-in bots need a function that takes an argument; or set builtin_bots=false")
    loops = game_steps(source)
    return GameSpec.symmetric(
        name=f"pysc2:{source.map_name}",
        num_seats=seats,
        observation=ObservationSpec(parts=observation_codec(source).parts),
        action=actions.spec,
        max_length=(loops if source.max_delay else -(-loops // source.step_mul)) + 2,
        zero_sum=seats == 2,
        timed=source.max_delay > 0,
    )


def tables_of(source: PySC2, num_tables: int) -> SC2Tables:
    return SC2Tables(source.spec, rules_of(source), num_tables)


def rules_of(source: PySC2) -> Rules:
    seats = num_seats(source)
    return Rules(
        setup=GameSetup(
            map_name=source.map_name,
            step_mul=source.step_mul,
            game_steps_per_episode=game_steps(source),
            interface=interface_options(source),
            version=source.version,
            time_limit_s=source.time_limit_s,
            episodes_per_process=source.episodes_per_process,
            fast_restart=source.fast_restart,
            mock=source.mock,
        ),
        races=source.races * seats if len(source.races) == 1 else source.races,
        opponent=source.opponent,
        lobby=source.builtin_bots and seats == 2,
        wins=seats == 2,
        actions=action_codec(source),
        observations=observation_codec(source),
    )


def num_seats(source: PySC2) -> int:
    players = find_map(source.map_name).players
    if players == 1 and source.opponent is not None:
        raise GameError(f"{source.map_name} is for one player: there is no place for an opponent")
    seats = 1 if players == 1 or source.opponent is not None else 2
    if len(source.races) not in (1, seats):
        raise GameError(f"races names {len(source.races)} races for {seats} seats: give one, or one a seat")
    return seats


def game_steps(source: PySC2) -> int:
    """The most game steps of an episode."""
    own: int = find_map(source.map_name).game_steps_per_episode
    if source.map_name in _MINI_GAME_SECONDS:
        # Two decisions more, so that the map's own end comes first.
        last = max(source.step_mul, source.max_delay)
        own = _MINI_GAME_SECONDS[source.map_name] * _STEPS_A_SECOND + 2 * last
    chosen = own if source.game_steps_per_episode is None else source.game_steps_per_episode
    most: int = sc2_env.MAX_STEP_COUNT
    return min(chosen, most) if chosen > 0 else most


def action_codec(source: PySC2) -> FunctionCodec:
    return FunctionCodec(
        raw=source.interface == "raw",
        names=source.functions,
        specific=source.specific_functions,
        max_delay=source.max_delay,
        sizes=_sizes(source),
        picks=source.max_selected,
    )


def observation_codec(source: PySC2) -> ObservationCodec:
    return ObservationCodec(
        screen=screen_layers(source.screen_layers) if source.screen and source.screen_layers else None,
        minimap=minimap_layers(source.minimap_layers) if source.minimap and source.minimap_layers else None,
        sizes=_sizes(source),
        max_units=source.max_units,
        raw=source.interface == "raw",
        upgrades=find_map(source.map_name).players != 1,
    )


def interface_options(source: PySC2) -> dict[str, Any]:
    """For PySC2's `parse_agent_interface_format`."""
    raw = source.interface == "raw"
    options: dict[str, Any] = {
        "feature_screen": source.screen or None,
        "feature_minimap": source.minimap or None,
        "use_feature_units": bool(source.max_units) and not raw,
        "use_raw_units": raw,
        "use_raw_actions": raw,
        "hide_specific_actions": not source.specific_functions,
        "crop_to_playable_area": True,
        "raw_crop_to_playable_area": raw,
    }
    if raw:
        options |= {"raw_resolution": source.raw_resolution, "max_selected_units": source.max_selected}
    return options


def _sizes(source: PySC2) -> dict[str, int]:
    return {"screen": source.screen, "minimap": source.minimap, "world": source.raw_resolution}


def _has_mark(action: ActionSpec) -> bool:
    """Whether there is a head in which a bot can say that the computer takes its seat."""
    return any(name not in (FUNCTION, DELAY, "unit_tags") for name in action.heads)
