"""Matches between given players, outside of a league."""

from __future__ import annotations

import pytest
from table_play import GAMES
from uneven_game import CHIEF_GETS, UNEVEN, UNEVEN_OF_THREE

from ludus.data.records import Match, ModelId, Result, Side
from ludus.evaluation.tournament import Tournament
from ludus.games.game import GameSource
from ludus.league.payoff import PayoffRules
from ludus.league.role_scores import RoleScores, first_side
from ludus.models.network_policy import ActorCritic
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("name", ["connect_four", "siege", "goofspiel", "cartpole"])
def test_every_line_up_plays_enough_episodes(name: str, memory: int) -> None:
    game = GAMES[name]
    teams = game.spec.num_teams
    model = ActorCritic(hidden=(8,), entity_size=4, memory=memory)
    policies = tuple(model.build(kind, 0) for kind in game.spec.kinds)
    players = {
        "net": SeatedPlayer(policies=policies, model=ModelId("net", 0, 1)),
        "random": SeatedPlayer(bot=game.bots()["random"]),
    }
    line_ups = [("random",) * teams, ("net",) + ("random",) * (teams - 1)]
    results = Tournament(game, FixedPlayers(players), line_ups, episodes=10, num_tables=3).run()
    assert sorted(results) == [0, 1]
    for index, result in results.items():
        assert 10 <= result.episodes < 10 + 3 * teams
        assert result.episodes % teams == 0
        assert result.last_models[0] == ("", "net:0:1")[index]


def test_the_stronger_wins() -> None:
    game = GAMES["rock_paper_scissors"]
    players = {name: SeatedPlayer(bot=bot) for name, bot in game.bots().items()}
    tournament = Tournament(
        game, FixedPlayers(players), [("rock", "scissors"), ("rock", "paper")], episodes=8, num_tables=2
    )
    won, lost = tournament.run().values()
    assert (won.pairs[0].wins, won.pairs[0].losses) == (8, 0)
    assert (lost.pairs[0].wins, lost.pairs[0].losses) == (0, 8)


def played(game: GameSource, *line_up: str, episodes: int = 60) -> Result:
    players = {name: SeatedPlayer(bot=bot) for name, bot in game.bots().items()}
    return Tournament(game, FixedPlayers(players), [line_up], episodes=episodes, num_tables=5).run()[0]


def test_players_are_compared_in_the_same_role() -> None:
    """The chief always has the higher score: by scores of an episode everybody wins half of the games."""
    result = played(UNEVEN, "works", "rests")
    assert (result.pairs[0].wins, result.pairs[0].draws, result.pairs[0].losses) == (60, 0, 0)
    even = played(UNEVEN, "random", "random", episodes=400).pairs[0]
    assert 140 < even.wins < 260, "the same player twice is even"
    chief, hands = first_side(result)
    assert chief is not None
    assert hands is not None
    assert (chief.score, chief.baseline) == pytest.approx((CHIEF_GETS + 1, CHIEF_GETS), abs=0.1)
    assert (hands.score, hands.baseline) == pytest.approx((1.0, 0.5), abs=0.1)
    assert chief.lead - 4 * chief.lead_error < 1.0 < chief.lead + 4 * chief.lead_error


def test_three_teams_are_compared_pair_by_pair_in_each_role() -> None:
    result = played(UNEVEN_OF_THREE, "works", "rests", "rests")
    counts = {(pair.side, pair.other): (pair.wins, pair.draws + pair.losses) for pair in result.pairs}
    assert counts[0, 1] == counts[0, 2] == (60, 0)
    assert sum(counts[1, 2]) == 60
    assert 10 < counts[1, 2][0] < 50
    assert len(result.role_score_sum) == 3
    assert sum(result.role_score_sum[0]) == pytest.approx(result.score_sum[0])
    scores = RoleScores(PayoffRules())
    scores.record(Match(0, "evaluation", tuple(Side((one,)) for one in ("works", "rests", "rests")), 5, 60), result)
    assert [one.episodes for one in scores.of("works") if one] == [20, 20, 20], "copies are one opponent"
    assert [one.episodes for one in scores.of("rests") if one] == [20, 20, 20]
