"""What `ludus models import` and `pull` do: fetch, match, and put into a pool or a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import click

from ludus.assemble import load_experiment
from ludus.cli.console import new_console, new_table
from ludus.cli.experiments import find_experiment
from ludus.cli.main import FAILED
from ludus.cli.model_fit import Fit, differences, fit_weights, publish_new, require_fit, require_same_networks
from ludus.cli.model_maps import read_map, write_first_map
from ludus.cli.model_sources import Source, Wish, fetch_source
from ludus.config import ConfigError
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.league.players import FROZEN, SCRIPTED, check_player_id
from ludus.store.downloads import DownloadRules, parse_digest
from ludus.store.files import StoreError, atomic_write
from ludus.store.model_addresses import added_players
from ludus.store.run_folder import RunFolder
from ludus.store.tensors import Arrays, encode_tensors


def import_file(
    target: str,
    file: str,
    *,
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
    """Convert a file whose names may differ from ours."""
    folder, experiment = _find_target(target, settings)
    if folder is None and to is None and not (dry_run or write_map):
        raise ConfigError(f"{target} is no run and has no pool: name a file to write with --to")
    if to is not None and (player or tags):
        raise ConfigError("--player and --tag are for the pool of a run, --to writes a file")
    names = read_map(map_file)
    if to is not None and names.average is not None:
        raise ConfigError(f"{to} will hold one set of weights: leave `average` out of {map_file}")
    wish = Wish(address=file, place=place or names.place, average=names.average)
    if to is None and not (dry_run or write_map):
        _require_name(player or Path(file).stem, experiment, folder)
    parent = _find_base(base, folder, experiment)
    source = fetch_source(wish)
    fit = fit_weights(source, experiment, names, kind=kind)
    if write_map is not None:
        guesses = write_first_map(Path(write_map), source, fit)
        click.echo(f"wrote {write_map}: {len(fit.live.sources)} names match, {guesses} are guessed")
        return 0
    if not as_json:
        _show(source, fit, whole=dry_run)
    if fit.unfilled and not (partial or parent):
        if dry_run:
            return FAILED
        raise StoreError(_refusal(fit, source, as_json))
    if dry_run:
        return 0
    if fit.unfilled and not as_json:
        what = f"{parent} has them" if parent else f"seed {experiment.seed} draws them"
        click.echo(f"the {len(fit.unfilled)} unfilled weights are as {what}")
    rest = folder.models.fetch(parent) if folder is not None and parent is not None else None
    live = fit.filled(fit.live, rest)
    average = None if fit.average is None else fit.filled(fit.average, rest)
    if to is not None:
        atomic_write(Path(to), encode_tensors(live))
        _tell({"file": to, "source": source.label}, f"wrote {to}", as_json)
        return 0
    assert folder is not None
    return _keep(folder, source, player or source.name, live, average, tags, as_json, parent)


def pull_model(
    run: str,
    address: str,
    *,
    player: str | None,
    digest: str | None,
    index: str | None,
    tags: tuple[str, ...],
    max_size: int,
    timeout: float,
    attempts: int,
    as_json: bool,
) -> int:
    """Fetch a model that fits as it is."""
    folder = RunFolder.open(run)
    experiment = load_experiment(folder)
    if player is not None:
        _require_name(player, experiment, folder)
    source = fetch_source(
        Wish(
            address=address,
            sha256=None if digest is None else parse_digest(digest),
            index=index,
            rules=DownloadRules(max_bytes=max_size << 20, timeout_s=timeout, attempts=attempts),
        )
    )
    _require_name(player or source.name, experiment, folder)
    fit = fit_weights(source, experiment)
    require_fit(fit, source, experiment)
    if not as_json:
        click.echo(f"{source.label}\ndigest:   {source.checked}")
    return _keep(folder, source, player or source.name, fit.live.arrays, None, tags, as_json)


def _keep(
    folder: RunFolder,
    source: Source,
    player: str,
    live: Arrays,
    average: Arrays | None,
    tags: Iterable[str],
    as_json: bool,
    parent: ModelId | None = None,
) -> int:
    pool = folder.models
    model = publish_new(pool, player, live, average, source.facts, parent)
    for tag in tags:
        pool.tag(tag, model)
    source.discard()
    _tell(
        {"model": str(model), "digest": pool.entry(model).digest, "source": source.label},
        f"model:    {model} in {folder.path}\n"
        f"measure:  ludus eval {folder.path} {model} PLAYER\n"
        f"join:     ludus league {folder.path} add {player} --role frozen --from {model}\n"
        f"opponent: ludus train RECIPE --set 'league.external={{{player}: {folder.path}#{model}}}'\n"
        f"start:    ludus train RECIPE --set league.roles.main.start={folder.path}#{model}",
        as_json,
    )
    return 0


def _find_target(target: str, settings: tuple[str, ...]) -> tuple[RunFolder | None, Experiment]:
    if not Path(target).is_dir():
        return None, find_experiment(target, settings)
    if settings:
        raise ConfigError("--set is for a RECIPE: a run has its settings")
    folder = RunFolder.open(target)
    return folder, load_experiment(folder)


def _find_base(base: str | None, folder: RunFolder | None, experiment: Experiment) -> ModelId | None:
    if base is None:
        return None
    if folder is None:
        raise ConfigError("--base names a model of a run, and there is none")
    model = folder.models.resolve(base)
    require_same_networks(folder.models, model, experiment)
    return model


def _require_name(player: str, experiment: Experiment, folder: RunFolder | None) -> None:
    """The ids of players that learn here belong to them: more of theirs are still to come."""
    try:
        check_player_id(player)
    except ValueError as error:
        raise ConfigError(f"{error}; name it with --player") from None
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
        if matching is not None and (lines := differences(matching, most=None)):
            click.echo(f"did not match{which}:\n  " + "\n  ".join(lines))
    if fit.unfilled:
        click.echo(f"unfilled: {len(fit.unfilled)} of {len(fit.ours)} weights of a player")


def _refusal(fit: Fit, source: Source, as_json: bool) -> str:
    shown = "\n  ".join(["", *differences(fit.live)]) if as_json else ""
    return (
        f"{source.label} does not fill {len(fit.unfilled)} of our weights, such as {fit.unfilled[0]}{shown}\n"
        "map their names (--map; --write-map makes a first one), take the rest from a model of the run"
        " (--base), or keep fresh weights there (--partial)"
    )


def _tell(facts: dict[str, str], text: str, as_json: bool) -> None:
    click.echo(json.dumps(facts) if as_json else text)
