from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from league_rows import match_of, play, result_of, started
from msgspec.structs import replace

from ludus.data.records import LearnerProgress, MatchFinished, MatchIssued, PlayerReset, RunStarted
from ludus.league.league import League
from ludus.league.matchmaking import Candidates, Live
from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.players import Standing
from ludus.league.promotion import AfterReset, AnyOf, BySteps, ByWinRate, Restart
from ludus.league.rules import LeagueRules, Role


@dataclass(frozen=True, kw_only=True)
class FromNewestMain(Restart):
    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None:
        past = [player for player in candidates.players if player.frozen and player.parent == "main"]
        return past[-1].model if past else standing.player.model


def _rules(**options: Any) -> LeagueRules:
    foe = Role(
        matchmaking=Live(role="main"),
        promotion=BySteps(every=100),
        initial_snapshot=False,
        reset_probability=1.0,
        **options,
    )
    return LeagueRules(roles={"main": Role(), "foe": foe}, bots=("bot",))


def _snapshot_due(rules: LeagueRules) -> League:
    league = started(rules)
    for event in league.due_snapshots():
        league.apply(event)
    league.apply(LearnerProgress("foe", 0, 5, 100))
    return league


def test_a_reset_starts_from_the_model_that_the_role_chooses() -> None:
    for rules, model in ((_rules(start="clone:0:0"), "clone:0:0"), (_rules(restart=FromNewestMain()), "main:0:0")):
        league = _snapshot_due(rules)
        for event in league.due_snapshots():
            league.apply(event)
        assert league.due_resets() == [PlayerReset("foe", 1, model)]


@pytest.mark.parametrize("killed_after", ["snapshot", "reset"])
def test_snapshot_and_reset_happen_once_wherever_the_run_is_killed(killed_after: str) -> None:
    league = _snapshot_due(_rules())
    for event in league.due_snapshots():
        league.apply(event)
    if killed_after == "snapshot":
        league.apply(RunStarted(1))
    for reset in league.due_resets():
        league.apply(reset)
    if killed_after == "reset":
        league.apply(RunStarted(1))
    assert league.due_resets() == league.due_snapshots() == []
    # The learner of before the reset, resumed from an older checkpoint, reports once more: nothing follows.
    league.apply(LearnerProgress("foe", 0, 6, 250))
    assert league.due_resets() == league.due_snapshots() == []
    assert league.standings["foe"].snapshots == 1
    assert league.standings["foe"].incarnation == 1


@pytest.mark.parametrize("counts_on", [True, False])
def test_value_only_decisions_count_down_after_a_reset(counts_on: bool) -> None:
    league = _snapshot_due(_rules(after_reset=AfterReset(value_only_decisions=40)))
    assert league.standings["foe"].value_only_left == 0
    for event in league.due_snapshots():
        league.apply(event)
    (reset,) = league.due_resets()
    league.apply(reset)
    assert league.standings["foe"].value_only_left == 40
    base = 100 if counts_on else 0
    league.apply(LearnerProgress("foe", 1, 6, base + 10))
    assert league.standings["foe"].value_only_left == 30
    league.apply(LearnerProgress("foe", 1, 7, base + 50))
    assert league.standings["foe"].value_only_left == 0
    with pytest.raises(ValueError, match="value_only_decisions must be at least 0"):
        AfterReset(value_only_decisions=-1)


@pytest.mark.parametrize("clear", [True, False])
def test_games_of_the_older_incarnation_count_only_if_the_role_says_so(clear: bool) -> None:
    promotion = ByWinRate(min_decisions=1, max_decisions=10**9, against="main")
    foe = Role(matchmaking=Live(role="main"), promotion=promotion, after_reset=AfterReset(clear_payoff=clear))
    league = started(LeagueRules(roles={"main": Role(), "foe": foe}, payoff=PayoffRules(decay=1.0)))
    for event in league.due_snapshots():
        league.apply(event)
    play(league, "foe", "main", pairs=((90, 0, 10),))
    in_flight = match_of("foe", "main", id=1)
    league.apply(MatchIssued(in_flight))
    league.apply(PlayerReset("foe", 1, None))
    league.apply(MatchFinished(result_of(in_flight, (0, 0, 100))))  # never counts
    league.apply(LearnerProgress("foe", 1, 9, 10))
    assert [event.player for event in league.due_snapshots()] == ([] if clear else ["foe.2"])
    assert league.payoff.win_rate("main", "foe") == pytest.approx(0.5 if clear else 0.1)


@pytest.mark.parametrize(
    ("first", "last", "counts"),
    [
        (("main:0:1", ""), ("main:0:9", ""), True),  # it has learned on
        (("main:0:1", ""), ("main:1:9", ""), False),
        (("main:0:1,foe:3:1", "bot:0:0"), ("main:0:1,foe:4:1", "bot:0:0"), False),
        (("", ""), ("", ""), True),
    ],
)
def test_a_result_counts_unless_a_side_changed_its_incarnation(
    first: tuple[str, ...], last: tuple[str, ...], counts: bool
) -> None:
    league = started(_rules())
    match = match_of("main", "bot")
    league.apply(MatchIssued(match))
    result = replace(result_of(match, (100, 0, 0)), first_models=first, last_models=last)
    league.apply(MatchFinished(result))
    assert league.payoff.games("main", "bot") == (100 if counts else 0)
    assert league.matches.finished == 1


def test_an_external_model_is_a_frozen_player_from_the_start() -> None:
    rules = LeagueRules(roles={"main": Role()}, external={"champion": "champion:0:12"})
    league = started(rules)
    assert league.players["champion"].frozen
    assert league.players["champion"].model == "champion:0:12"
    assert league.candidates.past("all_frozen", "main") == ("champion",)
    assert league.initial_events() == []
    with pytest.raises(ValueError, match="write PLAYER:INCARNATION:STEP, got 'somewhere'"):
        started(LeagueRules(roles={"main": Role()}, external={"champion": "somewhere"}))
    with pytest.raises(ValueError, match=r"Role\.start of 'main' is no model id"):
        started(LeagueRules(roles={"main": Role(start="runs/a#main:0:3")}))
    with pytest.raises(ValueError, match="'main' would be given twice"):
        LeagueRules(roles={"main": Role()}, external={"main": "m:0:0"})


def test_by_win_rate_against_everyone_and_with_enough_games() -> None:
    def due(*rows: tuple[str, int], **options: Any) -> bool:
        rule = ByWinRate(min_decisions=1, max_decisions=10**9, **options)
        promotion = AnyOf(rules=(ByWinRate(min_decisions=10**8, max_decisions=10**9), rule))
        roles = {"main": Role(promotion=promotion, initial_snapshot=False), "foe": Role()}
        league = started(LeagueRules(roles=roles, payoff=PayoffRules(decay=1.0)))
        for event in league.due_snapshots():
            league.apply(event)
        for opponent, wins in rows:
            play(league, "main", opponent, pairs=((wins, 0, 100 - wins),))
        league.apply(LearnerProgress("main", 0, 1, 10))
        return any(event.parent == "main" for event in league.due_snapshots())

    assert due(("foe.1", 80))
    assert not due(("foe.1", 80), against="everyone")
    assert due(("foe.1", 80), ("foe", 80), against="everyone")
    assert not due(("foe.1", 80), min_games=101)
    with pytest.raises(ValueError, match="min_games=5000 is never reached"):
        started(
            LeagueRules(roles={"main": Role(promotion=ByWinRate(min_decisions=1, max_decisions=2, min_games=5000))})
        )
