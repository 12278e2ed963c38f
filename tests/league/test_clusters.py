from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from small_leagues import DOMINATED, ROCK_PAPER_SCISSORS, chain, random_payoff

from ludus.league.equilibrium import zero_sum_value
from ludus.league.measures import nash_clusters, strengths


def test_a_league_of_pure_skill_has_layers_of_one_in_order() -> None:
    order = np.random.default_rng(0).permutation(12)
    clusters = nash_clusters(chain(12)[np.ix_(order, order)])
    assert [order[players[0]] for players in clusters] == list(range(11, -1, -1))
    assert {len(players) for players in clusters} == {1}
    found = strengths(chain(12)[np.ix_(order, order)], clusters).tolist()
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(chain(12)[11].sum() / 11)


def test_rock_paper_scissors_is_one_layer() -> None:
    clusters = nash_clusters(ROCK_PAPER_SCISSORS)
    assert clusters == [(0, 1, 2)]
    assert strengths(ROCK_PAPER_SCISSORS, clusters) == pytest.approx([0.0], abs=1e-12)


def test_a_cycle_above_a_chain() -> None:
    assert nash_clusters(DOMINATED) == [(0, 1, 2), (3,), (4,)]


def test_copies_and_even_players_are_in_one_layer() -> None:
    seats = [0, 0, 1, 2, 2]
    assert list(map(len, nash_clusters(ROCK_PAPER_SCISSORS[np.ix_(seats, seats)]))) == [5]
    assert list(map(len, nash_clusters(np.zeros((4, 4))))) == [4]
    assert list(map(len, nash_clusters(np.zeros((1, 1))))) == [1]


@pytest.mark.parametrize("seed", range(4))
def test_no_layer_loses_to_a_layer_below(seed: int) -> None:
    payoff = random_payoff(40, seed)
    clusters = nash_clusters(payoff)
    assert sorted(player for players in clusters for player in players) == list(range(40))
    assert len(clusters) > 2
    for above, below in pairwise(clusters):
        assert zero_sum_value(payoff[np.ix_(above, below)]) > -1e-9
