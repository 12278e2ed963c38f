"""The quick fold of the views comes to the same league as the fold of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from planted_runs import experiment_of, plant, rules_with_bots

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    Pair,
    PlayerAdded,
    Result,
    RunStarted,
    Side,
)
from ludus.league import presets
from ludus.league.league import League
from ludus.league.rules import EvaluationConfig, LeagueRules
from ludus.league.summary import summarise
from ludus.observe.league_fold import POINTS, Columns, RatingHistory, RunFold, SavedLeague, read_league
from ludus.store.run_folder import RunFolder

VIEWS = ("training", "evaluation", "combined")


def folded(folder: RunFolder) -> RunFold:
    fold = RunFold(read_league(folder))
    with closing(folder.ledger(read_only=True)) as ledger:
        assert fold.follow(ledger)
        assert not fold.follow(ledger)
    return fold


def one_by_one(folder: RunFolder) -> League:
    league = read_league(folder).league
    with closing(folder.ledger(read_only=True)) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    return league


@pytest.mark.parametrize("preset", ["pfsp", "openai_five"])
def test_a_life_of_a_league_comes_out_the_same(tmp_path: Path, preset: str) -> None:
    rules = rules_with_bots() if preset == "pfsp" else presets.openai_five(bots=("random", "alpha_beta_2"))
    folder = plant(tmp_path / "run", rules=rules)
    fold, league = folded(folder), one_by_one(folder)
    assert list(fold.league.candidates) == list(league.candidates)
    players = [*league.candidates, "a_person"]
    for view in VIEWS:
        for mine, other in zip(
            fold.league.payoffs.view(view).counts(players), league.payoffs.view(view).counts(players), strict=True
        ):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    assert fold.league.payoffs.human.counts(players)[0].sum() > 0
    book = league.matches
    assert (fold.issued, fold.finished, fold.evaluations, fold.void) == (
        book.issued,
        book.finished,
        book.evaluations,
        book.void,
    )
    assert [match.id for match in fold.open_matches] == list(book.open_matches)
    assert fold.decisions == sum(standing.decisions for standing in league.standings.values())
    law, expected = fold.league.opponent_law("main"), league.opponent_law("main")
    assert law == pytest.approx(expected)
    mine, other = summarise(fold.league), summarise(league)
    assert [one.elo for one in mine.ratings] == pytest.approx([one.elo for one in other.ratings], abs=1e-6)
    assert mine.tags == other.tags


def test_it_goes_on_with_what_is_new(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    fold = RunFold(read_league(folder))
    with closing(folder.ledger()) as ledger:
        events = [event for _, event in ledger.replay()]
    growing = RunFolder.create(tmp_path / "growing", experiment_of(rules_with_bots()), seed=3)
    with closing(growing.ledger()) as ledger:
        for start in range(0, len(events), 37):
            ledger.append(events[start : start + 37])
            fold.follow(ledger)
    whole = folded(folder)
    players = list(whole.league.candidates)
    np.testing.assert_allclose(
        fold.league.payoffs.combined.counts(players)[0], whole.league.payoffs.combined.counts(players)[0]
    )
    assert (fold.seen, len(fold.pairs), fold.void) == (whole.seen, len(whole.pairs), whole.void)


def test_line_ups_and_more_than_two_sides_are_pairs_too(tmp_path: Path) -> None:
    rules = LeagueRules(roles=presets.pfsp(period=1000).roles, bots=("a", "b", "c"))
    start: list[AnyEvent] = [
        RunStarted(0),
        PlayerAdded("main", "main"),
        *(PlayerAdded(bot, "scripted") for bot in "abc"),
        LearnerProgress("main", 0, 0, 0),
    ]
    sides = {
        "three sides": (Side(("main",)), Side(("a",)), Side(("b",))),
        "a line-up": (Side(("main", "a"), captain="main"), Side(("b", "c"), captain="b"), Side(("c",))),
    }
    for name, line_up in sides.items():
        seats = 2 if name == "a line-up" else 1
        match = Match(1, "training", line_up, 1, 10)
        pairs = (Pair(0, 1, 6, 1, 3), Pair(0, 2, 2, 2, 6), Pair(1, 2, 5, 0, 5))
        blank = ("", "", "")
        result = Result(1, 10, 50, (5, 5, 5), pairs, (1.0, 2.0, -3.0), (1.0, 2.0, 9.0), blank, blank)
        league, other = (League(rules, num_teams=3, seats_per_team=(seats,) * 3, seed=1) for _ in range(2))
        fold = RunFold(SavedLeague(league=league, evaluation=EvaluationConfig(opponents=())))
        folder = RunFolder.create(tmp_path / name, {}, seed=1)
        with closing(folder.ledger()) as ledger:
            if name == "a line-up":
                line_up = (Side(("main", "a"), captain="main"), Side(("b", "c"), captain="b"), Side(("c", "c")))
                match = Match(1, "training", line_up, 1, 10)
            events = [*start, MatchIssued(match), MatchFinished(result)]
            ledger.append(events)
            fold.follow(ledger)
        for event in events:
            other.apply(event)
        for view in VIEWS:
            mine, expected = (one.payoffs.view(view).counts(["main", "a", "b", "c"]) for one in (league, other))
            np.testing.assert_allclose(mine, expected, err_msg=f"{name}, {view}")
        assert fold.line_ups[1] == tuple(dict.fromkeys(player for side in line_up for player in side.players))


def test_ratings_over_time_end_where_the_league_is(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run", matches=600)
    fold = folded(folder)
    history = RatingHistory(fold)
    anchor = "random"
    assert history.follow(anchor)
    assert not history.follow(anchor)
    assert POINTS <= len(history.points) < 2 * POINTS
    decisions = [point.decisions for point in history.points]
    assert decisions == sorted(decisions)
    assert history.points[0].elo.keys() <= history.points[-1].elo.keys()
    # The rules of the payoff changed half way; the history is by those of now, which all that counts has.
    now = {one.player: one.elo for one in summarise(fold.league).ratings}
    assert history.points[-1].elo["alpha_beta_2"][0] == pytest.approx(now["alpha_beta_2"], abs=40)


def test_columns_keep_their_rows_while_they_grow() -> None:
    table = Columns("a", "b")
    for number in range(5000):
        table.append((number, -number))
        if number % 777 == 0:
            assert table.column("a", number)[0] == number
    assert len(table) == 5000
    np.testing.assert_array_equal(table.column("b", 10, 13), [-10, -11, -12])
