"""Matches between given players, outside of a league."""

from __future__ import annotations

import pytest
from table_play import GAMES

from ludus.data.records import ModelId
from ludus.evaluation.tournament import Tournament
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
