"""Episodes with every form of column, drawn at random: what a dataset is given in the tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from ludus.data.replay import DecodedReplay, Episode, EpisodeFacts, Outcome, column_specs
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
from ludus.data.trees import Tree

KIND = SeatKind(
    name="player",
    observation=ObservationSpec(
        parts={
            "scalars": Vector(size=3),
            "units": Entities(maximum=5, features=2, types=4),
            "map": Planes(channels=2, height=3, width=3),
            "mask": Planes(channels=1, height=3, width=3, dtype="bool"),
            "colours": Planes(channels=1, height=2, width=2, dtype="uint8"),
        },
        critic={"whole": Vector(size=2)},
    ),
    action=ActionSpec(
        heads={
            "order": Choice(num=4),
            "who": Pointer(into="units", picks=3, when=When(head="order", values=(1, 2))),
            "where": Point(height=20, width=20, when=When(head="order", values=(2,))),
        }
    ),
    rewards=("bonus",),
)
STRATEGY = (4, 10)
OUTCOMES: tuple[Outcome, ...] = ("win", "draw", "loss")


def columns(rng: np.random.Generator, rows: int, values: int = 7) -> Tree:
    """`values`: how many different ones the float planes have."""
    drawn: Tree = {}
    for name, spec in column_specs(KIND).items():
        shape = (rows, *spec.shape)
        if spec.dtype == np.bool_:
            drawn[name] = rng.random(shape) < 0.5
        elif spec.dtype == np.float32:
            drawn[name] = rng.standard_normal(shape).astype(np.float32)
        else:
            drawn[name] = rng.integers(0, 100, shape).astype(spec.dtype)
    drawn["observation.map"] = (rng.integers(0, values, (rows, 2, 3, 3)) * 0.25).astype(np.float32)
    drawn["observation.units"][..., 0] = rng.integers(0, 4, (rows, 5))
    lengths = drawn["observation.units_length"] = rng.integers(0, 6, rows).astype(np.int32)
    drawn["observation.units"][np.arange(5) >= lengths[:, None]] = 0  # as a reader gives them back
    drawn["action.order"] = rng.integers(0, 4, rows).astype(np.int32)
    drawn["action.who"] = rng.integers(-1, 5, (rows, 3)).astype(np.int32)
    drawn["action.where"] = rng.integers(0, 400, rows).astype(np.int32)
    drawn["over"] = np.arange(rows) == rows - 1
    return drawn


def episode(
    rng: np.random.Generator, name: str, seat: int, decisions: int, *, cut: bool = False, values: int = 7
) -> Episode:
    drawn = columns(rng, decisions + cut, values)
    drawn["over"][-1] = not cut
    return Episode(
        facts=EpisodeFacts(
            replay=name,
            game="made",
            map="plain",
            version="1",
            matchup=("ann", "bob"),
            player=("ann", "bob")[seat],
            seat=seat,
            outcome=OUTCOMES[int(rng.integers(3))],
            score=float(rng.integers(5)),
            length=decisions + 3,
        ),
        columns=drawn,
        has_bootstrap=cut,
        build_order=rng.integers(-1, 9, STRATEGY[0]).astype(np.int16),
        built=rng.random(STRATEGY[1]) < 0.5,
    )


def replays(number: int, seed: int = 0, values: int = 7) -> list[DecodedReplay]:
    """Two seats each; every fifth gives nothing, and every third episode was cut off."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(number):
        name = f"games/{index:03d}.replay"
        if index % 5 == 4:
            made.append(DecodedReplay(name=name, skipped="damaged: its checksum is wrong"))
            continue
        both = tuple(
            episode(rng, name, seat, int(rng.integers(1, 40)), cut=(index + seat) % 3 == 0, values=values)
            for seat in range(2)
        )
        made.append(DecodedReplay(name=name, episodes=both[: 1 + index % 2], dropped=Counter(player=1 - index % 2)))
    return made


def more_and_more_values() -> list[DecodedReplay]:
    """First few different ones in the float planes, then more than codes can tell apart."""
    later = [replace(one, name=f"more/{one.name}") for one in replays(4, seed=1, values=2000)]
    return [*replays(4, values=40), *later]
