"""Fitting what is shown into the terminal there is: whole words and whole numbers, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

LONG_WORD = 20
"""Words of text beyond this, such as paths, may be broken."""


class FittingTable(Table):
    """A table that leaves out columns, and says which, before it breaks words or numbers.

    The first column always stays. Of the others go those named in `least` first, then from the right. In a
    file nothing is left out: it has no width, and somebody may look for what is missing.
    """

    least: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal or not self.columns:
            yield from super().__rich_console__(console, options)
            return
        ranges = {id(column): self._range(console, options, column) for column in self.columns}
        kept = list(self.columns)
        while len(kept) > 1 and self._width([ranges[id(one)].minimum for one in kept]) > options.max_width:
            kept.remove(min(kept[1:], key=lambda one: self._importance(one)))
        room = options.max_width - self._width([0 for _ in kept])
        widths = _shares([ranges[id(one)] for one in kept], room)
        yield self._only(kept, widths)
        left_out = [str(column.header) for column in self.columns if column not in kept]
        note = f"Too narrow here for: {', '.join(left_out)}." if left_out else ""
        if caption := " ".join(part for part in (str(self.caption or ""), note) if part):
            yield Text(caption, style="table.caption")  # a caption may be wider than its table

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

    def _only(self, columns: Sequence[Column], widths: Sequence[int]) -> Table:
        table = Table(
            *(replace(column, width=width, _cells=[]) for column, width in zip(columns, widths, strict=True)),
            box=self.box,
            pad_edge=self.pad_edge,
            show_edge=self.show_edge,
            show_header=self.show_header,
            title=self.title,
            title_justify=self.title_justify,
        )
        for row, cells in zip(
            self.rows, zip(*(column.cells for column in columns), strict=True), strict=True
        ):
            table.add_row(*cells, style=row.style, end_section=row.end_section)
        return table


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
