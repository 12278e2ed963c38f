"""Finds games by address and lists those that ship. Imports a game only when it is asked for.

The built-in game `connect_four` is the class `ConnectFour` in `builtin/connect_four.py`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ludus.data.addresses import load_address
from ludus.games import builtin
from ludus.games.environments import environment_python
from ludus.games.game import GameSource
from ludus.games.isolation.isolated import Isolated
from ludus.games.lift import BatchSource, Lifted
from ludus.games.seat_rows import nearest
from ludus.system.machine import install_command

REMOTE = "remote://"
SERVER_VARIABLE = "LUDUS_GAME_SERVER"
_REMOTE_MODULE = "ludus.games.remote.source"  # imports this one


_FILE = re.compile(r"(file|filename|path|root|dir)\s*=|\.cfg$|^/|(^|/)\.\./|:", re.IGNORECASE)
"""Parameters of libraries that name a file or folder (`efg_game(filename=...)`), scenarios and maps that are files, and
what may be the address of code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GameEntry:
    """One line of the catalog."""

    address: str
    description: str
    library: str | None = None
    """The library it belongs to; None: it is built in."""
    install: str | None = None
    """The command that adds what is missing; None if the game can be played now."""
    python: str | None = None
    """The interpreter of the environment of its own that it is played in; None: it is played in this one."""
    needs: str | None = None
    """What of the user's own it is played with, beside the library."""
    critic_state: bool = False
    """Whether its option `critic_state` shows critics the whole state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """Games of another library, `PREFIX:NAME`. A library with a single game has no `argument` for the name."""

    source: str
    argument: str | None
    library: str
    install: str
    example: str
    description: str
    spelling: str | None = None
    """The address of a function that gives the library's own spelling of a name; None: names have only one."""
    needs: str | None = None
    """What of the user's own its games are played with, beside the library."""
    critic_state: bool = False
    """Whether its games have the option `critic_state`, which shows critics the whole state."""
    packages: tuple[str, ...] = ()
    """First words of the names that came with the library. Others would import a module of anybody's; empty: none."""
    programs: tuple[str, ...] = ()
    """Options that name a program to start, or a server to reach."""

    def is_data(self, name: str, options: Mapping[str, Any]) -> bool:
        """Whether a file that nobody trusts may choose this name and these options."""
        own = not self.packages or name.partition(".")[0] in self.packages
        outside = any(map(_FILE.search, (name, *_settings(options))))
        return own and not outside and not any(options.get(option) for option in self.programs)


ADAPTERS: Mapping[str, Adapter] = {
    "gymnasium": Adapter(
        source="ludus.games.adapters.gymnasium:Gymnasium",
        argument="env_id",
        library="gymnasium",
        install=install_command("games"),
        example="gymnasium:CartPole-v1",
        description="Any Gymnasium environment, with discrete or continuous actions, as a game with one seat.",
        spelling="ludus.games.adapters.gymnasium:own_spelling",
    ),
    "gym": Adapter(
        source="ludus.games.adapters.gymnasium_tables:OldGym",
        argument="env_id",
        library="gym",
        install="pip install gym",
        example="gym:CartPole-v1",
        description="Any environment of the old gym, whose `step` gives four values.",
    ),
    "atari": Adapter(
        source="ludus.games.adapters.atari:Atari",
        argument="game",
        library="ale_py",
        install=install_command("atari"),
        example="atari:pong",
        description="Atari games with one player and the usual preprocessing: four grey frames of 84 x 84.",
    ),
    "pettingzoo": Adapter(
        source="ludus.games.adapters.pettingzoo:PettingZoo",
        argument="env_name",
        library="pettingzoo",
        install=install_command("pettingzoo"),
        example="pettingzoo:classic.connect_four_v3",
        description="Any PettingZoo environment, with discrete or continuous actions, in turn or all at once.",
        spelling="ludus.games.adapters.pettingzoo_library:own_spelling",
        critic_state=True,
        packages=("atari", "butterfly", "classic", "mpe", "mpe2", "sisl"),
    ),
    "multi_atari": Adapter(
        source="ludus.games.adapters.pettingzoo_atari:MultiAtari",
        argument="game",
        library="multi_agent_ale_py",
        install=install_command("multi-atari"),
        example="multi_atari:pong_v3",
        description="Atari games with two to four players, as pictures of the screen.",
        spelling="ludus.games.adapters.pettingzoo_library:atari_spelling",
    ),
    "openspiel": Adapter(
        source="ludus.games.adapters.openspiel:OpenSpiel",
        argument="name",
        library="pyspiel",
        install=install_command("openspiel"),
        example="openspiel:leduc_poker",
        description="Most games of OpenSpiel: in turn or all at once, with chance, for one or more players.",
        critic_state=True,
    ),
    "pgx": Adapter(
        source="ludus.games.adapters.pgx:Pgx",
        argument="name",
        library="pgx",
        install=install_command("pgx"),
        example="pgx:othello",
        description="Games of Pgx in JAX: chess, go, hex, backgammon, MinAtar ...; also on the device that trains.",
    ),
    "fightingice": Adapter(
        source="ludus.games.adapters.fightingice:FightingICE",
        argument=None,
        library="pyftg",
        install=install_command("fightingice"),
        example="fightingice",
        description="FightingICE: two fighters in real time. Needs the game itself, running.",
        needs="the game itself, running",
        programs=("host",),
    ),
    "gamecore": Adapter(
        source="ludus.games.adapters.gamecore:Gamecore",
        argument="mode",
        library="ludus",  # its own library is for an older Python, and runs in one
        install="",
        example="gamecore:1v1",
        description="Honor of Kings, 1v1 and 3v3. Not tried with the game; `server=stand_in` has rules of our own.",
        needs="a gamecore server of yours, or server=stand_in",
        critic_state=True,
        programs=("python", "bridge", "server"),
    ),
    "pysc2": Adapter(
        source="ludus.games.adapters.pysc2:PySC2",
        argument="map_name",
        library="pysc2",
        install=install_command("sc2"),
        example="pysc2:MoveToBeacon",
        description="StarCraft II: mini-games with one seat, ladder maps with two. Needs the game itself.",
        needs="the game itself",
        critic_state=True,
    ),
    "microrts": Adapter(
        source="ludus.games.adapters.microrts:MicroRTS",
        argument="map_name",
        library="gym_microrts",
        install="ludus games --install microrts",
        example="microrts:8x8",
        description="MicroRTS: a small real-time strategy game in Java, with the bots of its competitions.",
    ),
    "slimevolley": Adapter(
        source="ludus.games.adapters.slimevolley:SlimeVolley",
        argument=None,
        library="slimevolleygym",
        install=install_command("slimevolley"),
        example="slimevolley",
        description="SlimeVolley: volleyball of two slimes, one a side, with the game's own player as a bot.",
    ),
    "football": Adapter(
        source="ludus.games.adapters.football:Football",
        argument="scenario",
        library="gfootball",
        install="ludus games --install football",
        example="football:academy_3_vs_1_with_keeper",
        description="Google Research Football: one to eleven players a side, and academy scenarios.",
        critic_state=True,
    ),
    "vizdoom": Adapter(
        source="ludus.games.adapters.vizdoom:ViZDoom",
        argument="scenario",
        library="vizdoom",
        install=install_command("vizdoom"),
        example="vizdoom:duel",
        description="Doom: duels of two players, and ViZDoom's scenarios for one. Pictures of the screen.",
    ),
}


def _settings(options: Any) -> Iterator[str]:
    """All texts of plain values, and keys as `key=`; empty values are left out."""
    if isinstance(options, str):
        yield options
    elif isinstance(options, Mapping):
        for key, value in options.items():
            if value not in (None, ""):
                yield f"{key}="
                yield from _settings(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _settings(value)


def resolve(address: str, **options: Any) -> GameSource:
    """The game at an address, with options.

    `connect_four` (built in), `gymnasium:CartPole-v1` (of another library), `remote://HOST:PORT/GAME` (on a
    game server), `path/to/file.py:Name` or `package.module:Name`, where Name is a `GameSource` or a class of
    them, a `Game` class, a `GameBatch` class, or a function that returns one of these. A name of a library may
    leave out its version, and PettingZoo's may be written `classic/tictactoe` or `classic.tictactoe_v3`.
    """
    if address.startswith(REMOTE):
        return remote_game(address, options)
    prefix, colon, name = address.partition(":")
    if prefix in ADAPTERS:
        return _adapted(ADAPTERS[prefix], prefix, name, options)
    if colon:
        return as_source(find_object(address), options, address)
    if address not in builtin_names():
        if address.endswith(".py"):
            raise ValueError(f"which game of {address!r}? write {address}:CLASS")
        raise ValueError(f"no game {address!r}{nearest(address, game_names())}")
    module = importlib.import_module(f"{builtin.__name__}.{address}")
    return as_source(getattr(module, _class_name(address)), options, address)


def list_games() -> list[GameEntry]:
    """The built-in games by name, then the libraries whose games can be played."""
    games = [GameEntry(address=name, description=text) for name, text in _builtin_games().items()]
    for prefix, adapter in ADAPTERS.items():
        missing = importlib.util.find_spec(adapter.library) is None
        python = environment_python(prefix) if missing else None
        games.append(
            GameEntry(
                address=adapter.example,
                description=adapter.description,
                library=adapter.library,
                install=adapter.install if missing and python is None else None,
                python=None if python is None else str(python),
                needs=adapter.needs,
                critic_state=adapter.critic_state,
            )
        )
    return games


def find_object(address: str) -> Any:
    """What a file or module has under a name. Refuses an address whose module is nearly a library of games."""
    prefix, _, rest = address.partition(":")
    close = difflib.get_close_matches(prefix.lower(), [*ADAPTERS, REMOTE.partition(":")[0]], n=1)
    if not close or not prefix.isidentifier() or _is_module(prefix):
        return load_address(address)
    if close[0] in ADAPTERS:
        meant = close[0] if ADAPTERS[close[0]].argument is None else f"{close[0]}:{rest}"
    else:
        meant = REMOTE + rest.lstrip("/")
    raise ValueError(f"{address!r} is no address of a game; did you mean {meant!r}?")


def _is_module(name: str) -> bool:
    """A folder that happens to be called so is none."""
    if name in sys.modules:
        return hasattr(sys.modules[name], "__file__")
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def _adapted(adapter: Adapter, prefix: str, name: str, options: Mapping[str, Any]) -> GameSource:
    if adapter.argument is None and name:
        raise ValueError(f"{prefix!r} is a single game: nothing comes after the colon, got {name!r}")
    if adapter.argument is not None and not name:
        raise ValueError(f"name a game after the colon, such as {adapter.example!r}")
    if importlib.util.find_spec(adapter.library) is None:
        return _in_own_environment(adapter, prefix, name, options)
    if adapter.spelling is not None:
        name = load_address(adapter.spelling)(name)
    named = {} if adapter.argument is None else {adapter.argument: name}
    return as_source(load_address(adapter.source), {**named, **options}, adapter.example)


def _in_own_environment(adapter: Adapter, prefix: str, name: str, options: Mapping[str, Any]) -> GameSource:
    """A game whose library is not here, where it is."""
    address = f"{prefix}:{name}" if name else prefix
    if os.environ.get(SERVER_VARIABLE):
        return remote_game(address, options)
    python = environment_python(prefix)
    if python is None or python.parent.parent.resolve() == Path(sys.prefix).resolve():  # broken: not to be asked again
        raise ModuleNotFoundError(
            f"{adapter.library!r} is not installed; {adapter.install} adds it", name=adapter.library
        )
    return Isolated(address, dict(options), python=str(python))


def builtin_names() -> list[str]:
    return list(_builtin_games())


def is_game_address(address: str) -> bool:
    """Whether the address alone says that it names a game; a file may hold anything."""
    return address.startswith(REMOTE) or address.partition(":")[0] in ADAPTERS or address in builtin_names()


def game_names() -> list[str]:
    """The built-in games, and the libraries that games are named by."""
    return [*builtin_names(), *ADAPTERS]


def is_game(found: Any) -> bool:
    """Whether the object at an address is a game, or a class or function that makes one and says so."""
    return _is_source(found) or _is_game(found) or (callable(found) and _makes_tables(found))


def as_source(found: Any, options: Mapping[str, Any], address: str) -> GameSource:
    """The game that the object at an address is or makes."""
    if _is_source(found) and not isinstance(found, type):
        changed: GameSource = _with_options(found, options, address)
        return changed
    if not callable(found):
        kind = "a table of its own, so name its class" if _is_game(found) else f"{found!r}"
        raise TypeError(f"{address!r} is {kind}; expected a GameSource, a Game class or a function")
    _require_known(found, options, address)
    factory: Callable[..., Any] = partial(found, **options) if options else found
    if _makes_tables(found):
        return BatchSource(factory)
    if isinstance(found, type) and _is_game(found):
        return Lifted(factory)
    made = factory()
    if _is_game(made) and not isinstance(made, type):
        getattr(made, "close", lambda: None)()
        return Lifted(factory)  # what the function makes is one table, which is all that lifting needs
    if not _is_source(made) and not _is_game(made):
        raise TypeError(f"{address!r} returns {reprlib.repr(made)}; expected a GameSource or a Game")
    return as_source(made, {}, address)


def _is_source(found: Any) -> bool:
    return hasattr(found, "tables") and hasattr(found, "bots")


def _is_game(found: Any) -> bool:
    return not _is_source(found) and hasattr(found, "reset") and hasattr(found, "step")


def _makes_tables(found: Callable[..., Any]) -> bool:
    """Whether it makes a `GameBatch`, which takes the number of its tables and nothing else."""
    if isinstance(found, type) and not _is_game(found):
        return False
    needed = [
        parameter.name
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return needed == ["num_tables"]


def _with_options(source: Any, options: Mapping[str, Any], address: str) -> Any:
    if not options:
        return source
    if not is_dataclass(source) or isinstance(source, type):
        raise TypeError(f"{address!r} takes no options, got {', '.join(options)}")
    _require_known(type(source), options, address)
    return replace(source, **options)


def _require_known(maker: Callable[..., Any], options: Mapping[str, Any], address: str) -> None:
    if not options:
        return
    parameters = inspect.signature(maker).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise ValueError(f"{address!r} has no option {name!r}{nearest(name, parameters)}")


def _class_name(game: str) -> str:
    return "".join(word.capitalize() for word in game.split("_"))


@cache
def _builtin_games() -> Mapping[str, str]:
    """Name -> first line of its docstring, read from the files without importing them."""
    games: dict[str, str] = {}
    for found in pkgutil.iter_modules(builtin.__path__):
        tree = ast.parse(Path(builtin.__path__[0], f"{found.name}.py").read_text(encoding="utf-8"))
        if any(isinstance(node, ast.ClassDef) and node.name == _class_name(found.name) for node in tree.body):
            games[found.name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return games


def pointed_at_server(game: GameSource) -> GameSource:
    """The game at the server that LUDUS_GAME_SERVER names, or the game itself if it names none."""
    return _of_remote("at_server")(game) if os.environ.get(SERVER_VARIABLE) else game


def remote_game(address: str, options: Mapping[str, Any]) -> GameSource:
    """The game at `remote://HOST:PORT/GAME`. Any other address is a game at the server that LUDUS_GAME_SERVER names."""
    if address.startswith(REMOTE):
        return _of_remote("from_address")(address, **options)  # type: ignore[no-any-return]
    return _of_remote("Remote")(game=address, options=options)  # type: ignore[no-any-return]


def _of_remote(name: str) -> Any:
    return load_address(f"{_REMOTE_MODULE}:{name}")
