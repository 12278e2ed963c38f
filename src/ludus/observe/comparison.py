"""Curves of several runs on one chart, and of the settings of studies as means with 95 % intervals over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from ludus.observe.documents import Floats, MetricsTable, Series, thinned
from ludus.observe.metric_names import find_metric
from ludus.observe.overview import update_seconds
from ludus.observe.strength import NASH_CONV, Strength
from ludus.observe.study_results import after_resumes, mean_curve

MOST_LINES = 24
"""More of them nobody can tell apart."""
_NO_METRICS = ("time", "decisions")
_UNITS = ((3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Of time, from how many seconds on."""

Quantity = Literal["rating", "win_rate", "nash_conv", "metric"]


class ComparisonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What shall be compared."""

    run: list[str] = []
    """Keys of runs: a line each."""
    study: list[str] = []
    """Keys of studies: a band for each setting."""
    of: Quantity = "rating"
    name: str = ""
    """The scripted player, or the metric; the first that there is if it is empty."""
    over: Literal["decisions", "time"] = "decisions"


class ComparedLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    key: str
    """Of the run or study."""
    seeds: int
    """Number of runs behind it; 0 for a single run."""
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None
    """Ends of the 95 % interval; None if there is none."""
    high: list[float | None] | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[ComparedLine]
    of: Quantity
    name: str
    """The scripted player or the metric that is shown."""
    unit: str
    meaning: str
    x_unit: str
    bots: list[str]
    """Scripted players that any of the runs was measured against."""
    metrics: list[str]
    has_nash_conv: bool
    notes: list[str]
    """What a reader has to know of these lines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRun:
    """What a comparison needs of a run's ledger."""

    name: str
    game: str
    strength: Strength
    anchor: str
    decisions: int
    """Of all learning players."""
    own_share: float
    """Share of them that the player was trained on which `strength` is about."""
    absent: int
    """Frozen players whose weights cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStudy:
    key: str
    name: str
    settings: Mapping[str, Sequence[str]]
    """Keys of its runs by setting, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class _Curve:
    x: Floats
    y: Floats
    error: Floats | None = None
    """Half of the 95 % interval."""


def compare(
    asked: ComparisonRequest,
    runs: Sequence[str],
    studies: Sequence[ComparedStudy],
    read: Mapping[str, ReadRun],
    metrics_of: Callable[[str], MetricsTable],
    *,
    left_out: int = 0,
) -> Comparison:
    """`runs`: keys of those with a line each; `read`: what was read of them and of the runs of the studies;
    `metrics_of`: those of one of them, which are not kept here: all together may not fit into memory; `left_out`: runs
    that were not read, because they are too many."""
    bots = list(dict.fromkeys(curve.name for one in read.values() for curve in one.strength.win_rates))
    metrics = sorted({name for key in read for name in metrics_of(key).names} - {*_NO_METRICS}, key=_by_player)
    known = bots if asked.of == "win_rate" else metrics if asked.of == "metric" else []
    name = asked.name if asked.name in known else next(iter(known), "")
    curves = {key: _curve(one, metrics_of(key), asked.of, name, asked.over) for key, one in read.items()}
    lines = [_line(read[key].name, key, curve) for key in runs if key in read and (curve := curves[key]) is not None]
    names = Counter(study.name for study in studies)
    for study in studies:
        name_of_study = study.key if names[study.name] > 1 else study.name
        lines += _bands(study, curves, f"{name_of_study}: " if len(studies) > 1 else "")
    lines = _told_apart(lines)
    shown = lines[:MOST_LINES]
    notes = _notes(asked.of, [key for key in read if curves[key] is None], read)
    if (total := len(lines) + left_out) > len(shown):
        notes.append(f"Only the first {MOST_LINES} of {total} lines are drawn.")
    unit, meaning = _unit(asked.of, name, [*read.values()])
    x_unit = "decisions"
    if asked.over == "time":
        shown, x_unit = _in_readable_time(shown)
    return Comparison(
        lines=shown,
        of=asked.of,
        name=name,
        unit=unit,
        meaning=meaning,
        x_unit=x_unit if asked.over == "decisions" else f"{x_unit} of training",
        bots=bots,
        metrics=metrics,
        has_nash_conv=any(one.strength.exploitability for one in read.values()),
        notes=notes,
    )


def _curve(run: ReadRun, table: MetricsTable, of: Quantity, name: str, over: str) -> _Curve | None:
    """None if the run has not measured it."""
    strength, scale = run.strength, 1.0
    if of == "metric":
        found = _of_metric(table, name)
    elif of == "nash_conv":
        found = _of_metric(table, f"{strength.player}{NASH_CONV}")
    else:
        scale = run.own_share
        found = _of_win_rate(strength, name) if of == "win_rate" else _of_rating(strength)
    if found is None or over == "decisions":
        return found
    seconds = _seconds(table, found.x / (scale or 1.0))
    return None if seconds is None else _Curve(seconds, found.y, found.error)


def _of_rating(strength: Strength) -> _Curve | None:
    line = next((one for one in strength.ratings if one.name == strength.player), None)
    if line is None:
        return None
    return _Curve(_floats(line.x), _floats(line.y), _floats(line.error))


def _of_win_rate(strength: Strength, bot: str) -> _Curve | None:
    line = next((one for one in strength.win_rates if one.name == bot), None)
    return None if line is None else _known(line)


def _known(line: Series) -> _Curve | None:
    x, y = _floats(line.x), _floats(line.y)
    there = np.isfinite(y)
    return _Curve(x[there], y[there]) if there.any() else None


def _of_metric(table: MetricsTable, name: str) -> _Curve | None:
    x, y = table.column("decisions"), table.column(name)
    there = np.isfinite(x) & np.isfinite(y)
    if not there.any():
        return None
    x, y = after_resumes(x[there], y[there])
    x, y = thinned(x, y)
    return _Curve(x, y)


def _seconds(table: MetricsTable, decisions: Floats) -> Floats | None:
    """Seconds of training at these decisions, without the pauses between two starts; None if they are not known."""
    x, time = table.column("decisions"), table.column("time")
    there = np.isfinite(x) & np.isfinite(time)
    if not there.any():
        return None
    passed = np.concatenate([[0.0], np.cumsum(update_seconds(table))])
    return np.asarray(np.interp(decisions, *after_resumes(x[there], passed[there])))


def _told_apart(lines: Sequence[ComparedLine]) -> list[ComparedLine]:
    """With names that differ: runs of two studies may have the same."""
    names = Counter(line.name for line in lines)
    return [msgspec.structs.replace(line, name=line.key) if names[line.name] > 1 else line for line in lines]


def _bands(study: ComparedStudy, curves: Mapping[str, _Curve | None], before: str) -> list[ComparedLine]:
    found = []
    for setting, keys in study.settings.items():
        runs = [(curve.x, curve.y) for key in keys if (curve := curves.get(key)) is not None and _is_finite(curve)]
        if not runs:
            continue
        x, y, low, high = mean_curve(runs)
        several = len(runs) > 1
        found.append(
            ComparedLine(
                name=f"{before}{setting}",
                key=study.key,
                seeds=len(runs),
                x=_plain(x),  # type: ignore[arg-type]
                y=_plain(y),
                low=_plain(low) if several else None,
                high=_plain(high) if several else None,
            )
        )
    return found


def _is_finite(curve: _Curve) -> bool:
    return bool(np.isfinite(curve.x).all() and np.isfinite(curve.y).all())


def _line(name: str, key: str, curve: _Curve) -> ComparedLine:
    low, high = (None, None) if curve.error is None else (curve.y - curve.error, curve.y + curve.error)
    return ComparedLine(
        name=name,
        key=key,
        seeds=0,
        x=_plain(curve.x),  # type: ignore[arg-type]
        y=_plain(curve.y),
        low=None if low is None else _plain(low),
        high=None if high is None else _plain(high),
    )


def _in_readable_time(lines: Sequence[ComparedLine]) -> tuple[list[ComparedLine], str]:
    longest = max((x for line in lines for x in line.x), default=0.0)
    seconds, unit = next((seconds, unit) for least, seconds, unit in _UNITS if longest >= least)
    return [msgspec.structs.replace(line, x=[x / seconds for x in line.x]) for line in lines], unit


def _notes(of: Quantity, without: Sequence[str], read: Mapping[str, ReadRun]) -> list[str]:
    runs, notes = [*read.values()], []
    games = sorted({one.game for one in runs})
    if len(games) > 1:
        notes.append(f"These runs play different games ({', '.join(games)}): their numbers do not compare.")
    anchors = sorted({one.anchor for one in runs})
    if of == "rating" and runs and runs[0].strength.rating_unit == "Elo":
        if len(anchors) > 1:
            notes.append(f"Each rating is relative to a player of its own league: {', '.join(anchors)}.")
        else:
            notes.append(f"Each run rates its own league; {anchors[0]} has 0 in all of them.")
    if without:
        names = ", ".join(read[key].name for key in without[:4])
        more = f" and {len(without) - 4} more" if len(without) > 4 else ""
        notes.append(f"Not measured by {names}{more}.")
    return notes


def _unit(of: Quantity, name: str, runs: Sequence[ReadRun]) -> tuple[str, str]:
    if of == "rating":
        return next((one.strength.rating_unit for one in runs), "Elo"), "of the snapshots, with 95 % intervals"
    if of == "win_rate":
        return "share", f"games that the snapshots won against {name} in evaluation; a draw is half"
    if of == "nash_conv":
        return "NashConv", "exploitability of the snapshots; 0 cannot be beaten"
    about = find_metric(name).metric
    return about.unit, about.meaning


def _by_player(name: str) -> tuple[bool, str]:
    """Metrics of players first."""
    return "/" not in name, name


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if one is None else one for one in values], np.float64)


def _plain(values: Floats) -> list[float | None]:
    return [float(f"{one:.6g}") if np.isfinite(one) else None for one in values.tolist()]
