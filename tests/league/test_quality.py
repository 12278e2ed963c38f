from __future__ import annotations

import pytest
from league_rows import match_of, result_of, started
from msgspec.structs import replace

from ludus.data.records import MatchFinished, MatchIssued, MatchVoid, PlayerAdded, PlayerReset, RunStarted
from ludus.league.league import League
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.players import BY_HAND
from ludus.league.quality import QualityScores, quality_rules
from ludus.league.rules import LeagueRules, Role

STEP = 0.1
RULES = LeagueRules(
    roles={
        "main": Role(matchmaking=Mixture(branches=((0.5, SelfPlay()), (0.5, QualityScores(step=STEP))))),
        "other": Role(),
    }
)


def _freeze(league: League, name: str, parent: str = "main") -> None:
    league.apply(PlayerAdded(name, "frozen", parent=parent, model="main:0:0", reason=BY_HAND))


def _league(*snapshots: str) -> League:
    league = started(RULES)
    for name in snapshots:
        _freeze(league, name)
    return league


def _issue(league: League, opponent: str, player: str = "main", purpose: str = "training") -> int:
    match = match_of(player, opponent, id=league.matches.last_id + 1, episodes=10, purpose=purpose)  # type: ignore[arg-type]
    league.apply(MatchIssued(match))
    return match.id


def _finish(league: League, match_id: int, wins: int, draws: int = 0) -> None:
    match = league.matches.open_matches[match_id].match
    league.apply(MatchFinished(result_of(match, (wins, draws, 10 - wins - draws))))


def _qualities(league: League) -> dict[str, float]:
    return dict(league.candidates.qualities.get("main", {}))


def test_a_win_takes_quality_by_the_probability_at_issue() -> None:
    league = _league("a", "b")
    first, second = _issue(league, "a"), _issue(league, "a")
    _finish(league, first, 10)
    _finish(league, second, 5)  # issued when both were alike: what the first took does not matter
    assert _qualities(league) == pytest.approx({"a": -STEP / (2 * 0.5) * 1.5, "b": 0.0})


def test_losses_draws_evaluation_and_other_players_take_nothing() -> None:
    league = _league("a", "b")
    _finish(league, _issue(league, "a"), 0)
    _finish(league, _issue(league, "a"), 0, draws=10)
    _finish(league, _issue(league, "a", purpose="evaluation"), 10)
    _finish(league, _issue(league, "a", player="other"), 10)
    assert _qualities(league) == {"a": 0.0, "b": 0.0}


def test_a_snapshot_joins_as_good_as_the_best_of_its_own_pool() -> None:
    league = _league("a")
    _finish(league, _issue(league, "a"), 10)
    _freeze(league, "foreign", parent="other")
    _freeze(league, "b")
    assert _qualities(league) == pytest.approx({"a": -STEP, "b": -STEP})


@pytest.mark.parametrize("how", ["void", "restart", "reset", "another incarnation"])
def test_what_has_no_result_of_the_player_of_now_takes_nothing(how: str) -> None:
    league = _league("a", "b")
    match_id = _issue(league, "a")
    if how == "void":
        league.apply(MatchVoid(match_id, "crash"))
    elif how == "restart":
        league.apply(RunStarted(1))
    elif how == "reset":
        league.apply(PlayerReset("main", 1, None))
        _finish(league, match_id, 10)
    else:
        result = result_of(league.matches.open_matches[match_id].match, (10, 0, 0))
        models = {"first_models": ("main:0:1", "main:0:0"), "last_models": ("main:1:2", "main:0:0")}
        league.apply(MatchFinished(replace(result, **models)))
    assert set(_qualities(league).values()) <= {0.0}
    assert league.payoff.games("main", "a") == 0


def test_a_hardly_ever_drawn_opponent_does_not_fall_out_of_the_world() -> None:
    league = _league("a", "b")
    for _ in range(200):
        _finish(league, _issue(league, "a"), 10)
    law = QualityScores().probabilities("main", league.candidates, league.payoff)
    assert sum(law.values()) == pytest.approx(1.0)
    assert law["b"] > 0.99


def test_the_rule_is_found_inside_mixtures() -> None:
    rule = QualityScores()
    nested = Mixture(branches=((0.5, SelfPlay()), (0.5, Mixture(branches=((1.0, rule),)))))
    roles = {"main": Role(matchmaking=nested), "other": Role(matchmaking=PFSP())}
    assert quality_rules(roles) == {"main": rule}
    with pytest.raises(ValueError, match=r"QualityScores\.step must be from 0 to 1"):
        QualityScores(step=-1.0)
