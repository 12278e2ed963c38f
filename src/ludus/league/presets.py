"""Published leagues by name: `--set league=alphastar`, or `{type: alphastar, period: 1e6}`. All intervals are multiples
of `period`, in decisions; change it first. docs/league-presets.md explains the choices."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ludus.league.matchmaking import (
    PFSP,
    ForgottenOrStrong,
    Live,
    LiveOrPast,
    Matchmaker,
    Mixture,
    SelfPlay,
    UniformPast,
    Verification,
)
from ludus.league.payoff import PayoffRules
from ludus.league.promotion import EVERYONE, AfterReset, AnyOf, BySteps, ByWinRate, Promotion
from ludus.league.psro import MetaStrategy
from ludus.league.quality import QualityScores
from ludus.league.rules import LeagueRules, Role

Weights = Literal["live", "average"]

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = "main", "main_exploiter", "league_exploiter"

_EACH_GAME = PayoffRules(decay=0.99, decay_games=1.0, min_games=0.0)
"""AlphaStar's payoff: every game of a pair decays the earlier ones by 0.99, and the first one counts."""


def alphastar(
    *,
    period: int = 2_000_000_000,
    mains: int = 1,
    main_exploiters: int = 1,
    league_exploiters: int = 2,
    start: str | None = None,
    value_only_after_reset: int = 0,
    bots: tuple[str, ...] = (),
    meet_bots: bool = False,
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """AlphaStar as described in the paper; the numbers of players are those of one race. With `meet_bots`, the bots
    are among the past players that a main player meets."""
    verification = ForgottenOrStrong(exploiter=MAIN_EXPLOITER if main_exploiters else None)
    past = PFSP(weighting="squared", include_scripted=meet_bots)
    branches = ((0.35, Live(role=MAIN)), (0.5, past), (0.15, verification))
    attack = LiveOrPast(role=MAIN, min_win_rate=0.2, past="role")
    curriculum = PFSP(weighting="variance", over=MAIN)
    main_beaten = ByWinRate(min_decisions=1, max_decisions=2 * period, against=MAIN)
    return _with_exploiters(
        (mains, Mixture(branches=branches), BySteps(every=period)),
        (main_exploiters, Mixture(branches=((0.5, curriculum), (0.5, attack))), main_beaten),
        (league_exploiters, PFSP(weighting="squared"), ByWinRate(min_decisions=1, max_decisions=period)),
        _Common(start, value_only_after_reset, bots, snapshot_weights, _EACH_GAME),
    )


def alphastar_pseudocode(
    *,
    period: int = 2_000_000_000,
    mains: int = 1,
    main_exploiters: int = 1,
    league_exploiters: int = 2,
    start: str | None = None,
    value_only_after_reset: int = 0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """AlphaStar as in its supplementary pseudocode, without the errors there."""
    self_play = LiveOrPast(role=MAIN, min_win_rate=0.3)
    verification = Verification(exploiter=MAIN_EXPLOITER if main_exploiters else None, otherwise=self_play)
    branches = ((0.5, PFSP(weighting="squared")), (0.15, verification), (0.35, self_play))
    all_beaten = ByWinRate(min_decisions=period, max_decisions=2 * period)
    main_beaten = ByWinRate(min_decisions=period, max_decisions=2 * period, against=MAIN)
    return _with_exploiters(
        (mains, Mixture(branches=branches), all_beaten),
        (main_exploiters, LiveOrPast(role=MAIN, min_win_rate=0.1), main_beaten),
        (league_exploiters, PFSP(weighting="linear_capped"), all_beaten),
        _Common(start, value_only_after_reset, bots, snapshot_weights, _EACH_GAME),
    )


def di_star(
    *,
    period: int = 400_000_000,
    mains: int = 1,
    main_exploiters: int = 1,
    league_exploiters: int = 1,
    start: str | None = None,
    value_only_after_reset: int = 0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """DI-star: no verification, half self-play and half PFSP, a memory of about 1000 games of each pair. Its promotion
    asks for 1000 games against every opponent, which count as 1000 (1 - 1/e) = 632 after decay."""
    half, played = max(1, period // 2), 632.0
    self_play, attack = LiveOrPast(role=MAIN, min_win_rate=0.3), LiveOrPast(role=MAIN, min_win_rate=0.2)
    promotions = (
        ByWinRate(min_decisions=half, max_decisions=period, threshold=0.8, min_games=played),
        ByWinRate(min_decisions=half, max_decisions=period, against=EVERYONE, min_games=played),
    )
    # 0.5 and 0.45 of its jobs; the other 0.05 only evaluate, which is not part of matchmaking here.
    branches = ((0.5 / 0.95, attack), (0.45 / 0.95, PFSP(weighting="variance", over=MAIN)))
    main_beaten = ByWinRate(min_decisions=1, max_decisions=period, against=MAIN, min_games=played)
    all_beaten = ByWinRate(min_decisions=half, max_decisions=period, min_games=played)
    payoff = PayoffRules(decay=0.99, decay_games=10.0, min_games=100.0)
    return _with_exploiters(
        (mains, Mixture(branches=((0.5, self_play), (0.5, PFSP(weighting="squared")))), AnyOf(rules=promotions)),
        (main_exploiters, Mixture(branches=branches), main_beaten),
        (league_exploiters, PFSP(weighting="linear_capped"), all_beaten),
        _Common(start, value_only_after_reset, bots, snapshot_weights, payoff),
    )


def openai_five(
    *,
    period: int = 10_000_000,
    self_play: float = 0.8,
    step: float = 0.01,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """OpenAI Five: mostly self-play, else snapshots by `QualityScores`."""
    return _main_only(_with_self_play(self_play, QualityScores(step=step)), period, bots, snapshot_weights)


def self_play(
    *, period: int = 1_000_000, bots: tuple[str, ...] = (), snapshot_weights: Weights = "live"
) -> LeagueRules:
    """One player against its own latest weights; snapshots are kept but not played."""
    return _main_only(SelfPlay(), period, bots, snapshot_weights)


def fsp(
    *,
    period: int = 1_000_000,
    self_play: float = 0.0,
    reset_probability: float = 0.0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """Fictitious self-play: uniformly drawn snapshots."""
    return _main_only(_with_self_play(self_play, UniformPast()), period, bots, snapshot_weights, reset_probability)


def pfsp(
    *,
    period: int = 1_000_000,
    weighting: str | float = "squared",
    self_play: float = 0.0,
    reset_probability: float = 0.0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """Prioritised fictitious self-play: snapshots weighted by the win rate against them."""
    matchmaking = _with_self_play(self_play, PFSP(weighting=weighting))
    return _main_only(matchmaking, period, bots, snapshot_weights, reset_probability)


def psro(
    *,
    meta_solver: str = "nash",
    period: int = 1_000_000,
    explore: float = 0.0,
    self_play: float = 0.0,
    reset_probability: float = 1.0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """Policy-space response oracles: each snapshot is a best response to the meta-strategy of the earlier ones, from
    fresh weights. With `reset_probability` 0 it continues from the last one, which is quicker."""
    matchmaking = _with_self_play(self_play, MetaStrategy(solver=meta_solver, explore=explore))
    return _main_only(matchmaking, period, bots, snapshot_weights, reset_probability, decide_on="combined")


def _with_self_play(self_play: float, otherwise: Matchmaker) -> Matchmaker:
    return Mixture(branches=((self_play, SelfPlay()), (1.0 - self_play, otherwise))) if self_play else otherwise


def _main_only(
    matchmaking: Matchmaker,
    period: int,
    bots: tuple[str, ...],
    snapshot_weights: Weights,
    reset_probability: float = 0.0,
    decide_on: Literal["training", "combined"] = "training",
) -> LeagueRules:
    main = Role(
        matchmaking=matchmaking,
        promotion=BySteps(every=period),
        reset_probability=reset_probability,
        snapshot_weights=snapshot_weights,
    )
    return LeagueRules(roles={MAIN: main}, bots=bots, decide_on=decide_on)


_Part = tuple[int, Matchmaker, Promotion]
"""The number of players of a role, their matchmaking and their promotion."""


class _Common(NamedTuple):
    start: str | None
    value_only_after_reset: int
    bots: tuple[str, ...]
    snapshot_weights: Weights
    payoff: PayoffRules


def _with_exploiters(main: _Part, main_exploiter: _Part, league_exploiter: _Part, common: _Common) -> LeagueRules:
    """Main players, and exploiters without an initial snapshot, which would be a copy of the main player's."""

    def role(part: _Part, reset_probability: float = 0.0) -> Role:
        is_main, (count, matchmaking, promotion) = part is main, part
        return Role(
            count=count,
            matchmaking=matchmaking,
            promotion=promotion,
            initial_snapshot=is_main,
            reset_probability=reset_probability,
            after_reset=AfterReset(value_only_decisions=0 if is_main else common.value_only_after_reset),
            start=common.start,
            snapshot_weights=common.snapshot_weights,
        )

    roles = {MAIN: role(main)}
    if main_exploiter[0]:
        roles[MAIN_EXPLOITER] = role(main_exploiter, 1.0)
    if league_exploiter[0]:
        roles[LEAGUE_EXPLOITER] = role(league_exploiter, 0.25)
    return LeagueRules(roles=roles, bots=common.bots, payoff=common.payoff)
