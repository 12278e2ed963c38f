"""`ludus models`: the models of a run, and weights from elsewhere, checked and converted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import yaml

from ludus.cli.main import FAILED
from ludus.cli.options import COUNT, code_trust_option, json_option, set_option
from ludus.config import ConfigError, as_config_error
from ludus.config.conversion import read_yaml
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.league.players import FROZEN, SCRIPTED, check_player_id
from ludus.lookup import find_experiment, open_run
from ludus.observe.league_fold import best_models, resolve_in
from ludus.observe.terminal import add_numbers, new_console, new_table, size
from ludus.runtime import imported_models
from ludus.runtime.assemble import load_experiment
from ludus.runtime.imported_models import Fit, Source, has_same_networks
from ludus.runtime.networks import with_each_model
from ludus.store.checkpoints import Arrays, encode_tensors
from ludus.store.downloads import DownloadRules, parse_digest
from ludus.store.files import StoreError, atomic_write
from ludus.store.model_addresses import BadWeightMap, WeightMap, WeightSource, added_players, parse_map
from ludus.store.run_folder import RunFolder


@click.group("models", invoke_without_command=True)
@click.pass_context
def models_command(context: click.Context) -> None:
    """The models of a run, and weights from elsewhere, checked and converted.

    \b
    ADDRESS is one of
      RUN#PLAYER[@TAG], RUN#PLAYER:INCARNATION:STEP   a model of another run
      FILE[#sha256=DIGITS]             safetensors, or a torch checkpoint
      URL[#sha256=DIGITS]              the same on the web
      NAME                             an entry of --index
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@models_command.command("list", short_help="the models in the pool of a run")
@click.argument("run", required=False, type=click.Path())
@json_option("One JSON object per model.")
def list_models(run: str | None, as_json: bool) -> None:
    """Show the models in the pool of RUN (default: the newest run)."""
    folder = open_run(run)
    table = new_table("model", "players", "weights", "tags", "parent")
    add_numbers(table, "decisions", "size")
    table.add_column("digest", overflow="fold")
    for row in _rows(folder):
        if as_json:
            click.echo(json.dumps(row))
        decisions = row["decisions"]
        table.add_row(
            row["model"],
            ", ".join(row["players"]),
            " ".join(row["weights"]),
            " ".join(row["tags"]),
            row["parent"] or "-",
            "-" if decisions is None else f"{decisions:,}",
            size(row["bytes"]),
            next(iter(row["weights"].values()))[:12],
        )
    none = f"{folder.path} has no models yet: a player is there once it was frozen or imported"
    if not as_json:
        new_console().print(table if table.row_count else none)


@models_command.command("keys", short_help="the tensors in a file")
@click.argument("file", metavar="FILE")
@click.option("--place", help="Where in the checkpoint; default: every place that has weights.")
@json_option("One JSON object per tensor.")
def keys(file: str, place: str | None, as_json: bool) -> None:
    """List the names, shapes and types of the tensors in FILE, a torch checkpoint or safetensors."""
    foreign = imported_models.read_foreign(Path(file))
    table = new_table("tensor", "shape", "type", "place")
    for where in [place] if place else foreign.places:
        for name, tensor in foreign.tensors(where).items():
            shape, kind = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            if as_json:
                click.echo(json.dumps({"name": name, "shape": shape, "dtype": kind, "place": where}))
            table.add_row(name, str(tuple(shape)), kind, where)
    if not as_json:
        new_console().print(table if table.row_count else f"{file} holds no tensors by name")


@models_command.command("import", short_help="convert a file of weights to a model of a run")
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
@set_option("Settings of RECIPE.")
@click.option("--dry-run", is_flag=True, help="Show what would match, and change nothing.")
@click.option("--write-map", type=click.Path(), help="Write a first map with best guesses, to edit.")
@json_option()
@code_trust_option
def import_model(
    target: str,
    file: str,
    player: str | None,
    map_file: str | None,
    place: str | None,
    kind: str | None,
    partial: bool,
    base: str | None,
    tags: tuple[str, ...],
    to: str | None,
    settings: tuple[str, ...],
    dry_run: bool,
    write_map: str | None,
    as_json: bool,
) -> int:
    """Convert FILE to a model of RUN, or of a RECIPE that has not been trained yet (with --to).

    Nothing in FILE is executed: a checkpoint that needs more than tensors is refused.

    \b
    ludus models keys agent.pt                                      what is in it
    ludus models import runs/mine agent.pt --write-map keys.yaml    a first map
    ludus models import runs/mine agent.pt --map keys.yaml --player guest
    """
    folder, experiment = _find_target(target, settings)
    names = read_map(map_file)
    if to is not None:
        if player or tags:
            raise ConfigError("--player and --tag are for the pool of a run, --to writes a file")
        if names.average is not None:
            raise ConfigError(f"{to} will hold one set of weights: leave `average` out of {map_file}")
    elif not (dry_run or write_map):
        if folder is None:
            raise ConfigError(f"{target} is no run and has no pool: name a file to write with --to")
        _require_name(player or Path(file).stem, experiment, folder)
    parent = None
    if base is not None:
        parent, experiment = _find_base(base, folder, experiment)
    source = imported_models.fetch_source(
        imported_models.ModelRequest(address=file, place=place or names.place, average=names.average)
    )
    if parent is None:
        fit, experiment = imported_models.best_fit(source, experiment, names, kind=kind)
    else:
        fit = imported_models.fit_weights(source, experiment, names, kind=kind)
    if write_map is not None:
        guesses = write_first_map(Path(write_map), source, fit)
        click.echo(f"wrote {write_map}: {len(fit.live.sources)} names match, {guesses} are guessed")
        return 0
    if not as_json:
        _show(source, fit, whole=dry_run)
    is_whole = not fit.unfilled or partial or parent is not None
    if dry_run:
        return 0 if is_whole else FAILED
    if not is_whole:
        shown = "\n  ".join(["", *imported_models.differences(fit.live)]) if as_json else ""
        raise StoreError(
            f"{source.label} does not fill {len(fit.unfilled)} of our weights, such as {fit.unfilled[0]}{shown}\n"
            "map their names (--map; --write-map makes a first one), take the rest from a model of the run"
            " (--base), or keep fresh weights there (--partial)"
        )
    if fit.unfilled and not as_json:
        what = f"{parent} has them" if parent else f"seed {experiment.seed} draws them"
        click.echo(f"the {len(fit.unfilled)} unfilled weights are as {what}")
    rest = folder.models.fetch(parent) if folder is not None and parent is not None else None
    live = fit.filled(fit.live, rest)
    average = None if fit.average is None else fit.filled(fit.average, rest)
    if to is not None:
        atomic_write(Path(to), encode_tensors(live))
        click.echo(json.dumps({"file": to, "source": source.label}) if as_json else f"wrote {to}")
        return 0
    assert folder is not None
    _keep(folder, source, player or source.name, live, average, tags, as_json, parent)
    return 0


@models_command.command("pull", short_help="fetch a model from another run, a file or the web")
@click.argument("run", type=click.Path())
@click.argument("address", metavar="ADDRESS")
@click.option("--player", help="Its name in the pool; default: the one it has there.")
@click.option("--digest", metavar="sha256:DIGITS", help="Refuse anything else.")
@click.option("--index", help="JSON file, path or URL: NAME -> url, sha256. [LUDUS_MODEL_INDEX]")
@click.option("--tag", "tags", multiple=True, help="Give the model a tag; may be repeated.")
@click.option("--max-size", type=COUNT, default=8192, help="MiB.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=30.0, help="Seconds.")
@click.option("--attempts", type=COUNT, default=5)
@json_option()
@code_trust_option
def pull(
    run: str,
    address: str,
    player: str | None,
    digest: str | None,
    index: str | None,
    tags: tuple[str, ...],
    max_size: int,
    timeout: float,
    attempts: int,
    as_json: bool,
) -> None:
    """Fetch the model at ADDRESS into the pool of RUN. See `ludus models --help` for addresses.

    A download that broke off goes on where it stopped; what does not have the digest that is given, or
    that a file URL.sha256 names, is refused, and so is what does not fit the networks of RUN.
    """
    folder = RunFolder.open(run)
    experiment = load_experiment(folder)
    if player is not None:
        _require_name(player, experiment, folder)
    source = imported_models.fetch_source(
        imported_models.ModelRequest(
            address=address,
            sha256=None if digest is None else parse_digest(digest),
            index=index,
            rules=DownloadRules(max_bytes=max_size << 20, timeout_s=timeout, attempts=attempts),
        )
    )
    _require_name(player or source.name, experiment, folder)
    fit, view = imported_models.best_fit(source, experiment)
    imported_models.require_fit(fit, source, view)
    if not as_json:
        click.echo(f"{source.label}\ndigest:   {source.checked}")
    _keep(folder, source, player or source.name, fit.live.arrays, None, tags, as_json)


def _rows(folder: RunFolder) -> list[dict[str, Any]]:
    pool = folder.models
    tags, players = pool.tags(best_models(folder)), added_players(folder).values()
    rows = []
    for model, found in groupby(pool.entries(), key=lambda entry: entry.model):
        entries = sorted(found, key=lambda entry: entry.variant, reverse=True)  # live first
        first, held = entries[0], [one for one in players if one.model == str(model)]
        rows.append(
            {
                "model": str(model),
                "players": [one.player if one.role == FROZEN else f"{one.player} (start)" for one in held],
                "weights": {entry.variant: entry.digest for entry in entries},
                "tags": tags.get(model, []),
                "parent": None if first.parent is None else str(first.parent),
                "decisions": first.facts.get("decisions"),
                "source": first.facts.get("source"),
                "bytes": sum(pool.size(model, entry.variant) for entry in entries),
            }
        )
    return rows


def read_map(path: str | None) -> WeightMap:
    if path is None:
        return WeightMap()
    with as_config_error(BadWeightMap, UnicodeDecodeError):
        return parse_map(read_yaml(Path(path).read_text(encoding="utf-8"), path), path)


def write_first_map(path: Path, source: Source, fit: Fit) -> int:
    """Write what matches, and a guess for what does not; says how many lines are guessed."""
    if path.exists():
        raise ConfigError(f"{path} is there already; name another file, or remove it")
    guessed = fit.live.guesses
    lines = [
        f"# Our weights: what they are called in {source.label}.",
        "# Lines with GUESS are by shape and likeness of names alone: look at each, then remove the word.",
        "# A * stands for any text, on both sides (trunk.*: actor.*); without KIND/ a line is for all kinds.",
        *([f"place: {_quoted(source.place)}"] if source.place else []),
        "weights:",
        *_lines(source, fit, guessed),
    ]
    left_over = [name for name in fit.live.left_over if name not in {one.name for one in guessed.values()}]
    lines += [f"# left over in the file: {name} {source.weights[name].shape}" for name in left_over]
    atomic_write(path, ("\n".join(lines) + "\n").encode())
    return len(guessed)


def _lines(source: Source, fit: Fit, guessed: Mapping[str, WeightSource]) -> Iterator[str]:
    for ours, array in fit.asked.items():
        if ours in fit.live.sources:
            yield f"  {_quoted(ours)}: {_quoted(fit.live.sources[ours])}  # {array.shape}"
        elif ours in guessed:
            name = _quoted(guessed[ours].name)
            taken = f"{{from: {name}, transpose: true}}" if guessed[ours].transpose else name
            yield f"  {_quoted(ours)}: {taken}  # {array.shape} GUESS"
        else:
            yield f"  # {_quoted(ours)}:  # {array.shape}, nothing of this shape is left in the file"


def _quoted(text: str) -> str:
    """As YAML writes it: in quotes where it has to be."""
    return str(yaml.safe_dump(text, width=10_000)).removesuffix("...\n").strip()


def _keep(
    folder: RunFolder,
    source: Source,
    player: str,
    live: Arrays,
    average: Arrays | None,
    tags: Iterable[str],
    as_json: bool,
    parent: ModelId | None = None,
) -> None:
    pool = folder.models
    model = imported_models.publish_new(pool, player, live, average, source.facts, parent)
    for tag in tags:
        pool.tag(tag, model)
    source.discard()
    if as_json:
        facts = {"model": str(model), "digest": pool.entry(model).digest, "source": source.label}
        click.echo(json.dumps(facts))
        return
    click.echo(
        f"model:    {model} in {folder.path}\n"
        f"measure:  ludus eval {folder.path} {model} PLAYER\n"
        f"join:     ludus league {folder.path} add {player} --role frozen --from {model}\n"
        f"opponent: ludus train RECIPE --set 'league.external={{{player}: {folder.path}#{model}}}'\n"
        f"start:    ludus train RECIPE --set league.roles.main.start={folder.path}#{model}"
    )


def _find_target(target: str, settings: tuple[str, ...]) -> tuple[RunFolder | None, Experiment]:
    if not Path(target).is_dir():
        return None, find_experiment(target, settings)
    if settings:
        raise ConfigError("--set is for a RECIPE: a run has its settings")
    folder = RunFolder.open(target)
    return folder, load_experiment(folder)


def _find_base(name: str, folder: RunFolder | None, experiment: Experiment) -> tuple[ModelId, Experiment]:
    """The model that what the file does not fill is taken from, and the experiment with its network."""
    if folder is None:
        raise ConfigError("--base names a model of a run, and there is none")
    model = resolve_in(folder, name)
    fitting = (one for one in with_each_model(experiment) if has_same_networks(folder.models, model, one))
    experiment = next(fitting, experiment)
    imported_models.require_same_networks(folder.models, model, experiment)
    return model, experiment


def _require_name(player: str, experiment: Experiment, folder: RunFolder | None) -> None:
    """The ids of players that learn here belong to them: more of theirs are still to come."""
    with as_config_error(after="; name it with --player"):
        check_player_id(player)
    learners = [one for role in experiment.league.roles for one in experiment.league.players_of(role)]
    if folder is not None:
        added = added_players(folder).values()
        learners += [one.player for one in added if one.role not in (FROZEN, SCRIPTED)]
    for learning in learners:
        if player == learning or player.startswith(f"{learning}."):
            raise ConfigError(f"{learning!r} learns in this run: give the model another name with --player")


def _show(source: Source, fit: Fit, *, whole: bool) -> None:
    place = f" at {source.place}" if source.place else ""
    click.echo(f"{source.label}: {len(source.weights)} tensors{place}\ndigest:   {source.checked}")
    click.echo(f"matched:  {len(fit.live.sources)} of {len(fit.asked)} weights")
    if whole:
        table = new_table("ours", "theirs", "shape")
        for ours, theirs in fit.live.sources.items():
            table.add_row(ours, theirs, str(fit.asked[ours].shape))
        new_console().print(table)
    for matching, which in ((fit.live, ""), (fit.average, " of the average")):
        if matching is not None and (lines := imported_models.differences(matching, most=None)):
            click.echo(f"did not match{which}:\n  " + "\n  ".join(lines))
    if fit.unfilled:
        click.echo(f"unfilled: {len(fit.unfilled)} of {len(fit.ours)} weights of a player")
