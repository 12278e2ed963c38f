from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from small_leagues import DOMINATED, ROCK_PAPER_SCISSORS, chain, random_payoff

from ludus.league.equilibrium import zero_sum_value
from ludus.league.measures import nash_clusters


def test_a_league_of_pure_skill_has_layers_of_one_in_order() -> None:
    order = np.random.default_rng(0).permutation(12)
    clusters = nash_clusters(chain(12)[np.ix_(order, order)])
    assert [order[cluster.players[0]] for cluster in clusters] == list(range(11, -1, -1))
    assert {cluster.size for cluster in clusters} == {1}
    strengths = [cluster.strength for cluster in clusters]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] == pytest.approx(chain(12)[11].sum() / 11)


def test_rock_paper_scissors_is_one_layer() -> None:
    (cluster,) = nash_clusters(ROCK_PAPER_SCISSORS)
    assert cluster.players == (0, 1, 2)
    assert cluster.strength == pytest.approx(0.0, abs=1e-12)


def test_a_cycle_above_a_chain() -> None:
    assert [cluster.players for cluster in nash_clusters(DOMINATED)] == [(0, 1, 2), (3,), (4,)]


def test_copies_and_even_players_are_in_one_layer() -> None:
    seats = [0, 0, 1, 2, 2]
    assert [c.size for c in nash_clusters(ROCK_PAPER_SCISSORS[np.ix_(seats, seats)])] == [5]
    assert [c.size for c in nash_clusters(np.zeros((4, 4)))] == [4]
    assert [c.size for c in nash_clusters(np.zeros((1, 1)))] == [1]


@pytest.mark.parametrize("seed", range(4))
def test_no_layer_loses_to_a_layer_below(seed: int) -> None:
    payoff = random_payoff(40, seed)
    clusters = nash_clusters(payoff)
    assert sorted(player for cluster in clusters for player in cluster.players) == list(range(40))
    assert len(clusters) > 2
    for above, below in pairwise(clusters):
        assert zero_sum_value(payoff[np.ix_(above.players, below.players)]) > -1e-9
