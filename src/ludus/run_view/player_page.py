"""One player, as a document: whom it beats, how it learns, and what was changed for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.league.payoff import wilson_interval
from ludus.league.summary import LeagueSummary
from ludus.observe.metric_names import find_metric
from ludus.run_view.documents import Opponent, PlayerView, Series, SettingsChange
from ludus.run_view.fold import OWN, RunFold
from ludus.run_view.league_page import player_lines
from ludus.run_view.metrics_table import MetricsTable, thinned

STRETCHES = 24
"""Win rates over time are those of so many equal stretches."""
OPPONENTS_OVER_TIME = 40
_PARTS = ("algorithm", "learner", "actor", "model")
"""Of the experiment, what a player learns by."""


def player_page(
    fold: RunFold,
    summary: LeagueSummary,
    metrics: MetricsTable,
    experiment: Mapping[str, Any],
    player: str,
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
    return [
        curve_of(name.removeprefix(f"{player}/"), name, x, y) for name, y in zip(names, curves, strict=True)
    ]


def curve_of(shown: str, name: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> Series:
    about = find_metric(name).metric
    plain = [float(f"{value:.5g}") if np.isfinite(value) else None for value in y.tolist()]
    return Series(name=shown, unit=about.unit, meaning=about.meaning, x=x.tolist(), y=plain)


def _opponents(summary: LeagueSummary, player: str, law: Mapping[str, float] | None) -> list[Opponent]:
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
            Opponent(
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
            y=[
                round(p / n, 3) if n else None
                for p, n in zip(points[one].tolist(), total[one].tolist(), strict=True)
            ],
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
        kind = str(value.get("$type", "")).rpartition(":")[2]
        if kind:
            into[path] = kind
        for name, inner in value.items():
            if name != "$type":
                _flatten(f"{path}.{name}", inner, into)
    else:
        into[path] = value
