"""A kind of seat of the shape of StarCraft II, for the count of the full network's weights."""

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.models.alphastar_encoder import Scatter

_SIZES = {
    "agent_statistics": 10,
    "home_race": 5,
    "away_race": 5,
    "upgrades": 90,
    "enemy_upgrades": 90,
    "time": 64,
    "available_actions": 573,
    "unit_counts": 259,
    "mmr": 7,
    "built_units": 259,
    "effects": 83,
    "built_upgrades": 90,
    "build_order": 20 * 259,
    "last_delay": 128,
    "last_action": 573,
    "last_queued": 2,
}
_SEEN = {
    **{name: Vector(size=size) for name, size in _SIZES.items()},
    "entities": Entities(maximum=512, features=512, types=260),
    "minimap": Planes(channels=20, height=256, width=256, dtype="uint8"),
}
CONTEXT = ("home_race", "away_race", "available_actions", "built_units", "effects", "built_upgrades", "build_order")
SCATTER = tuple(
    Scatter(entities=f"{side}entities", onto=f"{side}minimap", x=1, y=2, scale=256.0) for side in ("", "critic.")
)
STARCRAFT = SeatKind(
    name="starcraft",
    observation=ObservationSpec(parts=_SEEN, critic={**_SEEN, "score": Vector(size=14)}),
    action=ActionSpec(
        heads={
            "action": Choice(num=573),
            "delay": Choice(num=128, masked=False),
            "queued": Choice(num=2, masked=False, when=When(head="action", values=tuple(range(100, 573)))),
            "units": Pointer(into="entities", picks=64, when=When(head="action", values=tuple(range(50, 573)))),
            "target_unit": Pointer(into="entities", when=When(head="action", values=tuple(range(300, 450)))),
            "target_point": Point(height=256, width=256, when=When(head="action", values=tuple(range(450, 573)))),
        }
    ),
    rewards=("build_order", "built_units", "upgrades", "effects"),
)
