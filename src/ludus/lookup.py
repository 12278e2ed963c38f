"""From what a person types to an `Experiment` or a run folder."""

from __future__ import annotations

import pkgutil
import reprlib
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ludus.recipes
from ludus.config import ConfigError, apply_overrides, as_config_error, load_yaml
from ludus.data.checks import unknown
from ludus.games.catalog import as_source, find_object, game_names, is_game, is_game_address, resolve
from ludus.games.game import GameSource
from ludus.games.outside_bots import fixed_addresses, named_address, with_bots
from ludus.league.players import check_player_id
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
    plain = isinstance(error, ValueError | ImportError | OSError)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):  # the innermost line of the person's own
        if not frame.filename.startswith(("<", *_NOT_THEIRS)):
            what = str(error) if plain else f"{type(error).__name__}: {error}"
            return f"{what} ({frame.filename}, line {frame.lineno})"
    return str(error)


def recipe_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(ludus.recipes.__path__))


Settings = Iterable[str] | Mapping[str, Any]  # settings as `path=value` texts or as a mapping from path to value


def find_experiment(what: Any, settings: Settings = ()) -> Experiment:
    """Return the experiment that `what` names, with `settings` applied. `what` is a recipe's name, a game's address,
    FILE.py:NAME, MODULE:NAME, FILE.yaml, an `Experiment`, a game, or a function that returns one of them."""
    return explained_experiment(what, settings)[0]


def explained_experiment(what: Any, settings: Settings = ()) -> tuple[Experiment, str | None]:
    """Like `find_experiment`; also explain the defaults chosen for a game. A recipe wins over a game of its name."""
    from ludus.defaults import experiment_for, fit_to_game, split_options  # with torch, as below
    from ludus.experiment import Experiment

    overrides: dict[str, Any] = {}
    if isinstance(what, PathLike):
        what = fspath(what)
    if isinstance(what, str) and what.endswith((".yaml", ".yml")):
        what, overrides = load_yaml(what)
    overrides |= settings if isinstance(settings, Mapping) else parse_settings(settings)
    address = what if isinstance(what, str) else reprlib.repr(what)
    found = _build(what) if isinstance(what, str) else _made(what, address)
    other = overrides.get("game")
    if _names_game(other):
        del overrides["game"]
        with loading(str(other)):
            named = resolve(other) if isinstance(other, str) else as_source(other, {}, str(other))
            game, overrides = split_options(named, overrides)
            if isinstance(found, Experiment):
                overrides = {**fit_to_game(found, game), **overrides}
            else:
                found = game
    if isinstance(found, Experiment):
        return apply_overrides(found, overrides), None
    with loading(address):
        return experiment_for(found, overrides)


def _names_game(value: Any) -> bool:
    """Whether a value of the setting `game` is a game or an address; a class or YAML is read by its type."""
    if not isinstance(value, str):
        return is_game(value)
    return is_game_address(value) or (":" in value and not value.lstrip().startswith("{"))


def parse_settings(settings: Iterable[str]) -> Mapping[str, str]:
    parsed = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set needs PATH=VALUE, got {setting!r}")
        parsed[path.strip()] = value
    return parsed


def open_run(run: str | PathLike[str] | None) -> RunFolder:
    """Open a run by its folder; without one, the newest under runs/."""
    if run is not None:
        return RunFolder.open(Path(run))
    folders = [path.parent for path in Path("runs").glob("*/run.json")]
    if not folders:
        raise RunFolderError("no run named and none under runs/; `ludus train` makes one")
    return RunFolder.open(max(folders, key=lambda folder: (folder / "run.json").stat().st_mtime))


def _build(address: str) -> Experiment | GameSource:
    if address in recipe_names():
        address = f"ludus.recipes.{address}:experiment"
    elif is_game_address(address):
        with loading(address):
            return resolve(address)
    elif ":" not in address:
        if address.endswith(".py"):
            raise ConfigError(f"{address}: which function of it? write {address}:experiment, if that is its name")
        raise ConfigError(
            f"{unknown('recipe or game', address, [*recipe_names(), *game_names()])} (`ludus recipes` and "
            "`ludus games` list them; an experiment or a game of your own is named FILE.py:NAME)"
        )
    with loading(address):
        found = find_object(address)
    return _made(found, address)


def _made(found: Any, address: str) -> Experiment | GameSource:
    """The experiment or game that an object is or, if it is a function, returns."""
    from ludus.experiment import Experiment

    with loading(address):
        made = found() if callable(found) and not is_game(found) else found
        if not isinstance(made, Experiment) and is_game(made):
            return as_source(found, {}, address)
    if not isinstance(made, Experiment):
        raise ConfigError(f"{address} gives {reprlib.repr(made)}, neither an Experiment nor a game")
    return made


def fix_bots(experiment: Experiment) -> Experiment:
    """With addresses that hold in any folder; refuses programs that are not there."""
    if not experiment.bots:
        return experiment
    with as_config_error():
        return replace(experiment, bots=fixed_addresses(experiment.bots))


def add_bots(
    experiment: Experiment, players: Iterable[str], taken: Collection[str]
) -> tuple[Experiment, tuple[str, ...]]:
    """Add the players that are [NAME=]ADDRESS of bots; also return all names. `taken` are names of other players."""
    names, found = _split(players, taken)
    if not found:
        return experiment, names
    with as_config_error():
        return replace(experiment, bots={**experiment.bots, **fixed_addresses(found)}), names


def add_game_bots(game: GameSource, players: Iterable[str]) -> tuple[GameSource, tuple[str, ...]]:
    """The same, for a game that no run plays. Refuses bots that are not there, before anything is played."""
    names, found = _split(players, game.bots())
    with as_config_error():
        made = with_bots(game, fixed_addresses(found))
        made.bots()
        return made, names


def _split(players: Iterable[str], taken: Collection[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    names: list[str] = []
    found: dict[str, str] = {}
    for text in players:
        named = named_address(text)
        if named is None:
            names.append(text)
            continue
        name, address = named
        with as_config_error(before=f"{text}: "):
            check_player_id(name)
        if name in taken or found.get(name, address) != address:
            raise ConfigError(f"{name!r} is somebody else here; write OTHER_NAME={address}")
        found[name] = address
        names.append(name)
    return tuple(names), found
