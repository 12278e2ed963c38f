"""The league, the spinning top and the ratings over time, as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.records import MatchFinished, MatchVoid, Purpose
from ludus.league.league import League
from ludus.league.measures import measure
from ludus.league.payoff import wilson_interval
from ludus.league.payoff_estimate import WHY_NOT
from ludus.league.summary import LeagueSummary
from ludus.observe.documents import (
    History,
    LeagueView,
    Matches,
    MatchLine,
    MatchSide,
    MetricsTable,
    OpponentLine,
    PlayerView,
    Series,
    SettingsChange,
    Top,
    thinned,
)
from ludus.observe.league_fold import ListedMatch, RatingPoint, RunFold, lost_players
from ludus.observe.lost_matches import NO_FAULT
from ludus.observe.metric_names import find_metric
from ludus.store.ledger import Ledger


def league_page(fold: RunFold, summary: LeagueSummary, game: str) -> LeagueView:
    return LeagueView(
        game=game,
        teams=fold.league.num_teams,
        anchor=summary.anchor,
        players=fold.players(summary),
        lost=lost_players(fold.league),
        win_rates=_rounded(summary.win_rates, 3),
        games=np.round(summary.games, 1).tolist(),
        matches=fold.counts,
        events=fold.seen,
    )


def history_page(fold: RunFold, summary: LeagueSummary) -> History:
    """With the ratings of now as its last point. Points that were rated against another anchor are left out."""
    now = {
        rating.player: (rating.elo, rating.standard_error)
        for rating in summary.ratings
        if rating.elo is not None and rating.standard_error is not None
    }
    points = [one for one in fold.ratings if one.anchor == summary.anchor and one.decisions < fold.decisions]
    points.append(RatingPoint(fold.decisions, summary.anchor, now))
    names = [player.id for player in summary.players]
    ratings = np.array([[point.elo.get(name, (np.nan, np.nan)) for point in points] for name in names])
    return History(
        anchor=summary.anchor,
        decisions=[point.decisions for point in points],
        elo=dict(zip(names, _rounded(ratings[..., 0], 1), strict=True)),
        error=dict(zip(names, _rounded(ratings[..., 1], 1), strict=True)),
        learning=[player.id for player in summary.players if player.learning],
        weights={player.id: player.played_weights for player in summary.players},
    )


def top_page(fold: RunFold) -> Top:
    """The spinning top of the frozen players, as `ludus league` measures it."""
    league = fold.league
    if league.num_teams == 1:
        return Top(why_not="a game with one team has no opponents, and no circles")
    measures = measure(league.payoffs.view("combined"), league.candidates.frozen(), with_alpha_rank=False)
    if measures.unidentified is not None:
        return Top(why_not=WHY_NOT[measures.unidentified])
    return Top(measures=measures)


def _rounded(table: NDArray[np.float64], digits: int) -> list[list[float | None]]:
    """Round to plain values; values that are not finite become None."""
    rounded = np.round(table, digits)
    plain = rounded.astype(object)
    plain[~np.isfinite(rounded)] = None
    return list(plain.tolist())


STRETCHES = 24
"""Win rates over time are those of so many equal stretches."""
OPPONENTS_OVER_TIME = 40
_PARTS = ("algorithm", "learner", "actor", "model")
"""Parts of the experiment that hold hyperparameters."""


def player_page(
    fold: RunFold, summary: LeagueSummary, metrics: MetricsTable, experiment: Mapping[str, Any], player: str
) -> PlayerView:
    """Of a member, or of a player whose weights are lost. Raises KeyError if there is no such player now."""
    line = {one.id: one for one in (*fold.players(summary), *lost_players(fold.league))}[player]
    learning = fold.league.players[player].learning
    settings = fold.league.settings_of(player) if learning else {}
    return PlayerView(
        line=line,
        lineage=[
            SettingsChange(
                decisions=descent.decisions,
                settings=descent.settings,
                reason=_descent(descent.model, descent.donor, descent.reason),
                whose="this player",
            )
            for descent in fold.league.lineage.get(player, ())
        ],
        opponents=_opponents(fold.league, summary, player, line.opponents),
        over_time=_over_time(fold, player),
        metrics=curves_of(
            metrics, {name: name[len(player) + 1 :] for name in metrics.names if name.startswith(f"{player}/")}
        ),
        settings=settings,
        hyper_parameters=_hyper_parameters(experiment, settings) if learning else {},
        changes=[
            SettingsChange(
                decisions=decisions,
                settings=change.settings,
                reason=change.reason,
                whose="all" if change.player is None else "this player",
            )
            for decisions, change in fold.changes
            if learning and change.player in (None, player)
        ],
        children=[one.id for one in summary.players if one.parent == player],
    )


def curves_of(metrics: MetricsTable, names: Mapping[str, str]) -> list[Series]:
    """`names`: metric -> its name in the document."""
    x, *columns = thinned(metrics.column("decisions"), *(metrics.column(name) for name in names))
    curves = []
    for (name, shown), y in zip(names.items(), columns, strict=True):
        about = find_metric(name).metric
        plain = [float(f"{value:.5g}") if np.isfinite(value) else None for value in y.tolist()]
        curves.append(Series(name=shown, unit=about.unit, meaning=about.meaning, x=x.tolist(), y=plain))
    return curves


def _opponents(
    league: League, summary: LeagueSummary, player: str, law: Mapping[str, float] | None
) -> list[OpponentLine]:
    """With those whose weights are lost."""
    others = [one.id for one in summary.players] + list(league.absent)
    payoff = league.payoffs.view("combined")
    all_games, all_points = payoff.counts(others)
    row, found = others.index(player), []
    for column, other in enumerate(others):
        games, points = float(all_games[row, column]), float(all_points[row, column])
        share = None if law is None else law.get(other, 0.0)
        if (games <= 0 and not share) or (other == player and not share):
            continue
        low, high = wilson_interval(points, games)
        known = games > 0 and other != player
        found.append(
            OpponentLine(
                player=other,
                weights=league.players[other].played_weights,
                win_rate=points / games if known and games >= payoff.rules.min_games else None,
                low=low if known else 0.0,
                high=high if known else 1.0,
                games=games if known else 0.0,
                share=share,
            )
        )
    return found


def _over_time(fold: RunFold, player: str) -> list[Series]:
    """Points per game against each opponent, by stretches of equally many results."""
    results = [one for one in fold.results if player in (one.first, one.second)]
    stretches = min(STRETCHES, len(results))
    edges = np.linspace(0, len(results), stretches + 1).astype(int).tolist()
    points: dict[str, list[float]] = {}
    games: dict[str, list[int]] = {}
    for stretch, (start, end) in enumerate(pairwise(edges)):
        for one in results[start:end]:
            is_first = one.first == player
            other = one.second if is_first else one.first
            points.setdefault(other, [0.0] * stretches)[stretch] += one.points if is_first else one.games - one.points
            games.setdefault(other, [0] * stretches)[stretch] += one.games
    most = sorted(games, key=lambda other: -sum(games[other]))[:OPPONENTS_OVER_TIME]
    return [
        Series(
            name=other,
            unit="win rate",
            x=[float(results[end - 1].decisions) for end in edges[1:]],
            y=[round(p / n, 3) if n else None for p, n in zip(points[other], games[other], strict=True)],
        )
        for other in most
    ]


def _descent(model: str | None, donor: str | None, reason: str) -> str:
    start = "from fresh weights" if model is None else f"from {model}"
    start += "" if donor is None else f", taken over from {donor}"
    return f"{start} ({reason})" if reason else start


def _hyper_parameters(experiment: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """By path, with the changes in place."""
    flat: dict[str, Any] = {}
    for part in _PARTS:
        _flatten(part, experiment.get(part), flat)
    return {**flat, **settings}


def _flatten(path: str, value: Any, into: dict[str, Any]) -> None:
    if isinstance(value, dict):
        kind = str(value.get("type", "")).rpartition(":")[2]
        if kind:
            into[path] = kind
        for name, inner in value.items():
            if name != "type":
                _flatten(f"{path}.{name}", inner, into)
    else:
        into[path] = value


PAGE = 100
PURPOSES = get_args(Purpose)
STATES = ("finished", "void", "open")


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchFilter:
    """A filter of matches; "" or None matches everything."""

    player: str = ""
    opponent: str = ""
    purpose: str = ""
    state: str = ""
    before: int | None = None
    """Only ids below this one."""
    limit: int = PAGE

    def __post_init__(self) -> None:
        if self.purpose not in ("", *PURPOSES):
            raise ValueError(f"no purpose {self.purpose!r}; there are {', '.join(PURPOSES)}")
        if self.state not in ("", *STATES):
            raise ValueError(f"no state {self.state!r}; there are {', '.join(STATES)}")
        if not 1 <= self.limit <= 1000:
            raise ValueError(f"limit must be from 1 to 1000, got {self.limit}")

    def keeps(self, match: ListedMatch) -> bool:
        asked = {player for player in (self.player, self.opponent) if player}
        both_the_same = bool(self.player) and self.player == self.opponent
        return (
            self.purpose in ("", match.purpose)
            and self.state in ("", match.state)
            and (self.before is None or match.id < self.before)
            and (asked == {*match.players} if both_the_same else asked <= {*match.players})
        )


def match_list(fold: RunFold, asked: MatchFilter, replays: Sequence[str]) -> Matches:
    found = sorted((one.id for one in (*fold.open_matches, *fold.ended) if asked.keeps(one)), reverse=True)
    shown = found[: asked.limit]
    by_match = {number: name for name in replays if (number := _match_of(name)) is not None}
    return Matches(
        matches=[line for one in shown if (line := _line(fold.ledger, one, by_match.get(one))) is not None],
        more=shown[-1] if len(found) > len(shown) else None,
        counts=fold.counts,
        voids=dict(fold.voids),
        replays=list(replays),
    )


def _line(ledger: Ledger, match_id: int, replay: str | None) -> MatchLine | None:
    match = ledger.match(match_id)
    if match is None:
        return None
    end = ledger.end_of(match_id)
    result = end.result if isinstance(end, MatchFinished) else None
    first = [] if result is None else [pair for pair in result.pairs if pair.side == 0]
    return MatchLine(
        id=match.id,
        purpose=match.purpose,
        state="open" if end is None else "void" if isinstance(end, MatchVoid) else "finished",
        sides=[
            MatchSide(
                players=list(side.players),
                trains=bool(side.trainees),
                model="" if result is None else result.last_models[number],
                score=None if result is None else result.mean_score(number)[0],
            )
            for number, side in enumerate(match.sides)
        ],
        episodes=match.episodes if result is None else result.episodes,
        wins=sum(pair.wins for pair in first) if first else None,
        draws=sum(pair.draws for pair in first) if first else None,
        losses=sum(pair.losses for pair in first) if first else None,
        steps_per_episode=None if result is None else result.steps / result.episodes,
        reason=end.reason if isinstance(end, MatchVoid) else "",
        left_open=isinstance(end, MatchVoid) and end.reason in NO_FAULT,
        replay=replay,
    )


def _match_of(replay: str) -> int | None:
    """The match that a file of `ludus play` is of: human-main.3-000123.replay. Others only count theirs."""
    number = replay.rpartition(".")[0].rpartition("-")[2]
    return int(number) if replay.startswith("human-") and number.isdecimal() else None
