"""Who takes over from whom: pure decisions on leagues whose members have known strengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from league_rows import match_of, result_of, started
from msgspec.structs import replace as with_changes

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    PlayerAdded,
    PlayerReset,
    Purpose,
    ScoreMeasured,
    Side,
)
from ludus.league.league import League
from ludus.league.players import POPULATION
from ludus.league.population import BinaryTournament, LogUniform, Population
from ludus.league.promotion import AfterReset, Snapshot
from ludus.league.rules import LeagueRules, Role
from ludus.league.takeovers import Takeover, due_takeovers, is_frozen_now, reset_for

RATE = "learner.learning_rate"
SEARCH = (LogUniform(path=RATE, low=1e-5, high=1e-1),)
EVERY = 1_000


def rules(count: int = 4, role: dict[str, Any] | None = None, **changes: Any) -> LeagueRules:
    settings: dict[str, Any] = {"search": SEARCH, "every": EVERY, "resample_probability": 0.0, **changes}
    return LeagueRules(
        roles={"main": Role(count=count, population=Population(**settings), **(role or {}))}, bots=("random",)
    )


def progress(league: League, player: str, decisions: int) -> None:
    standing = league.standings[player]
    league.apply(LearnerProgress(player, standing.incarnation, decisions, decisions))


def meet(league: League, a: str, b: str, wins: int, games: int = 200, purpose: Purpose = "training") -> None:
    match = match_of(a, b, id=league.matches.last_id + 1, episodes=games, purpose=purpose)
    league.apply(MatchIssued(match))
    league.apply(MatchFinished(result_of(match, (wins, 0, games - wins))))


def ranked(settings: LeagueRules) -> League:
    """Each member beats the bot more often than the one before it: main_0 40 %, main_1 50 %, ..."""
    league = started(settings)
    for index, player in enumerate(league.standings):
        meet(league, player, "random", 80 + 20 * index)
    return league


def take(league: League) -> list[AnyEvent]:
    """Put what is due into force, as the controller does."""
    events: list[AnyEvent] = []
    for takeover in due_takeovers(league):
        if not is_frozen_now(league, takeover.donor):
            events.append(league.snapshot_of(takeover.donor, Snapshot(reason=POPULATION)))
            league.apply(events[-1])
        events.append(reset_for(league, takeover))
        league.apply(events[-1])
    return events


def test_the_worst_takes_over_from_the_best_when_its_interval_ends() -> None:
    league = ranked(rules())
    progress(league, "main_0", EVERY - 1)
    assert due_takeovers(league) == []
    progress(league, "main_0", EVERY)
    (takeover,) = due_takeovers(league)
    assert (takeover.player, takeover.donor) == ("main_0", "main_3")
    donated = league.settings_of("main_3")[RATE]
    assert takeover.settings[RATE] in (pytest.approx(donated * 0.8), pytest.approx(donated * 1.25), 1e-1, 1e-5)
    assert takeover.reason.startswith("rating: main_3 is ahead by 2")
    assert due_takeovers(league) == [takeover], "looking changes nothing"


def test_others_are_left_alone() -> None:
    league = ranked(rules())
    for player in ("main_1", "main_2", "main_3"):
        progress(league, player, EVERY)
    assert due_takeovers(league) == []


def test_a_member_is_judged_once_an_interval() -> None:
    league = ranked(rules())
    for decisions, is_due in ((900, False), (1_100, True), (1_500, False), (2_000, True), (4_100, True)):
        progress(league, "main_0", decisions)
        assert bool(due_takeovers(league)) == is_due, decisions


def test_not_before_it_is_ready() -> None:
    league = ranked(rules(ready_after=2_500))
    for decisions, is_due in ((1_000, False), (2_000, False), (2_600, False), (3_000, True)):
        progress(league, "main_0", decisions)
        assert bool(due_takeovers(league)) == is_due, decisions


def test_a_takeover_is_one_event_that_starts_the_member_anew() -> None:
    league = ranked(rules(role={"after_reset": AfterReset(value_only_decisions=99, clear_payoff=False)}))
    progress(league, "main_0", EVERY)
    (takeover,) = due_takeovers(league)
    frozen, reset = take(league)
    assert frozen == PlayerAdded("main_3.1", "frozen", parent="main_3", model="main_3:0:0", reason=POPULATION)
    assert reset == PlayerReset(
        "main_0", 1, "main_3:0:0", settings=takeover.settings, donor="main_3", reason=takeover.reason
    ), "its value comes with the weights, so that none has to be trained alone"
    assert league.settings_of("main_0")[RATE] == takeover.settings[RATE]
    assert league.payoffs.combined.games("main_0", "random") == 0, "whatever after_reset says"
    standing = league.standings["main_0"]
    assert (standing.takeovers, standing.ancestor) == (1, "main_3:0:0")
    assert not league.standings["main_3"].reset_pending


def test_it_is_judged_anew_after_the_next_interval_and_with_enough_games() -> None:
    league = ranked(rules())
    progress(league, "main_0", EVERY)
    take(league)
    progress(league, "main_0", EVERY + 10)
    meet(league, "main_0", "random", 10)
    assert due_takeovers(league) == []
    progress(league, "main_0", 2 * EVERY - 1)
    assert due_takeovers(league) == []
    progress(league, "main_0", 2 * EVERY)
    assert [one.player for one in due_takeovers(league)] == ["main_0"]


def test_too_few_games_say_nothing() -> None:
    league = ranked(rules(count=3, min_games=201))
    progress(league, "main_0", EVERY)
    assert due_takeovers(league) == []
    meet(league, "main_0", "random", 40)
    progress(league, "main_0", 2 * EVERY)
    assert due_takeovers(league) == [], "the others have too few"
    meet(league, "main_2", "random", 120)
    assert [one.donor for one in due_takeovers(league)] == ["main_2"]


def test_nobody_is_judged_while_most_others_are_unknown() -> None:
    league = started(rules(count=4))
    meet(league, "main_0", "random", 20)
    meet(league, "main_1", "random", 180)
    progress(league, "main_0", EVERY)
    assert due_takeovers(league) == []
    meet(league, "main_2", "random", 100)
    assert [one.donor for one in due_takeovers(league)] == ["main_1"]


@pytest.mark.parametrize(("confidence", "is_due"), [(0.5, True), (0.8, True), (0.99, False)])
def test_a_donor_must_be_better_for_sure(confidence: float, is_due: bool) -> None:
    league = started(rules(count=2, confidence=confidence))
    meet(league, "main_0", "main_1", 92)  # 1.1 standard errors below one half
    progress(league, "main_0", EVERY)
    assert bool(due_takeovers(league)) == is_due


def test_equals_keep_their_weights() -> None:
    league = started(rules(confidence=0.5))
    for player in league.standings:
        meet(league, player, "random", 100)
        progress(league, player, EVERY)
    assert due_takeovers(league) == []


def test_several_can_take_over_at_once_and_donors_do_not() -> None:
    league = started(rules(count=3))
    meet(league, "main_0", "random", 20)
    meet(league, "main_1", "random", 20)
    meet(league, "main_2", "random", 180)
    for player in league.standings:
        progress(league, player, EVERY)
    assert [(one.player, one.donor) for one in due_takeovers(league)] == [("main_0", "main_2"), ("main_1", "main_2")]
    frozen, *resets = take(league)
    assert isinstance(frozen, PlayerAdded), "once for both"
    assert [type(event) for event in resets] == [PlayerReset, PlayerReset]


def test_a_donor_that_was_frozen_already_is_not_frozen_again() -> None:
    league = ranked(rules())
    league.apply(league.snapshot_of("main_3", Snapshot(reason="by hand")))
    progress(league, "main_0", EVERY)
    assert [type(event) for event in take(league)] == [PlayerReset]
    progress(league, "main_3", 5)
    assert not is_frozen_now(league, "main_3")


@pytest.mark.parametrize("waits", ["reset", "unpublished"])
def test_who_starts_again_anyway_neither_takes_nor_gives(waits: str) -> None:
    league = ranked(rules(role={"reset_probability": 1.0}))
    progress(league, "main_0", EVERY)
    if waits == "reset":
        league.apply(league.snapshot_of("main_3", Snapshot(reason="beats everyone")))
    else:
        league.apply(PlayerReset("main_3", 1, None))
    assert [one.donor for one in due_takeovers(league)] == ["main_2"]


def test_head_to_head() -> None:
    league = started(rules(count=3, fitness="win_rate", selection=BinaryTournament(min_win_rate=0.7)))
    meet(league, "main_0", "main_1", 60)
    meet(league, "main_0", "main_2", 61)  # 69.5 % of them lost: not enough
    progress(league, "main_0", EVERY)
    found = []
    for interval in range(2, 30):
        found += [one.donor for one in due_takeovers(league)]
        progress(league, "main_0", interval * EVERY)
    assert set(found) == {"main_1"}
    assert 5 < len(found) < 25, "it meets either as often"


def test_scores_of_training() -> None:
    league = started(LeagueRules(roles={"main": replace(rules(fitness="score").roles["main"], count=3)}), num_teams=1)
    for player, mean in (("main_0", 10.0), ("main_1", 30.0), ("main_2", 20.0)):
        match = Match(league.matches.last_id + 1, "training", (Side((player,), trains=True),), 1, 200)
        league.apply(MatchIssued(match))
        squares = 200 * (mean**2 + 25.0)
        result = with_changes(result_of(match), score_sum=(200 * mean,), score_square_sum=(squares,))
        league.apply(MatchFinished(result))
    progress(league, "main_0", EVERY)
    (takeover,) = due_takeovers(league)
    assert takeover.donor == "main_1"
    assert takeover.reason == "score: main_1 is ahead by 20 ± 0.98"


def snapshot(league: League, player: str) -> str:
    event = league.snapshot_of(player, Snapshot(reason="by hand"))
    league.apply(event)
    return event.player


def test_ratings_of_evaluated_snapshots() -> None:
    league = started(rules(count=2, fitness="evaluation"))
    meet(league, "main_0", "main_1", 200)
    progress(league, "main_0", EVERY)
    assert due_takeovers(league) == [], "training does not count"
    for player, wins in (("main_0", 20), ("main_1", 180)):
        meet(league, snapshot(league, player), "random", wins, purpose="evaluation")
    assert [one.donor for one in due_takeovers(league)] == ["main_1"]
    take(league)
    progress(league, "main_0", 2 * EVERY)
    progress(league, "main_0", 3 * EVERY)
    assert due_takeovers(league) == [], "its snapshot is from before the takeover"


def test_scores_of_evaluated_snapshots() -> None:
    league = started(
        LeagueRules(roles={"main": replace(rules(fitness="evaluation").roles["main"], count=2)}), num_teams=1
    )
    for player, mean in (("main_0", 1.0), ("main_1", 2.0)):
        league.apply(ScoreMeasured(snapshot(league, player), f"{player}:0:0", mean, 0.1, 100))
    progress(league, "main_0", EVERY)
    assert [one.donor for one in due_takeovers(league)] == ["main_1"]


def test_a_crash_before_the_decision_changes_nothing_about_it() -> None:
    league = ranked(rules(resample_probability=0.5))
    progress(league, "main_0", EVERY)
    before = due_takeovers(league)
    assert len(before) == 1
    league.apply(LearnerProgress("main_0", 1, 400, 400))  # the learner goes on from a checkpoint
    assert due_takeovers(league) == before
    progress(league, "main_0", 500)
    assert due_takeovers(league) == [], "once it learns on, it waits for its next interval"


def test_decisions_differ_between_runs_and_members() -> None:
    def rates(seed: int) -> list[float]:
        league = started(rules(count=8, resample_probability=1.0), seed=seed)
        for index, player in enumerate(league.standings):
            meet(league, player, "random", 180 if index == 7 else 20)
            progress(league, player, EVERY)
        return [one.settings[RATE] for one in due_takeovers(league)]

    assert len(set(rates(1))) == 7
    assert rates(1) == rates(1) != rates(2)


def test_a_population_replays_to_the_same_digest() -> None:
    settings = rules()
    live, replayed = started(settings), started(settings)
    events: list[AnyEvent] = []
    for round_ in range(1, 6):
        for index, player in enumerate(list(live.standings)):
            match = match_of(player, "random", id=live.matches.last_id + 1, episodes=200)
            played: list[AnyEvent] = [
                MatchIssued(match),
                MatchFinished(result_of(match, (80 + 20 * index, 0, 120 - 20 * index))),
                LearnerProgress(player, live.standings[player].incarnation, round_, round_ * EVERY),
            ]
            for event in played:
                live.apply(event)
            events += [*played, *take(live)]
    assert sum(isinstance(event, PlayerReset) for event in events) > 2
    for event in events:
        replayed.apply(event)
    assert replayed.state_digest() == live.state_digest()
    assert replayed.lineage == live.lineage
    assert due_takeovers(replayed) == due_takeovers(live)


def test_lineage_tells_where_weights_and_settings_come_from() -> None:
    league = ranked(rules())
    first = league.settings_of("main_0")
    progress(league, "main_0", EVERY)
    (takeover,) = due_takeovers(league)
    take(league)
    began, took = league.lineage["main_0"]
    assert (began.decisions, began.donor, began.model, began.settings) == (0, None, None, first)
    assert (took.decisions, took.donor, took.model) == (EVERY, "main_3", "main_3:0:0")
    assert (took.settings, took.reason) == (takeover.settings, takeover.reason)
    assert set(league.lineage) == set(league.standings), "of learning players only"


def test_a_donor_without_weights_cannot_give_them() -> None:
    league = ranked(rules())
    league.apply(PlayerReset("main_3", 1, None))
    with pytest.raises(ValueError, match="'main_3' has no weights that 'main_0' could take over"):
        reset_for(league, Takeover(player="main_0", donor="main_3", settings={}, reason=""))


def test_roles_without_a_population_begin_with_the_experiments_settings() -> None:
    league = League(
        LeagueRules(roles={"main": Role(), "tuned": rules(count=1).roles["main"]}),
        num_teams=2,
        seats_per_team=(1, 1),
        seed=3,
    )
    assert [list(event.settings) for event in league.initial_events()] == [[], [RATE]]
