"""Who sits where, and results against a slow recount of the log."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from stamped_games import Episode
from table_play import GAMES, Desk, Play, side

from ludus.data.records import ModelId, Pair
from ludus.games.seeding import mix
from ludus.workers.seating import Seating

MAIN, RANDOM = side("main", trains=True), side("random")
LINE_UPS: dict[str, Any] = {
    "kuhn": [(MAIN, RANDOM)],
    "connect_four": [(MAIN, RANDOM), (MAIN, MAIN), (side("main"), RANDOM)],
    "rock_paper_scissors": [(MAIN, side("rock")), (side("rival", trains=True), side("main"))],
    "hills": [
        (side("main", "rival", trains=True), RANDOM),
        (RANDOM, side("rival", "random")),
        (side("random", "main", trains=("main",)), side("rival", "main", trains=("rival",))),
    ],
    "siege": [(MAIN, side("rules")), (MAIN, MAIN)],
    "goofspiel": [(MAIN, RANDOM, side("match_prize")), (MAIN, side("rival"), side("one_above"))],
    "cartpole": [(MAIN,), (side("random"),)],
}
STEPS = {"siege": 140, "hills": 220, "connect_four": 180, "cartpole": 80}


@pytest.fixture(params=LINE_UPS, scope="module")
def play(request: pytest.FixtureRequest) -> Play:
    game = GAMES[request.param]
    return Play(game, LINE_UPS[request.param], num_tables=6, matches=3, episodes_per_table=game.spec.num_teams * 2).run(
        STEPS.get(request.param, 60)
    )


def episodes_of_matches(play: Play) -> dict[int, dict[tuple[int, int], Episode]]:
    """Match -> (place in it, episode at that place) -> what was played, told by the seeds."""
    names = {}
    block_size = play.num_tables // play.matches
    for match in play.desk.issued:
        for place in range(block_size):
            for number in range(match.episodes_per_table):
                seed = np.array([play.seed], np.uint64)
                for part in (match.id, place, number):
                    seed = mix(seed, part)
                names[int(seed[0])] = (match.id, place, number)
    found: dict[int, dict[tuple[int, int], Episode]] = defaultdict(dict)
    for episode in play.tables.log:
        match_id, place, number = names[episode.seed]
        assert (place, number) not in found[match_id], "an episode was played twice"
        found[match_id][place, number] = episode
    for episodes in found.values():
        tables = {(place, episode.table) for (place, _), episode in episodes.items()}
        assert len(tables) == len({place for place, _ in tables}), "a place was played at two tables"
    return found


def test_every_place_is_played_for_exactly_its_quota(play: Play) -> None:
    found = episodes_of_matches(play)
    assert len(play.desk.results) >= 3
    for match in play.desk.issued:
        episodes = found[match.id]
        done = match.id in play.desk.results
        assert done == (len(episodes) == match.episodes and all(one.ended for one in episodes.values()))
        if done:
            assert play.desk.results[match.id].episodes == match.episodes
            assert len({one.table // (play.num_tables // play.matches) for one in episodes.values()}) == 1


def test_a_free_table_joins_the_next_match_at_once(play: Play) -> None:
    """No table ever waits: each is reset in the step in which its episode ends, and nothing else is."""
    playing = [episode for episode in play.tables.log if not episode.ended]
    assert sorted(episode.table for episode in playing) == list(range(play.num_tables))
    steps: dict[int, int] = defaultdict(int)
    for episode in play.tables.log:
        steps[episode.table] += episode.steps
    assert set(steps.values()) == {sum(one.steps for one in play.tables.log if one.table == 0)}


def test_results_equal_a_slow_recount(play: Play) -> None:
    found = episodes_of_matches(play)
    teams = play.spec.num_teams
    for match_id, result in play.desk.results.items():
        steps, decisions, earned, early_reward = 0, [0] * teams, [0.0] * teams, 0.0
        scores = np.zeros((2, teams))
        pairs = {(a, b): [0, 0, 0] for a in range(teams) for b in range(a + 1, teams)}
        by_role = np.zeros((2, teams, teams))

        def count_pairs(compared: list[float], pairs: dict[tuple[int, int], list[int]] = pairs) -> None:
            for (a, b), counts in pairs.items():
                counts[0 if compared[a] > compared[b] else 1 if compared[a] == compared[b] else 2] += 1

        for (place, number), episode in found[match_id].items():
            steps += episode.steps
            team_of_side = [(one + number) % teams for one in range(teams)]
            by_side = [episode.score[team] for team in team_of_side]
            for one, team in enumerate(team_of_side):
                seats = play.spec.seats_of_team[team]
                made = [episode.decisions.get(seat, []) for seat in seats]
                decisions[one] += sum(map(len, made))
                earned[one] += sum(decision.reward for own in made for decision in own) / len(seats)
            early_reward += episode.early_reward
            scores += np.array([by_side, np.square(by_side)])
            for team in range(teams if play.spec.compares_roles and number % teams == 0 else 0):
                # One cycle of rotations: every side has sat on this team once.
                episodes = [found[match_id][place, number + (team - one) % teams] for one in range(teams)]
                on_team = [episode.score[team] for episode in episodes]
                count_pairs(on_team)
                by_role[:, :, team] += np.array([on_team, np.square(on_team)])
            if not play.spec.compares_roles:
                count_pairs(by_side)
        assert (result.steps, result.decisions) == (steps, tuple(decisions))
        assert result.pairs == tuple(Pair(a, b, *counts) for (a, b), counts in pairs.items())
        kept = (result.role_score_sum, result.role_score_square_sum)
        assert np.array(kept) == pytest.approx(by_role) if play.spec.compares_roles else kept == ((), ())
        assert result.score_sum == pytest.approx(tuple(scores[0]))
        assert result.score_square_sum == pytest.approx(tuple(scores[1]))
        assert early_reward == 0.0, "the log has no sign of it"
        assert result.reward_sum == pytest.approx(tuple(earned), abs=1e-4)


def test_only_players_that_train_hand_trajectories_over(play: Play) -> None:
    """And they hand over every decision of theirs."""
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for match in play.desk.issued:
        for (_, number), episode in episodes_of_matches(play)[match.id].items():
            for seat, decisions in episode.decisions.items():
                one = match.sides[(play.spec.teams[seat] - number) % play.spec.num_teams]
                place = play.spec.seats_of_team[play.spec.teams[seat]].index(seat)
                player = one.players[place % len(one.players)]
                if player in one.trainees:
                    expected[player, play.spec.seats[seat]] += [made.stamp for made in decisions]
    for kind in range(len(play.pools)):
        held = set(play.held(kind))
        for player in ("main", "rival", "random"):
            got = play.trained(kind, player)
            assert len(got) == len(set(got))
            assert set(got) == set(expected[player, kind]) - held
    assert {one.player for one in play.handed} <= {player for player, _ in expected}
    assert any(expected.values())


def test_an_evaluation_match_trains_nobody() -> None:
    play = Play(GAMES["connect_four"], [(side("main"), RANDOM), (side("main"), side("main"))]).run(120)
    assert play.desk.results
    assert play.handed == []
    assert play.trained(0) == play.held(0) == []


def test_both_learning_players_of_a_match_are_handed_their_own() -> None:
    line_up = (side("main", trains=True), side("rival", trains=True))
    play = Play(GAMES["connect_four"], [line_up], hand_over_after=40).run(150)
    assert set(play.completed) == {"main", "rival"}
    for player, team_in_first in (("main", 0), ("rival", 1)):
        stamps = set(play.trained(0, player))
        seats = {
            (made.seat - episode.number) % 2
            for episode in play.tables.log
            for decisions in episode.decisions.values()
            for made in decisions
            if made.stamp in stamps
        }
        assert seats == {team_in_first}


def test_a_result_names_the_first_and_the_last_model_of_each_side() -> None:
    play = Play(
        GAMES["kuhn"],
        [(MAIN, side("main.1")), (MAIN, RANDOM)],
        hand_over_after=30,
        new_weights=True,
        matches=1,
        episodes_per_table=8,
        frozen={"main.1": (ModelId("main", 0, 77), {})},
    )
    play.frozen["main.1"] = (ModelId("main", 0, 77), play.fresh(5))
    play.run(120)
    assert len(play.desk.results) > 4
    for match_id, result in sorted(play.desk.results.items()):
        other = "main:0:77" if match_id % 2 else ""
        assert (result.first_models[1], result.last_models[1]) == (other, other)
        first, last = (ModelId.parse(names[0]) for names in (result.first_models, result.last_models))
        assert first.player == "main"
        assert first <= last
    found = episodes_of_matches(play)
    for match_id, result in play.desk.results.items():
        stamps = {
            made.stamp
            for episode in found[match_id].values()
            for decisions in episode.decisions.values()
            for made in decisions
        }
        versions = [
            version
            for handed in play.handed
            for stamp, version in zip(
                np.rint(handed.batch.observation["stamp"][..., 0][handed.batch.valid] * 2**20).tolist(),
                handed.batch.version[handed.batch.valid].tolist(),
                strict=True,
            )
            if stamp in stamps
        ]
        assert min(versions) == ModelId.parse(result.first_models[0]).step
        assert max(versions) <= ModelId.parse(result.last_models[0]).step


def test_seats_rotate_equally() -> None:
    desk = Desk([(side("a"), side("b"), side("c"))], episodes_per_table=6)
    spec = GAMES["goofspiel"].spec
    seating = Seating(spec, 2, 1, desk)
    tables = np.arange(2)
    seating.start(tables)
    seen: dict[str, list[int]] = defaultdict(list)
    for _ in range(6):
        for seat, player in enumerate(seating.player_of_seat[0]):
            seen[seating.player_ids[player]].append(seat)
        seating.count_step(lambda player: "")
        free = seating.finish_episodes(tables, np.zeros((2, 3), np.float32), lambda player: "")
    assert free.tolist() == [0, 1]
    for seats in seen.values():
        assert sorted(seats) == [0, 0, 1, 1, 2, 2]


def test_tables_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match=r"actor.num_tables \(5\) must be a multiple of actor.matches \(2\)"):
        Seating(GAMES["kuhn"].spec, 5, 2, Desk([], 2))


class LosingDesk(Desk):
    def __init__(self, episodes_per_table: int) -> None:
        super().__init__([(side("a"), side("b"))], episodes_per_table)
        self.void: dict[int, str] = {}

    def void_match(self, match_id: int, reason: str) -> None:
        assert match_id not in self.void
        assert match_id not in self.results
        self.void[match_id] = reason


class LosingTables:
    """One block of tables, of which a test says when they end an episode and when they are lost."""

    def __init__(self, num_tables: int, episodes_per_table: int = 2) -> None:
        self.desk = LosingDesk(episodes_per_table)
        self.seating = Seating(GAMES["kuhn"].spec, num_tables, 1, self.desk)
        self.seating.start(np.arange(num_tables))

    def end(self, *tables: int) -> None:
        self.seating.count_step(lambda player: "")
        ended = np.array(tables)
        free = self.seating.finish_episodes(ended, np.zeros((len(ended), 2), np.float32), lambda player: "")
        if len(free):
            self.seating.start(free)

    def lose(self, **reasons: str) -> list[int]:
        tables = self.seating.void({int(name.removeprefix("table")): why for name, why in reasons.items()})
        self.seating.start(tables)
        return tables.tolist()

    def match_ids(self) -> list[int]:
        return self.seating.episode_seeds(np.arange(len(self.seating.match)))[:, 0].tolist()


def test_places_of_a_void_match_are_not_taken_any_more() -> None:
    play = LosingTables(3)
    play.end(0)
    play.end(0)
    assert play.match_ids() == [2, 1, 1]
    assert play.lose(table0="crashed: SIGSEGV") == [0]
    assert play.desk.void == {2: "game: crashed: SIGSEGV"}
    assert play.match_ids() == [3, 1, 1]
    for _ in range(2):
        play.end(1, 2)
    assert play.desk.results[1].episodes == 6
    assert play.match_ids() == [3, 3, 3], "the block is together again"
    for _ in range(2):
        play.end(0, 1, 2)
    assert play.desk.results[3].episodes == 6
    assert len(play.desk.issued) == 4


def test_a_void_match_frees_all_its_tables_and_leaves_those_ahead_alone() -> None:
    play = LosingTables(3)
    play.end(0)
    play.end(0)
    assert play.lose(table2="hung") == [1, 2]
    assert play.match_ids() == [2, 2, 2]
    assert play.desk.void == {1: "game: hung"}
    for _ in range(2):
        play.end(0, 1, 2)
    assert play.desk.results[2].episodes == 6


def test_a_table_that_is_quick_takes_more_places() -> None:
    """Tables that each had a place of their own in every match would drift apart, and with the square root of the
    number of matches ever more of them would be open."""
    play, rng = LosingTables(64, episodes_per_table=4), np.random.default_rng(0)
    left, most = rng.integers(1, 20, 64), 0
    for _ in range(20_000):
        left -= 1
        ended = np.flatnonzero(left == 0)
        left[ended] = rng.integers(1, 20, len(ended))
        if len(ended):
            play.end(*ended.tolist())
        most = max(most, len(play.desk.issued) - len(play.desk.results))
    assert len(play.desk.results) > 400
    assert {result.episodes for result in play.desk.results.values()} == {256}
    assert most <= 3


def test_two_matches_are_lost_at_once() -> None:
    play = LosingTables(3)
    play.end(0)
    play.end(0)
    assert play.lose(table0="hung", table1="crashed") == [0, 1, 2]
    assert play.desk.void == {1: "game: crashed", 2: "game: hung"}
    assert play.match_ids() == [3, 3, 3]


def test_what_is_kept_of_void_matches_does_not_grow() -> None:
    play = LosingTables(2, episodes_per_table=2)
    for _ in range(50):
        play.end(0)
        play.end(0)  # it is ahead now, alone in its match
        play.lose(table0="crashed")
        play.end(1)
        play.end(1)
    assert len(play.desk.void) == 50
    _, facts = play.seating.save()
    assert len(facts["waiting"][0]) <= 2
    assert len(facts["matches"]) <= 2


def test_places_that_are_left_are_remembered_over_a_stop() -> None:
    play = LosingTables(2)
    play.end(0)
    play.end(0)
    play.lose(table0="crashed")
    arrays, facts = play.seating.save()
    again = LosingTables(2)
    again.desk.issued[:] = play.desk.issued
    again.seating.load({name: array.copy() for name, array in arrays.items()}, facts)
    for _ in range(2):
        again.end(1)
    assert again.match_ids() == [3, 3]
