"""`ludus recipes`: the experiments that ship, and every setting of one with its meaning."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.text import Text

import ludus.recipes
from ludus.cli.console import new_console, new_table
from ludus.cli.experiments import find_experiment, recipe_names
from ludus.config import paths


@click.command("recipes")
@click.argument("recipe", required=False)
@click.option("--json", "as_json", is_flag=True)
def command(recipe: str | None, as_json: bool) -> None:
    """List the recipes, or every setting of RECIPE (also FILE.py:NAME) as PATH=VALUE with its meaning.

    Those marked (live) may be changed while a run trains: `ludus set RUN PATH=VALUE`.
    """
    rows: list[dict[str, Any]]
    if recipe is None:
        rows = [{"recipe": name, "what it does": describe(name)} for name in recipe_names()]
    else:
        rows = [
            {"path": at, "value": shown(value), "meaning": doc or type_name, "live": live}
            for at, type_name, value, doc, live in paths(find_experiment(recipe, ()))
        ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    console = new_console()
    if recipe is None:
        table = new_table("recipe", "what it does")
        for row in rows:
            table.add_row(*map(escape, row.values()))
        console.print(table)
        console.print("\nEvery setting of one: ludus recipes RECIPE. Train it: ludus train RECIPE.")
        return
    for row in rows:
        mark = "(live) " if row["live"] else ""
        line = Text.assemble(f"{row['path']}={row['value']}", (f"  # {mark}{row['meaning']}", "dim"))
        console.print(line, soft_wrap=not console.is_terminal)


def shown(value: Any) -> str:
    """As `--set` would take it. Of what has settings of its own, only the name: they come next."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(map(str, value))
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    return type(value).__name__ if is_dataclass(value) else str(value)


def describe(recipe: str) -> str:
    """First line of the recipe's docstring, read without importing it."""
    file = Path(next(iter(ludus.recipes.__path__))) / f"{recipe}.py"
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
