"""Search spaces: draws stay inside, what is near follows its law, and bad ends are refused by name."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ludus.league.population import LogUniform, OneOf, Uniform

RATE = LogUniform(path="learner.learning_rate", low=1e-5, high=1e-1)
WEIGHT = Uniform(path="algorithm.entropy", low=0.0, high=0.02)
EPOCHS = OneOf(path="learner.epochs", options=(1, 2, 4, 8))
FACTORS = (0.8, 1.25)


@given(st.integers(0, 2**32), st.floats(1e-9, 1e3))
def test_what_is_drawn_or_near_is_inside(seed: int, value: float) -> None:
    rng = np.random.default_rng(seed)
    for space in (RATE, WEIGHT):
        for found in (space.draw(rng), space.begin(rng), space.near(value, FACTORS, rng)):
            assert space.low <= found <= space.high
    assert EPOCHS.draw(rng) in EPOCHS.options


def test_orders_of_magnitude_are_alike() -> None:
    rng = np.random.default_rng(1)
    drawn = [RATE.draw(rng) for _ in range(8_000)]
    counts = np.histogram(np.log10(drawn), bins=[-5, -4, -3, -2, -1])[0]
    assert (np.abs(counts - 2_000) < 200).all()


def test_uniform_numbers_are_alike() -> None:
    rng = np.random.default_rng(1)
    counts = np.histogram([WEIGHT.draw(rng) for _ in range(8_000)], bins=4, range=(0.0, 0.02))[0]
    assert (np.abs(counts - 2_000) < 200).all()


def test_near_a_number_is_one_factor_away_each_as_often() -> None:
    rng = np.random.default_rng(1)
    counts = Counter(round(RATE.near(1e-3, FACTORS, rng) / 1e-3, 9) for _ in range(2_000))
    assert set(counts) == set(FACTORS)
    assert abs(counts[0.8] - 1_000) < 100


def test_near_an_end_stays_there() -> None:
    rng = np.random.default_rng(1)
    assert {RATE.near(1e-1, FACTORS, rng) for _ in range(50)} == {1e-1 * 0.8, 1e-1}
    assert RATE.near(5.0, FACTORS, rng) == RATE.high


def test_near_an_option_are_itself_and_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    assert {EPOCHS.near(2, FACTORS, rng) for _ in range(100)} == {1, 2, 4}
    assert {EPOCHS.near(8, FACTORS, rng) for _ in range(100)} == {4, 8}


@pytest.mark.parametrize("value", [None, True, "fast", {"$type": "Linear", "start": 1e-3, "end": 0.0}])
def test_near_what_is_no_number_is_anywhere(value: object) -> None:
    drawn = {RATE.near(value, FACTORS, np.random.default_rng(seed)) for seed in range(20)}
    assert len(drawn) == 20
    assert {EPOCHS.near(3, FACTORS, np.random.default_rng(seed)) for seed in range(50)} == {1, 2, 4, 8}


def test_a_start_is_the_same_for_all() -> None:
    rng = np.random.default_rng(1)
    rate = LogUniform(path="learner.learning_rate", low=1e-5, high=1e-1, start=3e-4)
    weight = Uniform(path="algorithm.entropy", low=0.0, high=0.02, start=0.0)
    epochs = OneOf(path="learner.epochs", options=(1, 2), start=2)
    assert [space.begin(rng) for space in (rate, weight, epochs)] == [3e-4, 0.0, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogUniform(path="a.b", low=0.0, high=1.0), "LogUniform.low of 'a.b' must be above 0"),
        (lambda: Uniform(path="a.b", low=1.0, high=1.0), "Uniform of 'a.b' needs finite low < high"),
        (lambda: Uniform(path="a.b", low=0.0, high=float("inf")), "needs finite low < high"),
        (lambda: Uniform(path="a.b", low=0.0, high=1.0, start=2.0), "Uniform.start of 'a.b' must be from 0"),
        (lambda: OneOf(path="a.b", options=(1,)), "OneOf.options of 'a.b' needs two or more"),
        (lambda: OneOf(path="a.b", options=(1, 2), start=3), r"OneOf.start of 'a.b' must be one of \(1, 2\)"),
    ],
)
def test_bad_ends_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
