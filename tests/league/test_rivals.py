from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of
from published_laws import without_suffix

from ludus.league.matchmaking import Candidates, ForgottenOrStrong, LiveOrPast, Verification, remembered_until
from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.players import Player

RATES = st.lists(st.integers(0, 100), max_size=12)
ROLES = ("main", "main_exploiter")


def _league(main: list[int], exploiter: list[int], foe: int = 50) -> tuple[Candidates, Payoff]:
    """A main player, an exploiter that it beats `foe` times in 100, and snapshots of both by wins of main."""
    players = [Player(id="main", role="main"), Player(id="foe", role="main_exploiter")]
    payoff = Payoff(PayoffRules(decay=1.0, min_games=0))
    wins = {"foe": foe}
    for parent, role, rates in (("main", "main", main), ("foe", "main_exploiter", exploiter)):
        for number, count in enumerate(rates, start=1):
            name = f"{parent}.{number}"
            players.append(Player(id=name, role="frozen", parent=parent, parent_role=role, model="m:0:0"))
            wins[name] = count
    for name, count in wins.items():
        match = match_of("main", name)
        payoff.record(match, result_of(match, (count, 0, 100 - count)))
    return Candidates(players=tuple(players), roles=ROLES), payoff


@settings(deadline=None)
@given(RATES)
def test_what_is_dropped_never_rises_and_what_is_kept_ends_with_a_rise(rates: list[int]) -> None:
    kept = remembered_until(np.array(rates, float))
    assert rates[:kept] == without_suffix([float(rate) for rate in rates])
    dropped = rates[max(kept - 1, 0) :]
    assert all(before >= after for before, after in pairwise(dropped))
    assert kept == 0 or rates[kept - 2] < rates[kept - 1]


@settings(deadline=None, max_examples=60)
@given(RATES, RATES)
def test_verification_looks_for_exploiters_then_for_what_was_forgotten(main: list[int], exploiter: list[int]) -> None:
    candidates, payoff = _league(main, exploiter)
    law = Verification().probabilities("main", candidates, payoff)
    assert sum(law.values()) == pytest.approx(1.0)
    met = {name for name, probability in law.items() if probability > 0}
    kept = without_suffix([float(rate) for rate in main])
    if exploiter and min(exploiter) < 30:
        assert set(law) == {f"foe.{number}" for number in range(1, len(exploiter) + 1)}
        assert "foe.1" in met or exploiter[0] == 100
    elif kept and min(kept) < 70:
        assert set(law) == {f"main.{number}" for number in range(1, len(kept) + 1)}
    else:
        assert law == {"main": 1.0}


@settings(deadline=None, max_examples=60)
@given(RATES, RATES)
def test_the_papers_branch_meets_only_what_is_not_beaten(main: list[int], exploiter: list[int]) -> None:
    candidates, payoff = _league(main, exploiter)
    law = ForgottenOrStrong().probabilities("main", candidates, payoff)
    strong = {f"foe.{number}" for number, rate in enumerate(exploiter, start=1) if rate < 30}
    kept = without_suffix([float(rate) for rate in main])
    lost = {f"main.{number}" for number, rate in enumerate(kept, start=1) if rate < 70}
    assert set(law) == (strong | lost or {"main"})
    assert sum(law.values()) == pytest.approx(1.0)


def test_without_exploiters_only_forgetting_is_checked() -> None:
    candidates, payoff = _league([90, 50, 80], [10])
    for rule in (Verification(exploiter=None), ForgottenOrStrong(exploiter=None)):
        assert set(rule.probabilities("main", candidates, payoff)) <= {"main.1", "main.2", "main.3"}
    with pytest.raises(ValueError, match="did you mean 'main_exploiter'"):
        Verification(exploiter="main_exploiters").probabilities("main", candidates, payoff)


@pytest.mark.parametrize(("foe", "law"), [(31, {"foe": 1.0}), (30, {"foe.1": 0.25 / 0.5, "foe.2": 0.5})])
def test_a_rival_that_is_too_strong_is_replaced_by_its_past(foe: int, law: dict[str, float]) -> None:
    candidates, payoff = _league([90], [50, 50], foe)
    rule = LiveOrPast(role="main_exploiter", min_win_rate=0.3)
    assert rule.probabilities("main", candidates, payoff) == pytest.approx(law)


def test_a_rival_without_a_past_is_played_as_it_is() -> None:
    candidates, payoff = _league([90], [], foe=0)
    assert LiveOrPast(role="main_exploiter").probabilities("main", candidates, payoff) == {"foe": 1.0}
    alone = Candidates(players=(), roles=ROLES)
    assert LiveOrPast().probabilities("main", alone, payoff) == {"main": 1.0}


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_bars_are_win_rates(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"LiveOrPast\.min_win_rate must be from 0 to 1"):
        LiveOrPast(min_win_rate=wrong)
    with pytest.raises(ValueError, match="forgotten_below"):
        Verification(forgotten_below=wrong)
    with pytest.raises(ValueError, match="power must be from 0 to 16"):
        ForgottenOrStrong(weighting=-1.0)
