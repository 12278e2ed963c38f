"""Leagues: roles, matchmaking, promotion, populations, and their records.

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.public_names import lazy, listing

if TYPE_CHECKING:
    from ludus.data.records import (
        Match as Match,
        MatchIssued as MatchIssued,
        Pair as Pair,
        Result as Result,
        RunStarted as RunStarted,
        Side as Side,
    )
    from ludus.league import presets as presets
    from ludus.league.matchmaking import (
        PFSP as PFSP,
        Candidates as Candidates,
        FixedLaw as FixedLaw,
        ForgottenOrStrong as ForgottenOrStrong,
        Latest as Latest,
        Law as Law,
        Live as Live,
        LiveOrPast as LiveOrPast,
        Matchmaker as Matchmaker,
        Mixture as Mixture,
        SelfPlay as SelfPlay,
        UniformPast as UniformPast,
        Verification as Verification,
        uniform as uniform,
    )
    from ludus.league.measures import measure as measure
    from ludus.league.payoff import Payoff as Payoff, PayoffRules as PayoffRules
    from ludus.league.players import SCRIPTED as SCRIPTED, Player as Player, Standing as Standing
    from ludus.league.population import (
        BinaryTournament as BinaryTournament,
        LogUniform as LogUniform,
        OneOf as OneOf,
        Population as Population,
        SearchSpace as SearchSpace,
        Selection as Selection,
        Truncation as Truncation,
        Uniform as Uniform,
    )
    from ludus.league.presets import MAIN as MAIN, MAIN_EXPLOITER as MAIN_EXPLOITER
    from ludus.league.promotion import (
        AfterReset as AfterReset,
        AnyOf as AnyOf,
        ByScore as ByScore,
        BySteps as BySteps,
        ByWinRate as ByWinRate,
        FromStart as FromStart,
        Never as Never,
        Promotion as Promotion,
        Restart as Restart,
        Snapshot as Snapshot,
    )
    from ludus.league.psro import META_SOLVERS as META_SOLVERS, MetaStrategy as MetaStrategy
    from ludus.league.quality import QualityScores as QualityScores
    from ludus.league.rules import LeagueRules as LeagueRules, Role as Role

__getattr__, __dir__, __all__ = lazy("league")
__doc__ = f"{__doc__}{listing('league')}\n"
