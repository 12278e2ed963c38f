from __future__ import annotations

import itertools

import pytest
from league_rows import match_of, result_of
from msgspec.structs import replace

from ludus.data.records import LearnerProgress, PlayerReset, Result
from ludus.league.matchmaking import Candidates
from ludus.league.payoff import Payoff, PayoffRules
from ludus.league.players import Player, Standing
from ludus.league.promotion import (
    AllOf,
    AnyOf,
    BoundedHistory,
    ByScore,
    BySteps,
    ByTime,
    ByUpdates,
    ByWinRate,
    Never,
    Promotion,
    is_timed,
)

MAIN = Player(id="main", role="main")
FOE = Player(id="foe", role="exploiter")
PAST = tuple(Player(id=f"main.{n}", role="frozen", parent="main", parent_role="main", model="m") for n in (1, 2))
CANDIDATES = Candidates(players=(MAIN, FOE, *PAST), roles=("main", "exploiter"))


def _standing(decisions: int, player: Player = MAIN) -> Standing:
    return Standing(player=player).progressed(LearnerProgress(player.id, 0, 1, decisions))


def _payoff(player: str, **wins: int) -> Payoff:
    payoff = Payoff(PayoffRules(decay=1.0))
    for name, count in wins.items():
        match = match_of(player, name.replace("_", "."))
        payoff.record(match, result_of(match, (count, 0, 100 - count)))
    return payoff


def _reason(rule: Promotion, standing: Standing, payoff: Payoff | None = None) -> str | None:
    decision = rule.decide(standing, CANDIDATES, payoff or Payoff())
    return None if decision is None else decision.reason


def test_by_steps() -> None:
    assert _reason(BySteps(every=100), _standing(99)) is None
    assert _reason(BySteps(every=100), _standing(100)) == "100 decisions"
    assert _reason(BySteps(every=100), _standing(100).frozen("main:0:1", promoted=True, reset=False)) is None
    assert _reason(Never(), _standing(10**14)) is None


@pytest.mark.parametrize("wrong", [0, -5, int(1e30), 10**15 + 1])
def test_impossible_intervals_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=r"BySteps\.every"):
        BySteps(every=wrong)
    with pytest.raises(ValueError, match="min_decisions"):
        ByWinRate(min_decisions=wrong, max_decisions=10**15)
    with pytest.raises(ValueError, match="max_decisions"):
        ByWinRate(min_decisions=1, max_decisions=wrong)


def test_by_win_rate_needs_every_opponent_beaten() -> None:
    rule = ByWinRate(min_decisions=10, max_decisions=100)
    all_beaten, one_not = _payoff("main", main_1=80, main_2=75), _payoff("main", main_1=80, main_2=70)
    assert _reason(rule, _standing(9), all_beaten) is None
    assert _reason(rule, _standing(10), all_beaten) == "beats all_frozen at 75% or more"
    assert _reason(rule, _standing(99), one_not) is None
    assert _reason(rule, _standing(100), one_not) == "timeout at 100 decisions"
    assert _reason(rule, _standing(99), _payoff("main", main_1=100)) is None  # main.2 not played yet


def test_by_win_rate_against_the_live_players_of_a_role() -> None:
    rule = ByWinRate(min_decisions=10, max_decisions=100, against="main")
    assert _reason(rule, _standing(10, FOE), _payoff("foe", main=71)) is not None
    assert _reason(rule, _standing(10, FOE), _payoff("foe", main=69)) is None
    assert _reason(rule, _standing(50, MAIN)) is None  # nobody but itself: nothing to beat
    with pytest.raises(ValueError, match="did you mean 'main'"):
        _reason(ByWinRate(min_decisions=1, max_decisions=2, against="mains"), _standing(1))


def test_by_win_rate_without_opponents_waits_for_the_timeout() -> None:
    alone = Candidates(players=(MAIN,), roles=("main",))
    rule = ByWinRate(min_decisions=10, max_decisions=100)
    assert rule.decide(_standing(50), alone, Payoff()) is None
    assert rule.decide(_standing(100), alone, Payoff()) is not None


@pytest.mark.parametrize("threshold", [0.4, 1.0, float("nan")])
def test_thresholds_that_mean_nothing_are_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        ByWinRate(min_decisions=1, max_decisions=2, threshold=threshold)


def test_max_below_min_is_refused() -> None:
    with pytest.raises(ValueError, match="max_decisions=5 is below min_decisions=9"):
        ByWinRate(min_decisions=9, max_decisions=5)


def _result(episodes: int, score_sum: float) -> Result:
    return Result(0, episodes, episodes, (episodes,), (), (score_sum,), (0.0,), ("",), ("",))


def _scored(standing: Standing, mean: float, episodes: int = 100) -> Standing:
    return standing.played(_result(episodes, mean * episodes), fade=0.0)


def test_by_score_wants_a_better_recent_mean_than_at_its_last_snapshot() -> None:
    rule = ByScore(min_improvement=1.0)
    standing = _scored(_standing(10), 5.0)
    assert _reason(rule, standing) == "score 5"
    standing = standing.frozen("main:0:1", promoted=True, reset=False)
    assert _reason(rule, standing) is None
    assert _reason(rule, _scored(standing, 6.0)) is None
    assert _reason(rule, _scored(standing, 6.5)) == "score 6.5"


def test_by_score_fades_old_episodes() -> None:
    standing = _standing(10).played(_result(100, 500.0), fade=1.0).played(_result(100, 900.0), fade=0.5)
    assert standing.recent_score == pytest.approx((250 + 900) / 150)
    assert standing.score_episodes == 150


def test_by_score_is_not_satisfied_by_other_snapshots_few_episodes_or_few_decisions() -> None:
    standing = _scored(_standing(10), 5.0)
    assert _reason(ByScore(), standing.frozen("main:0:1", promoted=False, reset=False)) is not None
    assert _reason(ByScore(min_episodes=101), standing) is None
    assert _reason(ByScore(min_decisions=11), standing) is None
    assert _reason(ByScore(), _standing(10)) is None
    for wrong in ({"min_improvement": -1.0}, {"min_episodes": 0}, {"min_decisions": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ByScore(**wrong)  # type: ignore[arg-type]


def _progressed(*reports: tuple[int, float], joined: Standing | None = None) -> Standing:
    """After reports of (step, seconds)."""
    standing = Standing(player=MAIN) if joined is None else joined
    for step, seconds in reports:
        standing = standing.progressed(LearnerProgress("main", standing.incarnation, step, 100 * step, seconds))
    return standing


def test_by_updates_counts_updates_whatever_the_batch() -> None:
    rule = ByUpdates(every=10)
    assert _reason(rule, _progressed((9, 0.0))) is None
    assert _reason(rule, _progressed((12, 0.0))) == "12 updates"
    frozen = _progressed((12, 0.0)).frozen("main:0:12", promoted=True, reset=False)
    assert _reason(rule, _progressed((21, 0.0), joined=frozen)) is None
    assert _reason(rule, _progressed((22, 0.0), joined=frozen)) == "10 updates"
    fallen_back = replace(_progressed((5, 0.0), joined=replace(frozen, incarnation=1)), incarnation=1)
    assert _reason(rule, fallen_back) is None
    reset = frozen.after_reset(PlayerReset("main", 1, None))
    assert _reason(rule, _progressed((13, 0.0), joined=reset)) is None
    assert _reason(rule, _progressed((22, 0.0), joined=reset)) == "10 updates"


def test_by_time_reads_the_seconds_of_the_rows() -> None:
    rule = ByTime(seconds=30.0)
    assert _reason(rule, _progressed((1, 29.9))) is None
    assert _reason(rule, _progressed((1, 30.25))) == "30.25 seconds"
    frozen = _progressed((1, 31.0)).frozen("main:0:1", promoted=True, reset=False)
    assert _reason(rule, _progressed((2, 60.9), joined=frozen)) is None
    assert _reason(rule, _progressed((2, 61.0), joined=frozen)) == "30 seconds"
    assert _reason(rule, _progressed((2, 60.0), joined=frozen.after_reset(PlayerReset("main", 1, None)))) is None
    assert _reason(rule, _standing(10**12)) is None  # rows without the time
    assert is_timed(AnyOf(rules=(Never(), AllOf(rules=(BySteps(every=1), rule)))))
    assert not is_timed(AnyOf(rules=(Never(), BySteps(every=1))))
    with pytest.raises(ValueError, match=r"ByTime\.seconds"):
        ByTime(seconds=0.0)


def test_all_of_needs_every_rule() -> None:
    rule = AllOf(rules=(ByUpdates(every=5), ByWinRate(threshold=0.6, against="own")))
    strong, weak = _payoff("main", main_1=80, main_2=75), _payoff("main", main_1=80, main_2=55)
    assert _reason(rule, _progressed((4, 0.0)), strong) is None
    assert _reason(rule, _progressed((5, 0.0)), weak) is None
    assert _reason(rule, _progressed((5, 0.0)), strong) == "5 updates and beats own at 75% or more"
    with pytest.raises(ValueError, match=r"AllOf\.rules is empty"):
        AllOf(rules=())


def test_by_win_rate_in_the_mean_and_without_a_timeout() -> None:
    payoff = _payoff("main", main_1=90, main_2=45)
    assert _reason(ByWinRate(threshold=0.6), _standing(10**12), payoff) is None
    assert (
        _reason(ByWinRate(threshold=0.6, beats="mean"), _standing(1), payoff) == "beats all_frozen at 68% in the mean"
    )
    with pytest.raises(ValueError, match="beats"):
        ByWinRate(beats="all")  # type: ignore[arg-type]


def test_a_bounded_history_keeps_the_ends_and_ages_that_grow_by_a_factor() -> None:
    bound, left = BoundedHistory(size=16, strongest=0), []
    for taken in range(1, 5_001):
        left.append(taken)
        ages = {str(one): taken - one + 1 for one in left}
        for gone in bound.surplus(ages, ()):
            left.remove(int(gone))
        assert len(left) == min(taken, 16)
        assert left[0] == 1
        assert left[-1] == taken
    ages_left = [5_001 - one for one in left]
    factors = [older / newer for older, newer in itertools.pairwise(ages_left)]
    assert max(factors) < 4.0, ages_left  # a pool of the newest 16 would have one of 312
    assert sum(age > 100 for age in ages_left) >= 4


def test_a_bounded_history_keeps_whom_it_must() -> None:
    ages = {f"main.{number}": 11 - number for number in range(1, 11)}
    kept = ("main.7", "main.8", "main.9")
    assert not {*BoundedHistory(size=6, strongest=3).surplus(ages, kept)} & {*kept, "main.1", "main.10"}
    assert BoundedHistory(size=4, strongest=0).surplus(ages, list(ages)) == []
    for wrong in ({"size": 3}, {"size": 8, "strongest": 6}):
        with pytest.raises(ValueError, match="BoundedHistory"):
            BoundedHistory(**wrong)
