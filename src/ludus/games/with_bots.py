"""Scripted players from outside a game: classes of the user's own, and other programs.

The one place that turns the address of a bot into a `Bot`:

    my_bots.py:Greedy, package.module:Greedy    a `Bot`, or what gives one when called without arguments
    program:./my_bot.py, program:node bot.js    a command that speaks lines of JSON (docs/bots.md)
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ludus.data.files import load_address
from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.games.counted_tables import CountedTables
from ludus.games.game import Bot, GameBatch, GameSource
from ludus.games.program_bot import ProgramBot

PROGRAM = "program:"


@dataclass(frozen=True)
class WithBots:
    """A `GameSource`: another one's game, with further bots."""

    game: GameSource
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Name of the bot -> where it is found."""

    def __post_init__(self) -> None:
        taken = [name for name in self.addresses if name in self.game.bots()]
        if taken:
            raise ValueError(
                f"bots: {self.game.spec.name} has a bot {taken[0]!r} of its own; give yours another name"
            )

    @cached_property
    def spec(self) -> GameSpec:
        return self.game.spec

    def tables(self, num_tables: int) -> GameBatch:
        return CountedTables(self.game.tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {**self.game.bots(), **self._outside}

    def tree(self) -> TreeState | None:
        return self.game.tree()

    @cached_property
    def _outside(self) -> dict[str, Bot]:
        return {name: find_bot(name, address) for name, address in self.addresses.items()}


def with_bots(game: GameSource, addresses: Mapping[str, str]) -> GameSource:
    """The game with these bots too; the game itself if there are none."""
    return WithBots(game, addresses) if addresses else game


def find_bot(name: str, address: str) -> Bot:
    """The bot at an address. A program is not looked for until it has to act."""
    if address.startswith(PROGRAM):
        return ProgramBot(name, _run_by(_words(name, address)))
    try:
        found = load_address(address)
        made: Any = found() if isinstance(found, type) or not hasattr(found, "act") else found
    except Exception as error:  # whatever the file that it names may raise
        raise ValueError(f"bots.{name}: {error}") from error
    if not callable(getattr(made, "act", None)):
        raise ValueError(
            f"bots.{name}: {address} gives {made!r}, which is no Bot: it has no method "
            "act(game, tables, seats, rng)"
        )
    bot: Bot = made
    return bot


def named_address(text: str) -> tuple[str, str] | None:
    """Name and address of a bot written as `NAME=ADDRESS` or as an address alone, which then gives the name;
    None: it is the name of a player."""
    if named := re.fullmatch(r"([\w.\-]+)=(.*:.*)", text):
        return named[1], named[2]
    is_address = text.startswith(PROGRAM) or re.search(r"\.py:[A-Za-z_]", text)
    return (_name_from(text), text) if is_address else None


def fixed_addresses(addresses: Mapping[str, str]) -> dict[str, str]:
    """The same bots by addresses that hold in any folder. Raises ValueError if one is not there."""
    return {name: _fixed(name, address) for name, address in addresses.items()}


def _fixed(name: str, address: str) -> str:
    if not address.startswith(PROGRAM):
        place, colon, attribute = address.rpartition(":")
        return f"{Path(place).resolve()}{colon}{attribute}" if place.endswith(".py") else address
    words = [str(Path(word).resolve()) if os.path.isfile(word) else word for word in _words(name, address)]
    program = _run_by(words)[0]
    if shutil.which(program) is None:
        there = Path(program).exists()
        what = (
            f"{program!r} may not be executed: chmod +x it" if there else f"there is no program {program!r}"
        )
        raise ValueError(f"bots.{name}: {what}")
    if words[0].endswith(".py") and not os.path.isfile(words[0]):
        raise ValueError(f"bots.{name}: there is no file {words[0]!r}")
    return PROGRAM + shlex.join(words)


def _words(name: str, address: str) -> list[str]:
    command = address.removeprefix(PROGRAM)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"bots.{name}: {command!r} is no command: {error}") from None
    if not words:
        raise ValueError(f"bots.{name}: name a program after {PROGRAM!r}, such as 'program:./my_bot.py'")
    return words


def _run_by(words: list[str]) -> list[str]:
    """A Python file needs neither a first line nor a permission: it is run by this Python."""
    return [sys.executable, *words] if words[0].endswith(".py") else words


def _name_from(address: str) -> str:
    """`my_bot` of program:./my_bot.py, `bot` of program:node bots/bot.js, `Greedy` of my_bots.py:Greedy."""
    if address.startswith(PROGRAM):
        words = _words("", address)
        files = [word for word in words if os.path.isfile(word)]
        plain = Path((files or words)[0]).stem
    else:
        plain = address.rpartition(":")[2].rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9_.\-]", "-", plain).lstrip("-.") or "bot"
