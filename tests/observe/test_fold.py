"""The fold of a run that everything shown reads: the league, its matches, and its past."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from planted_runs import events_of, experiment_of, plant, rules_with_bots

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchVoid,
    Pair,
    PlayerAdded,
    Result,
    RunStarted,
    Side,
)
from ludus.league import presets
from ludus.league.league import League
from ludus.league.rules import LeagueRules
from ludus.league.summary import summarise
from ludus.observe import league_fold
from ludus.observe.league_fold import FOLD_FILE, POINTS, RunFold, read_league
from ludus.store.run_folder import RunFolder


def folded(folder: RunFolder) -> RunFold:
    fold = RunFold(folder)
    assert fold.follow()
    assert not fold.follow()
    return fold


def one_by_one(folder: RunFolder) -> League:
    league, _ = read_league(folder)
    with closing(folder.ledger(read_only=True)) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    return league


@pytest.mark.parametrize("preset", ["pfsp", "openai_five"])
def test_a_life_of_a_league_comes_out_the_same(tmp_path: Path, preset: str) -> None:
    rules = rules_with_bots() if preset == "pfsp" else presets.openai_five(bots=("random", "alpha_beta_2"))
    folder = plant(tmp_path / "run", rules=rules)
    fold, league = folded(folder), one_by_one(folder)
    assert fold.league.state_digest() == league.state_digest()
    assert fold.league.payoffs.human.counts([*league.candidates, "a_person"])[0].sum() > 0
    assert [match.id for match in fold.open_matches] == list(league.matches.open_matches)
    assert fold.decisions == sum(standing.decisions for standing in league.standings.values())
    counts = fold.counts
    states = [match.state for match in fold.ended]
    assert (states.count("finished"), states.count("void")) == (counts.finished, counts.void)
    assert counts.issued == len({match.id for match in (*fold.ended, *fold.open_matches)})
    with closing(folder.ledger(read_only=True)) as ledger:
        causes = [event.reason for _, event in ledger.replay() if isinstance(event, MatchVoid)]
    assert fold.voids.total() == len(causes) > 0


def test_it_goes_on_with_what_is_new(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    with closing(folder.ledger()) as ledger:
        events = [event for _, event in ledger.replay()]
    growing = RunFolder.create(tmp_path / "growing", experiment_of(rules_with_bots()), seed=3)
    with closing(growing.ledger()) as ledger:
        fold = RunFold(growing)
        for start in range(0, len(events), 37):
            ledger.append(events[start : start + 37])
            assert fold.follow()
            fold.document()
    whole = folded(folder)
    assert (fold.seen, fold.ended, fold.results, fold.voids) == (whole.seen, whole.ended, whole.results, whole.voids)
    assert fold.summary(measured=True).ratings == whole.summary(measured=True).ratings
    mine, other = fold.document(), whole.document()
    assert {**mine, "latest": 0} == {**other, "latest": 0}


@pytest.mark.parametrize("seats", [1, 2])
def test_line_ups_and_more_than_two_sides_are_pairs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seats: int
) -> None:
    rules = LeagueRules(roles=presets.pfsp(period=1000).roles, bots=("a", "b", "c"))
    sides = {
        1: (Side(("main",)), Side(("a",)), Side(("b",))),
        2: (Side(("main", "a"), captain="main"), Side(("b", "c"), captain="b"), Side(("c", "c"))),
    }[seats]
    pairs = (Pair(0, 1, 6, 1, 3), Pair(0, 2, 2, 2, 6), Pair(1, 2, 5, 0, 5))
    blank = ("", "", "")
    result = Result(1, 10, 50, (5, 5, 5), pairs, (1.0, 2.0, -3.0), (1.0, 2.0, 9.0), blank, blank)
    events: list[AnyEvent] = [
        RunStarted(0),
        PlayerAdded("main", "main"),
        *(PlayerAdded(bot, "scripted") for bot in "abc"),
        LearnerProgress("main", 0, 0, 70),
        MatchIssued(Match(1, "training", sides, 1, 10)),
        MatchFinished(result),
    ]
    folder = RunFolder.create(tmp_path / "run", experiment_of(rules), seed=1)
    monkeypatch.setattr(league_fold, "_seats_per_team", lambda folder, experiment: (seats,) * 3)
    with closing(folder.ledger()) as ledger:
        ledger.append(events)
    fold = folded(folder)
    second, third = ("a", "b") if seats == 1 else ("b", "c")
    found = {(one.first, one.second): (one.points, one.games, one.decisions) for one in fold.results}
    points = {("main", second): 6.5, ("main", third): 3.0, (second, third): 5.0}
    assert found == {
        (min(pair), max(pair)): (won if pair[0] < pair[1] else 10 - won, 10, 70) for pair, won in points.items()
    }
    [match] = fold.ended
    assert match.players == tuple(player for side in sides for player in side.players)


def test_ratings_over_time_end_where_the_league_is(tmp_path: Path) -> None:
    fold = folded(plant(tmp_path / "run", matches=600))
    assert POINTS <= len(fold.ratings) < 2 * POINTS
    decisions = [point.decisions for point in fold.ratings]
    assert decisions == sorted(decisions)
    assert {point.anchor for point in fold.ratings} == {"random"}
    assert fold.ratings[0].elo.keys() <= fold.ratings[-1].elo.keys()
    now = {one.player: one.elo for one in summarise(fold.league).ratings}
    assert fold.ratings[-1].elo["alpha_beta_2"][0] == pytest.approx(now["alpha_beta_2"], abs=40)


def test_ratings_of_a_long_run_are_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_fold, "POINTS", 4)
    folder = plant(tmp_path / "run")
    with closing(folder.ledger()) as ledger:
        events = [event for _, event in ledger.replay()]
    growing = RunFolder.create(tmp_path / "growing", experiment_of(rules_with_bots()), seed=3)
    fold = None
    with closing(growing.ledger()) as ledger:
        for start in range(0, len(events), 20):
            ledger.append(events[start : start + 20])
            fold = fold or RunFold(growing)
            fold.follow()
            assert len(fold.ratings) < 8
    assert fold is not None
    assert len(fold.ratings) >= 4


# --- the saved fold ---


def everything(fold: RunFold) -> tuple[Any, ...]:
    """What a fold knows, down to the last bit of every number."""
    fold.follow()
    document = fold.document()
    for known in ("latest", "faults"):
        document.pop(known)
    past = (fold.ended, fold.results, fold.changes, fold.voids, fold.ratings)
    return document, past, fold.league.lineage, fold.league.rules, list(fold.league.scores), fold.lost


@pytest.fixture
def saving_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_fold, "SAVE_EVERY", 1)


def grown(path: Path, rows: int, more: int) -> Iterator[RunFolder]:
    """A run with the first rows of a planted ledger, and then with more of them."""
    folder = RunFolder.create(path, experiment_of(rules_with_bots()), seed=3, command=())
    events = iter(events_of(rules_with_bots(), snapshots=6, matches=240))
    for count in (rows, more):
        with folder.ledger() as ledger:
            ledger.append(itertools.islice(events, count))
        yield folder


@pytest.mark.parametrize("rows", [1, 60, 200, 333, 700])
@pytest.mark.usefixtures("saving_often")
def test_a_saved_fold_and_the_rest_are_the_same_as_everything_from_row_0(rows: int, tmp_path: Path) -> None:
    for folder in grown(tmp_path / "run", rows, 10_000):
        with closing(RunFold(folder)) as fold:
            fold.follow()
    with closing(RunFold(folder)) as fold:
        assert fold.seen >= rows, "it was saved"
        saved = everything(fold)
    with closing(RunFold(folder)) as fold:
        assert everything(fold) == saved, "with the numbers that were saved by the one before"
    (folder.path / FOLD_FILE).unlink()
    with closing(RunFold(folder)) as fold:
        assert fold.seen == 0
        assert everything(fold) == saved


@pytest.mark.usefixtures("saving_often")
def test_a_saved_fold_that_does_not_fit_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path / "run")
    RunFold.save_of(folder)
    path = folder.path / FOLD_FILE
    whole = path.read_bytes()

    def is_used(folder: RunFolder = folder) -> bool:
        with closing(RunFold(folder)) as fold:
            return fold.seen > 0

    assert is_used()
    for content in (b"", whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], b"x" * 1000):
        path.write_bytes(content)
        assert not is_used()
    path.write_bytes(whole)
    with monkeypatch.context() as changed:
        changed.setattr(league_fold, "_code_digest", lambda: "of other code")
        assert not is_used()
    assert not is_used(folder.with_experiment(experiment_of(rules_with_bots(), seed=4)))
    other = plant(tmp_path / "other", matches=60)
    (other.path / FOLD_FILE).write_bytes(whole)
    assert not is_used(other), "its ledger is another"
    assert is_used()


def test_a_run_that_cannot_be_written_is_read_without_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path / "run")

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(league_fold, "SAVE_EVERY", 1)
    monkeypatch.setattr(league_fold, "atomic_write", refuse)
    RunFold.save_of(folder)
    assert not (folder.path / FOLD_FILE).exists()
