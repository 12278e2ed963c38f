"""Tables (CSV) and figures (PNG, SVG) of a run for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ludus.config import ConfigError
from ludus.store.files import atomic_write, make_folder
from ludus.system.machine import install_command

Documents = Mapping[str, Any]
Cell = str | float | int | None
Table = tuple[Sequence[str], Sequence[Sequence[Cell]]]
"""Names of the columns, and rows."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito: told apart by everybody; styles of lines change when they are used up."""
STYLES = ("-", "--", ":", "-.")
LOOK = {"svg.hashsalt": "ludus", "axes.spines.top": False, "axes.spines.right": False}
"""Settings of matplotlib."""
MOST_IN_TABLE = 40
"""Players in the picture of the league; the CSV has all."""


def require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError(f"figures need matplotlib: {install_command('report')}")


def export_run(documents: Documents, folder: Path) -> list[str]:
    """Write the tables and figures that the run has data for; return the file names."""
    make_folder(folder)
    contents = {f"{name}.csv": as_csv(table).encode() for name, table in tables(documents)}
    for name, figure in figures(documents):
        for kind in ("png", "svg"):
            contents[f"{name}.{kind}"] = _drawn(figure, kind)
    for file, content in contents.items():
        atomic_write(folder / file, content, sync=False)
    return list(contents)


def _drawn(figure: Any, kind: str) -> bytes:
    """A figure as a file. Without a date, and with fixed ids, the same run gives the same file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return drawn.getvalue()


def drawn_bands(kind: str, bands: Mapping[str, Sequence[Any]], metric: str) -> bytes:
    """Curves with their intervals in one PNG or SVG: name -> decisions, values, lower and upper ends."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(LOOK):
        figure, axes = _new_figure(7, 4.5)
        for number, (name, (steps, values, low, high)) in enumerate(bands.items()):
            colour, style = _look(number)
            mark = "o" if len(steps) == 1 else ""
            axes.plot(steps, values, style, color=colour, marker=mark, label=_literal(name))
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("decisions")
        axes.set_ylabel(_literal(metric))
        axes.legend(frameon=False, fontsize="small")
        return _drawn(figure, kind)


def as_csv(table: Table) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([table[0], *table[1]])
    return text.getvalue()


def tables(documents: Documents) -> Iterator[tuple[str, Table]]:
    if (league := documents.get("league")) is not None:
        players, _ = _by_strength(league)
        names = ("id", "role", "parent", "decisions", "elo", "low", "high", "games", "equilibrium", "score")
        for player in players:
            player["low"], player["high"] = player["elo_interval"] or (None, None)
        rows = [[*(player[name] for name in names[:-1]), (player["score"] or [None])[0]] for player in players]
        yield "league", (names, rows)
        ids = [player["id"] for player in league["players"]]
        met = [
            (ids[row], ids[column], rate, league["games"][row][column])
            for row, rates in enumerate(league["win_rates"])
            for column, rate in enumerate(rates)
            if rate is not None and row != column
        ]
        yield "payoff", (("player", "opponent", "win_rate", "games"), met)
    if (history := documents.get("history")) is not None:
        ratings = [
            (decisions, player, elo, error)
            for player, values in history["elo"].items()
            for decisions, elo, error in zip(history["decisions"], values, history["error"][player], strict=True)
            if elo is not None
        ]
        yield "ratings", (("decisions", "player", "elo", "standard_error"), ratings)
    points = [
        (series["name"], x, y)
        for series in _curves(documents)
        for x, y in zip(series["x"], series["y"], strict=True)
        if y is not None
    ]
    if points:
        yield "curves", (("metric", "decisions", "value"), points)
    layers = [
        (number, *layer["strength"].values(), len(layer["players"]), " ".join(layer["players"]))
        for number, layer in enumerate(_layers(documents))
    ]
    if layers:
        yield "spinning_top", (("layer", "strength", "low", "high", "width", "players"), layers)


def _by_strength(league: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """The players, the strongest first and those without a rating last, and their places in the document."""
    players = league["players"]
    order = sorted(range(len(players)), key=lambda one: (players[one]["elo"] is None, -(players[one]["elo"] or 0.0)))
    return [dict(players[one]) for one in order], order


def _layers(documents: Documents) -> list[Any]:
    top = documents.get("top")
    return [] if top is None or top["why_not"] else top["measures"]["layers"]


def _curves(documents: Documents) -> list[Any]:
    """The curves of the run and of every learning player, each once."""
    found: dict[str, Any] = {}
    for series in documents.get("overview", {}).get("curves", ()):
        found.setdefault(series["name"], series)
    for name, document in documents.items():
        if name.startswith("player/"):
            for series in document["metrics"]:
                named = series["name"] if "/" in series["name"] else f"{name[7:]}/{series['name']}"
                found.setdefault(named, series | {"name": named})
    return list(found.values())


def figures(documents: Documents) -> Iterator[tuple[str, Any]]:
    import matplotlib as mpl

    league, history = documents.get("league"), documents.get("history")
    with mpl.rc_context(LOOK):
        if league is not None and league["players"]:
            yield "league", _league_figure(league)
            yield "payoff", _payoff_figure(league)
        if history is not None and any(elo is not None for values in history["elo"].values() for elo in values):
            yield "ratings", _ratings_figure(history)
        if curves := [one for one in _curves(documents) if any(one["y"])]:  # not those of zeros alone
            yield "curves", _curves_figure(curves)
        if layers := _layers(documents):
            yield "spinning_top", _top_figure(layers)


def _new_figure(width: float, height: float, **grid: int) -> tuple[Any, Any]:
    """A figure with its axes, or with the panels of a grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(grid["rows"], grid["columns"], squeeze=False).flat if grid else figure.subplots()


def _league_figure(league: Mapping[str, Any]) -> Any:
    """Elo of the players with error bars, the strongest on top."""
    rated = [player for player in _by_strength(league)[0] if player["elo"] is not None][:MOST_IN_TABLE]
    figure, axes = _new_figure(7, 1 + 0.28 * max(len(rated), 3))
    for place, player in enumerate(reversed(rated)):
        axes.plot(player["elo_interval"] or [player["elo"]] * 2, [place, place], color=COLOURS[0], linewidth=1.5)
        axes.plot(player["elo"], place, "o", color=COLOURS[0])
    axes.set_yticks(range(len(rated)), [_literal(player["id"]) for player in reversed(rated)])
    axes.set_xlabel(f"Elo, {_literal(league['anchor'])} = 0 (95 % interval)")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _payoff_figure(league: Mapping[str, Any]) -> Any:
    ordered, order = _by_strength(league)
    rates = np.array(league["win_rates"], dtype=float)[np.ix_(order, order)]
    players = [_literal(player["id"]) for player in ordered]
    size = min(max(4.0, 1.5 + 0.3 * len(players)), 14.0)
    figure, axes = _new_figure(size + 1, size)
    image = axes.imshow(np.ma.masked_invalid(rates), vmin=0, vmax=1, cmap="cividis")
    if len(players) <= MOST_IN_TABLE:
        axes.set_xticks(range(len(players)), players, rotation=90)
        axes.set_yticks(range(len(players)), players)
    axes.set_xlabel("opponent")
    axes.set_ylabel("player")
    figure.colorbar(image, label="win rate (draws count half)", shrink=0.8)
    return figure


def _ratings_figure(history: Mapping[str, Any]) -> Any:
    figure, axes = _new_figure(7, 4)
    shown = [player for player in history["learning"] if player in history["elo"]] or list(history["elo"])
    for number, player in enumerate(shown):
        colour, style = _look(number)
        elo = np.array(history["elo"][player], dtype=float)
        error = np.array(history["error"][player], dtype=float)
        axes.plot(history["decisions"], elo, style, color=colour, label=_literal(player))
        axes.fill_between(
            history["decisions"], elo - 1.96 * error, elo + 1.96 * error, color=colour, alpha=0.15, linewidth=0
        )
    axes.set_xlabel("decisions")
    axes.set_ylabel(f"Elo, {_literal(history['anchor'])} = 0")
    axes.legend(frameon=False, fontsize="small")
    return figure


def _curves_figure(curves: Sequence[Mapping[str, Any]]) -> Any:
    """One small picture per quantity, players together."""
    by_quantity: dict[str, list[Mapping[str, Any]]] = {}
    for series in curves:
        by_quantity.setdefault(series["name"].rpartition("/")[2], []).append(series)
    columns = min(3, len(by_quantity))
    rows = -(-len(by_quantity) // columns)
    figure, panels = _new_figure(3.6 * columns, 2.4 * rows, rows=rows, columns=columns)
    for (quantity, all_series), axes in zip(by_quantity.items(), panels, strict=False):
        for number, series in enumerate(all_series):
            colour, style = _look(number)
            player = series["name"].rpartition("/")[0]
            values = np.array(series["y"], dtype=float)
            known = np.isfinite(values)  # a metric of snapshots has few values, with gaps between
            mark = "." if known.sum() < 3 else ""
            steps = np.array(series["x"], dtype=float)[known]
            label = _literal(player) or None
            axes.plot(steps, values[known], style, color=colour, linewidth=1, marker=mark, label=label)
        unit = all_series[0].get("unit", "")
        axes.set_title(_literal(quantity) + (f" ({_literal(unit)})" if unit else ""), fontsize="small")
        axes.tick_params(labelsize="x-small")
        if len(all_series) > 1:
            axes.legend(frameon=False, fontsize="x-small")
    for axes in panels:  # what is left over of the grid
        axes.set_axis_off()
    figure.supxlabel("decisions", fontsize="small")
    return figure


def _top_figure(layers: Sequence[Mapping[str, Any]]) -> Any:
    """Strength upwards; how many players beat each other in circles there, to both sides."""
    figure, axes = _new_figure(5, 5)
    order = sorted((layer["strength"]["value"], len(layer["players"])) for layer in layers)
    strengths, widths = np.array(order, dtype=float).T
    axes.fill_betweenx(strengths, -widths / 2, widths / 2, color=COLOURS[0], alpha=0.25, linewidth=0)
    for strength, width in zip(strengths, widths, strict=True):
        axes.plot([-width / 2, width / 2], [strength] * 2, color=COLOURS[0])
        axes.text(width / 2, strength, f"  {width:.0f}", va="center", fontsize="small")
    axes.set_xlim(-0.75 * widths.max(), 0.75 * widths.max())
    axes.set_xticks([])
    axes.set_xlabel("players of a layer: they beat each other in circles")
    axes.set_ylabel("transitive strength")
    return figure


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]


def _literal(text: str) -> str:
    """Dollar signs would be taken for mathematics."""
    return text.replace("$", r"\$")
