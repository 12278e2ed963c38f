"""Specs: the arrays that they ask for, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ludus.data.specs import (
    ActionSpec,
    Box,
    Choice,
    Entities,
    GameSpec,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)

OBSERVATION = ObservationSpec(
    parts={
        "scalars": Vector(size=3),
        "map": Planes(channels=2, height=4, width=5, dtype="uint8"),
        "units": Entities(maximum=6, features=7),
    },
    critic={"hidden": Entities(maximum=2, features=1)},
)
ACTION = ActionSpec(
    heads={
        "order": Choice(num=4),
        "target": Pointer(into="units", when=When(head="order", values=(1, 3))),
        "group": Pointer(into="units", picks=3),
        "place": Point(height=4, width=5),
        "free": Choice(num=2, masked=False),
        "push": Box(size=2, low=(-1.0, 0.0), high=2, when=When(head="order", values=(2,))),
    }
)
KIND = SeatKind(name="player", observation=OBSERVATION, action=ACTION)


def shapes(arrays: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (spec.shape, str(spec.dtype)) for name, spec in arrays.items()}


def test_arrays_of_an_observation() -> None:
    assert shapes(OBSERVATION.arrays) == {
        "scalars": ((3,), "float32"),
        "map": ((2, 4, 5), "uint8"),
        "units": ((6, 7), "float32"),
        "units_length": ((), "int32"),
        "critic.hidden": ((2, 1), "float32"),
        "critic.hidden_length": ((), "int32"),
    }


def test_arrays_of_an_action_and_of_its_masks() -> None:
    assert shapes(ACTION.arrays) == {
        "order": ((), "int32"),
        "target": ((), "int32"),
        "group": ((3,), "int32"),
        "place": ((), "int32"),
        "free": ((), "int32"),
        "push": ((2,), "float32"),
    }
    assert shapes(KIND.legal_arrays) == {"order": ((4,), "bool"), "target": ((6,), "bool"), "group": ((6,), "bool")}
    assert [KIND.num_options(head) for head in ACTION.heads] == [4, 6, 6, 20, 2, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Vector(size=0), "Vector.size must be at least 1, got 0"),
        (lambda: Planes(channels=1, height=-1, width=1), "Planes.height must be at least 1, got -1"),
        (lambda: Entities(maximum=0, features=1), "Entities.maximum must be at least 1, got 0"),
        (lambda: Choice(num=0), "Choice.num must be at least 1, got 0"),
        (lambda: Pointer(into="units", picks=0), "Pointer.picks must be at least 1, got 0"),
        (lambda: Point(height=1, width=0), "Point.width must be at least 1, got 0"),
        (lambda: Box(size=0), "Box.size must be at least 1, got 0"),
        (lambda: Box(size=2, low=(0.0,)), "Box.low must be one finite number or 2 of them, got (0.0,)"),
        (lambda: Box(size=1, high=float("inf")), "Box.high must be one finite number or 1 of them, got inf"),
        (lambda: Box(size=2, low=(0.0, 1.0), high=1.0), "Box.low must be below Box.high, got 1.0 and 1.0 for number 1"),
        (lambda: Box(size=1, low=0.1, high=0.1 + 1e-12), "must have a distance in float32, got 0.1 and 0.1"),
        (lambda: Box(size=1, low=-3e38, high=3e38), "distance in float32, got -3e+38 and 3e+38 for number 0"),
        (lambda: ActionSpec(heads={}), "needs at least one head"),
        (
            lambda: ActionSpec(heads={"a": Choice(num=2, when=When(head="b", values=(0,))), "b": Choice(num=2)}),
            "head 'a' depends on 'b', which is not an earlier Choice",
        ),
        (
            lambda: ActionSpec(heads={"a": Choice(num=2), "b": Choice(num=2, when=When(head="a", values=(2,)))}),
            "head 'b' depends on 'a' being 2, but that head has 2 options",
        ),
        (
            lambda: SeatKind(
                name="k", observation=OBSERVATION, action=ActionSpec(heads={"a": Pointer(into="scalars")})
            ),
            "head 'a' of kind 'k' points into 'scalars'",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def game(**changes: Any) -> GameSpec:
    other = SeatKind(name="other", observation=OBSERVATION, action=ACTION)
    facts: dict[str, Any] = {
        "name": "g",
        "kinds": (KIND, other),
        "seats": (0, 1, 0, 1),
        "teams": (0, 0, 1, 1),
        "max_length": 5,
    }
    return GameSpec(**{**facts, **changes})


def test_seats_kinds_and_teams() -> None:
    spec = game(seats=(1, 0, 0, 1), teams=(0, 1, 0, 1))
    assert (spec.num_seats, spec.num_teams) == (4, 2)
    assert spec.seats_of_kind == ((1, 2), (0, 3))
    assert spec.column_of_seat == (0, 0, 1, 1)
    assert spec.seats_of_team == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teams": (0, 0, 1)}, "g: 4 seats and 3 teams"),
        ({"seats": (), "teams": ()}, "g: 0 seats"),
        ({"teams": (0, 0, 2, 2)}, "teams must be numbered from 0 without gaps, got (0, 0, 2, 2)"),
        ({"seats": (0, 0, 0, 0)}, "every kind needs a seat and every seat a kind, got (0, 0, 0, 0)"),
        ({"seats": (0, 1, 2, 1)}, "every kind needs a seat and every seat a kind, got (0, 1, 2, 1)"),
        ({"max_length": 0}, "GameSpec.max_length must be at least 1, got 0"),
    ],
)
def test_a_game_that_does_not_add_up_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        game(**changes)


def test_a_symmetric_game_has_one_kind_and_a_team_per_seat() -> None:
    spec = GameSpec.symmetric(name="g", num_seats=3, observation=OBSERVATION, action=ACTION, max_length=2)
    assert (spec.seats, spec.teams, [kind.name for kind in spec.kinds]) == ((0, 0, 0), (0, 1, 2), ["player"])
    assert np.dtype("float32") == spec.kinds[0].observation.arrays["scalars"].dtype
    paired = GameSpec.symmetric(
        name="g", num_seats=4, observation=OBSERVATION, action=ACTION, max_length=2, teams=(0, 1, 0, 1)
    )
    assert paired.seats_of_team == ((0, 2), (1, 3))


def test_masks_say_whether_a_head_can_count() -> None:
    heads = {
        "order": Choice(num=3),
        "speed": Choice(num=2, masked=False, when=When(head="order", values=(1, 2))),
        "turn": Choice(num=2, when=When(head="speed", values=(0,))),
    }
    kind = SeatKind(name="k", observation=OBSERVATION, action=ActionSpec(heads=heads))
    moving, waiting = np.array([True, False, True]), np.array([True, False, False])
    assert all(kind.can_count(head, {"order": moving}) for head in heads)
    assert [head for head in heads if kind.can_count(head, {"order": waiting})] == ["order"]
