"""Which pairs are measured next: a pure reading of the league."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchVoid,
    Pair,
    PlayerAdded,
    PlayerRemoved,
    Result,
    RunStarted,
    ScoreMeasured,
    Side,
)
from ludus.league import presets
from ludus.league.league import League
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.workers.evaluator import MOST_FAILURES, Evaluator


class Told:
    """A league and an evaluator that reads it."""

    def __init__(
        self,
        config: EvaluationConfig,
        teams: int = 2,
        bots: tuple[str, ...] = ("random", "rules"),
        rules: LeagueRules | None = None,
    ) -> None:
        rules = rules or LeagueRules(roles={"main": Role(promotion=BySteps(every=10))}, bots=bots)
        self.config = config
        self.events: list[AnyEvent] = []
        self.league = League(rules, num_teams=teams, seats_per_team=(1,) * teams, seed=0)
        self.evaluator = Evaluator(config, self.league)
        self.tell(RunStarted(0), *self.league.initial_events())
        self.matches = 0

    def tell(self, *events: AnyEvent) -> None:
        for event in events:
            self.league.apply(event)
            self.events.append(event)

    def restart(self) -> None:
        """Another process reads the ledger and goes on."""
        old = self.league
        self.league = League(old.rules, num_teams=old.num_teams, seats_per_team=old.seats_per_team, seed=0)
        for event in self.events:
            self.league.apply(event)
        self.evaluator = Evaluator(self.config, self.league)
        self.tell(RunStarted(self.league.starts))

    def freeze(self) -> None:
        """One more snapshot of main."""
        number = sum(player.frozen for player in self.league.players.values()) + 1
        self.tell(
            LearnerProgress("main", 0, number, 10 * number),
            PlayerAdded(player=f"main.{number}", role="frozen", parent="main", model=f"main:0:{number}", reason="x"),
        )

    def issue(self, sides: tuple[str, ...]) -> Match:
        self.matches += 1
        match = self.league.evaluation_match(self.matches, sides, tables=1, episodes_per_table=len(sides))
        self.tell(MatchIssued(match))
        return match

    def finish(self, match: Match) -> None:
        n, episodes = len(match.sides), match.episodes
        pairs = tuple(Pair(a, b, episodes, 0, 0) for a in range(n) for b in range(a + 1, n))
        zeros, names = (0.0,) * n, ("",) * n
        self.tell(MatchFinished(Result(match.id, episodes, 1, (1,) * n, pairs, zeros, zeros, names, names)))

    def measure_all(self) -> list[tuple[str, ...]]:
        measured = []
        while (sides := self.evaluator.next_sides()) is not None:
            measured.append(sides)
            self.finish(self.issue(sides))
        return measured


def test_nothing_is_measured_before_there_is_a_snapshot() -> None:
    assert Told(EvaluationConfig()).evaluator.next_sides() is None


def test_every_snapshot_meets_the_bots_and_its_latest_predecessors_once() -> None:
    told = Told(EvaluationConfig(opponents=("random", "rules"), past=2, ladder=0))
    told.freeze()
    assert told.measure_all() == [("main.1", "random"), ("main.1", "rules")]
    for _ in range(3):
        told.freeze()
    assert told.measure_all() == [
        *[("main.2", other) for other in ("random", "rules", "main.1")],
        *[("main.3", other) for other in ("random", "rules", "main.1", "main.2")],
        *[("main.4", other) for other in ("random", "rules", "main.2", "main.3")],
    ]
    assert told.measure_all() == []


def test_what_is_being_measured_is_not_asked_for_again() -> None:
    told = Told(EvaluationConfig(opponents=("random", "rules"), past=0))
    told.freeze()
    first = told.issue(("main.1", "random"))
    assert told.evaluator.next_sides() == ("main.1", "rules")
    second = told.issue(("main.1", "rules"))
    assert told.evaluator.next_sides() is None
    told.finish(second)
    told.finish(first)
    assert told.evaluator.next_sides() is None


def test_a_match_that_was_void_is_asked_for_again() -> None:
    told = Told(EvaluationConfig(opponents=("random",), past=0))
    told.freeze()
    told.issue(("main.1", "random"))
    assert told.evaluator.next_sides() is None
    told.tell(RunStarted(1))
    assert told.evaluator.next_sides() == ("main.1", "random")


def test_a_match_that_ends_void_again_and_again_is_given_up_until_the_run_starts_again() -> None:
    told = Told(EvaluationConfig(opponents=("random", "rules"), past=0))
    told.freeze()
    for _ in range(MOST_FAILURES):
        assert told.evaluator.next_sides() == ("main.1", "random")
        told.tell(MatchVoid(told.issue(("main.1", "random")).id, "crashed"))
    assert told.measure_all() == [("main.1", "rules")]
    assert not told.evaluator.is_busy
    told.restart()
    assert told.measure_all() == [("main.1", "random")]


def test_a_ladder_whose_matches_all_fail_ends() -> None:
    told = Told(EvaluationConfig(opponents=("random",), past=1, ladder=1))
    for _ in range(8):
        told.freeze()
    tried = []
    while (sides := told.evaluator.next_sides()) is not None:
        tried.append(sides)
        told.tell(MatchVoid(told.issue(sides).id, "crashed"))
    assert len(tried) == MOST_FAILURES * (8 + 7 + 7), "as often as the matches of 8 snapshots, not of 28 pairs"


@pytest.mark.parametrize("past", ["all", 3])
def test_all_pairs_are_measured_where_that_is_asked_for_or_needed(past: Any) -> None:
    rules = None if past == "all" else presets.psro(period=10, self_play=0.5, bots=("random",))
    told = Told(EvaluationConfig(opponents=(), past=past, ladder=0), rules=rules)
    for _ in range(6):
        told.freeze()
    assert len(told.measure_all()) == 6 * 5 // 2
    games, _ = told.league.payoffs.evaluation.counts(told.league.candidates.frozen())
    assert ((games > 0) | np.eye(6, dtype=bool)).all()


def test_rules_that_come_to_need_all_pairs_get_them() -> None:
    told = Told(EvaluationConfig(opponents=(), past=0, ladder=0))
    for _ in range(3):
        told.freeze()
    assert told.measure_all() == []
    told.league.rules = presets.psro(period=10)
    assert len(told.measure_all()) == 3


def test_the_ladder_plays_a_fixed_number_of_matches_for_each_snapshot_and_pairs_that_never_met_first() -> None:
    told = Told(EvaluationConfig(opponents=("random",), past=1, ladder=2))
    told.freeze()
    assert told.measure_all() == [("main.1", "random")]
    for _ in range(4):
        told.freeze()
    needed = {(f"main.{new}", other) for new in range(2, 6) for other in ("random", f"main.{new - 1}")}
    measured = told.measure_all()
    assert set(measured[:8]) == needed
    ladder = measured[8:]
    assert len(ladder) == 2 * 4
    assert len({frozenset(pair) for pair in ladder[:6]} - {frozenset(pair) for pair in needed}) == 6
    assert "random" not in {player for pair in ladder for player in pair}
    assert not told.evaluator.is_busy


def test_the_ladder_goes_on_after_a_restart_where_it_was() -> None:
    told = Told(EvaluationConfig(opponents=("random",), past=1, ladder=2))
    for _ in range(4):
        told.freeze()
    for _ in range(4 + 3 + 1):
        sides = told.evaluator.next_sides()
        assert sides is not None
        told.finish(told.issue(sides))
    expected = told.evaluator.next_sides()
    told.restart()
    assert told.evaluator.next_sides() == expected
    assert len(told.measure_all()) == 2 * 3 - 1


def test_a_removed_snapshot_is_measured_no_more() -> None:
    told = Told(EvaluationConfig(opponents=("random",), past=1, ladder=2))
    for _ in range(4):
        told.freeze()
    told.tell(PlayerRemoved("main.2"))
    assert not any("main.2" in sides for sides in told.measure_all())
    assert not told.evaluator.is_busy


def test_training_results_do_not_count_as_measured() -> None:
    told = Told(EvaluationConfig(opponents=("random",), past=0))
    told.freeze()
    sides = (Side(players=("main.1",)), Side(players=("random",)))
    match = Match(1, "training", sides, 1, 2)
    told.tell(MatchIssued(match))
    told.finish(match)
    assert told.evaluator.next_sides() == ("main.1", "random")


def test_with_three_teams_the_opponent_has_the_others() -> None:
    told = Told(EvaluationConfig(opponents=("random",)), teams=3)
    told.freeze()
    assert told.evaluator.next_sides() == ("main.1", "random", "random")
    assert told.measure_all() == [("main.1", "random", "random")]


def test_with_one_team_a_snapshot_has_a_score() -> None:
    told = Told(EvaluationConfig(opponents=("random",)), teams=1)
    told.freeze()
    assert told.evaluator.next_sides() == ("main.1",)
    match = told.issue(("main.1",))
    assert told.evaluator.is_score(match)
    assert told.evaluator.next_sides() is None
    told.finish(match)
    told.tell(ScoreMeasured("main.1", "main:0:1", 3.0, 0.1, 1))
    assert told.evaluator.next_sides() is None


def test_only_evaluations_of_one_side_are_scores() -> None:
    evaluator = Told(EvaluationConfig()).evaluator
    one, other = Side(players=("main",)), Side(players=("random",))
    assert not evaluator.is_score(Match(1, "training", (one,), 1, 1))
    assert not evaluator.is_score(Match(1, "evaluation", (one, other), 1, 1))


@pytest.mark.parametrize(
    ("episodes", "tables", "teams", "per_table"),
    [(512, 128, 2, 4), (512, 500, 2, 2), (1, 8, 2, 2), (100, 8, 3, 15), (10, 4, 1, 3), (9, 8, 1, 2)],
)
def test_enough_episodes_and_every_side_on_every_team(episodes: int, tables: int, teams: int, per_table: int) -> None:
    told = Told(EvaluationConfig(opponents=("random",), episodes=episodes), teams=teams)
    assert told.evaluator.episodes_per_table(tables) == per_table
    assert per_table * tables >= episodes
    assert per_table % teams == 0


@pytest.mark.parametrize(("name", "value", "least"), [("episodes", 0, 1), ("past", -1, 0), ("ladder", -1, 0)])
def test_settings_that_make_no_sense_are_refused(name: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {value}"):
        EvaluationConfig(**cast(Any, {name: value}))
