"""Scores by role: the fold, the baseline and its error."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from league_rows import match_of, result_of, started

from ludus.data.records import Match, MatchFinished, MatchIssued, Result
from ludus.data.specs import GameSpec
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.siege import Siege
from ludus.games.seat_groups import SeatGroups
from ludus.league.league import League
from ludus.league.payoff import PayoffRules
from ludus.league.role_scores import RoleScores, role_lines
from ludus.league.rules import LeagueRules, Role
from ludus.league.summary import summarise

NO_DECAY = PayoffRules(decay=1.0, min_games=0.0)


def scored(match: Match, scores: np.ndarray) -> Result:  # type: ignore[type-arg]
    """A result with these scores, [episodes of a team, sides, teams]."""
    sums, squares = scores.sum(axis=0).tolist(), np.square(scores).sum(axis=0).tolist()
    pairs = [(match.episodes, 0, 0)] * math.comb(len(match.sides), 2)
    return msgspec.structs.replace(
        result_of(match, *pairs),
        role_score_sum=tuple(map(tuple, sums)),
        role_score_square_sum=tuple(map(tuple, squares)),
    )


def test_the_baseline_is_what_opponents_got_in_the_same_role() -> None:
    rng = np.random.default_rng(0)
    scores = RoleScores(NO_DECAY)
    played = {other: rng.normal((5.0, -50.0), 2.0, (30, 2, 2)) for other in ("b", "c")}
    for number, (other, drawn) in enumerate(played.items()):
        match = match_of("a", other, id=number, episodes=60)
        scores.record(match, scored(match, drawn))
    both = np.concatenate([*played.values()])
    for team, one in enumerate(scores.of("a")):
        assert one is not None
        assert one.episodes == 60
        assert one.score == pytest.approx(both[:, 0, team].mean())
        assert one.baseline == pytest.approx(both[:, 1, team].mean())
        assert one.lead == pytest.approx(one.score - one.baseline)
        expected = math.sqrt((both[:, 0, team].var() + both[:, 1, team].var()) / 60)
        assert one.lead_error == pytest.approx(expected)
    (as_b, _) = scores.of("b")
    assert as_b is not None
    assert as_b.score == pytest.approx(played["b"][:, 1, 0].mean())
    assert scores.of("nobody") == ()


def test_intervals_of_leads_hold_the_truth() -> None:
    """Two players that differ by 0.3 in a role with much noise: 95 % of the intervals hold 0.3."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(400):
        scores = RoleScores(NO_DECAY)
        match = match_of("a", "b", episodes=80)
        drawn = rng.normal(np.array([[7.3, -9.0], [7.0, -9.0]]), 1.5, (40, 2, 2))
        scores.record(match, scored(match, drawn))
        one = scores.of("a")[0]
        assert one is not None
        held += abs(one.lead - 0.3) < 1.96 * one.lead_error
    assert 0.92 < held / 400 < 0.98


def test_too_few_episodes_have_no_numbers() -> None:
    scores = RoleScores(NO_DECAY)
    match = match_of("a", "b", episodes=2)
    scores.record(match, scored(match, np.ones((1, 2, 2))))
    assert scores.of("a") == (None, None)
    (line, _) = role_lines(scores.of("a"), ("chief",))
    assert (line.role, line.score, line.lead) == ("chief", None, None)


def league() -> League:
    return started(LeagueRules(roles={"main": Role()}, bots=("bot", "other")))


def test_the_league_folds_them_and_forgets_with_the_payoff() -> None:
    one = league()
    match = msgspec.structs.replace(match_of("main", "bot", id=0, episodes=40), purpose="evaluation")
    one.apply(MatchIssued(match))
    one.apply(MatchFinished(scored(match, np.arange(80.0).reshape(20, 2, 2))))
    assert set(summarise(one).role_scores) == {"main", "bot"}
    one.role_scores.forget("main")
    assert one.role_scores.of("bot") == ()


def test_a_result_with_scores_of_another_shape_is_refused() -> None:
    one = league()
    match = match_of("main", "bot", id=0, episodes=40)
    one.apply(MatchIssued(match))
    whole = scored(match, np.ones((20, 2, 2)))
    for wrong, said in ((((1.0,), (1.0,)), "per side and team"), (((1.0, math.nan), (1.0, 1.0)), "not finite")):
        with pytest.raises(ValueError, match=said):
            one.apply(MatchFinished(msgspec.structs.replace(whole, role_score_sum=wrong)))


def test_games_that_compare_roles() -> None:
    kuhn, siege = Kuhn().spec, Siege().spec
    assert (kuhn.roles, kuhn.compares_roles) == (("player", "player"), False)
    assert (siege.roles, siege.compares_roles) == (("attacker", "defender"), True)
    assert not SeatGroups(Kuhn(), "per_seat").spec.compares_roles, "policies are no roles"
    assert SeatGroups(Siege(), "per_seat").spec.role_names == ("attacker", "defender")
    kind = {"observation": kuhn.kinds[0].observation, "action": kuhn.kinds[0].action}
    unlike = GameSpec.symmetric(name="x", num_seats=3, teams=(0, 1, 1), max_length=1, **kind)
    assert unlike.roles == ("player", "player x2")
    shared = GameSpec.symmetric(name="x", num_seats=2, max_length=1, zero_sum=False, **kind)
    assert shared.compares_roles
    assert not replace(shared, reward_is_score=False).compares_roles, "shaped rewards say nothing about scores"
    assert shared.role_names == ("player (team 0)", "player (team 1)")
    with pytest.raises(ValueError, match="3 roles for 2 teams"):
        replace(shared, team_roles=("a", "b", "c"))
