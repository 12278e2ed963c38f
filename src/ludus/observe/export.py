"""Tables (CSV) and figures (PNG, SVG) of a run for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
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
MOST_IN_TABLE = 40
"""Players in the picture of the league; the CSV has all."""


def require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError(f"--export needs matplotlib: {install_command('report')}")


def export_run(documents: Documents, folder: Path) -> list[str]:
    """Write the tables and figures that the run has data for; return the file names."""
    make_folder(folder)
    written = []
    for name, tables in TABLES.items():
        found = tables(documents)
        if found is not None:
            atomic_write(folder / f"{name}.csv", as_csv(found).encode(), sync=False)
            written.append(f"{name}.csv")
    for name, figure in figures(documents):
        for kind in ("png", "svg"):
            content = io.BytesIO()
            # Without a date, and with fixed ids, the same run gives the same file.
            figure.savefig(content, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            atomic_write(folder / f"{name}.{kind}", content.getvalue(), sync=False)
            written.append(f"{name}.{kind}")
    return written


def as_csv(table: Table) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table[0])
    writer.writerows(table[1])
    return text.getvalue()


# --- tables ---


def league_table(documents: Documents) -> Table | None:
    league = documents.get("league")
    if league is None:
        return None
    names = ("id", "role", "parent", "decisions", "elo", "low", "high", "games", "equilibrium", "score")
    return names, [[player[name] for name in names] for player in _by_strength(league)[0]]


def _by_strength(league: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
    """The players, the strongest first and those without a rating last, and their places in the document."""
    players = league["players"]
    order = sorted(range(len(players)), key=lambda one: (players[one]["elo"] is None, -(players[one]["elo"] or 0.0)))
    return [players[one] for one in order], order


def payoff_table(documents: Documents) -> Table | None:
    """Long: a row per pair that has met."""
    league = documents.get("league")
    if league is None:
        return None
    players = [player["id"] for player in league["players"]]
    rows = [
        (players[row], players[column], rate, league["games"][row][column])
        for row, rates in enumerate(league["win_rates"])
        for column, rate in enumerate(rates)
        if rate is not None and row != column
    ]
    return ("player", "opponent", "win_rate", "games"), rows


def ratings_table(documents: Documents) -> Table | None:
    history = documents.get("history")
    if history is None:
        return None
    rows = [
        (decisions, player, elo, history["error"][player][index])
        for player, values in history["elo"].items()
        for index, (decisions, elo) in enumerate(zip(history["decisions"], values, strict=True))
        if elo is not None
    ]
    return ("decisions", "player", "elo", "standard_error"), rows


def curves_table(documents: Documents) -> Table | None:
    rows = [
        (series["name"], x, y)
        for series in _curves(documents)
        for x, y in zip(series["x"], series["y"], strict=True)
        if y is not None
    ]
    return (("metric", "decisions", "value"), rows) if rows else None


def top_table(documents: Documents) -> Table | None:
    top = documents.get("top")
    if top is None or not top["layers"]:
        return None
    rows = [
        (number, layer["strength"], layer["low"], layer["high"], len(layer["players"]), " ".join(layer["players"]))
        for number, layer in enumerate(top["layers"])
    ]
    return ("layer", "strength", "low", "high", "width", "players"), rows


TABLES: Mapping[str, Callable[[Documents], Table | None]] = {
    "league": league_table,
    "payoff": payoff_table,
    "ratings": ratings_table,
    "curves": curves_table,
    "spinning_top": top_table,
}


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


# --- figures ---


def figures(documents: Documents) -> Iterator[tuple[str, Any]]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    league, history, top = (documents.get(name) for name in ("league", "history", "top"))
    with mpl.rc_context({"svg.hashsalt": "ludus", "axes.spines.top": False, "axes.spines.right": False}):
        if league is not None and league["players"]:
            yield "league", _league_figure(Figure, league)
            yield "payoff", _payoff_figure(Figure, league)
        if history is not None and any(_known(values) for values in history["elo"].values()):
            yield "ratings", _ratings_figure(Figure, history)
        if curves := [one for one in _curves(documents) if any(one["y"])]:  # not those of zeros alone
            yield "curves", _curves_figure(Figure, curves)
        if top is not None and top["layers"]:
            yield "spinning_top", _top_figure(Figure, top)


def _league_figure(figure_class: Any, league: Mapping[str, Any]) -> Any:
    """Elo of the players with error bars, the strongest on top."""
    rated = [player for player in _by_strength(league)[0] if player["elo"] is not None][:MOST_IN_TABLE]
    figure = figure_class(figsize=(7, 1 + 0.28 * max(len(rated), 3)), layout="constrained")
    axes = figure.subplots()
    for place, player in enumerate(reversed(rated)):
        low, high = (player[name] if player[name] is not None else player["elo"] for name in ("low", "high"))
        axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.5)
        axes.plot(player["elo"], place, "o", color=COLOURS[0])
    axes.set_yticks(range(len(rated)), [_literal(player["id"]) for player in reversed(rated)])
    axes.set_xlabel(f"Elo, {_literal(league['anchor'])} = 0 (95 % interval)")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _payoff_figure(figure_class: Any, league: Mapping[str, Any]) -> Any:
    ordered, order = _by_strength(league)
    rates = np.array(league["win_rates"], dtype=float)[np.ix_(order, order)]
    players = [_literal(player["id"]) for player in ordered]
    size = min(max(4.0, 1.5 + 0.3 * len(players)), 14.0)
    figure = figure_class(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(np.ma.masked_invalid(rates), vmin=0, vmax=1, cmap="cividis")
    if len(players) <= MOST_IN_TABLE:
        axes.set_xticks(range(len(players)), players, rotation=90)
        axes.set_yticks(range(len(players)), players)
    axes.set_xlabel("opponent")
    axes.set_ylabel("player")
    figure.colorbar(image, label="win rate (draws count half)", shrink=0.8)
    return figure


def _ratings_figure(figure_class: Any, history: Mapping[str, Any]) -> Any:
    figure = figure_class(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
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


def _curves_figure(figure_class: Any, curves: Sequence[Mapping[str, Any]]) -> Any:
    """One small picture per quantity, players together."""
    by_quantity: dict[str, list[Mapping[str, Any]]] = {}
    for series in curves:
        by_quantity.setdefault(series["name"].rpartition("/")[2], []).append(series)
    columns = min(3, len(by_quantity))
    rows = -(-len(by_quantity) // columns)
    figure = figure_class(figsize=(3.6 * columns, 2.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for (quantity, all_series), axes in zip(by_quantity.items(), panels, strict=False):
        for number, series in enumerate(all_series):
            colour, style = _look(number)
            player = series["name"].rpartition("/")[0]
            values = np.array(series["y"], dtype=float)
            axes.plot(series["x"], values, style, color=colour, linewidth=1, label=_literal(player) or None)
        unit = all_series[0].get("unit", "")
        axes.set_title(_literal(quantity) + (f" ({_literal(unit)})" if unit else ""), fontsize="small")
        axes.tick_params(labelsize="x-small")
        if len(all_series) > 1:
            axes.legend(frameon=False, fontsize="x-small")
    for axes in panels:  # what is left over of the grid
        axes.set_axis_off()
    figure.supxlabel("decisions", fontsize="small")
    return figure


def _top_figure(figure_class: Any, top: Mapping[str, Any]) -> Any:
    """Strength upwards; how many players beat each other in circles there, to both sides."""
    figure = figure_class(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    layers = sorted(top["layers"], key=lambda layer: layer["strength"])
    strengths = [layer["strength"] for layer in layers]
    widths = np.array([len(layer["players"]) for layer in layers], dtype=float)
    axes.fill_betweenx(strengths, -widths / 2, widths / 2, color=COLOURS[0], alpha=0.25, linewidth=0)
    for layer, width in zip(layers, widths, strict=True):
        axes.plot([-width / 2, width / 2], [layer["strength"]] * 2, color=COLOURS[0])
        axes.text(width / 2, layer["strength"], f"  {width:.0f}", va="center", fontsize="small")
    axes.set_xlim(-0.75 * widths.max(), 0.75 * widths.max())
    axes.set_xticks([])
    axes.set_xlabel("players of a layer: they beat each other in circles")
    axes.set_ylabel("transitive strength")
    return figure


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]


def _known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _literal(text: str) -> str:
    """Dollar signs would be taken for mathematics."""
    return text.replace("$", r"\$")
