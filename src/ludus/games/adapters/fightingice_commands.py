"""What a fighter can be told to do, and which keys that takes; and what is seen of a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

COMMANDS = (
    "NEUTRAL",
    "FORWARD_WALK",
    "DASH",
    "BACK_STEP",
    "CROUCH",
    "JUMP",
    "FOR_JUMP",
    "BACK_JUMP",
    "STAND_GUARD",
    "CROUCH_GUARD",
    "AIR_GUARD",
    "THROW_A",
    "THROW_B",
    "STAND_A",
    "STAND_B",
    "CROUCH_A",
    "CROUCH_B",
    "AIR_A",
    "AIR_B",
    "AIR_DA",
    "AIR_DB",
    "STAND_FA",
    "STAND_FB",
    "CROUCH_FA",
    "CROUCH_FB",
    "AIR_FA",
    "AIR_FB",
    "AIR_UA",
    "AIR_UB",
    "STAND_D_DF_FA",
    "STAND_D_DF_FB",
    "STAND_F_D_DFA",
    "STAND_F_D_DFB",
    "STAND_D_DB_BA",
    "STAND_D_DB_BB",
    "AIR_D_DF_FA",
    "AIR_D_DF_FB",
    "AIR_F_D_DFA",
    "AIR_F_D_DFB",
    "AIR_D_DB_BA",
    "AIR_D_DB_BB",
    "STAND_D_DF_FC",
)
"""The options of the action head, in order. A command that cannot be carried out now does nothing."""

HELD = frozenset({"FORWARD_WALK", "CROUCH", "STAND_GUARD", "CROUCH_GUARD", "AIR_GUARD"})
"""Go on for as long as their key is down."""

NUM_ACTIONS, NUM_STATES = 56, 4
"""What a fighter can be doing (`Action` of pyftg), and how it stands (`State`)."""
PROJECTILES = 2
"""Seen of each side, the first ones."""
_WIDTH, _HEIGHT = 960.0, 640.0
_CHARACTER = 11 + NUM_STATES + NUM_ACTIONS
_PROJECTILE = 6
OBSERVATION = 2 * _CHARACTER + 2 * PROJECTILES * _PROJECTILE + 2


def keys_of(command: str, command_center: Any, faces_right: bool) -> list[str]:
    """The keys of each frame, by pyftg's own table of commands."""
    if command == COMMANDS[0]:
        return []
    center = command_center()
    center.set_frame_data(_Facing(faces_right), True)
    center.command_call(command)
    return ["".join(name for name in "ABCURDL" if getattr(key, name)) for key in center.get_skill_keys()]


class _Facing:
    """All that pyftg needs to know of a frame to turn a command into keys."""

    def __init__(self, faces_right: bool) -> None:
        self._faces_right = faces_right

    def is_front(self, player: bool) -> bool:
        return self._faces_right


def look(frame: Any, side: int, scale: tuple[float, float], frames: int) -> NDArray[np.float32]:
    """What a side sees of a frame: itself, the other, what flies about, and the time, all about -1 to 1."""
    seen = np.zeros(OBSERVATION, np.float32)
    if frame.empty_flag or len(frame.character_data) < 2:
        return seen  # nothing is known yet: what is seen lags behind
    for place, which in enumerate((side, 1 - side)):
        seen[place * _CHARACTER : (place + 1) * _CHARACTER] = _character(frame.character_data[which], scale)
        flying = [one for one in frame.projectile_data if one.player_number == (which == 0)]
        for number, one in enumerate(flying[:PROJECTILES]):
            start = 2 * _CHARACTER + (place * PROJECTILES + number) * _PROJECTILE
            seen[start : start + _PROJECTILE] = _projectile(one)
    seen[-2:] = (frame.current_frame_number / frames, frame.current_round / 3.0)
    return seen


def _character(one: Any, scale: tuple[float, float]) -> NDArray[np.float32]:
    row = np.zeros(_CHARACTER, np.float32)
    row[:11] = (
        one.hp / scale[0],
        one.energy / scale[1],
        one.x / _WIDTH,
        one.y / _HEIGHT,
        one.speed_x / 20.0,
        one.speed_y / 28.0,
        one.front,
        one.control,
        one.remaining_frame / 70.0,
        min(one.hit_count, 10) / 10.0,
        one.hit_confirm,
    )
    if 0 <= one.state < NUM_STATES:
        row[11 + one.state] = 1.0
    if 0 <= one.action < NUM_ACTIONS:
        row[11 + NUM_STATES + one.action] = 1.0
    return row


def _projectile(one: Any) -> tuple[float, ...]:
    area = one.current_hit_area
    return (
        1.0,
        (area.left + area.right) / 2 / _WIDTH,
        (area.top + area.bottom) / 2 / _HEIGHT,
        one.speed_x / 20.0,
        one.speed_y / 20.0,
        one.hit_damage / 200.0,
    )
