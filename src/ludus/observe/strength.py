"""How strong the players of a run are, whether they still get stronger, and whether they can be beaten: the front page,
the report and the terminal tell it from this document."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ludus.league.league import League
from ludus.league.payoff import wilson_interval
from ludus.league.ratings import WIDE_ELO
from ludus.league.summary import LeagueSummary, elo_of
from ludus.observe.documents import MetricsTable, Series
from ludus.observe.league_fold import trained_on
from ludus.observe.league_page import curves_of

NASH_CONV = "/nash_conv"
MEASURED_AT = f"{NASH_CONV}_decisions"
EXPLOITED = "/exploiter_win_rate"
"""Metrics with these endings are exploitability by player: exact, and by trained exploiters."""
RECENT_SHARE = 0.2
"""The last part of a training that tells whether it still gains."""
MOST_PLAYERS = 8


class YardstickLine(msgspec.Struct, frozen=True, kw_only=True):
    """The best snapshot against a scripted player, in evaluation games. A draw is half a win."""

    player: str
    score: float
    """Mean score. Where stakes differ, as in poker, who wins most games may still lose."""
    win_rate: float
    low: float
    high: float
    games: float


class RatedLine(msgspec.Struct, frozen=True, kw_only=True):
    """The ratings of a player's snapshots over the decisions that each was trained on."""

    name: str
    x: list[float]
    y: list[float | None]
    error: list[float | None]
    """Half of the 95 % interval."""


class Strength(msgspec.Struct, frozen=True, kw_only=True):
    verdict: list[str]
    """Sentences."""
    player: str
    """The learning player that they are about."""
    best: str | None
    """The snapshot with the best evaluations; where NashConv is measured, the one with the lowest."""
    best_elo: float | None
    """None also where its interval is wide."""
    ratings: list[RatedLine]
    rating_unit: str
    """Elo, or score where there is one team."""
    bots: dict[str, float]
    """Ratings of scripted players that are known well enough: level lines."""
    yardsticks: list[YardstickLine]
    """The hardest first: by rating, or by score where NashConv is measured."""
    win_rates: list[Series]
    """Of the player's snapshots against each scripted player."""
    exploitability: list[Series]
    """NashConv over decisions, by player, where it is measured."""
    exploited: list[Series]
    """Win rate of trained exploiters over the decisions of the snapshots that they met, by player."""


def strength_page(league: League, summary: LeagueSummary, metrics: MetricsTable) -> Strength:
    learning = list(league.standings)[:MOST_PLAYERS]
    player = learning[0]
    one_team = league.num_teams == 1
    known = _scores(summary) if one_team else elo_of(summary)
    wide = np.inf if one_team else WIDE_ELO
    narrow = {name: rating for name, (rating, error) in known.items() if 1.96 * error <= wide}
    bots = {one.id: round(known[one.id][0], 1) for one in summary.players if one.scripted and one.id in known}
    lines = [_rated(league, name, known, wide=wide) for name in learning]
    measured = _nash_convs(league, player, metrics)
    best = _least_exploitable(measured) or summary.tags.get(player, {}).get("best")
    yardsticks = [] if best is None or one_team else _yardsticks(league, best, bots)
    if measured:
        yardsticks.sort(key=lambda line: line.score)
    exploitability = curves_of(
        metrics, {name: name.removesuffix(NASH_CONV) for name in metrics.names if name.endswith(NASH_CONV)}
    )
    made = Strength(
        verdict=[],
        player=player,
        best=best,
        best_elo=round(narrow[best], 1) if best in narrow else None,
        ratings=[line for line in lines if line.x],
        rating_unit="score" if one_team else "Elo",
        bots={name: rating for name, rating in bots.items() if name in narrow},
        yardsticks=yardsticks,
        win_rates=[] if one_team else _win_rates(league, player, list(bots)),
        exploitability=exploitability,
        exploited=[_exploited(metrics, name) for name in metrics.names if name.endswith(EXPLOITED)],
    )
    if best is None and league.absent:
        told = [f"How strong it is cannot be told. Players without readable weights: {len(league.absent):,}."]
    else:
        told = verdict_of(made, known, measured)
    return msgspec.structs.replace(made, verdict=told)


def _exploited(metrics: MetricsTable, name: str) -> Series:
    """An exploiter is measured when its player has long gone on: the curve is over what its target was trained on."""
    player = name.removesuffix(EXPLOITED)
    x, y = metrics.column(f"{player}/exploited_decisions"), metrics.column(name)
    known = np.isfinite(x) & np.isfinite(y)
    return Series(name=player, unit="win rate", x=x[known].tolist(), y=y[known].round(4).tolist())


class NashConv(NamedTuple):
    """A measurement of a snapshot."""

    snapshot: str
    decisions: float
    """That it was trained on."""
    value: float


def _nash_convs(league: League, player: str, metrics: MetricsTable) -> list[NashConv]:
    """All that was measured of the player's snapshots that can still be played, in that order. The curves of a page
    are means of stretches; a sentence needs the numbers themselves."""
    values, exact = (metrics.column(f"{player}{name}") for name in (NASH_CONV, MEASURED_AT))
    decisions = np.where(np.isfinite(exact), exact, metrics.column("decisions"))  # the row itself was written later
    own = [one for one in league.players.values() if one.frozen and one.parent == player]
    own.sort(key=lambda one: one.parent_decisions)
    trained = [one.parent_decisions for one in own]
    found = []
    for row in np.flatnonzero(np.isfinite(values) & np.isfinite(decisions)):
        place = bisect_right(trained, decisions[row]) - 1
        if place >= 0 and own[place].id not in league.absent:
            found.append(NashConv(own[place].id, float(decisions[row]), float(values[row])))
    return found


def _least_exploitable(measured: Sequence[NashConv]) -> str | None:
    """The newest of them, if several are equal; None if nothing was measured."""
    lowest = min(reversed(measured), key=lambda one: one.value, default=None)
    return None if lowest is None else lowest.snapshot


def _scores(summary: LeagueSummary) -> dict[str, tuple[float, float]]:
    return {name: (mean, error) for name, (mean, error) in summary.scores.items() if np.isfinite((mean, error)).all()}


def _rated(league: League, player: str, known: dict[str, tuple[float, float]], *, wide: float) -> RatedLine:
    """Snapshots whose rating is known well enough."""
    found = [
        (trained_on(league, league.players[one]), *known[one])
        for one in league.candidates.history_of(player)
        if one in known and 1.96 * known[one][1] <= wide
    ]
    return RatedLine(
        name=player,
        x=[float(decisions) for decisions, _, _ in found],
        y=[round(rating, 4) for _, rating, _ in found],
        error=[round(1.96 * error, 4) for _, _, error in found],
    )


def _yardsticks(league: League, best: str, bots: dict[str, float]) -> list[YardstickLine]:
    names = [best, *sorted(bots, key=bots.__getitem__, reverse=True)]
    games, points = league.payoffs.evaluation.counts(names)
    scores = league.payoffs.evaluation.mean_scores(names)
    lines = []
    for column, bot in enumerate(names[1:], start=1):
        if (played := float(games[0, column])) > 0:
            low, high = wilson_interval(float(points[0, column]), played)
            rate = float(points[0, column]) / played
            score = float(scores[0, column])
            lines.append(YardstickLine(player=bot, score=score, win_rate=rate, low=low, high=high, games=played))
    return lines


def _win_rates(league: League, player: str, bots: Sequence[str]) -> list[Series]:
    history = league.candidates.history_of(player)
    games, points = league.payoffs.evaluation.counts([*history, *bots])
    count = len(history)
    x = [float(trained_on(league, league.players[one])) for one in history]
    found = []
    for column, bot in enumerate(bots, start=count):
        rates = [
            round(float(points[row, column] / games[row, column]), 4) if games[row, column] > 0 else None
            for row in range(count)
        ]
        if any(rate is not None for rate in rates):
            found.append(Series(name=bot, unit="win rate", x=x, y=rates))
    return found


# --- the verdict ---


def verdict_of(
    strength: Strength, known: dict[str, tuple[float, float]], measured: Sequence[NashConv] = ()
) -> list[str]:
    """`known`: ratings with their standard errors; `measured`: of the player, in the order of time."""
    if strength.best is None:
        return ["No evaluation has ended yet: how strong it is will be known after the first one."]
    told = _by_nash_conv(strength, measured) if measured else [_against(strength, known), _trend(strength)]
    if (newest := _newest(strength.exploited, strength.player)) is not None:
        told.append(
            f"The latest exploiter trained against {strength.player} wins {newest:.0%} of games; a better one may win "
            "more."
        )
    return [one for one in told if one]


def _by_nash_conv(strength: Strength, measured: Sequence[NashConv]) -> list[str]:
    """Where it is known how much a player can be beaten by, won games say little: stakes differ."""
    newest, lowest = measured[-1], min(one.value for one in measured)
    told = [f"{strength.best} has a NashConv of {lowest:.3g}, where 0 cannot be beaten."]
    if len(measured) > 1:
        earlier = [one for one in measured[:-1] if one.decisions <= newest.decisions * (1 - RECENT_SHARE)]
        before = max(earlier, key=lambda one: one.decisions, default=measured[0])
        then, now = f"{before.value:.3g}", f"{newest.value:.3g}"
        change = f"{'fell' if newest.value < before.value else 'rose'} from {then} to {now}"
        change = f"stayed at {now}" if then == now else change
        over = f"over the last {_counted(newest.decisions - before.decisions)} decisions"
        told.append(f"That of {strength.player} {change} {over}.")
    if strength.yardsticks:
        scores = ", ".join(f"{one.score:+.2g} against {one.player}" for one in strength.yardsticks[:3])
        told.append(f"The mean score of {strength.best} is {scores}.")
    return told


def _newest(curves: Sequence[Series], player: str) -> float | None:
    """The latest value of the player's curve."""
    own = (curve for curve in curves if curve.name == player)
    return next((value for curve in own for value in reversed(curve.y) if value is not None), None)


def _against(strength: Strength, known: dict[str, tuple[float, float]]) -> str:
    best = strength.best or ""
    if strength.rating_unit == "score":
        mean, error = known.get(best, (np.nan, np.nan))
        return f"{best} scores {mean:.4g} ± {_short(1.96 * error)} on average." if np.isfinite(mean) else ""
    if not strength.yardsticks:
        return f"{best} is the best snapshot of {strength.player}; it was not measured against scripted players."
    hardest = strength.yardsticks[0]
    share = f"{hardest.win_rate:.0%} ({hardest.low:.0%} to {hardest.high:.0%})"
    if hardest.low > 0.5 and hardest.score < 0:
        return (
            f"{best} wins {share} of games against {hardest.player}, and loses {-hardest.score:.2g} a game on average."
        )
    if hardest.low > 0.5:
        return f"{best} beats {hardest.player} in {share} of games."
    beaten = next((one.player for one in strength.yardsticks if one.low > 0.5 and one.score >= 0), None)
    more = "." if beaten is None else f"; it beats {beaten}."
    if hardest.high < 0.5:
        return f"{best} wins only {share} of games against {hardest.player}{more}"
    return f"{best} is level with {hardest.player}: it wins {share} of games{more}"


def _trend(strength: Strength) -> str:
    """The newest snapshot against the one before the last part of the training."""
    line = next((one for one in strength.ratings if one.name == strength.player), None)
    if line is None or len(line.x) < 3:
        return ""
    since = line.x[-1] * (1.0 - RECENT_SHARE)
    before = max(place for place, x in enumerate(line.x) if x <= since or place == 0)
    if before == len(line.x) - 1:
        return ""
    gain = (line.y[-1] or 0.0) - (line.y[before] or 0.0)
    spread = float(np.hypot(line.error[-1] or 0.0, line.error[before] or 0.0))
    over = f"over the last {_counted(line.x[-1] - line.x[before])} decisions"
    unit = strength.rating_unit
    if abs(gain) <= spread:
        return f"No change that can be told from noise {over} ({_signed(gain)} ± {_short(spread)} {unit})."
    return f"{strength.player} {'gained' if gain > 0 else 'lost'} {_short(abs(gain))} ± {_short(spread)} {unit} {over}."


def _short(number: float) -> str:
    """Two digits, and never an exponent for a large number."""
    return f"{number:.0f}" if abs(number) >= 10 else f"{number:.2g}"


def _signed(number: float) -> str:
    return f"{'-' if number < 0 else '+'}{_short(abs(number))}"


def _counted(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"
