"""The tables of a league, which several commands show."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from math import isnan
from typing import IO, Any, Literal, Self, TextIO

from rich import box, progress
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from ludus.league.league import League
from ludus.league.measures import Estimate
from ludus.league.payoff import Payoff
from ludus.league.payoff_estimate import WHY_NOT
from ludus.league.players import Player, with_weights
from ludus.league.ratings import WIDE_ELO, Rating
from ludus.league.role_scores import RoleLine, role_lines
from ludus.league.summary import LeagueSummary, ranked
from ludus.observe.league_fold import LostPlayer, trained_on
from ludus.system.text import printable

LONG_WORD = 20
"""Words of text beyond this, such as paths, may be broken."""


class FittingTable(Table):
    """A table that leaves out columns, and says which, before it breaks words or numbers: those named in `least`
    first, then from the right, never the first. In a file of unknown width nothing is left out."""

    least: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not _has_width(console) or not self.columns:
            yield from super().__rich_console__(console, options)
            return
        ranges = {id(column): self._range(console, options, column) for column in self.columns}
        kept = list(self.columns)
        while len(kept) > 1 and self._width([ranges[id(one)].minimum for one in kept]) > options.max_width:
            kept.remove(min(kept[1:], key=lambda one: self._importance(one)))
        room = options.max_width - self._width([0 for _ in kept])
        widths = _shares([ranges[id(one)] for one in kept], room)
        left_out = [str(column.header) for column in self.columns if column not in kept]
        note = f"Too narrow here for: {', '.join(left_out)}." if left_out else ""
        caption = " ".join(part for part in (str(self.caption or ""), note) if part)
        shown = copy(self)
        shown.caption = None  # a caption may be wider than its table
        shown.columns = [
            replace(column, width=width, _index=index)
            for index, (column, width) in enumerate(zip(kept, widths, strict=True))
        ]
        yield from Table.__rich_console__(shown, console, options)
        if caption:
            yield Text(caption, style="table.caption")

    def _importance(self, column: Column) -> tuple[int, int]:
        name = str(column.header)
        if name in self.least:
            return (0, self.least.index(name))
        return (1, -self.columns.index(column))

    def _width(self, widths: Sequence[int]) -> int:
        """With what lies between the columns: two spaces of padding and a line."""
        return sum(widths) + 3 * (len(widths) - 1)

    def _range(self, console: Console, options: ConsoleOptions, column: Column) -> Measurement:
        """The least and the most width that a column is worth."""
        measured = [Measurement.get(console, options, cell) for cell in column.cells]
        head = Measurement.get(console, options, column.header)
        most = max([head.maximum, *(cell.maximum for cell in measured)])
        if column.no_wrap:
            return Measurement(most, most)
        if column.justify == "right":  # a number is read whole
            return Measurement(max([head.minimum, *(cell.maximum for cell in measured)]), most)
        least = max([head.minimum, *(cell.minimum for cell in measured)])
        return Measurement(min(least, LONG_WORD), most)


def _shares(ranges: Sequence[Measurement], room: int) -> list[int]:
    """Widths between least and most: what is there beyond the least goes to those that want it most."""
    widths = [min(one.minimum, max(room, 1)) for one in ranges]
    while sum(widths) < room:
        wanting = [one.maximum - width for one, width in zip(ranges, widths, strict=True)]
        if max(wanting) <= 0:
            break
        widths[wanting.index(max(wanting))] += 1
    return widths


def flow(items: Iterable[str], width: int) -> list[str]:
    """Lines of items, two spaces between them; a line ends between items, never inside of one."""
    lines: list[str] = []
    for item in items:
        if lines and cell_len(lines[-1]) + 2 + cell_len(item) <= width:
            lines[-1] += f"  {item}"
        else:
            lines.append(item)
    return lines


WIDTH_OF_FILES = 160
"""The width without a terminal: wide enough that nothing is cut."""


def _has_width(console: Console) -> bool:
    """Whether the output has a width: that of a terminal, or the one that COLUMNS asks for."""
    return console.is_terminal or "COLUMNS" in os.environ


class SafeConsole(Console):
    """A console on which text from games, bots and files cannot control the terminal."""

    @property
    def file(self) -> IO[str]:
        """The stream itself: what is before it would replace the console's own codes, also while a live display has
        put one of its own before that."""
        file = super().file
        while hasattr(file, "rich_proxied_file"):
            file = file.rich_proxied_file
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def _write_buffer(self) -> None:
        try:
            super()._write_buffer()
        except OSError as error:  # as on a full disk
            error.filename = getattr(self.file, "name", None)
            raise

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def as_text(*shown: Any, width: int = 160) -> str:
    """Tables and lines as plain text, for `print` and for files."""
    # rich would display a captured table as well where it finds itself in a notebook.
    console = SafeConsole(width=width, color_system=None, highlight=False, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        for one in shown:
            console.print(one)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def new_console() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    written = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    if isinstance(written, io.TextIOWrapper):
        written.reconfigure(errors="replace")  # a sign that the encoding lacks is no reason to fail
    plain = not can_redraw(sys.stdout) and "FORCE_COLOR" not in os.environ
    return SafeConsole(width=None if known else WIDTH_OF_FILES, color_system=None if plain else "auto", highlight=False)


def can_redraw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can be redrawn. A CI job may offer one, and keeps all that is drawn."""
    dumb = os.environ.get("TERM", "dumb").lower() in ("dumb", "unknown")
    return stream.isatty() and not dumb and not os.environ.get("CI")


def new_table(*headings: str) -> FittingTable:
    """With the first column whole; of the others, what does not fit in is folded or left out."""
    table = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.title_justify = table.caption_justify = "left"
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    return table


def add_numbers(table: Table, *headings: str) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")


MOST_COLUMNS = 12
MOST_FROZEN = 40
"""Rows for frozen players in the table of a large league."""
BEST_FROZEN = 3
"""Those of them that come before scripted players, where there is room for few."""


def league_table(
    league: League,
    summary: LeagueSummary,
    opponents: Sequence[str],
    most: int | None = None,
    *,
    roles: Sequence[str] = (),
) -> Table:
    """A row per player: rating, share of the equilibrium, layer (where it is measured), scores by role (where they are
    compared), win rates against bots. With room for `most` rows it has fewer frozen players, and explains less."""
    one_team = league.num_teams == 1
    layers = _layers(summary)
    table = new_table("player")
    table.least = ("layer", "Nash", "games")
    groups = ranked(summary)
    add_numbers(table, "trained on")
    if one_team:
        add_numbers(table, "mean score")
    else:
        add_numbers(table, "Elo", "games", "Nash", *(["layer"] if layers else []))
        by_role = roles if summary.role_scores else ()
        role_columns = tuple(f"as {role}" for role in by_role)
        table.least += role_columns
        add_numbers(table, *role_columns, *(f"% vs {opponent}" for opponent in opponents))
        table.caption = f"Elo with its 95 % interval, {summary.anchor} = 0."
        if any(1.96 * (one.standard_error or 0.0) > WIDE_ELO for one in summary.ratings):
            table.caption += f" Beyond ±{WIDE_ELO:.0f} the interval alone."
        if most is None:
            table.caption += " Nash: share of the mixture of frozen players that none of them beats, by mean score."
        if layers:
            table.caption += " Layer: those of such a mixture by win rate are 1, of the rest without them 2, ..."
        if by_role and most is None:
            table.caption += (
                " As a role: mean score, and in brackets its lead over what opponents got in that role in the same "
                "matches. Win rates and Elo compare two players in the same role."
            )
        if len(groups) > 1 and most is None:
            table.caption += " Live and averaged weights are ranked apart."
    payoff = league.payoffs.view("evaluation")
    rows = [row for group in groups for row in group]
    important = _most_important(rows, most)
    if most is not None and len(important) < len(rows):
        table.caption = f"And {len(rows) - len(important)} more players. {table.caption or ''}".rstrip()
    first_group = {player.id for player, _ in groups[0]} if most is None and len(groups) > 1 else set()
    end_of_first = sum(player.id in first_group for player, _ in important)
    for place, (player, rating) in enumerate(important, 1):
        cells = [with_weights(player.id, player.played_weights), _decisions(league, player)]
        if one_team:
            cells.append(_score(summary, player.id))
        else:
            share = summary.equilibrium.get(player.id)
            cells += [_elo(rating), short(rating.games), f"{share:.0%}" if share else ""]
            cells += [str(layers.get(player.id, ""))] if layers else []
            if by_role:
                scores = summary.role_scores.get(player.id, (None,) * len(by_role))
                cells += role_cells(role_lines(scores, by_role))
            cells += [_win_rate(payoff, player.id, opponent) for opponent in opponents]
        table.add_row(*cells, end_section=place == end_of_first)
    return table


def role_cells(lines: Iterable[RoleLine]) -> list[str]:
    """By role: the mean score and, in brackets, the lead over the baseline with its 95 % interval."""
    return [
        ""
        if one.score is None or one.lead is None or one.lead_error is None
        else f"{one.score:+.2f} ({one.lead:+.2f} ±{1.96 * one.lead_error:.2f})"
        for one in lines
    ]


def _most_important(rows: Sequence[tuple[Player, Rating]], most: int | None) -> list[tuple[Player, Rating]]:
    """All but the weakest frozen players, where there are very many. With room for few: learning players, the
    best frozen ones, the scripted ones, then further frozen ones."""
    frozen = [player.id for player, _ in rows if player.frozen]
    if most is None:
        return [row for row in rows if not row[0].frozen or row[0].id in frozen[:MOST_FROZEN]]

    def rank(row: tuple[Player, Rating]) -> int:
        player = row[0]
        if player.frozen:
            return 1 if player.id in frozen[:BEST_FROZEN] else 3
        return 2 if player.scripted else 0

    kept = sorted(rows, key=rank)[:most]
    return [row for row in rows if row in kept]


def lost_table(lost: Sequence[LostPlayer]) -> Table:
    """The records of frozen players whose weights cannot be read."""
    table = new_table("weights lost")
    add_numbers(table, "trained on", "Elo", "games", "% won")
    for one in lost:
        half = 0.0 if one.elo_interval is None else (one.elo_interval[1] - one.elo_interval[0]) / 2
        rating = "" if one.elo is None else f"±{half:.0f}" if half > WIDE_ELO else f"{one.elo:+.0f} ±{half:.0f}"
        won = "" if one.win_rate is None else f"{100 * one.win_rate:.1f}"
        table.add_row(with_weights(one.id, one.weights), short(one.decisions), rating, short(one.games), won)
    return table


def measure_lines(summary: LeagueSummary) -> list[str]:
    """The league as a whole, in a few sentences."""
    lines = []
    hidden = sum(player.frozen for player in summary.players) - MOST_FROZEN
    if hidden > 0:
        lines.append(f"{hidden} weaker frozen players are not shown; --json has them all.")
    measures = summary.measures
    if measures is not None and measures.unidentified is not None:
        lines.append(f"No measures of the whole: {WHY_NOT[measures.unidentified]}.")
    elif measures is not None:
        lines.append(
            f"Who beats whom is {_within(measures.transitive_share, '.0%')} skill, the rest goes in circles; "
            f"{measures.pairs_met:.0%} of the pairs of frozen players have met."
        )
        lines.append(
            f"The equilibrium needs {_within(measures.effective_players, '.1f')} players; their diversity is "
            f"{_within(measures.effective_diversity, '.3f')}, where one best player is 0 and a circle of "
            "three 0.167."
        )
    weights = {player.id: player.played_weights for player in summary.players}
    for player, tags in summary.tags.items():
        named = [f"{player}@{tag} is {with_weights(snapshot, weights[snapshot])}" for tag, snapshot in tags.items()]
        lines.append(f"{', '.join(named)}.")
    return lines


def _within(estimate: Estimate | None, form: str) -> str:
    """The number and the interval that holds it."""
    assert estimate is not None, "identified measures have all their numbers"
    low, high = format(estimate.low, form), format(estimate.high, form)
    return f"{format(estimate.value, form)} ({low} to {high})"


def _layers(summary: LeagueSummary) -> dict[str, int]:
    """Frozen player -> its Nash cluster, 1 being the strongest."""
    layers = summary.measures.layers if summary.measures is not None else ()
    return {player: number for number, layer in enumerate(layers, 1) for player in layer.players}


def payoff_table(summary: LeagueSummary, width: int) -> Table:
    """Win rates of the row against the column; of more players than fit into `width`, the newest."""
    players = [player.id for player in summary.players]
    labels = [with_weights(player.id, player.played_weights) for player in summary.players]
    column_width = max(map(len, players)) + len(" | ")
    fitting = max(1, min(MOST_COLUMNS, (width - max(map(len, labels))) // column_width))
    shown = range(max(0, len(players) - fitting), len(players))
    newest = f", the {len(shown)} newest of {len(players)}" if len(shown) < len(players) else ""
    table = new_table("")
    table.title = f"Win rate of row against column{newest}"
    add_numbers(table, *(players[column] for column in shown))
    for row in shown:
        cells = [
            "" if row == column or isnan(summary.win_rates[row, column]) else f"{summary.win_rates[row, column]:.2f}"
            for column in shown
        ]
        table.add_row(labels[row], *cells)
    return table


def _decisions(league: League, player: Player) -> str:
    return "scripted" if player.scripted else short(trained_on(league, player))


def short(number: float) -> str:
    """Three digits and a unit: 12.3k, 4.56M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.0f}"


def _elo(rating: Rating) -> str:
    if rating.elo is None or rating.standard_error is None:
        return "unidentified" if rating.games else ""
    half = 1.96 * rating.standard_error
    return f"±{half:.0f}" if half > WIDE_ELO else f"{rating.elo:+.0f} ±{half:.0f}"


def _score(summary: LeagueSummary, player: str) -> str:
    if player not in summary.scores:
        return ""
    mean, error = summary.scores[player]
    return f"{mean:.2f} ±{1.96 * error:.2f}"


def _win_rate(payoff: Payoff, player: str, opponent: str) -> str:
    """The win rate with its interval; below `min_games`, where the payoff assumes 0.5, the record."""
    games, points = (table[0, 1] for table in payoff.counts((player, opponent)))
    if games == 0 or player == opponent:
        return ""
    if games < payoff.rules.min_games:
        return f"{points:.3g} of {games:.3g}"
    low, high = payoff.win_rate_interval(player, opponent)
    return f"{100 * payoff.win_rate(player, opponent):.1f} ±{50 * (high - low):.1f}"


def size(num_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes / 2**10:,.1f} KiB"


Style = Literal["shown", "json", "quiet"]

EVERY_S = {"bar": 0.1, "lines": 5.0, "json": 1.0}


class ProgressBar:
    """Call it with how much is done; it draws when it is time. What is printed goes to standard error."""

    def __init__(self, things: str, total: int, style: Style) -> None:
        self._things, self._total = things, total
        shown = "bar" if can_redraw(sys.stderr) else "lines"
        self._form = "" if style == "quiet" else "json" if style == "json" else shown
        self._started = self._drawn = time.monotonic()
        self._first: int | None = None
        self._bar: progress.Progress | None = None

    def __enter__(self) -> Self:
        if self._form == "bar":
            self._bar = progress.Progress(
                progress.BarColumn(bar_width=None),
                progress.MofNCompleteColumn(),
                progress.TextColumn(self._things),
                progress.TimeRemainingColumn(compact=True),
                progress.TextColumn("{task.fields[more]}", style="dim", table_column=Column(no_wrap=True)),
                console=SafeConsole(stderr=True, highlight=False),
                transient=True,
                expand=True,
            )
            self._bar.add_task("", total=self._total, more="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, more: str = "", **numbers: float) -> None:
        """`more` is shown beside the bar; `numbers` come with JSON lines."""
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if not self._form or (now - self._drawn < EVERY_S[self._form] and done < self._total):
            return
        self._drawn = now
        if self._bar is not None:
            self._bar.update(progress.TaskID(0), completed=done, more=more)
            return
        rate = (done - self._first) / max(now - self._started, 1e-9)
        if self._form == "json":
            print(json.dumps({self._things: done, "total": self._total, "per_s": rate, **numbers}), flush=True)
        else:
            left = f"{(self._total - done) / rate:,.0f} s left" if rate else "? left"
            shown = f"{done / max(self._total, 1):6.1%}  {done:,} of {self._total:,} {self._things}  {left}"
            print(f"{shown}  {more}".rstrip(), file=sys.stderr, flush=True)
