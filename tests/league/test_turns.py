"""Who trains when there are more learning players than places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    MatchIssued,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    RunStarted,
)
from ludus.league.league import League
from ludus.league.rules import LeagueRules, Role

TURN, BATCH = 100, 30


def rules_of(count: int, capacity: int | None) -> LeagueRules:
    return LeagueRules(roles={"main": Role(count=count)}, capacity=capacity, turn=TURN)


class Trained:
    """A league whose active players train, batch by batch, and the events that it was fed."""

    def __init__(self, count: int = 4, capacity: int | None = 2) -> None:
        self.rules = rules_of(count, capacity)
        self.league = self.new()
        self.events: list[AnyEvent] = []
        self.feed(RunStarted(0), *self.league.initial_events())

    def new(self) -> League:
        return League(self.rules, num_teams=2, seats_per_team=(1, 1), seed=1)

    def feed(self, *events: AnyEvent) -> None:
        for event in events:
            self.league.apply(event)
            self.events.append(event)

    def report(self, player: str, decisions: int) -> None:
        standing = self.league.standings[player]
        self.feed(LearnerProgress(player, standing.incarnation, (standing.step or 0) + 1, decisions))

    def train(self, *players: str, batches: int = 1) -> None:
        """One batch of each of these, or of everyone whose turn it is, so many times."""
        for _ in range(batches):
            for player in players or self.league.active:
                self.report(player, self.league.standings[player].decisions + BATCH)

    @property
    def active(self) -> set[str]:
        return {player.removeprefix("main_") for player in self.league.active}


def test_without_a_capacity_everyone_trains() -> None:
    run = Trained(3, None)
    assert run.active == {"0", "1", "2"}
    run.train(batches=9)
    assert run.active == {"0", "1", "2"}


def test_places_are_handed_on_after_a_turn_to_whoever_has_trained_least() -> None:
    run = Trained()
    seen = [run.active]
    for _ in range(16):
        run.train()
        if run.active != seen[-1]:
            seen.append(run.active)
    assert seen == [{"0", "1"}, {"2", "3"}, {"0", "1"}, {"2", "3"}, {"0", "1"}]


def test_a_turn_goes_on_when_another_one_ends() -> None:
    run = Trained()
    run.train("main_0", batches=4)
    assert run.active == {"1", "2"}
    run.train("main_1", batches=3)
    assert run.active == {"1", "2"}, "90 of 100 decisions"
    run.train("main_1")
    assert run.active == {"2", "3"}


def test_decisions_that_come_in_late_do_not_take_a_place_away() -> None:
    run = Trained(3, 1)
    run.train("main_0", batches=4)
    run.train("main_1")
    run.train("main_0", "main_2", batches=2)  # matches that were under way
    assert run.active == {"1"}


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 6), st.integers(1, 7))
def test_nobody_starves(data: st.DataObject, count: int, capacity: int) -> None:
    """Whatever the pace of each, and whoever is reset: all have trained about the same."""
    run = Trained(count, capacity)
    for _ in range(120):
        player = data.draw(st.sampled_from(run.league.active))
        if data.draw(st.integers(0, 9)) == 0:
            run.feed(PlayerReset(player, run.league.standings[player].incarnation + 1, None))
        else:
            run.train(player)
        assert len(run.league.active) == min(count, capacity)
    waiting = [s.decisions for p, s in run.league.standings.items() if p not in run.league.active]
    trained = [standing.decisions for standing in run.league.standings.values()]
    assert max(trained) - min(waiting, default=max(trained)) <= TURN + BATCH


def test_with_equal_pace_all_have_trained_within_one_turn_of_each_other() -> None:
    run = Trained(5, 2)
    for _ in range(400):
        run.train()
        trained = [standing.decisions for standing in run.league.standings.values()]
        assert max(trained) - min(trained) <= TURN + BATCH


def test_a_removed_or_reset_player_frees_its_place() -> None:
    run = Trained(4, 1)
    run.train()
    run.feed(PlayerReset("main_0", 1, None))
    assert run.active == {"1"}
    run.feed(PlayerRemoved("main_1"))
    assert run.active == {"2"}
    run.train(batches=8)
    assert run.active == {"0"}, "what it trained before its reset counts"


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.booleans()), max_size=60))
def test_whatever_is_reported_a_resume_finds_the_same_players_active(reports: list[tuple[int, int, bool]]) -> None:
    run = Trained()
    for index, decisions, reset in reports:
        player = f"main_{index}"
        if reset:
            run.feed(PlayerReset(player, run.league.standings[player].incarnation + 1, None))
        run.report(player, decisions)
        assert len(run.league.active) == 2
    resumed = run.new()
    for event in run.events:
        resumed.apply(event)
    assert resumed.active == run.league.active
    assert resumed.state_digest() == run.league.state_digest()


def test_a_learner_that_steps_back_neither_loses_nor_prolongs_a_turn_by_more_than_it_lost() -> None:
    run = Trained(3, 1)
    run.train(batches=3)
    run.report("main_0", 60)  # resumed from a checkpoint
    assert run.active == {"0"}
    run.train()
    assert run.active == {"1"}
    run.report("main_0", 0)
    assert run.active == {"1"}


def test_a_late_joiner_starts_level_with_the_rest() -> None:
    run = Trained(2, 1)
    run.train(batches=40)
    run.feed(PlayerAdded("late", "main"))
    turns: list[str] = []
    for _ in range(60):
        run.train()
        turns += [run.league.active[0]] if turns[-1:] != [run.league.active[0]] else []
    assert 3 <= Counter(turns)["late"] <= len(turns) // 2


def test_only_active_players_get_matches_and_share_them() -> None:
    run = Trained()
    for number in range(10):
        match = run.league.next_match(number, tables=1, episodes_per_table=50)
        run.feed(MatchIssued(match))
        assert match.sides[0].players[0] in ("main_0", "main_1")
    run.train("main_0", batches=4)
    owners = []
    for number in range(10, 20):
        run.feed(MatchIssued(run.league.next_match(number, tables=1, episodes_per_table=50)))
        owners.append(run.league.matches.open_matches[number].match.sides[0].players[0])
    assert Counter(owners) == {"main_1": 5, "main_2": 5}, "nobody has to catch up"


def test_rules_can_change_while_turns_run() -> None:
    run = Trained(4, 3)
    run.league.rules = replace(run.league.rules, capacity=1)
    run.train("main_0")
    assert run.active == {"0"}
    run.league.rules = replace(run.league.rules, capacity=None)
    run.train("main_0")
    assert run.active == {"0", "1", "2", "3"}


@pytest.mark.parametrize("setting", ["capacity", "turn"])
def test_numbers_that_make_no_sense_are_refused(setting: str) -> None:
    wrong: dict[str, Any] = {setting: 0}
    with pytest.raises(ValueError, match=f"{setting} must be at least 1"):
        replace(rules_of(1, 1), **wrong)
