"""From what a person types to an `Experiment` or a run folder."""

from __future__ import annotations

import pkgutil
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ludus.recipes
from ludus.cli.user_code import loading
from ludus.config import ConfigError, apply_overrides, load_yaml
from ludus.data.files import load_address
from ludus.games.pointing import REMOTE, remote_game
from ludus.league.players import unknown
from ludus.store.run_folder import RunFolder, RunFolderError

if TYPE_CHECKING:
    from ludus.experiment import Experiment


def recipe_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(ludus.recipes.__path__))


def find_experiment(address: str, settings: Iterable[str]) -> Experiment:
    """An experiment by recipe name, FILE.py:NAME, MODULE:NAME or FILE.yaml, with `path=value` settings."""
    overrides: dict[str, Any] = {}
    if address.endswith((".yaml", ".yml")):
        address, overrides = load_yaml(address)
    experiment = _build(address)
    overrides |= parse_settings(settings)
    if str(overrides.get("game")).startswith(REMOTE):
        overrides["game"] = remote_game(overrides["game"], {})
    return apply_overrides(experiment, overrides)


def parse_settings(settings: Iterable[str]) -> Mapping[str, str]:
    parsed = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set needs PATH=VALUE, got {setting!r}")
        parsed[path.strip()] = value
    return parsed


def open_run(run: str | None) -> RunFolder:
    """A run by its folder; without one, the newest under runs/."""
    if run is not None:
        return RunFolder.open(run)
    folders = [path.parent for path in Path("runs").glob("*/run.json")]
    if not folders:
        raise RunFolderError("no run named and none under runs/; `ludus train` makes one")
    return RunFolder.open(max(folders, key=lambda folder: (folder / "run.json").stat().st_mtime))


def _build(address: str) -> Experiment:
    from ludus.experiment import Experiment  # with torch, which commands that only open a run do without

    if ":" not in address:
        if address.endswith(".py"):
            raise ConfigError(
                f"{address}: which function of it? write {address}:experiment, if that is its name"
            )
        if address not in recipe_names():
            raise ConfigError(
                f"{unknown('recipe', address, recipe_names())} (`ludus recipes` lists them; "
                "an experiment of your own is named FILE.py:FUNCTION)"
            )
        address = f"ludus.recipes.{address}:experiment"
    with loading(address):
        found = load_address(address)
        experiment = found() if callable(found) else found
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"{address} gives {reprlib.repr(experiment)}, not an Experiment")
    return experiment
