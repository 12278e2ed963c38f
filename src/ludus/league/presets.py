"""Published leagues by name: `--set league=alphastar`, or `{type: alphastar, period: 1e6}`.

The defaults are the published constants. All intervals are multiples of `period`, in decisions; change it
first, because the published ones suit other games and cluster sizes. docs/league-presets.md explains the
choices where sources disagree or are silent.
"""

from __future__ import annotations

from typing import Literal

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
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """AlphaStar as described in the paper; the numbers of players are those of one race."""
    verification = ForgottenOrStrong(exploiter=MAIN_EXPLOITER if main_exploiters else None)
    branches = ((0.35, Live(role=MAIN)), (0.5, PFSP(weighting="squared")), (0.15, verification))
    attack = LiveOrPast(role=MAIN, min_win_rate=0.2, past="role")
    curriculum = PFSP(weighting="variance", over=MAIN)
    return _with_exploiters(
        Role(
            count=mains,
            matchmaking=Mixture(branches=branches),
            promotion=BySteps(every=period),
            start=start,
            snapshot_weights=snapshot_weights,
        ),
        main_exploiters,
        Mixture(branches=((0.5, curriculum), (0.5, attack))),
        ByWinRate(min_decisions=1, max_decisions=2 * period, against=MAIN),
        league_exploiters,
        PFSP(weighting="squared"),
        ByWinRate(min_decisions=1, max_decisions=period),
        value_only=value_only_after_reset,
        bots=bots,
        payoff=_EACH_GAME,
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
    all_beaten = ByWinRate(min_decisions=period, max_decisions=2 * period)
    return _with_exploiters(
        Role(
            count=mains,
            matchmaking=Mixture(branches=((0.5, PFSP(weighting="squared")), (0.15, verification), (0.35, self_play))),
            promotion=all_beaten,
            start=start,
            snapshot_weights=snapshot_weights,
        ),
        main_exploiters,
        LiveOrPast(role=MAIN, min_win_rate=0.1),
        ByWinRate(min_decisions=period, max_decisions=2 * period, against=MAIN),
        league_exploiters,
        PFSP(weighting="linear_capped"),
        all_beaten,
        value_only=value_only_after_reset,
        bots=bots,
        payoff=_EACH_GAME,
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
    """DI-star: no verification, half self-play and half PFSP, a memory of about 1000 games of each pair.

    Its promotion asks for 1000 games against every opponent. After decay these count as 1000 (1 - 1/e) = 632,
    which is the threshold here.
    """
    half, played = max(1, period // 2), 632.0
    self_play, attack = LiveOrPast(role=MAIN, min_win_rate=0.3), LiveOrPast(role=MAIN, min_win_rate=0.2)
    promotions = (
        ByWinRate(min_decisions=half, max_decisions=period, threshold=0.8, min_games=played),
        ByWinRate(min_decisions=half, max_decisions=period, against=EVERYONE, min_games=played),
    )
    return _with_exploiters(
        Role(
            count=mains,
            matchmaking=Mixture(branches=((0.5, self_play), (0.5, PFSP(weighting="squared")))),
            promotion=AnyOf(rules=promotions),
            start=start,
            snapshot_weights=snapshot_weights,
        ),
        main_exploiters,
        # 0.5 and 0.45 of its jobs; the other 0.05 only evaluate, which is not part of matchmaking here.
        Mixture(branches=((0.5 / 0.95, attack), (0.45 / 0.95, PFSP(weighting="variance", over=MAIN)))),
        ByWinRate(min_decisions=1, max_decisions=period, against=MAIN, min_games=played),
        league_exploiters,
        PFSP(weighting="linear_capped"),
        ByWinRate(min_decisions=half, max_decisions=period, min_games=played),
        value_only=value_only_after_reset,
        bots=bots,
        payoff=PayoffRules(decay=0.99, decay_games=10.0, min_games=100.0),
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
    """Policy-space response oracles: each snapshot is a best response to the meta-strategy of the earlier ones.

    Every response starts from fresh weights. With `reset_probability` 0 it continues from the last one, which
    is quicker unless it has much to unlearn.
    """
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


def _with_exploiters(
    main: Role,
    main_exploiters: int,
    attack: Matchmaker,
    attacked: Promotion,
    league_exploiters: int,
    challenge: Matchmaker,
    challenged: Promotion,
    *,
    value_only: int,
    bots: tuple[str, ...],
    payoff: PayoffRules,
) -> LeagueRules:
    """Main players, and exploiters with their count, matchmaking and promotion. No exploiter has an initial
    snapshot, which would be a copy of the main player's."""

    def exploiter(count: int, matchmaking: Matchmaker, promotion: Promotion, reset_probability: float) -> Role:
        return Role(
            count=count,
            matchmaking=matchmaking,
            promotion=promotion,
            initial_snapshot=False,
            reset_probability=reset_probability,
            after_reset=AfterReset(value_only_decisions=value_only),
            start=main.start,
            snapshot_weights=main.snapshot_weights,
        )

    roles = {MAIN: main}
    if main_exploiters:
        roles[MAIN_EXPLOITER] = exploiter(main_exploiters, attack, attacked, 1.0)
    if league_exploiters:
        roles[LEAGUE_EXPLOITER] = exploiter(league_exploiters, challenge, challenged, 0.25)
    return LeagueRules(roles=roles, bots=bots, payoff=payoff)
