"""Skirmish, a small real-time strategy game: gather, train, scout and fight until one base has fallen.

Two sides stand at opposite corners of a map of 32 by 32 that looks the same from both. In mode `1v1` a seat
commands a side: workers carry resources to the base, which trains workers, spears, horses and bows; a spear
beats a horse beats a bow beats a spear. In `3v3` and `5v5` a seat is a hero, stronger than a fighter of its
kind and back 80 ticks after it dies, while the bases send waves of fighters by themselves.
A seat says with each decision after how many ticks (1 to 8) it wants the next, and its orders stand until
then and longer. A side sees only what is near its own units. Whoever destroys the enemy's base wins 1; after
512 ticks the stronger side gets half its lead.
All numbers are in `skirmish_rules.py`, all rules in docs/skirmish.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    GameSpec,
    Head,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    Vector,
    When,
)
from ludus.games.bots import RandomBot
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_batch import CommandedTables, SkirmishTables
from ludus.games.builtin.skirmish_bots import STRATEGIES
from ludus.games.builtin.skirmish_hero_bots import HERO_STRATEGIES
from ludus.games.builtin.skirmish_rules import ADVANCE, ATTACK, BOW, GATHER, HORSE, MOVE, SPEAR
from ludus.games.builtin.skirmish_view import FEATURES, HERO_SCALARS, PLANES, SCALARS, WHOLE
from ludus.games.game import Bot, GameBatch

Mode = Literal["1v1", "3v3", "5v5"]
HEROES: Mapping[str, tuple[int, ...]] = {
    "1v1": (),
    "3v3": (SPEAR, HORSE, BOW),
    "5v5": (SPEAR, HORSE, BOW, SPEAR, BOW),
}
"""The kinds of a side's heroes, by mode."""


@dataclass(frozen=True, kw_only=True)
class Skirmish:
    """Options: `mode`, `1v1` (a seat commands a side), `3v3` or `5v5` (a seat is a hero)."""

    mode: Mode = "1v1"

    def __post_init__(self) -> None:
        if self.mode not in HEROES:
            raise ValueError(f"Skirmish.mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")

    @cached_property
    def spec(self) -> GameSpec:
        heroes = HEROES[self.mode]
        places = max(1, len(heroes))
        observation = ObservationSpec(
            parts={
                "scalars": Vector(size=SCALARS + HERO_SCALARS * bool(heroes)),
                "entities": Entities(maximum=rules.ENTITIES, features=FEATURES, types=rules.NUM_KINDS),
                # Not uint8, which a network takes for shares of 255.
                "minimap": Planes(channels=PLANES, height=rules.CELLS, width=rules.CELLS, dtype="int8"),
            },
            critic={"whole": Vector(size=WHOLE)},
        )
        return GameSpec.symmetric(
            name="skirmish" if self.mode == "1v1" else f"skirmish {self.mode}",
            num_seats=2 * places,
            teams=(0,) * places + (1,) * places,
            observation=observation,
            action=_hero_action() if heroes else _side_action(),
            max_length=rules.LAST_TICK,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        heroes = HEROES[self.mode]
        if heroes:
            return SkirmishTables(self.spec, num_tables, heroes)
        return CommandedTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        strategies: Mapping[str, Bot] = HERO_STRATEGIES if HEROES[self.mode] else STRATEGIES
        return {"random": RandomBot(), **strategies}

    def tree(self) -> None:
        """None: the tree cannot be walked."""


def _targets() -> dict[str, Head]:
    return {
        "target_unit": Pointer(into="entities", when=When(head="action", values=(ATTACK,))),
        "target_point": Point(
            height=rules.CELLS, width=rules.CELLS, when=When(head="action", values=(MOVE, ADVANCE))
        ),
    }


def _side_action() -> ActionSpec:
    ordered = When(head="action", values=(MOVE, ADVANCE, ATTACK, GATHER))
    heads: dict[str, Head] = {
        "action": Choice(num=rules.NUM_ACTIONS),
        "delay": Choice(num=rules.LONGEST_DELAY, masked=False),
        "units": Pointer(into="entities", picks=rules.PICKS, when=ordered),
    }
    return ActionSpec(heads=heads | _targets())


def _hero_action() -> ActionSpec:
    heads: dict[str, Head] = {
        "action": Choice(num=rules.NUM_HERO_ACTIONS),
        "delay": Choice(num=rules.LONGEST_DELAY, masked=False),
    }
    return ActionSpec(heads=heads | _targets())
