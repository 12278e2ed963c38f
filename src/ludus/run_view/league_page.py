"""The league, the spinning top and the ratings over time, as documents."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ludus.data.records import ModelId
from ludus.league.measures import Estimate, measure
from ludus.league.payoff_estimate import WHY_NOT
from ludus.league.summary import LeagueSummary
from ludus.run_view.documents import Counts, History, LeagueView, PlayerLine, Start, Top, TopLayer
from ludus.run_view.fold import RunFold
from ludus.run_view.rating_history import RatingHistory


def league_page(fold: RunFold, summary: LeagueSummary, game: str) -> LeagueView:
    least = fold.league.payoffs.combined.rules.min_games
    known = (summary.games >= least) & (summary.games > 0)
    return LeagueView(
        game=game,
        teams=fold.league.num_teams,
        anchor=summary.anchor,
        players=player_lines(fold, summary),
        win_rates=_rounded(np.where(known, summary.win_rates, np.nan), 3),
        games=np.round(summary.games, 1).tolist(),
        matches=counts(fold),
        events=fold.seen,
    )


def player_lines(fold: RunFold, summary: LeagueSummary) -> list[PlayerLine]:
    league = fold.league
    active = set(league.active)
    tags: dict[str, list[str]] = {}
    for found in summary.tags.values():
        for tag, snapshot in found.items():
            tags.setdefault(snapshot, []).append(tag)
    lines = []
    for player, rating in zip(summary.players, summary.ratings, strict=True):
        standing = league.standings.get(player.id)
        low, high = rating.interval() or (None, None)
        score, error = summary.scores.get(player.id, (None, None))
        lines.append(
            PlayerLine(
                id=player.id,
                role=player.role,
                parent=player.parent,
                model=player.model if standing is None else _shown(standing.latest_model),
                reason=player.reason,
                decisions=standing.decisions if standing else player.parent_decisions,
                active=player.id in active,
                elo=rating.elo,
                low=low,
                high=high,
                games=rating.games,
                equilibrium=summary.equilibrium.get(player.id, 0.0),
                score=score,
                score_error=error,
                tags=tags.get(player.id, []),
                opponents=dict(league.opponent_law(player.id)) if player.learning else None,
                starts=[
                    Start(decisions=one.decisions, origin=one.donor or _player_of(one.model))
                    for one in league.lineage.descents.get(player.id, ())
                ],
            )
        )
    return lines


def counts(fold: RunFold) -> Counts:
    return Counts(
        issued=fold.issued,
        finished=fold.finished,
        evaluations=fold.evaluations,
        void=fold.void,
        open=len(fold.open_matches),
    )


def history_page(fold: RunFold, history: RatingHistory, summary: LeagueSummary) -> History:
    """With the ratings of now as its last point."""
    now = {
        rating.player: (rating.elo, rating.standard_error)
        for rating in summary.ratings
        if rating.elo is not None and rating.standard_error is not None
    }
    rows = [(point.decisions, point.elo) for point in history.points] + [(float(fold.decisions), now)]
    names = [player.id for player in summary.players]
    nothing = (math.nan, math.nan)
    return History(
        anchor=summary.anchor,
        decisions=[decisions for decisions, _ in rows],
        elo={name: [_number(elo.get(name, nothing)[0], 1) for _, elo in rows] for name in names},
        error={name: [_number(elo.get(name, nothing)[1], 1) for _, elo in rows] for name in names},
        learning=[player.id for player in summary.players if player.learning],
    )


def top_page(fold: RunFold) -> Top:
    """Of the frozen players, as `ludus league` measures them."""
    league = fold.league
    frozen = [player.id for player in league.candidates.players if player.frozen]
    if league.num_teams == 1:
        return _no_top("a game with one team has no opponents, and no circles")
    measures = measure(league.payoffs.view("combined"), frozen, with_alpha_rank=False)
    if measures.unidentified is not None:
        return _no_top(WHY_NOT[measures.unidentified])
    return Top(
        why_not=None,
        layers=[
            TopLayer(
                players=list(layer.players),
                strength=layer.strength.value,
                low=layer.strength.low,
                high=layer.strength.high,
            )
            for layer in measures.layers
        ],
        transitive_share=_estimate(measures.transitive_share),
        effective_players=_estimate(measures.effective_players),
        effective_diversity=_estimate(measures.effective_diversity),
        left_out=list(measures.left_out),
        pairs_met=measures.pairs_met,
    )


def _no_top(why: str) -> Top:
    return Top(
        why_not=why,
        layers=[],
        transitive_share=None,
        effective_players=None,
        effective_diversity=None,
        left_out=[],
        pairs_met=0.0,
    )


def _estimate(found: Estimate | None) -> list[float] | None:
    return None if found is None else [found.value, found.low, found.high]


def _player_of(model: str | None) -> str | None:
    return None if model is None else model.partition(":")[0]


def _shown(model: ModelId | None) -> str | None:
    return None if model is None else str(model)


def _number(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _rounded(table: NDArray[np.float64], digits: int) -> list[list[float | None]]:
    """What is not finite becomes None."""
    rounded = np.round(table, digits)
    plain = rounded.astype(object)
    plain[~np.isfinite(rounded)] = None
    return list(plain.tolist())
