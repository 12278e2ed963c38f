"""Leagues that were published, by name: `--set league=alphastar`, or `{type: alphastar, period: 1e6}`.

Each function gives the published constants unless told otherwise. All intervals are multiples of `period`, in
decisions: published ones are for games and clusters of another size, so that is the number to change first.
Where sources disagree or are silent, docs/league-presets.md says what was chosen.
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
from ludus.league.promotion import EVERYONE, AfterReset, AnyOf, BySteps, ByWinRate
from ludus.league.psro import MetaStrategy
from ludus.league.quality import QualityScores
from ludus.league.rules import LeagueRules, Role

Weights = Literal["live", "average"]

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = "main", "main_exploiter", "league_exploiter"

_EACH_GAME = PayoffRules(decay=0.99, decay_games=1.0, min_games=0.0)
"""AlphaStar's: every game of a pair fades the earlier ones by 0.99, and the first one counts."""


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
    """AlphaStar as the text of the paper has it; numbers of players are those of one race."""
    live = Live(role=MAIN)
    exploiter = MAIN_EXPLOITER if main_exploiters else None
    main = Role(
        count=mains,
        matchmaking=Mixture(
            branches=(
                (0.35, live),
                (0.5, PFSP(weighting="squared")),
                (0.15, ForgottenOrStrong(exploiter=exploiter)),
            )
        ),
        promotion=BySteps(every=period),
        start=start,
        snapshot_weights=snapshot_weights,
    )
    attack = LiveOrPast(role=MAIN, min_win_rate=0.2, past="role")
    curriculum = PFSP(weighting="variance", over=MAIN)
    return _with_exploiters(
        main,
        _exploiter(
            main_exploiters,
            Mixture(branches=((0.5, curriculum), (0.5, attack))),
            ByWinRate(min_decisions=1, max_decisions=2 * period, against=MAIN),
            reset_probability=1.0,
            value_only=value_only_after_reset,
            like=main,
        ),
        _exploiter(
            league_exploiters,
            PFSP(weighting="squared"),
            ByWinRate(min_decisions=1, max_decisions=period),
            reset_probability=0.25,
            value_only=value_only_after_reset,
            like=main,
        ),
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
    """AlphaStar as its supplementary pseudocode has it, without its errors."""
    self_play = LiveOrPast(role=MAIN, min_win_rate=0.3)
    verification = Verification(exploiter=MAIN_EXPLOITER if main_exploiters else None, otherwise=self_play)
    all_beaten = ByWinRate(min_decisions=period, max_decisions=2 * period)
    main = Role(
        count=mains,
        matchmaking=Mixture(branches=((0.5, PFSP(weighting="squared")), (0.15, verification), (0.35, self_play))),
        promotion=all_beaten,
        start=start,
        snapshot_weights=snapshot_weights,
    )
    return _with_exploiters(
        main,
        _exploiter(
            main_exploiters,
            LiveOrPast(role=MAIN, min_win_rate=0.1),
            ByWinRate(min_decisions=period, max_decisions=2 * period, against=MAIN),
            reset_probability=1.0,
            value_only=value_only_after_reset,
            like=main,
        ),
        _exploiter(
            league_exploiters,
            PFSP(weighting="linear_capped"),
            all_beaten,
            reset_probability=0.25,
            value_only=value_only_after_reset,
            like=main,
        ),
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
    """DI-star: no verification; half self-play, half PFSP; a memory of about 1000 games of each pair.

    Its snapshots want 1000 games against everybody. A pair that has played 1000 has 1000 (1 - 1/e) = 632
    after decay, and that is the bar here.
    """
    half, played = max(1, period // 2), 632.0
    main = Role(
        count=mains,
        matchmaking=Mixture(
            branches=((0.5, LiveOrPast(role=MAIN, min_win_rate=0.3)), (0.5, PFSP(weighting="squared")))
        ),
        promotion=AnyOf(
            rules=(
                ByWinRate(min_decisions=half, max_decisions=period, threshold=0.8, min_games=played),
                ByWinRate(min_decisions=half, max_decisions=period, against=EVERYONE, min_games=played),
            )
        ),
        start=start,
        snapshot_weights=snapshot_weights,
    )
    attack = LiveOrPast(role=MAIN, min_win_rate=0.2)
    return _with_exploiters(
        main,
        _exploiter(
            main_exploiters,
            # 0.5 and 0.45 of its jobs; the other 0.05 only evaluate, which is no part of matchmaking here.
            Mixture(branches=((0.5 / 0.95, attack), (0.45 / 0.95, PFSP(weighting="variance", over=MAIN)))),
            ByWinRate(min_decisions=1, max_decisions=period, against=MAIN, min_games=played),
            reset_probability=1.0,
            value_only=value_only_after_reset,
            like=main,
        ),
        _exploiter(
            league_exploiters,
            PFSP(weighting="linear_capped"),
            ByWinRate(min_decisions=half, max_decisions=period, min_games=played),
            reset_probability=0.25,
            value_only=value_only_after_reset,
            like=main,
        ),
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
    """OpenAI Five: mostly the latest weights, else its own past by quality."""
    return _main_only(_part(self_play, QualityScores(step=step)), period, bots, snapshot_weights)


def self_play(
    *, period: int = 1_000_000, bots: tuple[str, ...] = (), snapshot_weights: Weights = "live"
) -> LeagueRules:
    """One player against its own latest weights; snapshots are kept, but not played against."""
    return _main_only(SelfPlay(), period, bots, snapshot_weights)


def fsp(
    *,
    period: int = 1_000_000,
    self_play: float = 0.0,
    reset_probability: float = 0.0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """Fictitious self-play: every snapshot alike."""
    return _main_only(_part(self_play, UniformPast()), period, bots, snapshot_weights, reset_probability)


def pfsp(
    *,
    period: int = 1_000_000,
    weighting: str | float = "squared",
    self_play: float = 0.0,
    reset_probability: float = 0.0,
    bots: tuple[str, ...] = (),
    snapshot_weights: Weights = "live",
) -> LeagueRules:
    """Prioritised fictitious self-play: snapshots by how the player does against them."""
    return _main_only(_part(self_play, PFSP(weighting=weighting)), period, bots, snapshot_weights, reset_probability)


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
    """Policy-space response oracles: a best response to the meta-strategy of all snapshots is the next one.

    Every response starts from fresh weights; with `reset_probability` 0 it goes on from the last one, which
    is quicker as long as it does not have to unlearn what it is sure of.
    """
    response = MetaStrategy(solver=meta_solver, explore=explore)
    return _main_only(
        _part(self_play, response), period, bots, snapshot_weights, reset_probability, decide_on="combined"
    )


def _part(self_play: float, otherwise: Matchmaker) -> Matchmaker:
    """A share of self-play, and something else."""
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


def _exploiter(
    count: int,
    matchmaking: Matchmaker,
    promotion: ByWinRate,
    *,
    reset_probability: float,
    value_only: int,
    like: Role,
) -> Role | None:
    """Without an initial snapshot: it would be the main player's once more."""
    if not count:
        return None
    return Role(
        count=count,
        matchmaking=matchmaking,
        promotion=promotion,
        initial_snapshot=False,
        reset_probability=reset_probability,
        after_reset=AfterReset(value_only_decisions=value_only),
        start=like.start,
        snapshot_weights=like.snapshot_weights,
    )


def _with_exploiters(
    main: Role,
    main_exploiter: Role | None,
    league_exploiter: Role | None,
    *,
    bots: tuple[str, ...],
    payoff: PayoffRules,
) -> LeagueRules:
    roles = {MAIN: main, MAIN_EXPLOITER: main_exploiter, LEAGUE_EXPLOITER: league_exploiter}
    return LeagueRules(roles={name: role for name, role in roles.items() if role is not None}, bots=bots, payoff=payoff)
