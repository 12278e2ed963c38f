from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of
from scipy.special import expit
from small_leagues import DOMINATED, ROCK_PAPER_SCISSORS, chain, names, played, random_payoff

from ludus.league.equilibrium import zero_sum_value
from ludus.league.measures import (
    Estimate,
    LeagueMeasures,
    compare_populations,
    effective_diversity,
    effective_players,
    hodge,
    log_odds,
    measure,
    nash_average,
)
from ludus.league.payoff import Payoff, PayoffRules


def holds(estimate: Estimate | None, number: float) -> bool:
    assert estimate is not None
    return estimate.low <= number <= estimate.high


@pytest.mark.parametrize("seed", range(3))
def test_skill_and_cycles_are_at_right_angles_and_add_up(seed: int) -> None:
    payoff = random_payoff(30, seed)
    ratings, share = hodge(payoff)
    gradient = ratings[:, None] - ratings
    curl = payoff - gradient
    assert (gradient * curl).sum() == pytest.approx(0.0, abs=1e-10)
    np.testing.assert_allclose(curl.sum(axis=1), 0.0, atol=1e-12)
    assert share == pytest.approx((gradient**2).sum() / (payoff**2).sum())


def test_elo_is_all_skill_and_rock_paper_scissors_all_cycle() -> None:
    ratings, share = hodge(log_odds(chain(6)))
    assert share == pytest.approx(1.0)
    np.testing.assert_allclose(np.diff(ratings), 1.0)
    assert hodge(ROCK_PAPER_SCISSORS)[1] == pytest.approx(0.0)
    assert hodge(np.zeros((3, 3)))[1] is None


def test_nash_averaging() -> None:
    shares, skills = nash_average(DOMINATED)
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-9)
    np.testing.assert_allclose(skills, [0, 0, 0, -0.5, -0.5], atol=1e-9)
    copies = [0, 1, 1, 1, 2, 3, 4]
    _, again = nash_average(DOMINATED[np.ix_(copies, copies)])
    np.testing.assert_allclose(again, skills[copies], atol=1e-6)


def test_diversity() -> None:
    even = np.full(3, 1 / 3)
    assert effective_diversity(ROCK_PAPER_SCISSORS, even) == pytest.approx(1 / 6)
    assert effective_players(even) == pytest.approx(3.0)
    best = nash_average(chain(4))[0]
    assert effective_diversity(chain(4), best) == pytest.approx(0.0)
    assert effective_players(best) == pytest.approx(1.0)


def test_relative_population_performance() -> None:
    # Rock and paper against scissors and one that loses to everybody: scissors and rock play alone.
    assert zero_sum_value(DOMINATED[:2, 2:]) == pytest.approx(0.5)
    assert zero_sum_value([[1.0], [-1.0]]) == pytest.approx(1.0)
    payoff = random_payoff(30, 0)
    ahead = zero_sum_value(payoff[:12, 12:])
    assert zero_sum_value(payoff[12:, :12]) == pytest.approx(-ahead)


def test_a_league_of_rock_paper_scissors_and_two_weak_players() -> None:
    found = measure(played(0.9 * DOMINATED, 400), names(5))
    assert found.unidentified is None
    assert found.pairs_met == 1.0
    assert [layer.players for layer in found.layers] == [("p0", "p1", "p2"), ("p3",), ("p4",)]
    assert [round(player.nash_share.value, 2) for player in found.players] == [0.33, 0.33, 0.33, 0.0, 0.0]
    assert all(holds(player.nash_share, 1 / 3) for player in found.players[:3])
    assert all(holds(player.nash_skill, -0.45) for player in found.players[3:])
    assert found.players[0].alpha_rank is not None
    assert found.players[0].alpha_rank.value == pytest.approx(1 / 3, abs=1e-3)
    assert holds(found.effective_diversity, 0.9 / 6)
    assert holds(found.transitive_share, hodge(log_odds(0.9 * DOMINATED))[1] or 0.0)
    assert found.effective_players is not None
    assert 2.5 < found.effective_players.value <= 3.0


def test_it_is_plain_and_the_same_again() -> None:
    payoff = played(0.9 * DOMINATED, 20, np.random.default_rng(0))
    found = measure(payoff, names(5))
    assert found == measure(payoff, names(5))
    assert found != measure(payoff, names(5), seed=1)
    text = json.dumps(msgspec.to_builtins(found), allow_nan=False)
    assert msgspec.json.decode(text, type=LeagueMeasures) == found


def test_intervals_hold_the_truth_and_narrow() -> None:
    rng = np.random.default_rng(0)
    covered: dict[str, list[bool]] = {"transitive": [], "skill": [], "strength": []}
    widths: dict[int, float] = {30: 0.0, 300: 0.0}
    for _ in range(20):
        strength, cycles = rng.normal(size=10), rng.normal(size=(10, 10)) * 0.7
        odds = strength[:, None] - strength + cycles - cycles.T
        true = 2 * expit(odds) - 1
        _, skills = nash_average(true)
        for games in widths:
            found = measure(played(true, games, rng), names(10))
            covered["transitive"].append(holds(found.transitive_share, hodge(odds)[1] or 0.0))
            covered["skill"] += [
                holds(player.nash_skill, skill) for player, skill in zip(found.players, skills, strict=True)
            ]
            for layer in found.layers:
                rows = [int(player[1:]) for player in layer.players]
                covered["strength"].append(holds(layer.strength, true[rows].sum(axis=1).mean() / 9))
            assert found.transitive_share is not None
            widths[games] += found.transitive_share.high - found.transitive_share.low
    assert widths[300] < 0.7 * widths[30]
    assert {name: np.mean(hits) >= 0.90 for name, hits in covered.items()} == dict.fromkeys(covered, True)


def test_a_league_of_pure_skill_looks_like_one() -> None:
    found = measure(played(chain(8), 50, np.random.default_rng(0)), names(8))
    assert found.transitive_share is not None
    assert found.transitive_share.value > 0.95
    assert found.players[-1].alpha_rank is not None
    assert found.players[-1].alpha_rank.value > 0.99
    assert found.layers[0].players == ("p7",)


def test_what_cannot_be_identified_is_named() -> None:
    for payoff, players, reason in (
        (Payoff(), [], "one_player"),
        (Payoff(), ["p0"], "one_player"),
        (Payoff(), names(3), "no_games"),
        (played(np.zeros((3, 3)), 10), names(3), "all_even"),
    ):
        found = measure(payoff, players)
        assert found == LeagueMeasures(unidentified=reason, left_out=tuple(players))
        json.dumps(msgspec.to_builtins(found), allow_nan=False)


def test_players_without_a_chain_of_games_are_left_out() -> None:
    payoff = played(chain(3), 20)
    match = match_of("a", "b", episodes=20)
    payoff.record(match, result_of(match, (20, 0, 0)))
    found = measure(payoff, ["a", *names(3), "b", "new"])
    assert found.left_out == ("a", "b", "new")
    assert [player.player for player in found.players] == names(3)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), *[st.integers(0, 10**6)] * 3), max_size=15))
def test_no_games_give_nan(rows: list[tuple[int, int, int, int, int]]) -> None:
    payoff = Payoff(PayoffRules(decay=1.0))
    for a, b, *counts in rows:
        if sum(counts):
            match = match_of(f"p{a}", f"p{b}", episodes=sum(counts))
            wins, draws, losses = counts
            payoff.record(match, result_of(match, (wins, draws, losses)))
    found = measure(payoff, names(6), draws=4)
    json.dumps(msgspec.to_builtins(found), allow_nan=False)
    assert (found.unidentified is None) == (found.transitive_share is not None) == bool(found.players)
    assert len(found.players) + len(found.left_out) == 6


def test_two_populations_are_compared() -> None:
    payoff = played(0.9 * DOMINATED, 200)
    strong, weak = names(5)[:3], names(5)[3:]
    found = compare_populations(payoff, strong, weak)
    assert holds(found.performance, 0.45)
    assert found.performance is not None
    assert found.performance.low > 0.3
    other = compare_populations(payoff, weak, strong).performance
    assert other is not None
    assert other.value == pytest.approx(-found.performance.value, abs=1e-9)


def test_populations_that_cannot_be_compared_are_named() -> None:
    payoff = played(chain(3), 20)
    assert compare_populations(payoff, names(3), ["stranger"]).unidentified == "no_chain"
    assert compare_populations(payoff, ["x"], ["y"]).unidentified == "no_games"
    with pytest.raises(ValueError, match="'p1' is in both"):
        compare_populations(payoff, ["p0", "p1"], ["p1"])


def test_bad_sampling_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"confidence must be between 0 and 1, got 1\.0"):
        measure(Payoff(), names(2), confidence=1.0)
    with pytest.raises(ValueError, match="draws must be at least 2, got 0"):
        compare_populations(Payoff(), ["a"], ["b"], draws=0)
