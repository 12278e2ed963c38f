"""The snapshot that has measured best."""

from __future__ import annotations

import numpy as np
import pytest
from league_rows import play, started
from rich.console import Console

from ludus.data.records import LearnerProgress, PlayerAdded, PlayerRemoved, ScoreMeasured
from ludus.league.league import League
from ludus.league.promotion import BoundedHistory
from ludus.league.rules import LeagueRules, Role
from ludus.league.summary import best_snapshot, due_retirements, ranked, summarise, tags_of
from ludus.observe.league_fold import league_players
from ludus.observe.terminal import league_table, measure_lines, payoff_table


def league_with(snapshots: int, *, num_teams: int = 2, bound: BoundedHistory | None = None) -> League:
    roles = {"main": Role(history=bound), "other": Role()}
    league = started(LeagueRules(roles=roles, bots=("bot",)), num_teams=num_teams)
    for step in range(1, snapshots + 1):
        for player in ("main", "other"):
            league.apply(LearnerProgress(player, 0, step, step))
            league.apply(
                PlayerAdded(player=f"{player}.{step}", role="frozen", parent=player, model=f"{player}:0:{step}")
            )
    return league


def measure(league: League, player: str, other: str, wins: int, losses: int) -> None:
    play(league, player, other, pairs=((wins, 0, losses),), purpose="evaluation")


def test_there_is_none_before_anything_was_measured() -> None:
    league = league_with(2)
    play(league, "main.1", "main.2", pairs=((9, 0, 1),))
    assert best_snapshot(league, "main") is None
    assert tags_of(league, "main") == {"latest": "main.2"}


def test_it_has_the_highest_rating_from_evaluation_alone() -> None:
    league = league_with(3)
    for snapshot, wins in (("main.1", 50), ("main.2", 80), ("main.3", 60), ("other.1", 99)):
        measure(league, snapshot, "bot", wins, 100 - wins)
    play(league, "main.1", "bot", pairs=((1000, 0, 0),))
    assert best_snapshot(league, "main") == "main.2"
    assert best_snapshot(league, "other") == "other.1"
    assert summarise(league).tags == {
        "main": {"best": "main.2", "latest": "main.3"},
        "other": {"best": "other.1", "latest": "other.3"},
    }


def test_of_equals_it_is_the_newest() -> None:
    league = league_with(3)
    for snapshot in ("main.1", "main.2"):
        measure(league, snapshot, "bot", 70, 30)
    assert best_snapshot(league, "main") == "main.2"


def test_a_removed_snapshot_is_not_the_best() -> None:
    league = league_with(2)
    measure(league, "main.1", "bot", 90, 10)
    measure(league, "main.2", "bot", 60, 40)
    league.apply(PlayerRemoved("main.1"))
    assert best_snapshot(league, "main") == "main.2"


def test_snapshots_without_a_chain_of_games_are_not_compared() -> None:
    league = league_with(4)
    measure(league, "main.1", "main.2", 99, 1)
    measure(league, "main.3", "main.4", 60, 40)
    assert best_snapshot(league, "main") == "main.3"


def test_in_a_game_with_one_team_scores_decide() -> None:
    league = league_with(3, num_teams=1)
    for step, mean in ((1, 5.0), (2, 7.0), (3, 7.0)):
        league.apply(ScoreMeasured(f"main.{step}", f"main:0:{step}", mean, 0.1, 9))
    league.apply(ScoreMeasured("other.1", "other:0:1", 99.0, 0.1, 9))
    assert best_snapshot(league, "main") == "main.3"


def test_a_bounded_history_keeps_the_best_the_strongest_and_the_snapshots_by_hand() -> None:
    league = league_with(12, bound=BoundedHistory(size=6, strongest=1))
    league.apply(PlayerAdded(player="mine", role="frozen", parent="main", model="main:0:12", reason="by hand"))
    for step in range(1, 13):
        measure(league, f"main.{step}", "bot", 90 if step == 5 else 50, 50)
        play(league, "other", f"main.{step}", pairs=((10 if step == 8 else 60, 0, 40),))
    for event in due_retirements(league, "main"):
        assert event.reason == "retired"
        league.apply(event)
    left = league.candidates.history_of("main")
    assert len(left) == 6 + 1
    assert {"main.1", "main.5", "main.8", "main.12", "mine"} <= {*left}
    assert due_retirements(league, "main") == []
    assert due_retirements(league, "other") == []
    assert best_snapshot(league, "main") == "main.5"


def test_a_pair_that_has_met_too_rarely_has_a_record_and_no_win_rate() -> None:
    """Eight lost games are no win rate of 50 %, which is only what matchmaking assumes."""
    league = league_with(1)
    measure(league, "main.1", "bot", 0, 8)
    measure(league, "other.1", "bot", 15, 5)
    assert league.payoff.win_rate("main.1", "bot") == 0.5
    summary = summarise(league)
    place = {player.id: number for number, player in enumerate(summary.players)}
    assert np.isnan(summary.win_rates[place["main.1"], place["bot"]])
    assert summary.win_rates[place["other.1"], place["bot"]] == pytest.approx(0.75)
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(league_table(league, summary, ("bot",)), payoff_table(summary, 160))
    rows = [line.split() for line in captured.get().splitlines()]
    assert next(row for row in rows if row[:1] == ["main.1"])[-3:] == ["0", "of", "8"]
    assert next(row for row in rows if row[:1] == ["other.1"])[-2] == "75.0"
    assert "0.50" not in captured.get()


def test_live_and_averaged_weights_are_labelled_and_ranked_apart() -> None:
    """A learning player plays with live weights. It does not rank above the averages of its snapshots, and bots do."""
    league = league_with(2)
    league.apply(PlayerAdded(player="main.3", role="frozen", parent="main", model="main:0:2", weights="average"))
    for player, wins in (("main", 90), ("main.1", 70), ("main.3", 60), ("bot", 20)):
        measure(league, player, "other.1", wins, 100 - wins)
    summary = summarise(league)
    live, averaged = ([player.id for player, rating in group if rating.elo is not None] for group in ranked(summary))
    assert live[:2] == ["main", "main.1"]
    assert averaged == ["main.3", "bot"]
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(league_table(league, summary, ()), payoff_table(summary, 160), *measure_lines(summary))
    rows = [line.split()[:2] for line in captured.get().splitlines()]
    assert rows.count(["main", "(live)"]) == 2, "in the table and in the payoff"
    assert rows.count(["main.3", "(average)"]) == 2
    assert "main@latest is main.3 (average)" in captured.get()
    assert [one.weights for one in league_players(league, summary) if one.id in ("main", "main.3", "bot")] == [
        "live",
        None,
        "average",
    ]
