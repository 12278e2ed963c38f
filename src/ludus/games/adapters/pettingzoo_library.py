"""PettingZoo's environments by name, without warnings and redundant wrappers, and their known properties."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ludus.data.addresses import load_address
from ludus.games.seat_rows import GameError, nearest
from ludus.system.machine import install_command

# No window is opened; pictures are drawn into memory.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


try:
    from pettingzoo.utils.conversions import (
        aec_to_parallel,
        aec_to_parallel_wrapper,
        parallel_to_aec,
        parallel_to_aec_wrapper,
    )
    from pettingzoo.utils.env import AECEnv, ParallelEnv
    from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper, TerminateIllegalWrapper
except ModuleNotFoundError as error:  # reached by a recipe; addresses are refused before
    raise ModuleNotFoundError(
        f"{error.name!r} is not installed; {install_command('pettingzoo')} adds it", name=error.name
    ) from None

__all__ = ["ParallelEnv", "close_env", "make_env", "quiet"]

Api = Literal["auto", "aec", "parallel"]

_DONE_HERE = (TerminateIllegalWrapper, AssertOutOfBoundsWrapper, OrderEnforcingWrapper)
"""Wrappers whose checks our masks and our order of calls already satisfy."""

_EXTRAS = {
    "atari": install_command("multi-atari"),
    "butterfly": install_command("pettingzoo"),
    "classic": install_command("pettingzoo"),
    "mpe2": install_command("pettingzoo"),
    "sisl": install_command("pettingzoo"),
}
"""Family of PettingZoo -> the command that installs it."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, such as those about the precision of spaces and about imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_env(name: str, api: Api, options: Mapping[str, Any]) -> Any:
    """The environment of `classic.connect_four_v3`, `mpe2.simple_tag_v3` or `my_file.py:env`, unwrapped."""
    with quiet():
        maker, defaults = _maker(name, api)
        env = maker(**{**defaults, **options})
        if not isinstance(env, AECEnv | ParallelEnv):
            raise TypeError(f"{name} makes {env!r}; expected a PettingZoo AECEnv or ParallelEnv")
        if getattr(env, "possible_agents", None) is None:
            raise ValueError(f"{name} has no possible_agents: the seats must be known before play")
        if api == "aec" and isinstance(env, ParallelEnv):
            env = parallel_to_aec(env)
        elif api == "parallel" and isinstance(env, AECEnv):
            if not env.metadata.get("is_parallelizable"):
                raise ValueError(f"{name} has real turns, so it cannot be played in parallel; use api='aec'")
            env = aec_to_parallel(env)
        return _bare(env)


def close_env(env: Any) -> None:
    """Close an environment, unless it is one of PettingZoo's own, which would shut pygame down for all tables."""
    if not type(env.unwrapped).__module__.startswith(("pettingzoo.", "mpe2.")):
        env.close()


def own_spelling(name: str) -> str:
    """`classic.tictactoe_v3` for `classic/tictactoe`, `classic.tictactoe` or `tictactoe`: with its family and
    its latest version. A name that no environment has stays as it is."""
    if ":" in name:
        return name
    family, dot, wanted = name.replace("/", ".").rpartition(".")
    if family == "mpe":  # it moved to a library of its own
        family = "mpe2"
    for place in [family] if dot else _EXTRAS:
        exact = [known for known in _environments(place) if wanted in (known, base_name(known))]
        if exact:
            latest = max(exact, key=lambda known: int(known.rpartition("_v")[2]))
            return f"{place}.{wanted if wanted in exact else latest}"
    return f"{family}{dot}{wanted}"


def atari_spelling(game: str) -> str:
    """`pong_v3` for `pong`."""
    return own_spelling(f"atari.{game}").removeprefix("atari.")


def _environments(family: str) -> list[str]:
    """The modules of a family that are environments; none where the family is not installed."""
    package = _package(family)
    if _missing(package):
        return []
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return [module.name for module in found if re.search(r"_v\d+$", module.name)]


def _package(family: str) -> str:
    """The package of a family: part of PettingZoo, or a library of its own."""
    return family if family == "mpe2" or _missing(f"pettingzoo.{family}") else f"pettingzoo.{family}"


def _maker(name: str, api: Api) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """The function that makes the environment, and the options that it needs here."""
    if ":" in name:
        return load_address(name), {}
    module = _module(name)
    entry = "parallel_env" if api != "aec" and hasattr(module, "parallel_env") else "env"
    if not hasattr(module, entry):
        raise ValueError(f"{module.__name__} is no environment: it has neither env nor parallel_env")
    atari = module.__name__.startswith("pettingzoo.atari.")
    return getattr(module, entry), {"auto_rom_install_path": str(rom_folder())} if atari else {}


def rom_folder() -> Path:
    """The folder of the ROMs that come with ale-py."""
    found = importlib.util.find_spec("ale_py")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"'ale_py' is not installed; {install_command('multi-atari')} adds it", name="ale_py")
    return Path(found.submodule_search_locations[0]) / "roms"


def _module(name: str) -> ModuleType:
    family, dot, _ = name.partition(".")
    if not dot:
        close = difflib.get_close_matches(name, [known for one in _EXTRAS for known in _environments(one)], n=1)
        example = own_spelling(close[0]) if close else "classic.connect_four_v3"
        raise ValueError(f"{name!r} names no environment: write FAMILY.NAME, such as {example}")
    if family == "mpe":
        family, name = "mpe2", name.replace("mpe", "mpe2", 1)
    place = f"{_package(family)}{name.removeprefix(family)}"
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and not place.startswith(error.name):
            raise ModuleNotFoundError(
                f"pettingzoo:{name} needs {error.name!r}, which is not installed; {_install(family)}", name=error.name
            ) from error
        if _missing(place.rpartition(".")[0]):
            raise ModuleNotFoundError(
                f"no module {error.name!r} for pettingzoo:{name}; {_install(family)}", name=error.name
            ) from None
        known = [f"{family}.{one}" for one in _environments(family)]
        raise ValueError(f"no environment {name!r}{nearest(name, known)}") from None


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True


def _install(family: str) -> str:
    if family in _EXTRAS:
        return f"{_EXTRAS[family]} adds it"
    return f"the families are {', '.join(_EXTRAS)}, not {family!r}"


def _bare(env: Any) -> Any:
    if type(env) is aec_to_parallel_wrapper:
        inner = _bare(env.aec_env)
        if type(inner) is parallel_to_aec_wrapper:
            return inner.env  # a parallel environment, turned into turns and back again
        env.aec_env = inner
    while type(env) in _DONE_HERE:
        env = env.env
    return env


Teams = Sequence[Sequence[str]]
"""Per team, patterns of the names of its agents."""

_COOPERATIVE = (
    "collect_treasure", "cooperative_pong", "entombed_cooperative", "hanabi", "knights_archers_zombies", "multiwalker",
    "pistonball", "pursuit", "simple_formation", "simple_line", "simple_reference", "simple_speaker_listener",
    "simple_spread",
)  # fmt: skip
_PAIRED = ("basketball_pong", "foozpong", "pong", "quadrapong", "volleyball_pong")

KNOWN_TEAMS: Mapping[str, Teams] = {
    "simple_crypto": (("eve_*",), ("alice_*", "bob_*")),
    "simple_world_comm": (("leadadversary_*", "adversary_*"), ("agent_*",)),
    **dict.fromkeys(_COOPERATIVE, (("*",),)),
    **dict.fromkeys(_PAIRED, (("first_0", "third_0"), ("second_0", "fourth_0"))),
}
"""Games whose agents' names do not tell their teams. With two players, pairs are one against one."""

ZERO_SUM = frozenset((
    "boxing", "chess", "combat_plane", "combat_tank", "connect_four", "entombed_competitive", "go", "leduc_holdem",
    "rps", "space_war", "surround", "texas_holdem", "texas_holdem_no_limit", "tictactoe",
))  # fmt: skip
"""Games in which one side always wins what the others lose. Pong and similar games are not: a player that does not
serve in time loses a point that no other player wins."""

HIDDEN_INFORMATION = frozenset({"gin_rummy", "hanabi", "leduc_holdem", "rps", "texas_holdem", "texas_holdem_no_limit"})
"""Games whose seats do not see one another's cards or choices."""


def base_name(game: str) -> str:
    """`connect_four` of `classic.connect_four_v3`."""
    return re.sub(r"_v\d+$", "", game.rpartition(".")[2])


def group_name(agent: str) -> str:
    """`adversary` of `adversary_0`."""
    return re.sub(r"_?\d+$", "", agent)


def team_of_each(game: str, agents: Sequence[str], teams: Teams = ()) -> tuple[int, ...]:
    """The team of each agent: by the given patterns, or as known for the game, or by the names.

    By the names, `adversary_0`, `adversary_1` and `agent_0` are two teams, named by the text before the number; if
    that is the same for all (`player_0`, `player_1`), each agent is a team of its own.
    """
    patterns = teams or KNOWN_TEAMS.get(base_name(game), ())
    if patterns:
        found = [_matching(game, agent, patterns) for agent in agents]
    else:
        names = [group_name(agent) for agent in agents]
        found = list(range(len(agents))) if len(set(names)) == 1 else _in_order(names)
    return tuple(_in_order(found))


def _matching(game: str, agent: str, teams: Teams) -> int:
    of = [team for team, patterns in enumerate(teams) if any(fnmatchcase(agent, pattern) for pattern in patterns)]
    if len(of) != 1:
        where = f"in {len(of)} of the teams" if of else "in none of the teams"
        shown = " | ".join(" ".join(patterns) for patterns in teams)
        raise GameError(f"{game}: agent {agent!r} is {where} {shown}; each agent needs one")
    return of[0]


def _in_order(names: Iterable[str | int]) -> list[int]:
    """Numbers from 0 in the order of first appearance, without gaps."""
    numbers: dict[str | int, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
