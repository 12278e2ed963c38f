from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, play, random_result, result_of, started
from msgspec.structs import replace

from ludus.config import apply_encoded
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    LossAccepted,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    PlayerAbsent,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    PlayerReturned,
    RunStarted,
    ScoreMeasured,
    SettingsChanged,
    Side,
)
from ludus.league.league import League, SavedLeague, later_settings
from ludus.league.matches import MatchConflictError, UnknownMatchError
from ludus.league.matchmaking import PFSP, Live, Mixture, SelfPlay, UniformPast
from ludus.league.payoff import PayoffRules
from ludus.league.players import BY_HAND
from ludus.league.promotion import ByScore, BySteps, Snapshot
from ludus.league.rules import LeagueRules, Role

MIXED = Mixture(branches=((0.4, SelfPlay()), (0.6, PFSP(include_scripted=True))))
RULES = LeagueRules(
    roles={
        "main": Role(matchmaking=MIXED, promotion=BySteps(every=100)),
        "exploiter": Role(count=2, matchmaking=Live(role="main"), promotion=BySteps(every=150), reset_probability=0.5),
    },
    bots=("random",),
)
TABLES: dict[str, Any] = {"tables": 4, "episodes_per_table": 2}


def _new(rules: LeagueRules = RULES, seed: int = 7) -> League:
    return League(rules, num_teams=2, seats_per_team=(1, 1), seed=seed, change_rules=apply_encoded)


def _simulate(rng: np.random.Generator, num_steps: int, seed: int = 7) -> tuple[League, list[AnyEvent]]:
    """A live league and the events it was fed: a random run with voids, resets, restarts and edits."""
    league = _new(seed=seed)
    events: list[AnyEvent] = []

    def feed(event: AnyEvent) -> None:
        league.apply(event)
        events.append(event)

    feed(RunStarted(0))
    for event in league.initial_events():
        feed(event)
    starts, clock = 1, Counter[str]()
    for _ in range(num_steps):
        action = rng.choice(
            [
                *("issue", "finish", "finish", "void", "lease", "train", "due", "score"),
                *("restart", "remove", "absent", "set"),
            ]
        )
        open_ids = list(league.matches.open_matches)
        if action == "issue":
            feed(MatchIssued(league.next_match(league.matches.last_id + 1, **TABLES)))
        elif action == "finish" and open_ids:
            entry = league.matches.open_matches[int(rng.choice(open_ids))]
            feed(MatchFinished(random_result(entry.match, rng)))
        elif action == "void" and open_ids:
            feed(MatchVoid(int(rng.choice(open_ids)), "crash"))
        elif action == "lease" and open_ids:
            feed(MatchLeased(int(rng.choice(open_ids)), "actor"))
        elif action == "train":
            for player, standing in list(league.standings.items()):
                clock[player] += int(rng.integers(10, 80))
                feed(LearnerProgress(player, standing.incarnation, clock[player], clock[player]))
        elif action == "due":
            for added in league.due_snapshots():
                feed(added)
            for reset in league.due_resets():
                feed(reset)
        elif action == "score":
            feed(ScoreMeasured("main", "main:0:1", float(rng.normal()), 0.1, 10))
        elif action == "restart" and rng.random() < 0.3:
            lost = list(league.matches.open_matches)
            if rng.random() < 0.3:
                feed(LossAccepted("its checkpoint is gone", {"main": None}))
            feed(RunStarted(starts))
            starts += 1
            for match_id in lost:
                feed(MatchVoid(match_id, "restart"))
        elif action == "remove" and league.candidates.frozen() and rng.random() < 0.3:
            feed(PlayerRemoved(league.candidates.frozen()[0]))
        elif action == "absent":
            away, present = list(league.absent), league.candidates.frozen()
            if away and rng.random() < 0.5:
                feed(PlayerReturned(away[0]))
            elif present:
                feed(PlayerAbsent(present[-1], "no file"))
        elif action == "set" and rng.random() < 0.3:
            share = round(float(rng.random()), 3)
            branches = "league.roles.main.matchmaking.branches"
            feed(SettingsChanged({f"{branches}.0.0": share, f"{branches}.1.0": 1.0 - share}))
            feed(SettingsChanged({"league.payoff.decay": round(float(rng.uniform(0.9, 1.0)), 3)}))
            feed(SettingsChanged({"learner.learning_rate": share}, player="main"))
    return league, events


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 120), st.floats(0, 1))
def test_replaying_the_ledger_gives_the_live_league_bit_for_bit(seed: int, steps: int, cut: float) -> None:
    live, events = _simulate(np.random.default_rng(seed), steps)
    replayed, resumed = _new(), _new()
    for event in events:
        replayed.apply(event)
    for event in events[: int(cut * len(events))]:
        resumed.apply(event)
    resumed.state_digest(), resumed.due_snapshots(), resumed.due_resets()  # looking changes nothing
    loaded = _new()
    loaded.load(msgspec.msgpack.decode(msgspec.msgpack.encode(resumed.save()), type=SavedLeague))
    for event in events[int(cut * len(events)) :]:
        resumed.apply(event)
        loaded.apply(event)
    assert replayed.state_digest() == resumed.state_digest() == loaded.state_digest() == live.state_digest()
    assert loaded.lineage == live.lineage
    assert (loaded.rules, loaded.settings, loaded.absent) == (live.rules, live.settings, live.absent)
    assert [*loaded.scores.items()] == [*live.scores.items()]
    next_id = live.matches.last_id + 1
    assert replayed.next_match(next_id, **TABLES) == live.next_match(next_id, **TABLES)
    assert replayed.due_snapshots() == live.due_snapshots()
    assert live.matches.issued == live.matches.finished + live.matches.void + len(live.matches.open_matches)


def test_random_ledgers_hold_every_kind_of_event() -> None:
    _, events = _simulate(np.random.default_rng(3), 300)
    assert {type(event) for event in events} == set(get_args(AnyEvent))


OPEN = match_of("main", "random", id=0, episodes=10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MatchFinished(result_of(OPEN, (5, 0, 5))), MatchFinished(result_of(OPEN, (5, 1, 4)))),
        (MatchFinished(result_of(OPEN, (5, 0, 5))), MatchVoid(0, "crash")),
        (MatchLeased(0, "a"), MatchLeased(0, "b")),
        (MatchIssued(match_of("main", "random", id=1)), MatchIssued(match_of("random", "main", id=1))),
        (LearnerProgress("main", 0, 1, 10), LearnerProgress("main", 0, 1, 11)),
        (ScoreMeasured("main", "m", 1.0, 0.1, 5), ScoreMeasured("main", "m", 1.0, 0.1, 6)),
        (PlayerAdded("new", "frozen", model="m"), PlayerAdded("new", "frozen", model="n")),
        (PlayerReset("main", 1, None), PlayerReset("main", 2, None)),
        (PlayerRemoved("random"), PlayerRemoved("main")),
        (SettingsChanged({"budget": 1}), SettingsChanged({"budget": 2})),
        (SettingsChanged({"learner.epochs": 1}), SettingsChanged({"learner.epochs": 1}, player="main")),
        (RunStarted(1), MatchVoid(0, "restart")),
    ],
)
def test_different_events_give_different_digests(one: AnyEvent, other: AnyEvent) -> None:
    digests = []
    for event in (one, one, other):
        league = started(RULES)
        league.apply(MatchIssued(OPEN))
        league.apply(event)
        digests.append(league.state_digest())
    assert digests[0] == digests[1] != digests[2]


def test_a_refused_event_changes_nothing() -> None:
    league = started(RULES)
    play(league, "main", "random", pairs=((5, 0, 5),))
    good = match_of("main", "random", id=1)
    league.apply(MatchIssued(good))
    before = league.state_digest()
    wrong: list[tuple[type[Exception], AnyEvent]] = [
        (UnknownMatchError, MatchFinished(result_of(match_of("main", "random", id=9), (1, 0, 0)))),
        (MatchConflictError, MatchFinished(result_of(match_of("main", "random", id=0), (1, 0, 0)))),
        (MatchConflictError, MatchIssued(good)),
        (ValueError, MatchIssued(match_of("main", id=2))),
        (ValueError, MatchIssued(match_of("main", "random", "random", id=2))),
        (ValueError, MatchIssued(match_of("main", "nobody", id=2))),
        (ValueError, MatchIssued(match_of("main", ("random", "random"), id=2))),
        (ValueError, MatchIssued(match_of("main", "random", id=2, episodes=0))),
        (ValueError, PlayerAdded("main", "main")),
        (ValueError, PlayerAdded("x/y", "main")),
        (ValueError, PlayerAdded("new", "mian")),
        (ValueError, PlayerAdded("old", "frozen", parent="nobody", model="m")),
        (ValueError, PlayerAdded("old", "frozen", parent="main")),
        (ValueError, PlayerRemoved("nobody")),
        (ValueError, PlayerAbsent("random", "only frozen players have weights")),
        (ValueError, PlayerReturned("main")),
        (ValueError, PlayerReset("main", 0, None)),
        (ValueError, PlayerReset("random", 1, None)),
        (ValueError, LearnerProgress("main", 0, 1, -1)),
        (ValueError, LearnerProgress("nobody", 0, 1, 1)),
        (ValueError, ScoreMeasured("main", "m", float("nan"), 0.0, 1)),
        (ValueError, ScoreMeasured("nobody", "m", 0.0, 0.0, 1)),
        (ValueError, RunStarted(5)),
    ]
    for error, event in wrong:
        with pytest.raises(error):
            league.apply(event)
        assert league.state_digest() == before, event


def test_an_absent_player_gets_no_matches_until_it_returns() -> None:
    league = started(RULES)
    league.apply(PlayerAdded("main.1", "frozen", parent="main", model="main:0:0"))
    league.apply(PlayerAbsent("main.1", "no file"))
    assert league.absent == {"main.1": "no file"}
    assert "main.1" not in league.candidates
    with pytest.raises(ValueError, match=r"main\.1"):
        league.apply(MatchIssued(match_of("main", "main.1", id=0)))
    away = league.state_digest()
    league.apply(PlayerReturned("main.1"))
    assert league.candidates.frozen() == ("main.1",)
    league.apply(MatchIssued(match_of("main", "main.1", id=0)))
    league.apply(PlayerAbsent("main.1", "no file"))
    league.apply(PlayerRemoved("main.1"))
    assert not league.absent
    assert league.state_digest() != away


def test_payoffs_grow_with_the_league_and_not_with_its_past() -> None:
    """A bounded history retires snapshots for as long as a run goes on. Results that were under way come late."""
    league = started(RULES)
    league.apply(LearnerProgress("main", 0, 1, 1))
    for number in range(1, 200):
        league.apply(PlayerAdded(f"main.{number}", "frozen", parent="main", model=f"main:0:{number}"))
        match = match_of("main", f"main.{number}", id=2 * number)
        late = match_of("random", f"main.{number}", id=2 * number + 1)
        league.apply(MatchIssued(match))
        league.apply(MatchFinished(result_of(match, (60, 0, 40))))
        league.apply(MatchIssued(late))
        if number < 197:
            league.apply(PlayerRemoved(f"main.{number}"))
        league.apply(MatchFinished(result_of(late, (50, 0, 50))))
    assert len(league.payoffs.fingerprint()) < 20_000  # the tables of 200 players have 3 MB
    assert league.payoffs.combined.games("main", "main.199") == 100
    assert league.payoffs.combined.games("main", "main.100") == 0


def test_only_learning_players_train_and_only_in_training() -> None:
    league = started(RULES)
    bot_trains = Match(0, "training", (Side(("main",)), Side(("random",), trains=True)), 1, 1)
    trains_in_evaluation = Match(0, "evaluation", (Side(("main",), trains=True), Side(("random",))), 1, 1)
    for match in (bot_trains, trains_in_evaluation):
        with pytest.raises(ValueError, match="cannot train in it"):
            league.apply(MatchIssued(match))


def test_initial_players_join_once() -> None:
    league = _new()
    assert [event.player for event in league.initial_events()] == ["main", "exploiter_0", "exploiter_1", "random"]
    for event in league.initial_events():
        league.apply(event)
    assert league.initial_events() == []
    league.apply(PlayerRemoved("random"))
    assert league.initial_events() == []
    with pytest.raises(ValueError, match="never used again"):
        league.apply(PlayerAdded("random", "scripted"))


def test_matches_go_round_the_learning_players() -> None:
    league = started(RULES)
    first = [league.next_match(0, **TABLES)]
    for match_id in range(1, 6):
        league.apply(MatchIssued(first[-1]))
        first.append(league.next_match(match_id, **TABLES))
    assert [match.sides[0].players[0] for match in first] == ["main", "exploiter_0", "exploiter_1"] * 2
    for match in first:
        learner, other = match.sides
        assert learner.trains
        assert other.trains == (other.players == learner.players)
        assert match.episodes == 8


def test_a_late_joiner_does_not_get_every_match() -> None:
    league = started(LeagueRules(roles={"main": Role()}))
    for match_id in range(5):
        league.apply(MatchIssued(league.next_match(match_id, **TABLES)))
    league.apply(PlayerAdded("newcomer", "main"))
    chosen = []
    for match_id in range(5, 9):
        match = league.next_match(match_id, **TABLES)
        league.apply(MatchIssued(match))
        chosen.append(match.sides[0].players[0])
    assert chosen == ["main", "newcomer"] * 2


def test_draws_depend_on_seed_and_match_id_only() -> None:
    leagues = [started(RULES, seed=seed) for seed in (7, 7, 8)]
    for league in leagues:
        for added in league.due_snapshots():
            league.apply(added)
    ids = range(0, 60)
    drawn = [[league.next_match(match_id, **TABLES) for match_id in ids] for league in leagues]
    assert drawn[0] == drawn[1] != drawn[2]
    law = leagues[0].opponent_law("main")
    assert sum(law.values()) == pytest.approx(1.0)
    assert {match.sides[1].players[0] for match in drawn[0]} == set(law)


def test_more_than_two_teams_are_filled_by_independent_draws() -> None:
    rules = LeagueRules(roles={"main": Role(matchmaking=UniformPast(over="scripted"))}, bots=("a", "b"))
    league = started(rules, num_teams=3)
    drawn = Counter(
        tuple(side.players[0] for side in league.next_match(match_id, **TABLES).sides[1:]) for match_id in range(400)
    )
    assert set(drawn) == {("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")}
    assert min(drawn.values()) > 70


def test_a_game_of_one_team() -> None:
    promotion = ByScore(min_episodes=10)
    rules = LeagueRules(roles={"main": Role(promotion=promotion, initial_snapshot=False)})
    league = started(rules, num_teams=1)
    for match_id in range(2):
        match = league.next_match(match_id, **TABLES)
        assert match.sides == (Side(("main",), trains=True),)
        assert league.due_snapshots() == []
        league.apply(MatchIssued(match))
        league.apply(MatchFinished(replace(result_of(match), score_sum=(3.0 * match.episodes,))))
    league.apply(ScoreMeasured("main", "main:0:0", 9.0, 0.1, 10))
    assert league.scores["main"].mean == 9.0
    assert league.standings["main"].recent_score == pytest.approx(3.0)
    (added,) = league.due_snapshots()
    assert (added.player, added.model) == ("main.1", "main:0:0")
    league.apply(added)
    assert league.due_snapshots() == []


def test_evaluation_trains_nobody_and_is_folded_apart() -> None:
    league = started(RULES, seats=2)
    match = league.evaluation_match(0, ["main", ("random", "random")], **TABLES)
    assert not any(side.trains for side in match.sides)
    league.apply(MatchIssued(match))
    league.apply(MatchFinished(result_of(match, (8, 0, 0))))
    play(league, "main", "random", pairs=((0, 0, 20),))
    assert league.payoffs.evaluation.wins("main", "random") == 8
    assert league.payoff.wins("main", "random") == 0
    assert league.standings["main"].episodes_issued == 0
    with pytest.raises(ValueError, match="1 or 2"):
        league.evaluation_match(2, ["main", ("random",) * 3], **TABLES)
    with pytest.raises(ValueError, match="did you mean 'random'"):
        league.evaluation_match(2, ["main", "randm"], **TABLES)


def test_decisions_may_read_the_combined_payoff() -> None:
    league = started(
        LeagueRules(roles={"main": Role()}, bots=("a",), decide_on="combined", payoff=PayoffRules(decay=1.0))
    )
    play(league, "main", "a", pairs=((30, 0, 0),))
    play(league, "main", "a", pairs=((0, 0, 30),), purpose="evaluation")
    assert league.payoff.win_rate("main", "a") == 0.5
    assert league.payoffs.training.win_rate("main", "a") == 1.0


def test_a_person_may_play_without_being_a_player() -> None:
    league = started(RULES)
    play(league, "main", "guest", pairs=((1, 0, 0),), purpose="human")
    assert league.payoffs.human.wins("main", "guest") == 1
    with pytest.raises(ValueError, match="player id"):
        play(league, "main", "gu/est", pairs=((1, 0, 0),), purpose="human")


def test_snapshots_are_frozen_first_at_the_start_and_then_by_the_rule() -> None:
    league = started(RULES)
    initial = league.due_snapshots()
    assert [(event.player, event.reason) for event in initial] == [
        ("main.1", "initial"),
        ("exploiter_0.1", "initial"),
        ("exploiter_1.1", "initial"),
    ]
    for event in initial:
        league.apply(event)
    assert league.due_snapshots() == []
    assert league.due_resets() == []
    league.apply(LearnerProgress("main", 0, 12, 100))
    assert league.due_snapshots() == [
        PlayerAdded("main.2", "frozen", "main", "main:0:12", "live", 100, "100 decisions")
    ]


def test_nothing_is_frozen_before_weights_are_published() -> None:
    league = _new()
    for event in league.initial_events():
        league.apply(event)
    assert league.due_snapshots() == []
    with pytest.raises(ValueError, match="has not published"):
        league.snapshot_of("main", Snapshot(reason=BY_HAND))


def test_snapshot_ids_step_over_taken_ones() -> None:
    league = started(RULES)
    league.apply(PlayerAdded("main.1", "frozen", model="imported"))
    assert league.due_snapshots()[0].player == "main.2"


def test_a_snapshot_by_hand_resets_nobody() -> None:
    league = started(LeagueRules(roles={"foe": Role(reset_probability=1.0)}))
    league.apply(league.snapshot_of("foe", Snapshot(reason=BY_HAND)))
    assert league.due_resets() == []


def _always_reset(probability: float = 1.0) -> LeagueRules:
    role = Role(promotion=BySteps(every=100), reset_probability=probability, start="clone:0:0")
    return LeagueRules(roles={"foe": role}, bots=("bot",))


def test_snapshot_then_reset_exactly_once_even_with_a_crash_in_between() -> None:
    def until_snapshot() -> League:
        league = started(_always_reset())
        for event in league.due_snapshots():
            league.apply(event)
        league.apply(LearnerProgress("foe", 0, 5, 100))
        return league

    league = until_snapshot()
    assert league.due_resets() == []
    (snapshot,) = league.due_snapshots()
    assert snapshot.model == "foe:0:5"
    league.apply(snapshot)

    crashed = until_snapshot()
    crashed.apply(snapshot)
    crashed.apply(RunStarted(1))
    for survivor in (league, crashed):
        survivor.apply(LearnerProgress("foe", 0, 9, 900))  # trained on before anyone told it
        assert survivor.due_snapshots() == []
        (reset,) = survivor.due_resets()
        assert reset == PlayerReset("foe", 1, "clone:0:0")
        survivor.apply(reset)
        assert survivor.due_resets() == []
        assert survivor.due_snapshots() == []
        survivor.apply(LearnerProgress("foe", 1, 0, 0))
        assert survivor.due_snapshots() == []
        assert survivor.due_resets() == []


def test_reset_decisions_repeat_and_have_the_configured_rate() -> None:
    def decisions(seed: int) -> list[bool]:
        league = started(_always_reset(0.25), seed=seed)
        drawn = []
        for step in range(200):
            for event in league.due_snapshots():
                league.apply(event)
            drawn.append(bool(league.due_resets()))
            for reset in league.due_resets():
                league.apply(reset)
            incarnation = league.standings["foe"].incarnation
            league.apply(LearnerProgress("foe", incarnation, step, (step + 1) * 100))
        return drawn

    assert decisions(1) == decisions(1) != decisions(2)
    assert not decisions(1)[0]  # the initial snapshot
    assert 0.15 < np.mean(decisions(1)) < 0.35


def test_a_reset_player_starts_with_a_clean_payoff() -> None:
    league = started(_always_reset())
    play(league, "foe", "bot", pairs=((50, 0, 0),))
    in_flight = match_of("foe", "bot", id=1)
    league.apply(MatchIssued(in_flight))
    league.apply(PlayerReset("foe", 1, None))
    assert league.payoff.games("foe", "bot") == 0
    league.apply(MatchFinished(result_of(in_flight, (100, 0, 0))))
    assert league.payoff.games("foe", "bot") == 0
    assert league.matches.finished == 2


def test_removed_players_are_not_drawn_and_get_no_match() -> None:
    league = started(RULES)
    for event in league.due_snapshots():
        league.apply(event)
    league.apply(PlayerRemoved("main.1"))
    league.apply(PlayerRemoved("exploiter_0"))
    league.apply(LearnerProgress("exploiter_0", 0, 9, 9000))
    assert "main.1" not in league.opponent_law("main")
    assert "exploiter_0" not in league.standings
    assert league.players["main.1"].parent_role == "main"
    for player in ("main", "exploiter_1"):
        league.apply(PlayerRemoved(player))
    with pytest.raises(ValueError, match="no learning player"):
        league.next_match(0, **TABLES)


def test_a_league_of_two_hundred_players() -> None:
    league = started(RULES)
    for number in range(200):
        league.apply(PlayerAdded(f"old{number}", "frozen", parent="main", model="m", reason=BY_HAND))
    rng = np.random.default_rng(0)
    for match_id in range(300):
        match = league.next_match(match_id, **TABLES)
        league.apply(MatchIssued(match))
        league.apply(MatchFinished(random_result(match, rng)))
    law = league.opponent_law("main")
    assert len(law) == 202
    assert sum(law.values()) == pytest.approx(1.0)


def test_misspelt_roles_fail_at_the_start() -> None:
    for role in (
        Role(matchmaking=Mixture(branches=((1.0, SelfPlay()), (0.0, PFSP(over="mian"))))),
        Role(matchmaking=Live(role="mian")),
    ):
        with pytest.raises(ValueError, match="did you mean 'main'"):
            _new(LeagueRules(roles={"main": role}))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_outside_64_bits_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"seed must be from 0 to 2\*\*64 - 1"):
        _new(seed=seed)


def test_teams_and_seats_must_agree() -> None:
    with pytest.raises(ValueError, match="2 teams need as many seat counts"):
        League(RULES, num_teams=2, seats_per_team=(1,), seed=0)


def test_rules_hold_from_their_event_on() -> None:
    league = started(RULES)
    shares = {f"league.roles.main.matchmaking.branches.{index}.0": share for index, share in ((0, 1.0), (1, 0.0))}
    league.apply(SettingsChanged(shares))
    assert league.opponent_law("main") == {"main": 1.0, "random": 0.0}
    assert league.rules.roles["main"].promotion == RULES.roles["main"].promotion
    assert league.settings == shares


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (SettingsChanged({"league.roles.main.matchmaking.branches.0.0": 1.0}), "sum to 1"),
        (SettingsChanged({"league.roles.exploiter.matchmaking.role": "mian"}), "'main'"),
        (SettingsChanged({"league.payoff.decay": 0.9}, player="main"), "whole league"),
        (SettingsChanged({"learner.epochs": 1}, player="random"), "unknown learning player 'random'"),
    ],
)
def test_changes_that_cannot_be_leave_the_league_as_it_was(event: SettingsChanged, named: str) -> None:
    league = started(RULES)
    before = league.state_digest()
    with pytest.raises(ValueError, match=named):
        league.apply(event)
    assert league.state_digest() == before


def test_a_later_setting_takes_the_place_of_what_is_below_it() -> None:
    before = {"learner.learning_rate": {}, "learner.learning_rate.end": 1, "learner.learning_rates": 2}
    assert list(later_settings(before, {"learner.learning_rate": 3}).items()) == [
        ("learner.learning_rates", 2),
        ("learner.learning_rate", 3),
    ]


def test_what_a_player_had_trained_on_when_it_left_is_spent() -> None:
    league = started(RULES)
    league.apply(LearnerProgress("main", 0, 3, 700))
    league.apply(PlayerRemoved("main"))
    league.apply(PlayerRemoved("random"))
    assert league.decisions_of_removed == 700
