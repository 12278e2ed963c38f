"""Tables and lines of items fit into any width, without a broken word or number."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ludus.observe.terminal import FittingTable, add_numbers, flow, new_table

ROWS = [
    ("main", "5.2M", "+512 ±13", "12.1k", "", "99.4 ±0.3", "83.0 ±2.3"),
    ("alpha_beta_2", "scripted", "+477 ±72", "5.12k", "", "", ""),
    ("main.10", "4.5M", "+401 ±20", "1.54k", "61%", "98.4 ±0.7", "54.4 ±3.1"),
]
HEADINGS = ("trained on", "Elo", "games", "Nash", "% vs random", "% vs alpha_beta_2")


def league() -> FittingTable:
    table = new_table("player")
    table.least = ("Nash", "games")
    add_numbers(table, *HEADINGS)
    for row in ROWS:
        table.add_row(*row)
    return table


def shown(table: FittingTable, width: int, *, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    console.print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [*range(24, 90), 120, 200])
def test_numbers_stay_whole_at_every_width(width: int) -> None:
    lines = shown(league(), width)
    assert all(len(line) <= width for line in lines)
    for row in ROWS:
        (line,) = (line for line in lines if line.startswith(f"{row[0]} "))
        cells = line.split("  ")
        assert {cell.strip() for cell in cells} <= {*row, ""}
    left_out = [heading for heading in HEADINGS if not any(heading.split()[-1] in line for line in lines[:2])]
    words = " ".join(line.strip() for line in lines)
    assert ("Too narrow here for:" in words) == bool(left_out)


def test_what_matters_least_goes_first() -> None:
    words = " ".join(shown(league(), 200))
    assert "Too narrow" not in words
    ends = {}
    for width in range(90, 14, -1):
        said = " ".join(line.strip() for line in shown(league(), width)).partition("Too narrow here for: ")[2]
        ends[said] = width
    assert list(ends) == [
        "",
        "Nash.",
        "games, Nash.",
        "games, Nash, % vs alpha_beta_2.",
        "games, Nash, % vs random, % vs alpha_beta_2.",
        "Elo, games, Nash, % vs random, % vs alpha_beta_2.",
        "trained on, Elo, games, Nash, % vs random, % vs alpha_beta_2.",
    ]


def test_a_file_has_all_columns() -> None:
    assert "alpha_beta_2" in " ".join(shown(league(), 60, terminal=False))
    assert "Too narrow" not in " ".join(shown(league(), 60, terminal=False))


def test_text_is_folded_between_words_before_a_column_goes() -> None:
    table = new_table("recipe", "what it does")
    table.add_row("connect_four", "A league on connect four, in a few minutes on two cores.")
    lines = shown(table, 40)
    assert len(lines) > 3
    assert "Too narrow" not in " ".join(lines)
    assert " ".join(line.removeprefix("connect_four").strip() for line in lines[2:]).startswith("A league on")


def test_a_line_ends_between_items() -> None:
    assert flow(["one two", "three", "four"], 14) == ["one two  three", "four"]
    assert flow(["much longer than that", "x"], 5) == ["much longer than that", "x"]
    assert flow([], 10) == []
