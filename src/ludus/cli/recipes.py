"""`ludus recipes`: the experiments that ship, and every setting of one with its meaning."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

import ludus.recipes
from ludus.cli.experiments import find_experiment, recipe_names
from ludus.config import paths


@click.command("recipes")
@click.argument("recipe", required=False)
@click.option("--json", "as_json", is_flag=True)
def command(recipe: str | None, as_json: bool) -> None:
    """List the recipes, or every setting of RECIPE (also FILE.py:NAME) as PATH, value and meaning."""
    if recipe is None:
        headings: tuple[str, ...] = ("recipe", "what it does")
        rows: list[tuple[str, ...]] = [(name, describe(name)) for name in recipe_names()]
    else:
        rows = [
            (setting.path, repr(setting.value), setting.doc or setting.type_name)
            for setting in paths(find_experiment(recipe, ()))
        ]
        headings = ("path", "value", "meaning")
    if as_json:
        click.echo(json.dumps([dict(zip(headings, row, strict=True)) for row in rows]))
        return
    table = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def describe(recipe: str) -> str:
    """First line of the recipe's docstring, read without importing it."""
    file = Path(next(iter(ludus.recipes.__path__))) / f"{recipe}.py"
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
