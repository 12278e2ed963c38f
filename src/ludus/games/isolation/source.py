"""A game that runs in processes of its own, with this interpreter or another one's libraries."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

import msgspec

from ludus.data.files import address_of
from ludus.data.kind_json import spec_from_json
from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.games.bots import HostedBot, RandomBot
from ludus.games.game import Bot, GameBatch, GameSource
from ludus.games.isolation.batch import IsolatedBatch
from ludus.games.isolation.messages import Hello, Launch
from ludus.games.isolation.process import HostLost, HostProcess
from ludus.games.lift import Lifted
from ludus.games.seat_rows import GameError


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How a game is kept apart, and what it may take."""

    processes: int = 1
    """The tables are spread over so many, which step side by side; what one of them does costs its tables."""
    step_seconds: float = 20.0
    """A step of the tables that takes longer is a hang: the process is ended."""
    start_seconds: float = 30.0
    """The same for the start of the game and for a reset."""
    memory_mb: float | None = None
    """A process that takes more, with all that it has started, is ended; None: it may take what there is."""
    needs_display: bool = False
    """Start Xvfb for each process where DISPLAY is not set. A game that says `needs_display` itself gets one
    anyhow."""
    logs: str | None = None
    """Folder for what the game prints, a file for each process; None: only its last words are kept."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.processes < 1:
            raise ValueError(f"{name}.processes must be at least 1, got {self.processes}")
        for limit in ("step_seconds", "start_seconds", "memory_mb"):
            value = getattr(self, limit)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}.{limit} must be above 0 and finite, got {value}")


@dataclass(frozen=True)
class Isolated(Isolation):
    """A `GameSource`: the game at an address, in processes of its own. All it must find there is the game's
    library, numpy and msgspec; this process never imports the game."""

    game: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Plain values."""
    python: str | None = None
    """The interpreter that has the game's library; None: this one."""

    @cached_property
    def spec(self) -> GameSpec:
        return spec_from_json(self._described.spec)

    def tables(self, num_tables: int) -> GameBatch:
        return IsolatedBatch(self, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        hosted = {name: HostedBot(name) for name in self._described.bots if name != "random"}
        return {"random": RandomBot(), **hosted}

    def tree(self) -> TreeState | None:
        return None

    @property
    def _described(self) -> Hello:
        options = msgspec.msgpack.encode(dict(self.options))
        return _describe(self.game, options, self.python, self.needs_display, self.start_seconds)


@functools.lru_cache(maxsize=64)
def _describe(game: str, options: bytes, python: str | None, needs_display: bool, limit_s: float) -> Hello:
    """Asked from a process that ends at once."""
    launch = Launch(
        game=game,
        options=msgspec.msgpack.decode(options),
        start=0,
        stop=0,
        num_tables=0,
        needs_display=needs_display,
    )
    host = HostProcess(launch, python, None)
    try:
        if not host.control.poll(limit_s):
            raise HostLost(f"hung: it did not start within {limit_s:g} s")
        hello = host.receive()
        assert isinstance(hello, Hello)
        return hello
    except HostLost as lost:
        where = "" if python is None else f" with {python}"
        why = str(lost).removeprefix("garbage: ")
        raise GameError(f"{game} cannot be started in a process of its own{where}: {why}") from None
    finally:
        host.kill()


def isolate(source: GameSource, how: Isolation) -> GameSource:
    """The same game in processes of its own; what is wrapped around it stays here."""
    made: Any = source
    limits = {limit.name: getattr(how, limit.name) for limit in fields(Isolation)}
    if isinstance(made, Isolated):
        changed: GameSource = replace(made, **limits)
    elif isinstance(inner := getattr(made, "game", None), GameSource):
        changed = replace(made, game=isolate(inner, how))
    else:
        game, options = _written_down(made)
        changed = Isolated(game, options, **limits)
    return changed


def _written_down(source: Any) -> tuple[str, dict[str, Any]]:
    """The address of a game, and its options."""
    maker: Any = type(source)
    options: dict[str, Any] = {}
    if isinstance(source, Lifted):
        maker = source.factory
        kept = [
            part.name for part in fields(source) if part.name != "factory" and not _is_usual(source, part)
        ]
        if kept:
            raise ValueError(
                f"{source.spec.name} cannot be isolated: its {kept[0]!r} is known in this process only; "
                "write a function that gives the game, and name its address"
            )
        if isinstance(maker, partial):
            maker, options = maker.func, dict(maker.keywords)
    elif is_dataclass(source):
        options = {part.name: getattr(source, part.name) for part in fields(source) if part.init}
    for name, value in options.items():
        if not _is_plain(value):
            raise ValueError(
                f"{maker.__name__} cannot be isolated: its {name!r} is no plain value: {value!r}"
            )
    return address_of(maker), options


def _is_usual(source: Any, part: Any) -> bool:
    default = part.default if part.default is not MISSING else part.default_factory()
    return bool(getattr(source, part.name) == default)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
