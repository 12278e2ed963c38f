from __future__ import annotations

import numpy as np
import pytest
from league_rows import match_of, result_of
from msgspec.structs import replace
from scipy.interpolate import CubicSpline
from small_leagues import ROCK_PAPER_SCISSORS, chain, names, played

from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.payoff_estimate import PayoffEstimate, cubic_spline, estimate_payoff, estimate_scores
from ludus.league.summary import equilibrium_of


def estimate(payoff: Payoff, size: int) -> PayoffEstimate:
    found = estimate_payoff(payoff, names(size))
    assert isinstance(found, PayoffEstimate)
    return found


def test_many_games_speak_for_themselves() -> None:
    found = estimate(played(0.8 * ROCK_PAPER_SCISSORS, 1000), 3)
    np.testing.assert_allclose(found.payoff, 0.8 * ROCK_PAPER_SCISSORS, atol=0.01)
    assert found.pairs_met == 1.0


def test_a_pair_that_never_met_is_as_elo_predicts() -> None:
    payoff = Payoff(PayoffRules(decay=1.0))
    for stronger, weaker in (("p0", "p1"), ("p1", "p2")):
        match = match_of(stronger, weaker, episodes=1000)
        payoff.record(match, result_of(match, (750, 0, 250)))
    found = estimate(payoff, 3)
    assert found.payoff[0, 2] == pytest.approx(0.8, abs=0.02)  # odds of 3 times 3 to 1
    assert found.pairs_met == pytest.approx(2 / 3)
    drawn = np.array([sample[0] for sample in found.sample(200, 0)])
    assert drawn[:, 2].std() > 3 * drawn[:, 1].std()


def test_samples_are_payoffs_round_the_expected_one_and_the_same_again() -> None:
    found = estimate(played(0.5 * chain(5), 40, np.random.default_rng(0)), 5)
    drawn = np.array(list(found.sample(400, 3)))
    np.testing.assert_allclose(drawn, -drawn.transpose(0, 2, 1))
    np.testing.assert_allclose(drawn.mean(axis=0), found.payoff, atol=0.04)
    np.testing.assert_array_equal(drawn[:5], list(found.sample(5, 3)))
    assert not np.array_equal(drawn[:5], list(found.sample(5, 4)))


def test_a_player_of_few_games_is_unsure_against_everybody() -> None:
    """Also where Elo predicts well: what it predicts from is unsure."""
    book = played(chain(7), 300)
    match = match_of("p7", "p3", episodes=6)
    book.record(match, result_of(match, (3, 0, 3)))
    drawn = np.array(list(estimate(book, 8).sample(100, 0)))
    assert drawn[:, 7, 2].std() > 0.2 > 0.1 > drawn[:, 3, 2].std()


def test_luck_is_not_taken_for_cycles() -> None:
    true, errors = chain(10), []
    for seed in range(8):
        book = played(true, 10, np.random.default_rng(seed))
        games, points = book.counts(names(10))
        raw = 2 * points / np.where(games > 0, games, 1.0) - (games > 0)
        errors.append([np.square(table - true).sum() for table in (estimate(book, 10).payoff, raw)])
    ours, of_raw_rates = np.mean(errors, axis=0)
    assert ours < of_raw_rates / 2


def test_what_says_nothing_is_named() -> None:
    assert estimate_payoff(Payoff(), []) == "one_player"
    assert estimate_payoff(Payoff(), ["p0"]) == "one_player"
    assert estimate_payoff(Payoff(), ["p0", "p1"]) == "no_games"
    assert estimate_payoff(played(np.zeros((3, 3)), 10), names(3)) == "all_even"


def test_the_spline_is_the_usual_one() -> None:
    x = np.array([0.0, 0.7, 1.1, 2.0, 3.5])
    y = np.sin(x)
    at = np.linspace(0.0, 3.5, 57)
    np.testing.assert_allclose(cubic_spline(x, y, at), CubicSpline(x, y)(at), rtol=0, atol=1e-12)


def scored(margins: dict[tuple[str, str], float], games: int = 100) -> Payoff:
    """Every pair has so many games, in each of which the first one scores so much."""
    payoff = Payoff(PayoffRules(decay=1.0))
    for (a, b), margin in margins.items():
        match = match_of(a, b, episodes=games)
        result = result_of(match, (games // 2, 0, games - games // 2))
        payoff.record(match, replace(result, score_sum=(margin * games, -margin * games)))
    return payoff


def test_scores_of_pairs_that_never_met_follow_from_the_chain_between_them() -> None:
    payoff = scored({("p1", "p0"): 0.5, ("p2", "p1"): 0.25, ("p3", "p2"): 0.25})
    known, scores = estimate_scores(payoff, names(4))
    assert known == tuple(names(4))
    np.testing.assert_allclose(scores, -scores.T, atol=1e-12)
    np.testing.assert_allclose(scores[:, 0], [0.0, 0.5, 0.5, 0.5])  # no more than any that met
    assert scores[3, 1] == pytest.approx(0.5)
    assert equilibrium_of(names(4), payoff) == {"p3": pytest.approx(1.0)}, "p1 has not met p3, and is no equal"


def test_scores_of_pairs_that_met_are_theirs_and_strangers_are_left_out() -> None:
    circle = {("p0", "p1"): 1.0, ("p1", "p2"): 1.0, ("p2", "p0"): 1.0}
    payoff = scored({**circle, ("p4", "p5"): 3.0})
    known, scores = estimate_scores(payoff, names(6))
    assert known == ("p0", "p1", "p2")
    np.testing.assert_allclose(scores, [[0, 1, -1], [-1, 0, 1], [1, -1, 0]])
    assert equilibrium_of(names(6), payoff) == {name: pytest.approx(1 / 3) for name in known}
    assert equilibrium_of(names(6), scored({("p0", "p1"): 1.0}, games=4)) == {}, "too few games"
