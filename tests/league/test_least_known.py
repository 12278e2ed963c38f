"""The pair that a further match tells most about."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pytest

from ludus.data.records import Match, Pair, Result, Side
from ludus.league.payoff import Payoff
from ludus.league.payoff_estimate import least_known_pair


def payoff_of(wins: Mapping[tuple[str, str], tuple[int, int]]) -> Payoff:
    """From wins and losses of pairs."""
    payoff = Payoff()
    for number, ((a, b), (won, lost)) in enumerate(wins.items()):
        match = Match(number, "evaluation", (Side((a,)), Side((b,))), 1, won + lost)
        zeros, names = (0.0, 0.0), ("", "")
        pairs = (Pair(0, 1, won, 0, lost),)
        payoff.record(match, Result(number, won + lost, 0, (0, 0), pairs, zeros, zeros, names, names))
    return payoff


def choose(payoff: Payoff, players: str, **more: object) -> tuple[str, str] | None:
    return least_known_pair(payoff, tuple(players), episodes=100, **more)  # type: ignore[arg-type]


def test_pairs_that_have_not_met_come_first() -> None:
    payoff = payoff_of({("b", "a"): (1, 1), ("c", "b"): (900, 900)})
    assert choose(payoff, "abc") == ("c", "a")


def test_a_player_that_has_met_nobody_is_least_known() -> None:
    payoff = payoff_of({("b", "a"): (50, 50), ("c", "b"): (50, 50), ("d", "c"): (50, 50)})
    pair = choose(payoff, "abcde")
    assert pair is not None
    assert pair[0] == "e"


def test_of_pairs_that_have_met_the_one_with_the_fewest_games_is_chosen() -> None:
    payoff = payoff_of({("b", "a"): (500, 500), ("c", "a"): (500, 500), ("c", "b"): (500, 500)})
    assert choose(payoff_of({("b", "a"): (9, 9), ("c", "b"): (500, 500), ("c", "a"): (8, 8)}), "abc") in {
        ("b", "a"),
        ("c", "a"),
    }
    assert choose(payoff, "abc", without=[frozenset("ab"), frozenset("ac")]) == ("c", "b")


def test_a_foregone_match_tells_less_than_an_even_one() -> None:
    even, foregone = (50, 50), (99, 1)
    wins = {("b", "a"): even, ("c", "b"): foregone, ("c", "a"): foregone}
    assert choose(payoff_of(wins), "abc") != ("b", "a"), "its difference is known best"
    chain = {("b", "a"): foregone, ("c", "b"): foregone, ("d", "a"): even}
    assert choose(payoff_of(chain), "abcd") == ("d", "b"), "('c', 'a') and ('d', 'c') are twice foregone"


def test_the_end_of_a_long_chain_is_known_least() -> None:
    chain = {(b, a): (50, 50) for a, b in zip("abcdefg", "bcdefgh", strict=True)}
    assert choose(payoff_of(chain), "abcdefgh") == ("h", "a")


def test_a_bot_that_all_have_met_links_them() -> None:
    wins = {("a", "bot"): (500, 500), ("b", "bot"): (500, 500), ("c", "bot"): (3, 3), ("d", "bot"): (500, 500)}
    pair = choose(payoff_of(wins), "abcd", links=("bot",))
    assert pair is not None
    assert "c" in pair


@pytest.mark.parametrize("players", ["", "a", "ab"])
def test_no_pair_is_left(players: str) -> None:
    assert choose(Payoff(), players, without=[frozenset("ab")]) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_the_one_that_the_formula_gives(seed: int) -> None:
    """Written out with a whole inverse and a logistic function."""
    rng, names = np.random.default_rng(seed), "abcdefgh"
    wins = {
        (later, earlier): (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
        for earlier, later in combinations(names, 2)
    }
    games, points = payoff_of(wins).counts(names)
    rates = (points + 0.5) / (games + 1.0)
    information = games * rates * (1.0 - rates)
    odds = np.log(rates / (1.0 - rates))
    prior = (400.0 / np.log(10.0) / 1000.0) ** 2
    covariance = np.linalg.inv(np.diag(information.sum(axis=1) + prior) - information)
    strengths = covariance @ (information * odds).sum(axis=1)
    gains = {}
    for j, i in combinations(range(len(names)), 2):
        v = covariance[i, i] + covariance[j, j] - 2 * covariance[i, j]
        p = 1.0 / (1.0 + np.exp(strengths[j] - strengths[i]))
        gains[names[i], names[j]] = v / (1 + 1 / (100 * p * (1 - p) * v))
    assert choose(payoff_of(wins), names) == max(gains, key=gains.__getitem__)
