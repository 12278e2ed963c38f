from __future__ import annotations

import numpy as np
import pytest
from league_rows import match_of, result_of
from msgspec.structs import replace

from ludus.league.matchmaking import Candidates
from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.players import Player
from ludus.league.psro import META_SOLVERS, MetaStrategy

MAIN = Player(id="main", role="main")
PAST = tuple(Player(id=f"main.{n}", role="frozen", parent="main", parent_role="main", model="m") for n in (1, 2, 3))
CANDIDATES = Candidates(players=(MAIN, *PAST), roles=("main",))


def _play(payoff: Payoff, a: int, b: int, score: float) -> None:
    match = match_of(PAST[a].id, PAST[b].id, episodes=20)
    total = 20 * score
    payoff.record(match, replace(result_of(match, (12, 0, 8)), score_sum=(total, -total)))


@pytest.fixture
def payoff() -> Payoff:
    """The third beats the second beats the first, by points that are worth more than one."""
    payoff = Payoff(PayoffRules(decay=1.0))
    for a, b in ((1, 0), (2, 1), (2, 0)):
        _play(payoff, a, b, 8.0)
    return payoff


@pytest.mark.parametrize("solver", META_SOLVERS)
def test_every_solver_gives_a_law(solver: str, payoff: Payoff) -> None:
    law = MetaStrategy(solver=solver).probabilities("main", CANDIDATES, payoff)
    assert list(law) == ["main.1", "main.2", "main.3"]
    assert sum(law.values()) == pytest.approx(1.0)
    assert solver == "uniform" or law["main.3"] > 0.9


def test_new_results_between_snapshots_change_the_law(payoff: Payoff) -> None:
    rule = MetaStrategy()
    assert rule.probabilities("main", CANDIDATES, payoff)["main.3"] == pytest.approx(1.0)
    for _ in range(4):
        _play(payoff, 0, 2, 8.0)
    law = rule.probabilities("main", CANDIDATES, payoff)
    assert law["main.1"] > 0.2  # now a cycle
    match = match_of("main", "main.1")
    payoff.record(match, result_of(match, (100, 0, 0)))
    assert rule.probabilities("main", CANDIDATES, payoff) == law
    payoff.forget("main.3")
    assert rule.probabilities("main", CANDIDATES, payoff) != law


def test_exploration_and_unknown_pairs(payoff: Payoff) -> None:
    law = MetaStrategy(explore=0.3).probabilities("main", CANDIDATES, payoff)
    assert law == pytest.approx({"main.1": 0.1, "main.2": 0.1, "main.3": 0.8})
    assert MetaStrategy().probabilities("main", CANDIDATES, Payoff()) == pytest.approx(
        dict.fromkeys(("main.1", "main.2", "main.3"), 1 / 3)
    )
    nobody = Candidates(players=(MAIN,), roles=("main",))
    assert MetaStrategy().probabilities("main", nobody, payoff) == {"main": 1.0}


def newest(payoff: np.ndarray) -> np.ndarray:
    return np.eye(len(payoff))[-1]


def nonsense(payoff: np.ndarray) -> np.ndarray:
    return payoff[0]


def test_a_solver_of_ones_own(payoff: Payoff) -> None:
    law = MetaStrategy(solver=f"{__file__}:newest").probabilities("main", CANDIDATES, payoff)
    assert law == {"main.1": 0.0, "main.2": 0.0, "main.3": 1.0}
    with pytest.raises(ValueError, match="gave no distribution over 3 players"):
        MetaStrategy(solver=f"{__file__}:nonsense").probabilities("main", CANDIDATES, payoff)
    with pytest.raises(ValueError, match="did you mean 'nash'"):
        MetaStrategy(solver="nahs")
    with pytest.raises(ValueError, match="explore must be from 0 to 1"):
        MetaStrategy(explore=1.5)
