"""Who sits beside whom, who trains, and what the result of a team of several players says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from league_rows import result_of, started
from msgspec.structs import replace

from ludus.config import apply_overrides, decode, encode
from ludus.data.records import Match, MatchFinished, MatchIssued, PlayerAdded, PlayerRemoved, Side
from ludus.league.league import League
from ludus.league.matchmaking import PFSP, Latest, Live, UniformPast
from ludus.league.quality import QualityScores
from ludus.league.rules import LeagueRules, Role

TABLES = {"tables": 2, "episodes_per_table": 4}


def league_of(*, seats: int = 2, num_teams: int = 2, bots: tuple[str, ...] = ("random",), **roles: Role) -> League:
    return started(LeagueRules(roles=roles, bots=bots), seats=seats, num_teams=num_teams)


def snapshots(league: League, player: str, count: int) -> None:
    for number in range(1, count + 1):
        league.apply(PlayerAdded(f"{player}.{number}", "frozen", parent=player, model=f"{player}:0:{number}"))


def issue(league: League) -> Match:
    match = league.next_match(league.matches.last_id + 1, **TABLES)
    league.apply(MatchIssued(match))
    return match


def line_ups(league: League, count: int) -> list[tuple[str, ...]]:
    """Of the side that a match was made for."""
    return [issue(league).sides[0].players for _ in range(count)]


def test_by_default_a_team_is_one_player() -> None:
    league = league_of(main=Role(matchmaking=Live(role="main")))
    assert issue(league).sides == (Side(("main",), trains=True), Side(("main",), trains=True))


def test_a_learner_among_scripted_team_mates() -> None:
    league = league_of(seats=3, main=Role(line_up={"seat1": "self", "*": "random"}, matchmaking=UniformPast()))
    snapshots(league, "main", 1)
    own, other = issue(league).sides
    assert own == Side(("random", "main", "random"), trains=("main",), captain="main")
    assert other == Side(("main.1",))


def test_the_first_pattern_that_fits_a_seat_holds() -> None:
    line_up = {"seat[02]": "self", "seat?": "random"}
    assert line_ups(league_of(seats=4, main=Role(line_up=line_up)), 1) == [("main", "random", "main", "random")]


def test_who_sits_on_all_seats_after_all_is_no_mixed_line_up() -> None:
    league = league_of(main=Role(line_up={"seat0": "self", "*": Latest()}))  # there is no snapshot yet
    assert issue(league).sides[0] == Side(("main",), trains=True)


def test_team_mates_of_the_past_are_drawn_for_every_seat() -> None:
    league = league_of(seats=3, main=Role(line_up={"seat0": "self", "*": UniformPast(over="own")}))
    snapshots(league, "main", 3)
    drawn = line_ups(league, 300)
    assert {players[0] for players in drawn} == {"main"}
    counts = Counter(players[1:] for players in drawn)
    assert len(counts) == 9  # every two of them, in any order
    assert min(counts.values()) > 15


def test_a_role_sends_its_players_and_none_twice() -> None:
    league = league_of(seats=3, main=Role(count=3, line_up={"seat0": "self", "*": "main"}, trains="side"))
    drawn = line_ups(league, 60)
    assert all(sorted(players) == ["main_0", "main_1", "main_2"] for players in drawn)
    assert len(set(drawn)) == 6
    assert Counter(players[0] for players in drawn) == dict.fromkeys(("main_0", "main_1", "main_2"), 20)


def test_a_role_with_too_few_players_sends_some_of_them_again() -> None:
    league = league_of(
        seats=4, main=Role(line_up={"seat0": "self", "*": "mate"}), mate=Role(count=2, initial_snapshot=False)
    )
    main = next(players for players in line_ups(league, 3) if players[0] == "main")
    assert {*main[1:3]} == {"mate_0", "mate_1"}
    assert main[3] in ("mate_0", "mate_1")


def test_a_team_mate_that_has_left_is_replaced_by_the_player_itself() -> None:
    league = league_of(main=Role(line_up={"seat0": "self", "*": "random"}))
    assert line_ups(league, 1) == [("main", "random")]
    league.apply(PlayerRemoved("random"))
    assert line_ups(league, 1) == [("main",)]


def test_opponents_may_be_lined_up_too() -> None:
    line_up: Any = {"seat0": "self", "seat1": "random"}
    role = Role(line_up=line_up, opponents="line_up", matchmaking=Latest())
    league = league_of(main=role)
    snapshots(league, "main", 1)
    own, other = issue(league).sides
    assert own.players == ("main", "random")
    assert other == Side(("main.1", "random"), captain="main.1")


# --- who trains ---

TEAM: Any = {"seat0": "self", "seat1": "mate", "seat2": "random"}


def sides_of(trains: Any, **rules: Any) -> tuple[Side, ...]:
    """A match of `main`, with `mate` beside it, against `rival`."""
    roles = {"main": Role(line_up=TEAM, trains=trains, matchmaking=Live(role="rival")), "mate": Role(), "rival": Role()}
    league = started(LeagueRules(roles=roles, bots=("random",), **rules), seats=3)
    return league.next_match(0, **TABLES).sides


def test_the_player_itself_trains() -> None:
    own, other = sides_of("self")
    assert own == Side(("main", "mate", "random"), trains=("main",), captain="main")
    assert other == Side(("rival",))


def test_the_learning_players_of_its_side_train() -> None:
    own, other = sides_of("side")
    assert own.trains == ("main", "mate")
    assert not other.trains


def test_every_learning_player_at_the_table_trains() -> None:
    own, other = sides_of("everyone")
    assert own.trains == ("main", "mate")
    assert other.trains is True


def test_who_does_not_have_its_turn_does_not_train() -> None:
    own, other = sides_of("everyone", capacity=1)
    assert own.trains == ("main",)
    assert not other.trains


def test_team_mates_train_on_both_sides_of_self_play() -> None:
    team: Any = {"seat0": "self", "seat1": "mate"}
    league = league_of(main=Role(line_up=team, opponents="line_up", trains="side"), mate=Role())
    assert issue(league).sides == (Side(("main", "mate"), trains=True, captain="main"),) * 2


def test_with_three_teams_everybody_may_train() -> None:
    league = league_of(num_teams=3, main=Role(trains="everyone", matchmaking=Live(role="rival")), rival=Role())
    assert [side.trains for side in issue(league).sides] == [True, True, True]


def test_players_that_train_together_take_turns_and_train_alike() -> None:
    pair = Role(count=2, line_up={"seat0": "self", "*": "pair"}, trains="side")
    league = league_of(pair=pair, alone=Role())
    captains = Counter(players[0] for players in line_ups(league, 32))
    issued = {player: standing.episodes_issued for player, standing in league.standings.items()}
    assert len(set(issued.values())) == 1
    assert captains["pair_0"] == captains["pair_1"]
    assert captains["alone"] == 2 * captains["pair_0"]  # it has its matches to itself


# --- what a result says ---


def finish(league: League, match: Match, *pairs: tuple[int, int, int]) -> None:
    league.apply(MatchFinished(result_of(match, *pairs)))


def test_a_mixed_line_up_counts_for_its_captain_where_decisions_are_made() -> None:
    league = league_of(main=Role(line_up={"seat0": "random", "seat1": "self"}, matchmaking=Latest()))
    snapshots(league, "main", 1)
    finish(league, issue(league), (6, 0, 2))
    assert league.payoffs.training.wins("main", "main.1") == 6
    assert league.payoffs.training.losses("main", "main.1") == 2
    for payoff in (league.payoffs.training, league.payoffs.combined, league.payoffs.evaluation):
        assert payoff.games("random", "main.1") == 0
    assert league.payoffs.combined.games("main", "main.1") == 0


def test_only_the_pairs_of_a_mixed_side_are_left_out() -> None:
    role = Role(line_up={"seat0": "random", "seat1": "self"}, matchmaking=UniformPast())
    league = league_of(num_teams=3, main=role)
    snapshots(league, "main", 2)
    match = issue(league)
    while match.sides[1].players == match.sides[2].players:
        finish(league, match, (0, 8, 0), (0, 8, 0), (0, 8, 0))
        match = issue(league)
    before = league.payoffs.combined.games("main.1", "main.2")
    finish(league, match, (8, 0, 0), (8, 0, 0), (8, 0, 0))
    assert league.payoffs.combined.games("main.1", "main.2") == before + 8
    assert league.payoffs.combined.games("main", "main.1") == 0


def test_a_mixed_line_up_in_an_evaluation_counts_for_nobody() -> None:
    league = league_of(main=Role(), rival=Role())
    match = league.evaluation_match(0, [("main", "random"), "rival"], **TABLES)
    league.apply(MatchIssued(match))
    finish(league, match, (8, 0, 0))
    for payoff in (league.payoffs.training, league.payoffs.evaluation, league.payoffs.combined):
        assert payoff.games("main", "rival") == payoff.games("random", "rival") == 0


def test_pfsp_learns_from_matches_with_team_mates() -> None:
    league = league_of(main=Role(line_up={"seat0": "random", "seat1": "self"}, matchmaking=PFSP()))
    snapshots(league, "main", 2)
    for _ in range(20):
        match = issue(league)
        finish(league, match, (8, 0, 0) if match.sides[1].players == ("main.1",) else (0, 0, 8))
    assert league.opponent_law("main") == pytest.approx({"main.1": 0.0, "main.2": 1.0})


def test_qualities_fall_where_the_player_is_not_on_the_first_seat() -> None:
    role = Role(line_up={"seat0": "random", "seat1": "self"}, matchmaking=QualityScores(step=0.5))
    league = league_of(main=role)
    snapshots(league, "main", 2)
    match = issue(league)
    finish(league, match, (8, 0, 0))
    beaten = match.sides[1].players[0]
    assert league.opponent_law("main")[beaten] < 0.5


def test_a_score_in_a_game_of_one_team_counts_for_those_who_train() -> None:
    roles = {"main": Role(line_up={"seat0": "self", "*": "mate"}), "mate": Role()}
    league = started(LeagueRules(roles=roles), num_teams=1, seats=2)
    match = issue(league)
    league.apply(MatchFinished(replace(result_of(match), score_sum=(16.0,))))
    assert league.standings["main"].recent_score == pytest.approx(2.0)
    assert league.standings["mate"].recent_score is None


def test_replaying_the_ledger_gives_the_same_league() -> None:
    pair = Role(count=2, line_up={"seat0": "self", "*": "pair"}, trains="side", matchmaking=UniformPast())
    alone = Role(line_up={"seat1": "self", "*": UniformPast()}, opponents="line_up", matchmaking=PFSP())
    rules = LeagueRules(roles={"pair": pair, "alone": alone})
    league, again = (started(rules, seats=2) for _ in range(2))
    for one in (league, again):
        snapshots(one, "alone", 2)
        snapshots(one, "pair_0", 1)
    for number in range(30):
        match = league.next_match(number, **TABLES)
        assert match == again.next_match(number, **TABLES)
        result = MatchFinished(result_of(match, (number % 9, 0, 8 - number % 9)))
        for one in (league, again):
            one.apply(msgspec.json.decode(msgspec.json.encode(MatchIssued(match)), type=MatchIssued))
            one.apply(result)
        assert league.state_digest() == again.state_digest()


# --- what is refused ---


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ({"line_up": {"seat0": "self"}}, "line_up: no pattern fits seat1, only seat0 given"),
        ({"line_up": {"seat0": "self", "*": "randm"}}, r"line_up: \*: .*'randm'; did you mean 'random'"),
        ({"line_up": {"seat0": "self", "seat5": "random", "*": "main"}}, "'seat5' fits no seat; the seats are"),
        ({"line_up": {"*": "random"}}, "no seat is left to the player itself; put 'self' on one"),
        ({"line_up": {"seat0": "self", "*": UniformPast(over="mian")}}, "did you mean 'main'"),
        ({"trains": "all"}, "Role.trains is 'all', not one of"),
        ({"opponents": "lineup"}, "did you mean 'line_up'"),
    ],
)
def test_what_cannot_be_seated_is_named(role: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        league_of(main=Role(**role))


def test_a_line_up_needs_teams_of_equal_size() -> None:
    rules = LeagueRules(roles={"main": Role(line_up={"*": "self"})})
    with pytest.raises(ValueError, match=r"line_up: teams must have equally many seats, .*; these have 1, 3"):
        League(rules, num_teams=2, seats_per_team=(1, 3), seed=0)


@pytest.mark.parametrize(
    "side",
    [
        Side(("main", "random"), trains=("random",)),
        Side(("main", "random"), trains=("rival",)),
        Side(("main", "random"), captain="rival"),
        Side(("main", "random"), trains=True),
    ],
)
def test_a_side_on_which_the_wrong_one_trains_is_refused(side: Side) -> None:
    league = league_of(main=Role(), rival=Role())
    with pytest.raises(ValueError, match="match 0: "):
        league.apply(MatchIssued(Match(0, "training", (side, Side(("rival",))), 1, 2)))
    assert league.matches.issued == 0


def test_line_ups_are_settings_like_any_other() -> None:
    rules = LeagueRules(roles={"main": Role()})
    written = "{seat0: self, seat1: {type: PFSP, over: own}, '*': random}"
    changed = apply_overrides(rules, {"roles.main.line_up": written, "roles.main.trains": "side", "bots": "random"})
    role = changed.roles["main"]
    assert list(role.line_up.items()) == [("seat0", "self"), ("seat1", PFSP(over="own")), ("*", "random")]
    assert role.trains == "side"
    assert decode(encode(changed)) == changed
