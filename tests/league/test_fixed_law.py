from __future__ import annotations

import numpy as np
import pytest

from ludus.config import decode, encode
from ludus.league.matchmaking import Candidates, FixedLaw
from ludus.league.payoff import Payoff
from ludus.league.players import Player
from ludus.league.rules import LeagueRules, Role

LAW = FixedLaw(shares={"main.3": 0.25, "rock": 0.75})
PLAYERS = (
    Player(id="exploiter", role="exploiter"),
    Player(id="main.3", role="frozen", model="main:0:9"),
    Player(id="rock", role="scripted"),
)
CANDIDATES = Candidates(players=PLAYERS, roles=("exploiter",))


def test_players_are_drawn_by_their_shares() -> None:
    assert LAW.probabilities("exploiter", CANDIDATES, Payoff()) == {"main.3": 0.25, "rock": 0.75}
    rng = np.random.default_rng(0)
    drawn = [LAW.choose("exploiter", CANDIDATES, Payoff(), rng) for _ in range(400)]
    assert 70 < drawn.count(("main.3",)) < 130
    assert set(drawn) == {("main.3",), ("rock",)}


def test_it_survives_the_run_folder() -> None:
    """Ids with a dot stay whole."""
    rules = LeagueRules(roles={"exploiter": Role(matchmaking=LAW)}, bots=("rock",), external={"main.3": "main.3:0:9"})
    assert decode(encode(rules)) == rules


def test_wrong_shares_and_players_are_named() -> None:
    with pytest.raises(ValueError, match=r"sum to 1, got .'rock': 0\.5., which sum to 0\.5"):
        FixedLaw(shares={"rock": 0.5})
    with pytest.raises(ValueError, match="at least 0"):
        FixedLaw(shares={"rock": 1.5, "paper": -0.5})
    with pytest.raises(ValueError, match="unknown player 'rok'; did you mean 'rock'"):
        FixedLaw(shares={"rok": 1.0}).probabilities("exploiter", CANDIDATES, Payoff())
