from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of
from scipy.stats import chisquare

from ludus.league.matchmaking import (
    PFSP,
    Candidates,
    Latest,
    Live,
    Matchmaker,
    Mixture,
    SelfPlay,
    UniformPast,
    pfsp_probabilities,
)
from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.players import Player

WEIGHTINGS = ["squared", "linear", "variance", "linear_capped", 0.0, 3.5]
MAIN = Player(id="main", role="main", joined=0)
FOE = Player(id="foe", role="exploiter", joined=1)
BOT = Player(id="bot", role="scripted", joined=2)
MAIN_1 = Player(id="main.1", role="frozen", parent="main", parent_role="main", model="main:0:0", joined=3)
FOE_1 = Player(id="foe.1", role="frozen", parent="foe", parent_role="exploiter", model="foe:0:0", joined=4)
MAIN_2 = Player(id="main.2", role="frozen", parent="main", parent_role="main", model="main:0:9", joined=5)
FULL = Candidates(players=(MAIN, FOE, BOT, MAIN_1, FOE_1, MAIN_2), roles=("main", "exploiter"))
YOUNG = Candidates(players=(MAIN, FOE), roles=("main", "exploiter"))
MIXED = Mixture(
    branches=((0.35, SelfPlay()), (0.5, PFSP()), (0.15, UniformPast(over="exploiter", include_scripted=True)))
)


def _payoff(**wins_of_main: int) -> Payoff:
    """Of 100 games of main; `main_1=30` is 30 wins against main.1."""
    payoff = Payoff(PayoffRules(decay=1.0))
    for name, wins in wins_of_main.items():
        match = match_of("main", name.replace("_", "."))
        payoff.record(match, result_of(match, (wins, 0, 100 - wins)))
    return payoff


def test_candidates_answer_by_role_and_lineage() -> None:
    assert FULL.frozen() == ("main.1", "foe.1", "main.2")
    assert FULL.learning() == ("main", "foe")
    assert FULL.learning("exploiter") == ("foe",)
    assert FULL.history_of("main") == FULL.history_of_role("main") == ("main.1", "main.2")
    assert FULL.others("main") == ("foe", "bot", "main.1", "foe.1", "main.2")
    assert FULL.past("scripted", "main") == ("bot",)
    assert FULL.past("own", "foe", include_scripted=True) == ("foe.1", "bot")
    assert "bot" in FULL
    assert "nobody" not in FULL
    with pytest.raises(ValueError, match="did you mean 'exploiter'"):
        FULL.past("exploiters", "main")


@pytest.mark.parametrize(
    ("matchmaker", "law"),
    [
        (SelfPlay(), {"main": 1.0}),
        (Live(role="exploiter"), {"foe": 1.0}),
        (Latest(), {"main.2": 1.0}),
        (Latest(over="exploiter"), {"foe.1": 1.0}),
        (UniformPast(over="own"), {"main.1": 0.5, "main.2": 0.5}),
        (UniformPast(include_current=True), {"main.1": 0.25, "foe.1": 0.25, "main.2": 0.25, "main": 0.25}),
        (UniformPast(over="own", include_scripted=True), {"main.1": 1 / 3, "main.2": 1 / 3, "bot": 1 / 3}),
        (PFSP(), {"main.1": 0.49 / 0.78, "foe.1": 0.25 / 0.78, "main.2": 0.04 / 0.78}),
        (PFSP(weighting=1), {"main.1": 0.7 / 1.4, "foe.1": 0.5 / 1.4, "main.2": 0.2 / 1.4}),
        (PFSP(weighting="linear_capped"), {"main.1": 0.5 / 1.2, "foe.1": 0.5 / 1.2, "main.2": 0.2 / 1.2}),
        (PFSP(weighting="variance", over="own"), {"main.1": 0.21 / 0.37, "main.2": 0.16 / 0.37}),
    ],
)
def test_laws(matchmaker: Matchmaker, law: dict[str, float]) -> None:
    payoff = _payoff(main_1=30, main_2=80)
    assert matchmaker.probabilities("main", FULL, payoff) == pytest.approx(law)


def test_a_mixture_adds_the_laws_of_its_branches() -> None:
    mixture = Mixture(branches=((0.6, SelfPlay()), (0.4, UniformPast(over="own", include_current=True))))
    law = mixture.probabilities("main", FULL, Payoff())
    assert law == pytest.approx({"main": 0.6 + 0.4 / 3, "main.1": 0.4 / 3, "main.2": 0.4 / 3})


@pytest.mark.parametrize(
    "matchmaker", [UniformPast(), UniformPast(over="scripted"), Latest(), PFSP(), PFSP(over="exploiter"), MIXED]
)
def test_an_empty_pool_gives_self_play(matchmaker: Matchmaker) -> None:
    assert matchmaker.probabilities("main", YOUNG, Payoff()) == pytest.approx({"main": 1.0})
    assert matchmaker.choose("main", YOUNG, Payoff(), np.random.default_rng(0)) == ("main",)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_pfsp_is_uniform_when_every_opponent_is_beaten(weighting: str | float) -> None:
    law = PFSP(weighting=weighting).probabilities("main", FULL, _payoff(main_1=100, main_2=100, foe_1=100))
    assert law == pytest.approx({"main.1": 1 / 3, "main.2": 1 / 3, "foe.1": 1 / 3})


def test_pfsp_by_variance_is_uniform_when_every_match_is_decided() -> None:
    law = PFSP(weighting="variance").probabilities("main", FULL, _payoff(main_1=0, main_2=100, foe_1=0))
    assert law == pytest.approx({"main.1": 1 / 3, "main.2": 1 / 3, "foe.1": 1 / 3})


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20),
    st.sampled_from(WEIGHTINGS) | st.floats(0, 16),
)
def test_pfsp_of_any_win_rates_is_a_distribution(rates: list[float], weighting: str | float) -> None:
    law = pfsp_probabilities(np.array(rates), weighting)
    assert np.isfinite(law).all()
    assert (law >= 0).all()
    assert law.sum() == pytest.approx(1.0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 100), min_size=3, max_size=3), st.sampled_from(WEIGHTINGS))
def test_laws_sum_to_one(wins: list[int], weighting: str | float) -> None:
    payoff = _payoff(main_1=wins[0], main_2=wins[1], foe_1=wins[2])
    mixture = Mixture(branches=((0.7, MIXED), (0.3, PFSP(weighting=weighting))))
    law = mixture.probabilities("main", FULL, payoff)
    assert sum(law.values()) == pytest.approx(1.0)
    assert min(law.values()) >= 0


@pytest.mark.parametrize(
    "matchmaker", [SelfPlay(), UniformPast(include_current=True), PFSP(), PFSP(weighting="variance"), MIXED]
)
def test_choices_follow_the_law(matchmaker: Matchmaker) -> None:
    payoff = _payoff(main_1=30, main_2=80)
    law = matchmaker.probabilities("main", FULL, payoff)
    rng = np.random.default_rng(5)
    chosen = [matchmaker.choose("main", FULL, payoff, rng)[0] for _ in range(6000)]
    assert set(chosen) <= set(law)
    names = list(law)
    observed = [chosen.count(name) for name in names]
    expected = np.array([law[name] for name in names])
    if len(names) > 1:
        assert chisquare(observed, expected / expected.sum() * 6000).pvalue > 0.001


def test_players_of_probability_zero_are_never_chosen() -> None:
    payoff = _payoff(main_1=100, main_2=0, foe_1=100)
    rng = np.random.default_rng(1)
    assert {PFSP().choose("main", FULL, payoff, rng) for _ in range(200)} == {("main.2",)}


@pytest.mark.parametrize("shares", [(0.5, 0.49), (1.5, -0.5), (float("nan"), 1.0), (float("inf"), 0.0), (), (0.0,)])
def test_mixtures_that_are_no_distribution_are_refused_with_their_sum(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=rf"sum to {sum(shares):g}"):
        Mixture(branches=tuple((share, SelfPlay()) for share in shares))


def test_unknown_weightings_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'squared'"):
        PFSP(weighting="square")
    with pytest.raises(ValueError, match=r"'squared', 'linear', 'variance', 'linear_capped'"):
        PFSP(weighting="zzz")
    for power in (-1.0, float("nan"), 1e6):
        with pytest.raises(ValueError, match="power must be from 0 to 16"):
            PFSP(weighting=power)
