"""Writes docs/reference/: the commands, the experiment's fields and the recipes, as the code has them.

    python tools/reference.py

A test holds that what is there is up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import ludus.recipes
from ludus.cli.games import shown
from ludus.cli.main import COMMANDS, ludus as command_line
from ludus.config.annotations import describe, field_hints, is_component_class, is_protocol, live_fields, members
from ludus.config.listing import field_docs
from ludus.experiment import Experiment
from ludus.games.game import GameSource
from ludus.lookup import recipe_names

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "docs" / "reference"
WIDTH = 100
"""Of the help of a command."""
NOTE = "<!-- Written by `make reference` from the code; what is changed here is lost. -->"
SEARCHED = (
    "algorithms",
    "data",
    "games.isolation",
    "league",
    "models",
    "observe",
    "runtime",
    "services",
    "store",
    "workers",
)
"""The parts of the package whose classes may be values of a field."""
LEFT_OUT = (GameSource,)
"""Kinds of component that have pages of their own."""

COMMANDS_HEAD = """\
What `ludus COMMAND --help` says. Exit codes: 0 done, 1 failed, 2 bad usage, 75 time limit reached and 130
interrupted (state saved). With `LUDUS_TRACEBACK=1` in the environment an error comes with where it was
raised."""
EXPERIMENT_HEAD = """\
An experiment is a tree of dataclasses. A field is set by its path: `--set learner.batch_size=4096`, or
`learner: {batch_size: 4096}` in YAML. Where a field takes one of several classes, a mapping with a `type`
chooses: `--set "algorithm={type: Impala, upgo_weight: 1.0}"`. Fields marked *live* may change while a run
trains, by `ludus set`. `ludus recipes RECIPE` lists the fields of a recipe with their values; the fields of a
game are on its page."""
RECIPES_HEAD = """\
The experiments that ship. `ludus train NAME` trains one, `ludus recipes NAME` lists every setting of it with
its meaning."""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


# --- commands ---


def _commands() -> str:
    parts = [f"# Commands\n\n{NOTE}\n\n{COMMANDS_HEAD}"]
    settings = command_line.context_settings
    root = click.Context(command_line, info_name="ludus", terminal_width=WIDTH, **settings)
    for name, purpose in COMMANDS.items():
        command = command_line.get_command(root, name)
        assert command is not None
        parts.append(f"## ludus {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n{_help(command, root, name)}")
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, above: click.Context, name: str) -> str:
    context = click.Context(command, parent=above, info_name=name, terminal_width=WIDTH)
    blocks = [f"```text\n{inspect.cleandoc(command.get_help(context))}\n```"]
    inside: Mapping[str, click.Command] = getattr(command, "after_run", {})  # `ludus league RUN add ...`
    if isinstance(command, click.Group) and not inside:
        inside = command.commands
    return "\n\n".join([*blocks, *(_help(one, context, sub) for sub, one in inside.items())])


# --- experiment ---


def _experiment() -> str:
    known = list(_dataclasses())
    parts = [f"# The experiment\n\n{NOTE}\n\n{EXPERIMENT_HEAD}"]
    waiting: list[type] = [Experiment]
    done: set[type] = set()
    while waiting:
        cls = waiting.pop(0)
        if cls not in done:
            done.add(cls)
            parts.append(_section(cls, known))
            waiting += [one for _, hint in _fields(cls) for one in _choices(hint, known)]
    return "\n\n".join(parts) + "\n"


def _fields(cls: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """(field, type) of all that can be set."""
    hints = field_hints(cls)
    for field in dataclasses.fields(cls):
        if field.init:
            yield field, hints[field.name]


def _dataclasses() -> Iterator[type]:
    """All of the searched parts, by module and place in it."""
    for part in SEARCHED:
        package = importlib.import_module(f"ludus.{part}")
        for found in pkgutil.iter_modules(package.__path__, f"ludus.{part}."):
            if found.ispkg:
                continue
            module = importlib.import_module(found.name)
            for cls in vars(module).values():
                if inspect.isclass(cls) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__:
                    yield cls


def _components(hint: Any) -> Iterator[type]:
    """The classes of components that a type names, however deep inside."""
    for one in members(hint):
        if is_component_class(one) and one not in LEFT_OUT:
            yield one
        for inner in typing.get_args(one):
            if not isinstance(inner, str | int | float):
                yield from _components(inner)


def _choices(hint: Any, known: list[type]) -> list[type]:
    """The dataclasses that may be values of a field, or parts of its value."""
    found: list[type] = []
    for kind in _components(hint):
        if not is_protocol(kind):
            found += [kind] if dataclasses.is_dataclass(kind) else []
        elif said := [one for one in known if kind in one.__mro__]:
            found += said
        else:  # a protocol that nobody names: those near it that do what it asks for
            asked = [name for name in vars(kind) if not name.startswith("_")]
            near = [one for one in known if one.__module__.startswith(kind.__module__.rpartition(".")[0])]
            found += [one for one in near if asked and all(hasattr(one, name) for name in asked)]
    return list(dict.fromkeys(found))


def _section(cls: type, known: list[type]) -> str:
    place = cls.__module__.replace(".", "/")
    lines = [f"## {cls.__name__}", f"{_text(cls)} [`{place}.py`](../../src/{place}.py)".strip()]
    docs, live = field_docs(cls), live_fields(cls)
    rows = []
    for field, hint in _fields(cls):
        choices = _choices(hint, known)
        mark = " *live*" if field.name in live else ""
        kind = f"`{describe(hint).replace(' | ', ' or ')}`"  # a bar would end the cell
        if choices:
            links = ", ".join(f"[{one.__name__}](#{one.__name__.lower()})" for one in choices)
            kind = links if hint is choices[0] else f"{kind}: {links}"
        meaning = docs.get(field.name, "")
        if not meaning and len(choices) == 1:
            meaning = _text(choices[0])
        cells = (kind, _default(field), " ".join(meaning.split()))
        rows.append(f"| `{field.name}`{mark} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        lines.append("\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(lines)


def _text(cls: type) -> str:
    """The docstring of a class, but for the one that dataclasses make up."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        text = shown(field.default)
    elif field.default_factory is not dataclasses.MISSING:
        text = shown(field.default_factory())
    else:
        return "required"
    return f"`{text}`" if text else "empty"


# --- recipes ---


def _recipes() -> str:
    parts = [f"# Recipes\n\n{NOTE}\n\n{RECIPES_HEAD}"]
    folder = Path(next(iter(ludus.recipes.__path__)))
    for name in recipe_names():
        doc = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))) or ""
        link = f"[`recipes/{name}.py`](../../src/ludus/recipes/{name}.py)"
        parts.append(f"## {name}\n\n{doc}\n\n{link}")
    return "\n\n".join(parts) + "\n"


PAGES = {"commands.md": _commands, "experiment.md": _experiment, "recipes.md": _recipes}
"""File name -> its text."""

if __name__ == "__main__":
    main()
