from __future__ import annotations

import numpy as np
import pytest
from league_rows import match_of, result_of
from small_leagues import ROCK_PAPER_SCISSORS, chain, names, played

from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.payoff_estimate import PayoffEstimate, estimate_payoff


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
