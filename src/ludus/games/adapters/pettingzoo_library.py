"""PettingZoo's environments by name, without its warnings, and without the wrappers that repeat our work."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

# Nobody looks at these windows; pictures are drawn into memory.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

from ludus.data.files import load_address

try:
    from pettingzoo.utils.conversions import (
        aec_to_parallel,
        aec_to_parallel_wrapper,
        parallel_to_aec,
        parallel_to_aec_wrapper,
    )
    from pettingzoo.utils.env import AECEnv, ParallelEnv
    from pettingzoo.utils.wrappers import (
        AssertOutOfBoundsWrapper,
        OrderEnforcingWrapper,
        TerminateIllegalWrapper,
    )
except ModuleNotFoundError as error:  # reached by a recipe; addresses are refused before
    raise ModuleNotFoundError(
        f"{error.name!r} is not installed; pip install 'ludus[pettingzoo]' adds it, or 'ludus[multi-atari]'",
        name=error.name,
    ) from None

__all__ = ["ParallelEnv", "close_env", "make_env", "quiet"]

Api = Literal["auto", "aec", "parallel"]

_DONE_HERE = (TerminateIllegalWrapper, AssertOutOfBoundsWrapper, OrderEnforcingWrapper)
"""What these check, our masks and our order of calls already hold."""

_ATARI = "pettingzoo.atari."

_EXTRAS = {
    "atari": "ludus[multi-atari]",
    "butterfly": "ludus[pettingzoo]",
    "classic": "ludus[pettingzoo]",
    "mpe2": "ludus[pettingzoo]",
    "sisl": "pettingzoo[sisl]",
}
"""What holds each family of PettingZoo."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings about the precision of spaces and about better ways to import an environment."""
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
    """PettingZoo's own games would shut pygame down for all tables of this process, so they are let go."""
    if not type(env.unwrapped).__module__.startswith(("pettingzoo.", "mpe2.")):
        env.close()


def _maker(name: str, api: Api) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """What makes the environment, and the options that it needs here."""
    if ":" in name:
        return load_address(name), {}
    module = _module(name)
    entry = "parallel_env" if api != "aec" and hasattr(module, "parallel_env") else "env"
    if not hasattr(module, entry):
        raise ValueError(f"{module.__name__} is no environment: it has neither env nor parallel_env")
    atari = module.__name__.startswith(_ATARI)
    return getattr(module, entry), {"auto_rom_install_path": str(rom_folder())} if atari else {}


def rom_folder() -> Path:
    """The games that come with ale-py."""
    found = importlib.util.find_spec("ale_py")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "'ale_py' is not installed; pip install 'ludus[multi-atari]' adds it", name="ale_py"
        )
    return Path(found.submodule_search_locations[0]) / "roms"


def _module(name: str) -> ModuleType:
    family, dot, _ = name.partition(".")
    if not dot:
        raise ValueError(f"{name!r} names no environment: write FAMILY.NAME, such as classic.connect_four_v3")
    if family == "mpe":  # it moved to a library of its own
        family, name = "mpe2", name.replace("mpe", "mpe2", 1)
    place = name if family == "mpe2" or _missing(f"pettingzoo.{family}") else f"pettingzoo.{name}"
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and not place.startswith(error.name):
            raise ModuleNotFoundError(
                f"pettingzoo:{name} needs {error.name!r}, which is not installed; {_install(family)}",
                name=error.name,
            ) from error
        if _missing(place.rpartition(".")[0]):
            raise ModuleNotFoundError(
                f"no module {error.name!r} for pettingzoo:{name}; {_install(family)}", name=error.name
            ) from None
        raise ValueError(f"no environment {name!r}{_nearest(name, place.rpartition('.')[0])}") from None


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True


def _install(family: str) -> str:
    if family in _EXTRAS:
        return f"pip install '{_EXTRAS[family]}' adds it"
    return f"the families are {', '.join(_EXTRAS)}, not {family!r}"


def _nearest(name: str, package: str) -> str:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    known = [module.name for module in found if "_v" in module.name]
    family, _, wrong = name.rpartition(".")
    close = difflib.get_close_matches(wrong, known, n=1)
    if close:
        return f"; did you mean '{family}.{close[0]}'?"
    return f"; {package} has {', '.join(known)}" if known else ""


def _bare(env: Any) -> Any:
    if type(env) is aec_to_parallel_wrapper:
        inner = _bare(env.aec_env)
        if type(inner) is parallel_to_aec_wrapper:
            return inner.env  # a parallel environment, turned into turns and back again
        env.aec_env = inner
    while type(env) in _DONE_HERE:
        env = env.env
    return env
