"""The settings of a population: who is chosen as a donor, and what a member goes on with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ludus.league.payoff import PayoffRules
from ludus.league.population import BinaryTournament, Lead, LogUniform, OneOf, Population, Truncation, Uniform
from ludus.league.rules import LeagueRules, Role

RATE = LogUniform(path="learner.learning_rate", low=1e-5, high=1e-1)
ENTROPY = Uniform(path="algorithm.entropy", low=0.0, high=0.02)


def population(**changes: Any) -> Population:
    return Population(**{"search": (RATE, ENTROPY), "every": 100, **changes})


def ahead(*by: float) -> dict[str, Lead]:
    """The leads of members a, b, c, ... over the one that is judged."""
    return {name: Lead(by=one, standard_error=1.0) for name, one in zip("abcdefghi", by, strict=False)}


def chosen(selection: Truncation | BinaryTournament, leads: dict[str, Lead]) -> set[str | None]:
    return {selection.choose(leads, np.random.default_rng(seed)) for seed in range(200)}


@pytest.mark.parametrize(
    ("by", "donors"),
    [
        ((1.0,), {"a"}),
        ((-1.0,), {None}),
        ((1.0, 3.0, 2.0), {"b"}),
        ((-1.0, 3.0, 2.0), {None}),  # one of four is worse, and the bottom fifth of four is one
        ((3.0, 9.0, 1.0, 2.0, 8.0, 4.0, 5.0, 6.0, 7.0), {"b", "e"}),  # the top fifth of ten is two
        ((-1.0, 9.0, 1.0, 2.0, 8.0, 4.0, 5.0, 6.0, 7.0), {"b", "e"}),  # so is the bottom fifth
        ((-1.0, -9.0, 1.0, 2.0, 8.0, 4.0, 5.0, 6.0, 7.0), {None}),
        ((), {None}),
    ],
)
def test_truncation(by: tuple[float, ...], donors: set[str | None]) -> None:
    assert chosen(Truncation(), ahead(*by)) == donors


def test_equals_are_not_worse_and_the_first_of_them_gives() -> None:
    assert chosen(Truncation(), ahead(0.0, 0.0, 5.0, 5.0)) == {"c"}


def test_donors_are_drawn_alike() -> None:
    leads, rng = ahead(5.0, 5.0, 5.0, 5.0), np.random.default_rng(1)
    counts = Counter(Truncation(top=0.5).choose(leads, rng) for _ in range(1_000))
    assert set(counts) == {"a", "b"}
    assert abs(counts["a"] - 500) < 75


def test_a_binary_tournament_meets_anybody() -> None:
    leads = {
        "weak": Lead(by=-50.0, standard_error=1.0, win_rate=0.4),
        "even": Lead(by=10.0, standard_error=1.0, win_rate=0.69),
        "strong": Lead(by=150.0, standard_error=1.0, win_rate=0.7),
    }
    assert chosen(BinaryTournament(), leads) == {None, "strong"}
    assert chosen(BinaryTournament(min_win_rate=0.5), leads) == {None, "even", "strong"}
    assert chosen(BinaryTournament(), {}) == {None}
    assert chosen(BinaryTournament(), ahead(1.0)) == {"a"}, "scores have no win rate"


def test_new_members_differ_and_can_be_repeated() -> None:
    drawn = [population().new_settings(7, f"main_{index}") for index in range(50)]
    assert len({settings[RATE.path] for settings in drawn}) == 50
    assert drawn[3] == population().new_settings(7, "main_3") != population().new_settings(8, "main_3")


def test_exploring_multiplies_or_draws_anew() -> None:
    donated = {RATE.path: 1e-3, ENTROPY.path: 0.01, "learner.epochs": 3}
    rng = np.random.default_rng(1)
    tries = [population(resample_probability=0.3).explore(donated, rng) for _ in range(2_000)]
    assert all(set(settings) == {RATE.path, ENTROPY.path} for settings in tries)
    for path, value in ((RATE.path, 1e-3), (ENTROPY.path, 0.01)):
        factors = Counter(round(settings[path] / value, 9) for settings in tries)
        assert abs(factors[0.8] - 700) < 90
        assert abs(factors[1.25] - 700) < 90
    never = population(resample_probability=0.0)
    assert {never.explore(donated, rng)[RATE.path] for _ in range(100)} == {1e-3 * 0.8, 1e-3 * 1.25}
    always = population(resample_probability=1.0)
    assert len({always.explore(donated, rng)[RATE.path] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": ()}, "Population.search is empty"),
        ({"search": (RATE, RATE)}, "Population.search has 'learner.learning_rate' twice"),
        (
            {"search": (RATE, OneOf(path="learner.learning_rate.start", options=(1.0, 2.0)))},
            "'learner.learning_rate.start', which is a part of it",
        ),
        ({"every": 0}, "Population.every must be from 1"),
        ({"ready_after": -1}, "Population.ready_after must be at least 0"),
        ({"fitness": "ratings"}, "Population.fitness is 'ratings', not one of .*did you mean 'rating'"),
        ({"min_games": 0.0}, "Population.min_games must be above 0 and finite"),
        ({"confidence": 1.0}, r"Population.confidence must be in \[0.5, 1\)"),
        ({"factors": (0.0, 2.0)}, "Population.factors must all be positive"),
        ({"resample_probability": 1.5}, "Population.resample_probability must be from 0 to 1"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        population(**changes)


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_shares_must_not_overlap(share: float) -> None:
    with pytest.raises(ValueError, match=r"Truncation.bottom must be in .0, 0.5"):
        Truncation(bottom=share)
    with pytest.raises(ValueError, match=r"Truncation.top"):
        Truncation(top=share)


def test_more_games_than_are_remembered_are_never_reached() -> None:
    role = Role(count=4, population=population(fitness="win_rate", min_games=5_000))
    with pytest.raises(ValueError, match=r"min_games=5000 is never reached: the payoff remembers 995"):
        LeagueRules(roles={"main": role})
    LeagueRules(roles={"main": role}, payoff=PayoffRules(decay_games=100.0))
