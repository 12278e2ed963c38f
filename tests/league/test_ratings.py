from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of
from openskill.models import PlackettLuce
from scipy.special import expit

from ludus.data.records import Match, MatchFinished, MatchIssued, MatchVoid, PlayerReset, Result, RunStarted
from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.ratings import ELO_SCALE, OpenSkillTable, fit_elo


def _planted(elo: np.ndarray, games: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    size = len(elo)
    points = np.zeros((size, size))
    for i in range(size):
        for j in range(i + 1, size):
            points[i, j] = rng.binomial(games, expit((elo[i] - elo[j]) / ELO_SCALE))
            points[j, i] = games - points[i, j]
    return games * (1.0 - np.eye(size)), points


def test_intervals_cover_planted_strengths() -> None:
    covered = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        elo = rng.normal(0, 200, size=8)
        names = [f"p{index}" for index in range(8)]
        ratings = fit_elo(names, *_planted(elo, 40, rng), anchor="p3")
        assert ratings["p3"].elo == 0.0
        assert ratings["p3"].standard_error == pytest.approx(0.0, abs=1e-6)
        for index in (0, 1, 2, 4, 5, 6, 7):
            interval = ratings[f"p{index}"].interval()
            assert interval is not None
            covered.append(interval[0] <= elo[index] - elo[3] <= interval[1])
    assert 0.90 < np.mean(covered) <= 0.99


def test_two_players_have_the_elo_of_their_odds() -> None:
    ratings = fit_elo(
        ["a", "b"], np.array([[0.0, 1100.0], [1100.0, 0.0]]), np.array([[0.0, 1000.0], [100.0, 0.0]]), anchor="b"
    )
    assert ratings["a"].elo == pytest.approx(400.0, abs=0.5)
    assert ratings["a"].games == 1100


def test_players_without_a_chain_of_games_to_the_anchor_are_not_identified() -> None:
    games = np.zeros((5, 5))
    games[0, 1] = games[1, 0] = games[2, 3] = games[3, 2] = 10.0
    ratings = fit_elo(list("abcde"), games, games / 2, anchor="b")
    assert [rating.elo is not None for rating in ratings.values()] == [True, True, False, False, False]
    assert ratings["c"].interval() is None


def test_one_player_or_an_anchor_that_never_played_is_not_identified() -> None:
    assert fit_elo(["a"], np.zeros((1, 1)), np.zeros((1, 1)))["a"].elo is None


def test_all_draws_and_all_wins_stay_finite() -> None:
    games = 50.0 * (1 - np.eye(3))
    assert [rating.elo for rating in fit_elo(list("abc"), games, games / 2).values()] == pytest.approx([0, 0, 0])
    ratings = fit_elo(list("abc"), games, np.triu(games), anchor="c")
    elo = [rating.elo for rating in ratings.values()]
    assert elo[0] is not None
    assert elo[1] is not None
    assert 3000 > elo[0] > elo[1] > 400
    assert ratings["a"].standard_error is not None
    assert ratings["a"].standard_error > 100


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=20)
)
def test_no_payoff_gives_nan(rows: list[tuple[int, int, int, int]]) -> None:
    payoff = Payoff(PayoffRules(decay=1.0))
    for a, b, wins, losses in rows:
        if wins + losses:
            match = match_of(f"p{a}", f"p{b}", episodes=wins + losses)
            payoff.record(match, result_of(match, (wins, 0, losses)))
    names = [f"p{index}" for index in range(6)]
    for rating in fit_elo(names, *payoff.counts(names)).values():
        assert (rating.elo is None) == (rating.standard_error is None)
        if rating.elo is not None and rating.standard_error is not None:
            assert np.isfinite([rating.elo, rating.standard_error]).all()


def test_counts_that_cannot_be_are_refused_by_name() -> None:
    ones = np.ones((2, 2))
    with pytest.raises(ValueError, match=r"games\[0, 1\] = nan"):
        fit_elo(["a", "b"], np.array([[0.0, np.nan], [1.0, 0.0]]), ones / 2)
    with pytest.raises(ValueError, match="add up"):
        fit_elo(["a", "b"], ones, ones)
    with pytest.raises(ValueError, match="did you mean 'main'"):
        fit_elo(["main", "b"], ones, ones / 2, anchor="mian")


def test_openskill_orders_players_and_grows_surer() -> None:
    table = OpenSkillTable()
    prior = table.skill("strong")
    for _ in range(10):
        match = match_of("strong", "weak")
        table.record(match, result_of(match, (80, 10, 10)))
    (strong, sigma), (weak, _) = table.skill("strong"), table.skill("weak")
    assert strong > prior[0] > weak
    assert sigma < prior[1]


def test_openskill_of_a_balanced_row_stays_balanced() -> None:
    table = OpenSkillTable(updates_per_row=8)
    match = match_of("a", "b")
    table.record(match, result_of(match, (0, 100, 0)))
    assert table.skill("a")[0] == pytest.approx(table.skill("b")[0])


def test_openskill_makes_as_many_updates_as_games_up_to_the_limit() -> None:
    def after(games: int, limit: int) -> tuple[float, float]:
        table = OpenSkillTable(updates_per_row=limit)
        match = match_of("a", "b")
        table.record(match, result_of(match, (games, 0, 0)))
        return table.skill("a")

    assert after(1000, 4) == after(4, 100)
    assert after(3, 100) != after(4, 100)


def test_openskill_with_line_ups_and_three_sides() -> None:
    table = OpenSkillTable()
    match = match_of(("a", "b"), ("c", "d"), ("e", "e"))
    table.record(match, result_of(match, (90, 0, 10), (95, 0, 5), (60, 0, 40)))
    mu = {player: table.skill(player)[0] for player in "abcde"}
    assert mu["a"] == mu["b"] > mu["c"] == mu["d"] > mu["e"]


def _by_strength(match: Match, strength: dict[str, float], seats: int, rng: np.random.Generator) -> Result:
    """Sides rank by the sum of their seats' strengths and chance (Plackett-Luce), episode by episode."""
    teams = [side.players * (seats // len(side.players)) for side in match.sides]
    sums = np.array([sum(strength[player] for player in team) for team in teams])
    drawn = sums + rng.gumbel(size=(match.episodes, len(teams)))
    pairs = [int((drawn[:, i] > drawn[:, j]).sum()) for i, j in combinations(range(len(teams)), 2)]
    return result_of(match, *((wins, 0, match.episodes - wins) for wins in pairs))


PLANTED = {f"p{index}": 0.35 * index for index in range(8)}


@pytest.mark.parametrize(("num_sides", "seats", "mixed"), [(3, 1, False), (2, 2, False), (2, 2, True), (3, 3, True)])
def test_openskill_recovers_planted_strengths(num_sides: int, seats: int, mixed: bool) -> None:
    """With three teams, teams of several seats, and teams of which some are of several players."""
    correlations = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        table = OpenSkillTable(seats=seats)
        for number in range(400):
            names = rng.permutation(list(PLANTED)).tolist()
            line_ups = [(names.pop(),) for _ in range(num_sides)]
            if mixed and number % 2:
                first = (*line_ups[0], names.pop())
                line_ups[0] = first + first[-1:] * (seats - 2)
            match = match_of(*line_ups, episodes=16)
            table.record(match, _by_strength(match, PLANTED, seats, rng))
        skills = [table.skill(player)[0] for player in PLANTED]
        correlations.append(np.corrcoef(skills, list(PLANTED.values()))[0, 1])
    assert min(correlations) > 0.9


def test_openskill_does_not_hold_weak_team_mates_against_a_player() -> None:
    """Both always win half of their games: one with a good team-mate, the other with a bad one."""
    table = OpenSkillTable(seats=2)
    for _ in range(30):
        for line_ups in ((("a", "good"), ("x",)), (("b", "bad"), ("x",))):
            match = match_of(*line_ups)
            table.record(match, result_of(match, (50, 0, 50)))
        match = match_of("good", "bad")
        table.record(match, result_of(match, (90, 0, 10)))
    assert table.skill("b")[0] > table.skill("a")[0] + 1.0


def test_openskill_takes_a_player_on_all_seats_for_as_strong_as_two_like_it() -> None:
    table = OpenSkillTable(seats=2)
    match = match_of("a", ("b", "c"))
    table.record(match, result_of(match, (0, 100, 0)))
    assert table.skill("a")[0] == pytest.approx(table.skill("b")[0])
    assert table.skill("b") == table.skill("c")


def test_openskill_leaves_out_rows_with_a_player_on_two_sides() -> None:
    table = OpenSkillTable()
    for match in (match_of("a", "a"), match_of(("a", "b"), ("b", "c"))):
        table.record(match, result_of(match, (100, 0, 0)))
    assert table.skill("a") == table.skill("b") == table.skill("new")


def test_openskill_of_one_against_several_of_another_is_that_of_two() -> None:
    """As a game of three teams is evaluated."""
    three, two = OpenSkillTable(), OpenSkillTable()
    match = match_of("a", "b", "b")
    three.record(match, result_of(match, (70, 0, 30), (50, 0, 50), (40, 0, 60)))
    match = match_of("a", "b")
    two.record(match, result_of(match, (60, 0, 40)))
    assert three.skill("a") == two.skill("a") != three.skill("new")
    assert three.skill("b") == two.skill("b")


def test_openskill_folds_the_ledger() -> None:
    table = OpenSkillTable()
    match = match_of("a", "b", id=0)
    other, human = match_of("a", "b", id=1), match_of("a", "b", id=2, purpose="human")
    result = result_of(match, (100, 0, 0))
    table.apply(MatchIssued(match))
    table.apply(MatchFinished(result))
    skill = table.skill("a")
    assert skill[0] > table.skill("b")[0]
    for event in (MatchIssued(other), RunStarted(1), MatchVoid(1, "restart"), MatchIssued(human)):
        table.apply(event)
    table.apply(MatchFinished(result_of(human, (100, 0, 0))))
    assert table.skill("a") == skill
    late = match_of("a", "b", id=3)
    table.apply(MatchIssued(late))
    table.apply(PlayerReset("a", 1, None))
    table.apply(MatchFinished(result_of(late, (100, 0, 0))))
    assert table.skill("a") == table.skill("new")


def test_one_against_one_is_rated_as_openskill_does() -> None:
    model, rng = PlackettLuce(), np.random.default_rng(0)
    table = OpenSkillTable(updates_per_row=1)
    expected = {name: model.rating() for name in "abcd"}
    for number in range(60):
        a, b = rng.choice(list("abcd"), 2, replace=False).tolist()
        outcome = int(rng.integers(3))
        counts, ranks = ((1, 0, 0), (0, 1, 0), (0, 0, 1))[outcome], ((1, 2), (1, 1), (2, 1))[outcome]
        match = match_of(a, b, id=number, episodes=1)
        table.record(match, result_of(match, counts))
        [[expected[a]], [expected[b]]] = model.rate([[expected[a]], [expected[b]]], ranks=list(ranks))
    for name, rating in expected.items():
        assert table.skill(name) == pytest.approx((rating.mu, rating.sigma), rel=1e-9)
