"""From what a person types to an `Experiment` or a run folder."""

from __future__ import annotations

import pkgutil
import reprlib
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ludus.recipes
from ludus.config import ConfigError, apply_overrides, load_yaml
from ludus.data.addresses import load_address
from ludus.games.game import GameSource
from ludus.games.outside_bots import fixed_addresses, named_address, with_bots
from ludus.games.pointing import REMOTE, remote_game
from ludus.league.players import check_player_id, unknown
from ludus.store.run_folder import RunFolder, RunFolderError

if TYPE_CHECKING:
    from ludus.experiment import Experiment


_PACKAGE = Path(__file__).parent
_NOT_THEIRS = (str(_PACKAGE), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Names `what` and the line of the person's own file in every error; LUDUS_TRACEBACK=1 shows the rest."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        message = explain(error)
        raise ConfigError(message if what in message else f"{what}: {message}") from error


def explain(error: Exception) -> str:
    """The error in one line. Ours and those about values speak for themselves, others need their type."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    place = _line_of_theirs(error)
    if place is None:
        return str(error)
    plain = isinstance(error, ValueError | ImportError | OSError)
    return f"{error if plain else f'{type(error).__name__}: {error}'} ({place})"


def _line_of_theirs(error: Exception) -> str | None:
    """The innermost line outside of ludus and of what is installed."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_NOT_THEIRS)):
            return f"{frame.filename}, line {frame.lineno}"
    return None


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
            raise ConfigError(f"{address}: which function of it? write {address}:experiment, if that is its name")
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


def fix_bots(experiment: Experiment) -> Experiment:
    """With addresses that hold in any folder; refuses programs that are not there."""
    if not experiment.bots:
        return experiment
    try:
        return replace(experiment, bots=fixed_addresses(experiment.bots))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def add_bots(
    experiment: Experiment, players: Iterable[str], taken: Collection[str]
) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with those of the players that are bots, given as [NAME=]ADDRESS, and the names of all.
    `taken` are names that mean somebody else."""
    names, found = _split(players, taken)
    if not found:
        return experiment, names
    try:
        return replace(experiment, bots={**experiment.bots, **fixed_addresses(found)}), names
    except ValueError as error:
        raise ConfigError(str(error)) from error


def add_game_bots(game: GameSource, players: Iterable[str]) -> tuple[GameSource, tuple[str, ...]]:
    """The same, for a game that no run plays. Refuses bots that are not there, before anything is played."""
    names, found = _split(players, game.bots())
    try:
        made = with_bots(game, fixed_addresses(found))
        made.bots()
        return made, names
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _split(players: Iterable[str], taken: Collection[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    names: list[str] = []
    found: dict[str, str] = {}
    for text in players:
        named = named_address(text)
        if named is None:
            names.append(text)
            continue
        name, address = named
        try:
            check_player_id(name)
        except ValueError as error:
            raise ConfigError(f"{text}: {error}") from None
        if name in taken or found.get(name, address) != address:
            raise ConfigError(f"{name!r} is somebody else here; write OTHER_NAME={address}")
        found[name] = address
        names.append(name)
    return tuple(names), found
