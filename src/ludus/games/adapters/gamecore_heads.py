"""What a hero of Honor of Kings is told: the heads of an action, and how they are written for the game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, When

BUTTONS_1V1 = (
    "none", "none_2", "move", "attack", "skill_1", "skill_2", "skill_3", "heal", "chosen_skill", "recall",
    "skill_4", "equipment",
)  # fmt: skip
BUTTONS_3V3 = (
    "none", "none_2", "move", "attack", "skill_1", "skill_2", "skill_3", "skill_4", "chosen_skill", "recall",
    "equipment", "heal", "friend",
)  # fmt: skip
_MOVE, _ATTACK, _RECALL = 2, 3, 9
_PLACES, _TARGETS = 16, 8
"""Of the smaller game: steps along a side of what can be pointed at, and things to aim at."""
_SIZES_1V1 = (len(BUTTONS_1V1), _PLACES, _PLACES, _PLACES, _PLACES, len(BUTTONS_1V1) * _TARGETS)
LEGAL_1V1 = sum(_SIZES_1V1)


def _skills(buttons: Sequence[str]) -> tuple[int, ...]:
    return tuple(number for number in range(_ATTACK + 1, len(buttons)) if number != _RECALL)


def _when(*buttons: int) -> When:
    return When(head="button", values=buttons)


def heads_1v1() -> ActionSpec:
    """What may be aimed at depends on the button, so every button that aims has a head of its own for it."""
    skills = _skills(BUTTONS_1V1)
    heads = {"button": Choice(num=len(BUTTONS_1V1))}
    heads |= {name: Choice(num=_PLACES, when=_when(_MOVE)) for name in ("move_x", "move_z")}
    heads |= {name: Choice(num=_PLACES, when=_when(*skills)) for name in ("skill_x", "skill_z")}
    for button in (_ATTACK, *skills):
        heads[f"target_{BUTTONS_1V1[button]}"] = Choice(num=_TARGETS, when=_when(button))
    return ActionSpec(heads=heads)


def heads_3v3() -> ActionSpec:
    """Without masks: the library shows what was legal only after it has acted, and then acts otherwise."""
    skills = _skills(BUTTONS_3V3)
    return ActionSpec(
        heads={
            "button": Choice(num=len(BUTTONS_3V3), masked=False),
            "move": Choice(num=25, masked=False, when=_when(_MOVE)),
            "offset_x": Choice(num=42, masked=False, when=_when(*skills)),
            "offset_z": Choice(num=42, masked=False, when=_when(*skills)),
            "target": Choice(num=39, masked=False, when=_when(_ATTACK, *skills)),
        }
    )


def legal_1v1(flags: Sequence[int]) -> dict[str, NDArray[np.bool_]]:
    """Masks by head from the game's row of flags: one per option, and for the target one per button too."""
    if len(flags) != LEGAL_1V1:
        raise ValueError(f"legal_action has {len(flags)} flags, expected {LEGAL_1V1}")
    parts = np.split(np.array(flags, np.bool_), np.cumsum(_SIZES_1V1)[:-1])
    legal = dict(zip(("button", "move_x", "move_z", "skill_x", "skill_z"), parts[:5], strict=True))
    targets = parts[5].reshape(len(BUTTONS_1V1), _TARGETS)
    for button in (_ATTACK, *_skills(BUTTONS_1V1)):
        legal[f"target_{BUTTONS_1V1[button]}"] = targets[button]
    for name, mask in legal.items():
        if name != "button" and not mask.any():
            mask[0] = True  # not used with this button, but a head that counts needs an option
    return legal


def actions_1v1(action: Mapping[str, int]) -> list[int]:
    """Button, move x and z, skill x and z, target."""
    button = action["button"]
    target = action.get(f"target_{BUTTONS_1V1[button]}", 0)
    return [button, *(action[name] for name in ("move_x", "move_z", "skill_x", "skill_z")), target]


def actions_3v3(action: Mapping[str, int]) -> list[int]:
    return [action[name] for name in ("button", "move", "offset_x", "offset_z", "target")]
