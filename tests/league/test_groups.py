"""Who is joined to whom by a chain of games."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from ludus.league.payoff import groups, largest_group


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_those_of_scipy(seed: int) -> None:
    met = np.random.default_rng(seed).random((30, 30)) < 0.03
    met |= met.T
    np.testing.assert_array_equal(groups(met), connected_components(met, directed=False)[1])


def test_the_largest_group_is_given_in_order() -> None:
    met = np.zeros((6, 6), np.bool_)
    for a, b in ((0, 1), (5, 2), (2, 4)):
        met[a, b] = met[b, a] = True
    assert largest_group(met).tolist() == [2, 4, 5]
