"""The public names of Ludus: what each name means, and the module that it comes from.

The stub files `__init__.pyi` of `ludus` and of the side doors `ludus.games`, `ludus.league`, `ludus.models` and
`ludus.algorithms` list them, a line per name, for type checkers, for lazy imports and for `help(ludus)`. Files on disk
use them too: `run.json` holds the public name of a class, so that a class may move to another module without breaking
a run. A name that is not listed there is private.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class PublicName(NamedTuple):
    """The address and the description of a public name."""

    address: str
    """`package.module:Name`; nothing after the colon: the module itself."""
    about: str
    """One line for `help(ludus)`."""


Names = Mapping[str, PublicName]


_LINE = re.compile(r"from (\S+) import (\w+)(?: as (\w+))?  # (.+)")


def _read(door: str) -> Mapping[str, Names]:
    """The names of a door by heading, from the stub file of its package."""
    stub = Path(__file__).parent / door / "__init__.pyi"
    found: dict[str, dict[str, PublicName]] = {}
    for line in stub.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            names = found.setdefault(line[2:], {})
        elif match := _LINE.fullmatch(line):
            module, attribute, name, about = match.groups()
            # A name that a door takes from itself is a module of its package.
            address = f"{module}.{attribute}:" if module == f"ludus.{door}" else f"{module}:{attribute}"
            names[name or attribute] = PublicName(address, about)
    return found


FRONT = _read("")  # the names of `import ludus`, by subject

DOORS: Mapping[str, Names] = {
    door: {name: one for names in _read(door).values() for name, one in names.items()}
    for door in ("games", "league", "models", "algorithms")
}
"""The names of each side door: those of the front door on its subject, and more."""


def public_name(obj: type | Callable[..., Any]) -> str | None:
    """The public name of a class or function of Ludus; None for everything else."""
    return _by_address().get(f"{obj.__module__}:{getattr(obj, '__qualname__', '')}")


def find_public(name: str) -> PublicName | None:
    """The entry of a public name; None if there is no such name."""
    return _by_name().get(name)


def load_public(name: str) -> Any:
    """The object with this public name; LookupError with the nearest name if there is none."""
    found = find_public(name)
    if found is None:
        raise LookupError(f"{name!r} is no public name of Ludus{_nearest(name, _by_name())}")
    return _load(found.address)


def lazy(door: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a door; "" is the front door. Names are imported when first used."""
    names, module = _names_of(door), f"ludus.{door}".rstrip(".")

    def getattribute(name: str) -> Any:
        if not door and name in DOORS:
            return importlib.import_module(f"ludus.{name}")
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}{_nearest(name, names)}")
        return _load(names[name].address)

    def directory() -> list[str]:
        # Without PyTorch, `help` still lists every name, and describes in full those that can be loaded.
        complete = importlib.util.find_spec("torch") is not None
        shown = names if complete else [name for name in names if _loads(names[name].address)]
        return sorted([*shown, *(() if door else DOORS)])

    return getattribute, directory, sorted(names)


def listing(door: str = "") -> str:
    """Every name of a door with one line about it, for the docstring of its package."""
    groups = FRONT if not door else {"Names": DOORS[door]}
    return "\n".join(
        f"\n{heading}\n{'-' * len(heading)}\n" + "\n".join(f"{name:<24} {one.about}" for name, one in names.items())
        for heading, names in groups.items()
    )


def _names_of(door: str) -> Names:
    if door:
        return DOORS[door]
    return {name: one for names in FRONT.values() for name, one in names.items()}


@cache
def _by_name() -> Names:
    return {name: one for door in ("", *DOORS) for name, one in _names_of(door).items()}


@cache
def _by_address() -> Mapping[str, str]:
    return {one.address: name for name, one in _by_name().items()}


def _load(address: str) -> Any:
    module, _, name = address.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def _loads(address: str) -> bool:
    try:
        _load(address)
    except ImportError:
        return False
    return True


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; help(ludus) lists the public names"
