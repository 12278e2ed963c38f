from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of
from msgspec.structs import replace
from scipy.stats import binom

from ludus.data.records import Side
from ludus.league.payoff import Payoff, PayoffBook, PayoffRules, pair_counts, wilson_interval

NO_DECAY = PayoffRules(decay=1.0, min_games=0)
ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 50), st.integers(0, 50), st.integers(1, 50)),
    max_size=30,
)


def _fold(rows: list[tuple[int, int, int, int, int]], rules: PayoffRules) -> Payoff:
    payoff = Payoff(rules)
    for a, b, *counts in rows:
        match = match_of(f"p{a}", f"p{b}", episodes=sum(counts))
        payoff.record(match, result_of(match, (counts[0], counts[1], counts[2])))
    return payoff


@settings(deadline=None, max_examples=60)
@given(ROWS, st.sampled_from([0.0, 1.0, 20.0]), st.sampled_from([0.5, 0.99, 1.0]))
def test_win_rates_are_probabilities_that_mirror_each_other(
    rows: list[tuple[int, int, int, int, int]], min_games: float, decay: float
) -> None:
    payoff = _fold(rows, PayoffRules(decay=decay, decay_games=50, min_games=min_games))
    names = [f"p{index}" for index in range(5)] + ["stranger"]
    matrix = payoff.matrix(names)
    assert np.isfinite(matrix).all()
    assert (matrix >= 0).all()
    assert (matrix <= 1).all()
    np.testing.assert_allclose(matrix + matrix.T, 1.0, atol=1e-12)
    np.testing.assert_array_equal(np.diag(matrix), 0.5)
    np.testing.assert_array_equal(matrix[-1], 0.5)
    games, _ = payoff.counts(names)
    np.testing.assert_array_equal(matrix[games < min_games], 0.5)
    np.testing.assert_array_equal(payoff.win_rates("p0", names), matrix[0])


def test_counts_and_rate_of_a_pair() -> None:
    payoff = _fold([(0, 1, 6, 2, 2)], NO_DECAY)
    assert (payoff.wins("p0", "p1"), payoff.draws("p0", "p1"), payoff.losses("p0", "p1")) == (6, 2, 2)
    assert payoff.games("p1", "p0") == 10
    assert payoff.win_rate("p0", "p1") == 0.7
    assert payoff.win_rate("p1", "p0") == pytest.approx(0.3)


def test_a_row_fades_the_past_once_by_its_games() -> None:
    rules = PayoffRules(decay=0.9, decay_games=10, min_games=1)
    payoff = _fold([(0, 1, 8, 0, 2), (0, 1, 0, 0, 20)], rules)
    fade = 0.9 ** (20 / 10)
    assert payoff.wins("p0", "p1") == pytest.approx(8 * fade)
    assert payoff.losses("p0", "p1") == pytest.approx(2 * fade + 20)


def test_the_past_fades_alike_however_the_games_are_cut_into_rows() -> None:
    rules = PayoffRules(decay=0.9, decay_games=10, min_games=1)
    whole = _fold([(0, 1, 8, 0, 0), (0, 1, 0, 0, 30)], rules)
    cut = _fold([(0, 1, 8, 0, 0), (0, 1, 0, 0, 10), (0, 1, 0, 0, 15), (0, 1, 0, 0, 5)], rules)
    assert cut.wins("p0", "p1") == pytest.approx(whole.wins("p0", "p1"))


def test_rows_of_other_pairs_fade_nothing() -> None:
    payoff = _fold([(0, 1, 8, 0, 2), (0, 2, 0, 0, 50)], PayoffRules(decay=0.5, decay_games=50))
    assert payoff.games("p0", "p1") == 10


def test_half_until_min_games_of_decayed_games() -> None:
    payoff = _fold([(0, 1, 9, 0, 0)], PayoffRules(min_games=10))
    assert payoff.win_rate("p0", "p1") == 0.5
    assert _fold([(0, 1, 10, 0, 0)], PayoffRules(min_games=10)).win_rate("p0", "p1") == 1.0


def test_min_games_that_decay_would_never_let_be_reached_is_refused() -> None:
    with pytest.raises(ValueError, match="min_games=100 is never reached"):
        PayoffRules(decay=0.99, decay_games=1, min_games=100)
    rules = PayoffRules(decay=0.99, decay_games=1, min_games=99)
    assert _fold([(0, 1, 1, 0, 0)] * 2000, rules).win_rate("p0", "p1") == pytest.approx(1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"decay": 0.0},
        {"decay": 1.1},
        {"decay": float("nan")},
        {"decay_games": 0.0},
        {"decay_games": float("inf")},
        {"min_games": -1.0},
        {"min_games": float("nan")},
    ],
)
def test_bad_rules_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"PayoffRules.{next(iter(wrong))}"):
        PayoffRules(**wrong)


def test_self_play_never_enters() -> None:
    payoff = Payoff(NO_DECAY)
    for match in (match_of("a", "a"), match_of(("a", "b"), ("a", "b"))):
        payoff.record(match, result_of(match, (60, 0, 40)))
    assert payoff.fingerprint() == Payoff(NO_DECAY).fingerprint()


def test_a_line_up_of_several_players_counts_for_its_captain_or_for_nobody() -> None:
    match = match_of(("a", "b"), ("b", "b"), ("c", "d"))
    result = result_of(match, (60, 10, 30), (50, 0, 50), (40, 0, 60))
    assert pair_counts(match, result) == {}
    sides = (replace(match.sides[0], captain="a"), match.sides[1], replace(match.sides[2], captain="d"))
    match = replace(match, sides=sides)
    assert pair_counts(match, result) == {
        ("a", "b"): (60, 10, 30, 0.0),
        ("a", "d"): (50, 0, 50, 0.0),
        ("b", "d"): (40, 0, 60, 0.0),
    }
    assert pair_counts(match, result, captains=False) == {}
    assert pair_counts(replace(match, sides=(sides[0], Side(("a",)), sides[1])), result, captains=False) == {
        ("a", "b"): (40, 0, 60, 0.0)
    }


def test_mean_scores_are_half_the_difference_and_antisymmetric() -> None:
    payoff = Payoff(NO_DECAY)
    match = match_of("b", "a", episodes=10)
    result = result_of(match, (4, 0, 6))
    payoff.record(match, replace(result, score_sum=(7.0, -7.0)))
    payoff.record(match, replace(result, score_sum=(5.0, -5.0)))
    assert payoff.mean_scores(["b", "a", "nobody"]).tolist() == [[0, 0.6, 0], [-0.6, 0, 0], [0, 0, 0]]


def test_three_teams_are_folded_pairwise_and_fade_once() -> None:
    rules = PayoffRules(decay=0.5, decay_games=10, min_games=1)
    payoff = Payoff(rules)
    match = match_of("a", "b", "b", episodes=10)
    for _ in range(2):
        payoff.record(match, result_of(match, (7, 0, 3), (4, 0, 6), (5, 0, 5)))
    assert payoff.wins("a", "b") == pytest.approx(11 * 0.5 + 11)
    assert payoff.wins("b", "a") == pytest.approx(9 * 0.5 + 9)
    assert payoff.games("b", "b") == 0


def test_reading_creates_nothing() -> None:
    payoff = Payoff()
    before = payoff.fingerprint()
    assert payoff.win_rate("x", "y") == 0.5
    assert payoff.matrix([]).shape == (0, 0)
    assert payoff.win_rates("x", []).shape == (0,)
    assert payoff.fingerprint() == before


def test_arrays_grow_and_keep_what_they_hold() -> None:
    payoff = Payoff(NO_DECAY)
    names = [f"p{index}" for index in range(200)]
    for index, name in enumerate(names[1:], start=1):
        match = match_of("p0", name)
        payoff.record(match, result_of(match, (index % 101, 0, 100 - index % 101)))
    expected = [0.5] + [index % 101 / 100 for index in range(1, 200)]
    np.testing.assert_allclose(payoff.win_rates("p0", names), expected)
    assert payoff.games("p199", "stranger") == 0


def test_a_copy_is_folded_on_its_own() -> None:
    """Edits are tried on a copy of the league."""
    payoff, match = Payoff(NO_DECAY), match_of("a", "b")
    payoff.record(match, result_of(match, (60, 0, 40)))
    copied = copy.deepcopy(payoff)
    copied.record(match, result_of(match, (100, 0, 0)))
    assert (payoff.games("a", "b"), copied.games("a", "b")) == (100, 200)
    assert (payoff.win_rate("a", "b"), copied.win_rate("a", "b")) == (0.6, 0.8)


@settings(deadline=None, max_examples=60)
@given(ROWS, st.lists(st.integers(0, 4), max_size=5), ROWS)
def test_a_player_that_is_forgotten_leaves_no_trace(
    before: list[tuple[int, int, int, int, int]], leaving: list[int], after: list[tuple[int, int, int, int, int]]
) -> None:
    rules = PayoffRules(decay=0.9, min_games=0)
    staying = [row for row in before if not {row[0], row[1]} & {*leaving}]
    payoff, expected = _fold(before, rules), _fold(staying + after, rules)
    for number in leaving:
        payoff.forget(f"p{number}")
    again = Payoff(rules)
    again.load(payoff.fingerprint())
    names = [f"p{index}" for index in range(5)]
    for one in (payoff, again):
        for a, b, *counts in after:
            match = match_of(f"p{a}", f"p{b}", episodes=sum(counts))
            one.record(match, result_of(match, (counts[0], counts[1], counts[2])))
        np.testing.assert_array_equal(one.counts(names), expected.counts(names))
        np.testing.assert_array_equal(one.mean_scores(names), expected.mean_scores(names))
    assert payoff.fingerprint() == again.fingerprint()


def test_forget_drops_one_player_only() -> None:
    payoff = _fold([(0, 1, 10, 0, 0), (1, 2, 10, 0, 0)], NO_DECAY)
    payoff.forget("p0")
    payoff.forget("stranger")
    assert payoff.games("p0", "p1") == payoff.games("p1", "p0") == 0
    assert payoff.wins("p1", "p2") == 10


def test_purposes_are_folded_apart() -> None:
    book = PayoffBook(NO_DECAY)
    for purpose, wins in (("training", 10), ("evaluation", 40), ("human", 100)):
        match = match_of("a", "b", purpose=purpose)  # type: ignore[arg-type]
        book.record(match, result_of(match, (wins, 0, 100 - wins)))
    rates = [payoff.win_rate("a", "b") for payoff in (book.training, book.evaluation, book.human, book.combined)]
    assert rates == [0.1, 0.4, 1.0, 0.25]
    assert book.view("combined") is book.combined


def test_wilson_interval_matches_known_values_and_stays_in_range() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    low, high = wilson_interval(8, 10)
    assert [low, high] == pytest.approx([0.4902, 0.9433], abs=1e-4)
    assert wilson_interval(10, 10)[1] == 1.0
    payoff = _fold([(0, 1, 8, 0, 2)], PayoffRules(min_games=50))
    assert payoff.win_rate_interval("p0", "p1") == (low, high)


def test_wilson_interval_covers_the_true_rate_about_as_often_as_it_says() -> None:
    counts = np.arange(61)
    low, high = np.array([wilson_interval(float(count), 60) for count in counts]).T
    rates = np.linspace(0.02, 0.98, 97)
    coverage = [binom.pmf(counts, 60, rate)[(low <= rate) & (rate <= high)].sum() for rate in rates]
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.01)
    assert min(coverage) > 0.88
