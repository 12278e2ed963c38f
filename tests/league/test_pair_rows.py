"""Many results folded at once come out as one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of
from msgspec.structs import replace

from ludus.league.payoff import FadedSums, PairRows, Payoff, PayoffRules

NAMES = [f"p{number}" for number in range(12)]
"""More than the tables of a payoff have room for at first."""
ROW = st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 40), st.integers(0, 40), st.integers(1, 40))


def columns(rows: list[tuple[int, int, int, int, int]]) -> PairRows:
    """As `pair_counts` orders them: of two players it is always the same one that comes first."""
    pairs = []
    for a, b, wins, draws, losses in rows:
        if NAMES[a] == NAMES[b]:
            continue
        row = (a, b, wins, draws, losses) if NAMES[a] < NAMES[b] else (b, a, losses, draws, wins)
        pairs.append((*row, 0.5 * (row[2] - row[4])))
    table = np.array(pairs, np.float64).reshape(-1, 6)
    return PairRows(
        first=table[:, 0].astype(np.intp),
        second=table[:, 1].astype(np.intp),
        wins=table[:, 2],
        draws=table[:, 3],
        losses=table[:, 4],
        margins=table[:, 5],
        episodes=table[:, 2] + table[:, 3] + table[:, 4],
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, max_size=60), st.lists(ROW, max_size=20), st.sampled_from([0.5, 0.99, 1.0]), st.booleans())
def test_rows_at_once_are_rows_one_by_one(
    before: list[tuple[int, int, int, int, int]],
    rows: list[tuple[int, int, int, int, int]],
    decay: float,
    forgets: bool,
) -> None:
    rules = PayoffRules(decay=decay, decay_games=50, min_games=1)
    one_by_one, at_once = Payoff(rules), Payoff(rules)
    for part in (before, rows):
        for a, b, wins, draws, losses in part:
            match = match_of(NAMES[a], NAMES[b], episodes=wins + draws + losses)
            result = result_of(match, (wins, draws, losses))
            scored = (0.5 * (wins - losses), -0.5 * (wins - losses))
            one_by_one.record(match, replace(result, score_sum=scored))
        at_once.add_rows(NAMES, columns(part))
        if forgets:
            one_by_one.forget("p1")
            at_once.forget("p1")
    for mine, other in zip(at_once.counts(NAMES), one_by_one.counts(NAMES), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(at_once.mean_scores(NAMES), one_by_one.mean_scores(NAMES), atol=1e-9)
    np.testing.assert_allclose(at_once.matrix(NAMES), one_by_one.matrix(NAMES), atol=1e-9)


def test_a_row_counts_what_the_later_rows_of_its_cell_leave() -> None:
    sums = FadedSums(np.array([4, 2, 4, 4]), np.log([0.5, 0.5, 0.1, 1.0]))
    assert sums.cells.tolist() == [2, 4]
    np.testing.assert_allclose(sums.of(np.array([10.0, 7.0, 20.0, 30.0])), [7.0, 10 * 0.1 + 20 + 30])
    np.testing.assert_allclose(sums.left_of_before, [0.5, 0.5 * 0.1])
