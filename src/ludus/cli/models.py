"""`ludus models`: the models of a run, and weights from elsewhere, checked and converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ludus.cli.console import add_numbers, new_console, new_table
from ludus.cli.experiments import open_run
from ludus.data.records import ModelId
from ludus.league.players import FROZEN
from ludus.store.model_addresses import added_players
from ludus.store.run_folder import RunFolder


@click.group("models", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """The models of a run, and weights from elsewhere, checked and converted.

    \b
    ADDRESS is one of
      RUN#PLAYER  RUN#PLAYER@TAG  RUN#PLAYER:INCARNATION:STEP    a model of another run
      FILE        FILE#sha256=DIGITS                             safetensors, or a torch checkpoint
      URL         URL#sha256=DIGITS                              the same on the web
      NAME                                                       an entry of --index
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command("list", short_help="the models in the pool of a run")
@click.argument("run", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object per model.")
def list_models(run: str | None, as_json: bool) -> None:
    """Show the models in the pool of RUN (default: the newest run)."""
    folder = open_run(run)
    rows = _rows(folder)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    if not rows:
        click.echo(f"{folder.path} has no models yet: a player is there once it was frozen or imported")
        return
    table = new_table("model", "players", "weights", "tags", "parent")
    add_numbers(table, "decisions", "size")
    table.add_column("digest", overflow="fold")
    for row in rows:
        decisions = row["decisions"]
        table.add_row(
            row["model"],
            ", ".join(row["players"]),
            " ".join(row["weights"]),
            " ".join(row["tags"]),
            row["parent"] or "-",
            "-" if decisions is None else f"{decisions:,}",
            _size(row["bytes"]),
            next(iter(row["weights"].values()))[:12],
        )
    new_console().print(table)


@command.command("keys", short_help="the tensors in a file")
@click.argument("file", metavar="FILE")
@click.option("--place", help="Where in the checkpoint; default: every place that has weights.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per tensor.")
def keys(file: str, place: str | None, as_json: bool) -> None:
    """List the names, shapes and types of the tensors in FILE, a torch checkpoint or safetensors."""
    from ludus.workers.foreign_weights import read_foreign

    foreign = read_foreign(Path(file))
    table = new_table("tensor", "shape", "type", "place")
    for where in [place] if place else foreign.places:
        for name, tensor in foreign.tensors(where).items():
            shape, kind = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            if as_json:
                click.echo(json.dumps({"name": name, "shape": shape, "dtype": kind, "place": where}))
            table.add_row(name, str(tuple(shape)), kind, where)
    if not as_json:
        new_console().print(table if table.row_count else f"{file} holds no tensors by name")


@command.command("import", short_help="convert a file of weights to a model of a run")
@click.argument("target", metavar="RUN|RECIPE")
@click.argument("file", metavar="FILE")
@click.option("--player", help="Its name in the pool; default: that of the file.")
@click.option("--map", "map_file", type=click.Path(), help="YAML: our names to the file's.")
@click.option("--place", help="Where in the checkpoint the weights are, such as model_state_dict.")
@click.option("--kind", help="Fill the policy of this kind of seat only.")
@click.option("--partial", is_flag=True, help="Let what the file does not fill keep fresh weights.")
@click.option("--base", metavar="MODEL", help="Take what the file does not fill from this model of RUN.")
@click.option("--tag", "tags", multiple=True, help="Give the model a tag; may be repeated.")
@click.option("--to", type=click.Path(), help="Write a safetensors file instead of the pool of RUN.")
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Settings of RECIPE.")
@click.option("--dry-run", is_flag=True, help="Show what would match, and change nothing.")
@click.option("--write-map", type=click.Path(), help="Write a first map with best guesses, to edit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_model(target: str, file: str, **options: Any) -> int:
    """Convert FILE to a model of RUN, or of a RECIPE that has not been trained yet (with --to).

    Nothing in FILE is executed: a checkpoint that needs more than tensors is refused.

    \b
    ludus models keys agent.pt                                      what is in it
    ludus models import runs/mine agent.pt --write-map keys.yaml    a first map
    ludus models import runs/mine agent.pt --map keys.yaml --player guest
    """
    from ludus.cli.model_import import import_file

    return import_file(target, file, **options)


@command.command("pull", short_help="fetch a model from another run, a file or the web")
@click.argument("run", type=click.Path())
@click.argument("address", metavar="ADDRESS")
@click.option("--player", help="Its name in the pool; default: the one it has there.")
@click.option("--digest", metavar="sha256:DIGITS", help="Refuse anything else.")
@click.option("--index", help="JSON file, path or URL: NAME -> url, sha256. [LUDUS_MODEL_INDEX]")
@click.option("--tag", "tags", multiple=True, help="Give the model a tag; may be repeated.")
@click.option("--max-size", type=click.IntRange(min=1), default=8192, show_default=True, help="MiB.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds.")
@click.option("--attempts", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pull(run: str, address: str, **options: Any) -> int:
    """Fetch the model at ADDRESS into the pool of RUN. See `ludus models --help` for addresses.

    A download that broke off goes on where it stopped; what does not have the digest that is given, or
    that a file URL.sha256 names, is refused, and so is what does not fit the networks of RUN.
    """
    from ludus.cli.model_import import pull_model

    return pull_model(run, address, **options)


def _rows(folder: RunFolder) -> list[dict[str, Any]]:
    pool = folder.models
    tags, players = pool.tags(), added_players(folder).values()
    rows: dict[ModelId, dict[str, Any]] = {}
    for entry in pool.entries():
        row = rows.setdefault(
            entry.model,
            {
                "model": str(entry.model),
                "players": [
                    one.player if one.role == FROZEN else f"{one.player} (start)"
                    for one in players
                    if one.model == str(entry.model)
                ],
                "weights": {},
                "tags": tags.get(entry.model, []),
                "parent": None if entry.parent is None else str(entry.parent),
                "decisions": entry.facts.get("decisions"),
                "source": entry.facts.get("source"),
                "bytes": 0,
            },
        )
        row["weights"][entry.variant] = entry.digest
        row["bytes"] += pool.size(entry.model, entry.variant)
    for row in rows.values():
        row["weights"] = dict(sorted(row["weights"].items(), reverse=True))  # live first
    return list(rows.values())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"
