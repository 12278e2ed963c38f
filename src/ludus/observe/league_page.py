"""The league, the spinning top and the ratings over time, as documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.records import Match, MatchFinished, MatchVoid, ModelId, Result
from ludus.league.measures import Estimate, measure
from ludus.league.payoff import wilson_interval
from ludus.league.payoff_estimate import WHY_NOT
from ludus.league.summary import LeagueSummary
from ludus.observe.documents import (
    Counts,
    History,
    LeagueView,
    Matches,
    MatchLine,
    MatchSide,
    MetricsTable,
    OpponentLine,
    PlayerLine,
    PlayerStart,
    PlayerView,
    Series,
    SettingsChange,
    Top,
    TopLayer,
    thinned,
)
from ludus.observe.league_fold import FINISHED, OWN, PURPOSES, VOID, RatingHistory, RunFold
from ludus.observe.league_reader import league_players
from ludus.observe.metric_names import find_metric
from ludus.store.ledger import Ledger


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
    tags: dict[str, list[str]] = {}
    for found in summary.tags.values():
        for tag, snapshot in found.items():
            tags.setdefault(snapshot, []).append(tag)
    lines = []
    for row, player in zip(league_players(league, summary), summary.players, strict=True):
        standing = league.standings.get(player.id)
        low, high = row.elo_interval or (None, None)
        score, error = row.score or (None, None)
        lines.append(
            PlayerLine(
                id=row.id,
                role=row.role,
                parent=row.parent,
                model=row.model if standing is None else _shown(standing.latest_model),
                reason=player.reason,
                decisions=row.decisions,
                active=row.active,
                elo=row.elo,
                low=low,
                high=high,
                games=row.games,
                equilibrium=row.equilibrium,
                score=score,
                score_error=error,
                tags=tags.get(player.id, []),
                opponents=dict(league.shown_law(player.id) or {}) if player.learning else None,
                starts=[
                    PlayerStart(decisions=one.decisions, origin=one.donor or _player_of(one.model))
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
    """The spinning top of the frozen players, as `ludus league` measures it."""
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
    """Raises KeyError if there is no such player now."""
    lines = {line.id: line for line in player_lines(fold, summary)}
    line = lines[player]
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
            for descent in fold.league.lineage.descents.get(player, ())
        ],
        opponents=_opponents(summary, player, line.opponents),
        over_time=_over_time(fold, player),
        metrics=player_curves(metrics, player),
        settings=settings,
        hyper_parameters=_hyper_parameters(experiment, settings) if learning else {},
        changes=[
            SettingsChange(
                decisions=change.decisions,
                settings=change.settings,
                reason=change.reason,
                whose="all" if change.player is None else "this player",
            )
            for change in fold.changes
            if learning and change.player in (None, player)
        ],
        children=[one.id for one in summary.players if one.parent == player],
    )


def player_curves(metrics: MetricsTable, player: str) -> list[Series]:
    """Everything that the learner of a player has measured."""
    names = [name for name in metrics.names if name.startswith(f"{player}/")]
    if not names:
        return []
    x, *curves = thinned(metrics.column("decisions"), *(metrics.column(name) for name in names))
    return [curve_of(name.removeprefix(f"{player}/"), name, x, y) for name, y in zip(names, curves, strict=True)]


def curve_of(shown: str, name: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> Series:
    about = find_metric(name).metric
    plain = [float(f"{value:.5g}") if np.isfinite(value) else None for value in y.tolist()]
    return Series(name=shown, unit=about.unit, meaning=about.meaning, x=x.tolist(), y=plain)


def _opponents(summary: LeagueSummary, player: str, law: Mapping[str, float] | None) -> list[OpponentLine]:
    names = [one.id for one in summary.players]
    row = names.index(player)
    found = []
    for column, other in enumerate(names):
        games = float(summary.games[row, column])
        share = None if law is None else law.get(other, 0.0)
        if (games <= 0 and not share) or (other == player and not share):
            continue
        rate = float(summary.win_rates[row, column])
        low, high = wilson_interval(rate * games, games)
        known = games > 0 and other != player
        found.append(
            OpponentLine(
                player=other,
                win_rate=rate if known else None,
                low=low if known else 0.0,
                high=high if known else 1.0,
                games=games if known else 0.0,
                share=share,
            )
        )
    return found


def _over_time(fold: RunFold, player: str) -> list[Series]:
    """Points per game against each opponent, by stretches of equally many rows."""
    if not fold.has_played(player):
        return []
    place = fold.place(player)
    names = ("first", "second", "wins", "draws", "losses", "into", "decisions")
    columns = {name: fold.pairs.column(name) for name in names}
    is_first = columns["first"] == place
    mine = (is_first | (columns["second"] == place)) & ((columns["into"].astype(int) & OWN) > 0)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return []
    is_first = is_first[rows]
    other = np.where(is_first, columns["second"][rows], columns["first"][rows]).astype(np.intp)
    won = np.where(is_first, columns["wins"][rows], columns["losses"][rows]) + columns["draws"][rows] / 2
    games = columns["wins"][rows] + columns["draws"][rows] + columns["losses"][rows]
    stretches = min(STRETCHES, len(rows))
    edges = np.linspace(0, len(rows), stretches + 1).astype(int)
    stretch = np.repeat(np.arange(stretches), np.diff(edges))
    decisions = columns["decisions"][rows][edges[1:] - 1]
    cell, size = other * stretches + stretch, len(fold.names) * stretches
    total = np.bincount(cell, games, size).reshape(-1, stretches)
    points = np.bincount(cell, won, size).reshape(-1, stretches)
    most = np.argsort(-total.sum(axis=1), kind="stable")[:OPPONENTS_OVER_TIME]
    return [
        Series(
            name=fold.names[one],
            unit="win rate",
            x=decisions.tolist(),
            y=[round(p / n, 3) if n else None for p, n in zip(points[one].tolist(), total[one].tolist(), strict=True)],
        )
        for one in most.tolist()
        if total[one].sum() > 0
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


def match_list(fold: RunFold, ledger: Ledger, asked: MatchFilter, replays: Sequence[str]) -> Matches:
    found = [*_open(fold, asked), *_ended(fold, asked)]
    found = sorted((one for one in found if asked.before is None or one < asked.before), reverse=True)
    shown = found[: asked.limit]
    by_match = {number: name for name in replays if (number := _match_of(name)) is not None}
    return Matches(
        matches=[line for one in shown if (line := _line(ledger, one, by_match.get(one))) is not None],
        more=shown[-1] if len(found) > len(shown) else None,
        counts=counts(fold),
        voids=dict(fold.voids),
        replays=list(replays),
    )


def _open(fold: RunFold, asked: MatchFilter) -> list[int]:
    if asked.state not in ("", "open"):
        return []
    return [
        match.id
        for match in fold.open_matches
        if asked.purpose in ("", match.purpose)
        and all(
            not player or any(player in side.players for side in match.sides)
            for player in (asked.player, asked.opponent)
        )
    ]


def _ended(fold: RunFold, asked: MatchFilter) -> list[int]:
    if asked.state == "open":
        return []
    ids, keep = fold.ended.column("id"), np.ones(len(fold.ended), bool)
    if asked.purpose:
        keep &= fold.ended.column("purpose") == PURPOSES.index(asked.purpose)
    if asked.state:
        keep &= fold.ended.column("state") == (FINISHED if asked.state == "finished" else VOID)
    for player in filter(None, (asked.player, asked.opponent)):
        keep &= _with(fold, player)
    if asked.player and asked.player == asked.opponent:
        keep &= fold.ended.column("first") == fold.ended.column("second")
    # Only the newest are shown: the ends of matches come nearly in the order of their ids.
    return [int(one) for one in ids[keep].tolist()]


def _with(fold: RunFold, player: str) -> np.ndarray:
    if not fold.has_played(player):
        return np.zeros(len(fold.ended), bool)
    place = fold.place(player)
    found = (fold.ended.column("first") == place) | (fold.ended.column("second") == place)
    if fold.line_ups:
        larger = [match for match, players in fold.line_ups.items() if player in players]
        found |= np.isin(fold.ended.column("id"), larger)
    return np.asarray(found)


def _line(ledger: Ledger, match_id: int, replay: str | None) -> MatchLine | None:
    match = ledger.match(match_id)
    if match is None:
        return None
    end = ledger.end_of(match_id)
    result = end.result if isinstance(end, MatchFinished) else None
    wins, draws, losses = (None, None, None) if result is None or not result.pairs else _first_side(result)
    return MatchLine(
        id=match.id,
        purpose=match.purpose,
        state="open" if end is None else "void" if isinstance(end, MatchVoid) else "finished",
        sides=_sides(match, result),
        episodes=match.episodes if result is None else result.episodes,
        wins=wins,
        draws=draws,
        losses=losses,
        steps_per_episode=None if result is None else result.steps / result.episodes,
        reason=end.reason if isinstance(end, MatchVoid) else "",
        replay=replay,
    )


def _sides(match: Match, result: Result | None) -> list[MatchSide]:
    return [
        MatchSide(
            players=list(side.players),
            trains=bool(side.trainees),
            model="" if result is None else result.last_models[number],
            score=None if result is None else result.mean_score(number)[0],
        )
        for number, side in enumerate(match.sides)
    ]


def _first_side(result: Result) -> tuple[int, int, int]:
    first = [pair for pair in result.pairs if pair.side == 0]
    return (sum(pair.wins for pair in first), sum(pair.draws for pair in first), sum(pair.losses for pair in first))


def _match_of(replay: str) -> int | None:
    """The match that a file of `ludus play` is of: human-main.3-000123.replay. Others only count theirs."""
    number = replay.rpartition(".")[0].rpartition("-")[2]
    return int(number) if replay.startswith("human-") and number.isdecimal() else None
