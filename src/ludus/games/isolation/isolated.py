"""A game that runs in processes of its own, with this interpreter or another one's libraries."""

from __future__ import annotations

import functools
import math
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.addresses import address_of
from ludus.data.specs import GameSpec, spec_from_json
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.bots import HostedBot, RandomBot
from ludus.games.game import Actions, Bot, GameBatch, GameSource, Seat, StrategyView, TableView
from ludus.games.isolation.process import HostLost, HostProcess
from ludus.games.isolation.shared import (
    DONE,
    RESET,
    STEP,
    BotAct,
    DrawTable,
    FromHost,
    HostHello,
    HostLaunch,
    SharedTables,
    TablePicture,
)
from ludus.games.lift import Lifted
from ludus.games.seat_rows import GameError
from ludus.system.shared_memory import Region, bytes_needed

MOST_LOSSES = 10
"""Losses of a process in a row, without an episode that was finished, after which the game is given up."""
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.05, 2.0
"""Pause before the third start in a row; twice as long before each further one."""
_LOOK_EVERY_S = 1.0
"""How often it is looked what a process takes of the machine."""


@dataclass(kw_only=True, eq=False)
class _Place:
    """Some of the tables; the process that plays them comes and goes."""

    index: int
    start: int
    stop: int
    host: HostProcess | None = None
    losses: int = 0
    """In a row, without an episode that was finished."""
    reason: str = ""
    """Of the latest loss."""

    @property
    def tables(self) -> slice:
        return slice(self.start, self.stop)


class IsolatedBatch:
    """A `GameBatch` in processes that step side by side. A process that crashes, hangs, grows too large or
    shows garbage is ended; its tables are lost until they are reset."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    """Only if the game has pictures."""
    strategy: StrategyView
    """Only if the seats of the game build things."""

    def __init__(self, source: Isolated, num_tables: int) -> None:
        self._source = source
        self.spec: GameSpec = source.spec
        self.num_tables = num_tables
        edges = np.linspace(0, num_tables, min(source.processes, num_tables) + 1).astype(int).tolist()
        self._places = [
            _Place(index=index, start=start, stop=stop) for index, (start, stop) in enumerate(pairwise(edges))
        ]
        self._place_of_table = np.repeat(np.arange(len(self._places)), np.diff(edges))
        self._poll = select.poll()
        self._by_fd: dict[int, _Place] = {}
        self._lost: dict[int, str] = {}
        self._columns = np.array(self.spec.column_of_seat)
        self._looked = time.monotonic()
        self._region: Region | None = None
        try:
            hellos = self._start(self._places)
        except BaseException:
            self.close()
            raise
        if self._lost:
            reason = next(iter(self._lost.values())).removeprefix("garbage: ")
            self.close()
            raise GameError(f"{source.game} cannot be started: {reason}")
        if hellos[0].has_pictures:
            self.render = self._render
        if self._shared.strategy is not None:
            self.strategy = self._shared.strategy

    @property
    def view(self) -> TableView:
        return self._shared.view

    @property
    def lost(self) -> Mapping[int, str]:
        return self._lost

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        asked = [self._places[index] for index in np.unique(self._place_of_table[tables]).tolist()]
        gone = [place for place in asked if place.host is None]
        if gone:
            self._back_off(gone)
            self._start(gone)
        shared = self._shared
        shared.fresh[:] = False
        shared.fresh[tables] = True
        shared.seeds[tables] = seeds
        running = [place for place in asked if place.host is not None]
        self._command(running, RESET, "reset", self._source.start_seconds)
        if self._lost:
            for table in tables.tolist():
                if self._places[self._place_of_table[table]].host is not None:
                    self._lost.pop(table, None)
            self._quiet()

    def step(self, actions: Actions) -> None:
        for target, given in zip(self._shared.actions, actions, strict=True):
            put(target, ..., given)
        running = [place for place in self._places if place.host is not None]
        self._command(running, STEP, "step", self._source.step_seconds)
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._look_after()
        for place in self._places:
            if place.losses and place.host is not None:
                ended = self.view.over[place.tables] | self.view.truncated[place.tables]
                place.losses *= not ended.any()
        if self._lost:
            self._quiet()

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        shared = self._shared
        shared.asked[:] = False
        shared.asked[tables, seats] = True
        asked = [self._places[index] for index in np.unique(self._place_of_table[tables]).tolist()]
        running = [place for place in asked if place.host is not None]
        for place in running:
            assert place.host is not None
            place.host.send(BotAct(bot, (seed + place.index) % 2**63))
        self._wait_for(running, f"choice of bot {bot!r}", self._source.step_seconds)
        if self._lost:
            self._quiet()
        kind = self.spec.seats[int(seats[0])] if len(seats) else 0
        return take(shared.chosen[kind], (tables, self._columns[seats]))

    def close(self) -> None:
        for place in self._places:
            if place.host is not None:
                place.host.kill()
                place.host = None
        if self._region is not None:
            self._region.close()

    def _render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        place = self._places[self._place_of_table[table]]
        if place.host is None:
            raise GameError(f"table {table} cannot be drawn, it was lost: {place.reason}")
        place.host.send(DrawTable(table - place.start, seat))
        answers = self._wait_for([place], "drawing", self._source.step_seconds)
        self._quiet()
        if not answers:
            raise GameError(f"table {table} was lost while it was drawn: {place.reason}")
        picture = answers[0]
        assert isinstance(picture, TablePicture)
        return np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)

    # --- starting and losing processes ---

    def _start(self, places: Sequence[_Place]) -> list[HostHello]:
        """Start the processes of these places, together; those that fail are lost."""
        source = self._source
        for place in places:
            place.host = HostProcess(
                HostLaunch(
                    game=source.game,
                    options=dict(source.options),
                    start=place.start,
                    stop=place.stop,
                    num_tables=self.num_tables,
                    needs_display=source.needs_display,
                ),
                source.python,
                None if source.logs is None else _log_file(source.logs, place.index),
            )
            self._listen_to(place)
        hellos = []
        for hello in self._wait_for(places, "start", source.start_seconds):
            assert isinstance(hello, HostHello)
            if spec_from_json(hello.spec) != self.spec:
                raise GameError(f"{source.game}: what it shows or takes changes from one start to the next")
            hellos.append(hello)
        if self._region is None and hellos:
            self._share(hellos[0].strategy)
        for place in places:
            if place.host is not None:
                assert self._region is not None
                self._listen_no_more_to(place)
                place.host.share(self._region.fd)
                self._listen_to(place)
        return hellos

    def _listen_to(self, place: _Place) -> None:
        assert place.host is not None
        self._by_fd[place.host.fd] = place
        self._poll.register(place.host.fd, select.POLLIN)

    def _listen_no_more_to(self, place: _Place) -> None:
        assert place.host is not None
        self._poll.unregister(place.host.fd)
        del self._by_fd[place.host.fd]

    def _share(self, strategy: tuple[int, int] | None) -> None:
        facts = (self.spec, self.num_tables, strategy)
        self._region = Region.create(bytes_needed(lambda new: SharedTables.allocate(*facts, new)))
        self._shared = SharedTables.allocate(*facts, self._region.new)

    def _lose(self, place: _Place, reason: str) -> None:
        self._listen_no_more_to(place)
        assert place.host is not None
        place.host.kill()
        place.host = None
        place.losses += 1
        place.reason = reason
        for table in range(place.start, place.stop):
            self._lost[table] = reason

    def _back_off(self, places: Sequence[_Place]) -> None:
        worst = max(places, key=lambda place: place.losses)
        if worst.losses >= MOST_LOSSES:
            raise GameError(
                f"{self._source.game} was lost {worst.losses} times without finishing an episode, at last: "
                f"{worst.reason}"
            )
        if worst.losses > 1:
            time.sleep(min(_BACK_OFF_S * 2 ** (worst.losses - 2), _LONGEST_BACK_OFF_S))

    def _quiet(self) -> None:
        """At tables that are lost nobody acts and nothing happens, whatever was written there last."""
        view, tables = self.view, [*self._lost]
        view.to_act[tables] = view.over[tables] = view.truncated[tables] = False
        for reward in (view.reward, *view.rewards):
            reward[tables] = 0.0

    def _look_after(self) -> None:
        """What the processes print must not fill the disk, and what they take must stay within bounds."""
        most_mb = self._source.memory_mb
        for place in self._places:
            if place.host is None:
                continue
            place.host.trim_log()
            if most_mb is not None and (used := place.host.memory_mb()) > most_mb:
                self._lose(place, f"leaked: it takes {used:,.0f} MB, more than memory_mb={most_mb:g}")
        self._looked = time.monotonic()

    # --- talking to them ---

    def _command(self, places: Sequence[_Place], command: bytes, what: str, limit_s: float) -> None:
        """All at once, then wait for all."""
        start = time.monotonic()
        for place in places:
            assert place.host is not None
            place.host.command(command)
        late = []
        for place in places:
            assert place.host is not None
            try:
                told = place.host.listen()
            except BlockingIOError:
                late.append(place)
                continue
            if told != DONE:
                self._hear(place, told)
        if late:
            self._wait_for(late, what, limit_s, start)

    def _wait_for(
        self, places: Sequence[_Place], what: str, limit_s: float, start: float | None = None
    ) -> list[FromHost]:
        """The messages they answer with; those that do not in time (by default from now on), or cannot go on,
        are lost."""
        answers: list[FromHost] = []
        silent = set(places)
        deadline = limit_s + (time.monotonic() if start is None else start)
        while silent:
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                for place in silent:
                    self._lose(place, f"hung: no answer to {what} within {limit_s:g} s")
                break
            for fd, _ in ready:
                place = self._by_fd[fd]
                silent.discard(place)
                answer = self._hear(place)
                if answer is not None:
                    answers.append(answer)
        return answers

    def _hear(self, place: _Place, told: bytes | None = None) -> FromHost | None:
        assert place.host is not None
        try:
            return place.host.receive(told)
        except HostLost as lost:
            self._lose(place, str(lost))
            return None


def _log_file(folder: str, index: int) -> str:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return os.path.join(folder, f"game-{os.getpid()}-{index}.log")


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
    def _described(self) -> HostHello:
        options = msgspec.msgpack.encode(dict(self.options))
        return _describe(self.game, options, self.python, self.needs_display, self.start_seconds)


@functools.lru_cache(maxsize=64)
def _describe(game: str, options: bytes, python: str | None, needs_display: bool, limit_s: float) -> HostHello:
    """Asked from a process that ends at once."""
    launch = HostLaunch(
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
        assert isinstance(hello, HostHello)
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
        kept = [part.name for part in fields(source) if part.name != "factory" and not _is_usual(source, part)]
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
            raise ValueError(f"{maker.__name__} cannot be isolated: its {name!r} is no plain value: {value!r}")
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
