"""Isolated games: a game in processes of its own, run by this interpreter or by another one."""

from __future__ import annotations

import functools
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.addresses import address_of
from ludus.data.checks import require_in
from ludus.data.specs import GameSpec, spec_from_json
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.bots import hosted_bots, require_within_bounds
from ludus.games.game import Actions, Bot, GameBatch, GameSource, Seat, StrategyView, TableView
from ludus.games.isolation import protocol
from ludus.games.lift import Lifted
from ludus.games.seat_rows import GameError
from ludus.games.tables import GameDefaults, change_innermost
from ludus.system.shared_memory import Region, bytes_needed

MOST_LOSSES = 10  # losses of a process in a row, without an episode that was finished, after which the game is given up
_BACK_OFF_S, _LONGEST_BACK_OFF_S = 0.05, 2.0
"""Pause before the third start in a row; twice as long before each further one."""
_LOOK_EVERY_S = 1.0  # how often the memory and the log of a process are checked
_LOOK_AT_START_S = 0.2  # how often its memory is checked while it starts


@dataclass(kw_only=True, eq=False)
class _HostSlot:
    """A range of tables and the process that plays them, which is replaced when it is lost."""

    index: int
    start: int
    stop: int
    host: protocol.HostProcess | None = None
    losses: int = 0
    """In a row, without an episode that was finished."""
    reason: str = ""
    """The reason of the latest loss."""


class IsolatedBatch:
    """A `GameBatch` in processes that step in parallel. A process that crashes, hangs, grows too large or shows
    garbage is ended; its tables are lost until they are reset."""

    render: Callable[[int, Seat | None], NDArray[np.uint8]]
    """Only if the game has pictures."""
    strategy: StrategyView
    """Only if the seats of the game build things."""

    def __init__(self, source: Isolated, num_tables: int) -> None:
        self._source = source
        self.spec: GameSpec = source.spec
        self.num_tables = num_tables
        edges = np.linspace(0, num_tables, min(source.processes, num_tables) + 1).astype(int).tolist()
        self._slots = [
            _HostSlot(index=index, start=start, stop=stop) for index, (start, stop) in enumerate(pairwise(edges))
        ]
        self._slot_of_table = np.repeat(np.arange(len(self._slots)), np.diff(edges))
        self.lost: dict[int, str] = {}
        self._columns = np.array(self.spec.column_of_seat)
        self._looked = time.monotonic()
        self._region: Region | None = None
        try:
            hellos = self._start(self._slots)
        except BaseException:
            self.close()
            raise
        if self.lost:
            reason = next(iter(self.lost.values())).removeprefix("garbage: ")
            self.close()
            raise GameError(f"{source.game} cannot be started: {reason}")
        if hellos[0].has_pictures:
            self.render = self._render
        if self._shared.strategy is not None:
            self.strategy = self._shared.strategy

    @property
    def view(self) -> TableView:
        return self._shared.view

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        asked = self._slots_of(tables)
        gone = [slot for slot in asked if slot.host is None]
        if gone:
            self._back_off(gone)
            self._start(gone)
        shared = self._shared
        shared.fresh[:] = False
        shared.fresh[tables] = True
        shared.seeds[tables] = seeds
        self._command(asked, protocol.RESET, "reset", self._source.start_seconds)
        if self.lost:
            for table in tables.tolist():
                if self._slots[self._slot_of_table[table]].host is not None:
                    self.lost.pop(table, None)
            self._quiet()

    def step(self, actions: Actions) -> None:
        require_within_bounds(self.spec, self.view.to_act, actions)
        for target, given in zip(self._shared.actions, actions, strict=True):
            put(target, ..., given)
        self._command(self._slots, protocol.STEP, "step", self._source.step_seconds)
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._look_after()
        for slot in self._slots:
            if slot.losses and slot.host is not None:
                ended = (self.view.over | self.view.truncated)[slot.start : slot.stop]
                slot.losses *= not ended.any()
        if self.lost:
            self._quiet()

    def bot_act(self, bot: str, tables: IntArray, seats: IntArray, seed: int) -> Tree:
        shared = self._shared
        shared.asked[:] = False
        shared.asked[tables, seats] = True
        asked = self._slots_of(tables)
        for slot in asked:
            if slot.host is not None:
                slot.host.send(protocol.BotAct(bot, (seed + slot.index) % 2**63))
        self._wait_for(asked, f"choice of bot {bot!r}", self._source.step_seconds)
        if self.lost:
            self._quiet()
        kind = self.spec.seats[int(seats[0])] if len(seats) else 0
        return take(shared.chosen[kind], (tables, self._columns[seats]))

    def _slots_of(self, tables: IntArray) -> list[_HostSlot]:
        return [self._slots[index] for index in np.unique(self._slot_of_table[tables]).tolist()]

    def close(self) -> None:
        for slot in self._slots:
            if slot.host is not None:
                slot.host.kill()
                slot.host = None
        if self._region is not None:
            self._region.close()

    def _render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        slot = self._slots[self._slot_of_table[table]]
        if slot.host is None:
            raise GameError(f"table {table} cannot be drawn, it was lost: {slot.reason}")
        slot.host.send(protocol.DrawTable(table - slot.start, seat))
        answers = self._wait_for([slot], "drawing", self._source.step_seconds)
        self._quiet()
        if not answers:
            raise GameError(f"table {table} was lost while it was drawn: {slot.reason}")
        picture = answers[0]
        assert isinstance(picture, protocol.TablePicture)
        return np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)

    # --- starting and losing processes ---

    def _start(self, slots: Sequence[_HostSlot]) -> list[protocol.HostHello]:
        """Start the processes of these slots together; those that fail are lost."""
        source = self._source
        if source.logs is not None:
            Path(source.logs).mkdir(parents=True, exist_ok=True)
        for slot in slots:
            slot.host = protocol.HostProcess(
                protocol.HostLaunch(
                    game=source.game,
                    options=dict(source.options),
                    start=slot.start,
                    stop=slot.stop,
                    num_tables=self.num_tables,
                    needs_display=source.needs_display,
                ),
                source.python,
                None if source.logs is None else f"{source.logs}/game-{os.getpid()}-{slot.index}.log",
            )
        hellos = []
        for hello in self._wait_for(slots, "start", source.start_seconds):
            assert isinstance(hello, protocol.HostHello)
            if spec_from_json(hello.spec) != self.spec:
                raise GameError(f"{source.game}: what it shows or takes changes from one start to the next")
            hellos.append(hello)
        if self._region is None and hellos:
            facts = (self.spec, self.num_tables, hellos[0].strategy)
            self._region = Region.create(bytes_needed(lambda new: protocol.SharedTables.allocate(*facts, new)))
            self._shared = protocol.SharedTables.allocate(*facts, self._region.new)
        for slot in slots:
            if slot.host is not None:
                assert self._region is not None
                slot.host.share(self._region.fd)
        return hellos

    def _lose(self, slot: _HostSlot, reason: str) -> None:
        assert slot.host is not None
        slot.host.kill()
        slot.host = None
        slot.losses += 1
        slot.reason = reason
        self.lost |= dict.fromkeys(range(slot.start, slot.stop), reason)

    def _back_off(self, slots: Sequence[_HostSlot]) -> None:
        worst = max(slots, key=lambda slot: slot.losses)
        if worst.losses >= MOST_LOSSES:
            raise GameError(
                f"{self._source.game} was lost {worst.losses} times without finishing an episode, at last: "
                f"{worst.reason}"
            )
        if worst.losses > 1:
            time.sleep(min(_BACK_OFF_S * 2 ** (worst.losses - 2), _LONGEST_BACK_OFF_S))

    def _quiet(self) -> None:
        self.view.silence([*self.lost])

    def _look_after(self) -> None:
        """Keep what the processes print off the disk, and their memory within bounds."""
        most_mb = self._source.memory_mb
        for slot in self._slots:
            if slot.host is None:
                continue
            slot.host.trim_log()
            if most_mb is not None and (used := slot.host.memory_mb()) > most_mb:
                self._lose(slot, _leaked(used, most_mb))
        self._looked = time.monotonic()

    # --- talking to them ---

    def _command(self, slots: Sequence[_HostSlot], command: bytes, what: str, limit_s: float) -> None:
        """Send a command to all of them that run, then wait for all answers."""
        for slot in slots:
            if slot.host is not None:
                slot.host.command(command)
        self._wait_for(slots, what, limit_s)

    def _wait_for(self, slots: Sequence[_HostSlot], what: str, limit_s: float) -> list[protocol.FromHost]:
        """Their messages. A process that does not answer within the limit, or cannot go on, is lost."""
        answers: list[protocol.FromHost] = []
        silent = {slot.host.fd: slot for slot in slots if slot.host is not None}
        deadline = time.monotonic() + limit_s
        try:
            while silent:
                poll = select.poll()
                for fd in silent:
                    poll.register(fd, select.POLLIN)
                ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
                if not ready:
                    for slot in silent.values():
                        self._lose(slot, f"hung: no answer to {what} within {limit_s:g} s")
                    break
                for fd, _ in ready:
                    slot = silent[fd]
                    assert slot.host is not None
                    try:
                        answer = slot.host.receive()
                        answers += [] if answer is None else [answer]
                        del silent[fd]  # now that its answer was read in full
                    except protocol.HostLost as lost:
                        del silent[fd]
                        self._lose(slot, str(lost))
        except BaseException:  # such as Ctrl-C: its answer would be taken for that to the next command
            for slot in silent.values():
                self._lose(slot, f"interrupted: nobody waited for its answer to {what}")
            raise
        return answers


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How a game is isolated, and its limits."""

    processes: int = 1
    """The tables are divided among them. They step in parallel, and a lost process costs its own tables only."""
    step_seconds: float = 20.0
    """A process that takes longer for a step hangs and is ended."""
    start_seconds: float = 30.0
    """The limit for the start of the game and for a reset."""
    memory_mb: float | None = None
    """A process that takes more, together with everything that it has started, is ended; None: no limit."""
    needs_display: bool = False
    """Start Xvfb for each process where DISPLAY is not set. A game that says `needs_display` gets one anyway."""
    logs: str | None = None
    """Folder for the output of the game, a file for each process; None: only its last words are kept."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", processes=self.processes)
        limits = {"step_seconds": self.step_seconds, "start_seconds": self.start_seconds, "memory_mb": self.memory_mb}
        require_in(self, "(0, inf)", **limits)


@dataclass(frozen=True)
class Isolated(Isolation, GameDefaults):
    """A `GameSource`: the game at an address, in processes of its own. Their interpreter needs the library of the
    game, numpy and msgspec; this process never imports the game."""

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
        return hosted_bots(self._described.bots)

    @property
    def _described(self) -> protocol.HostHello:
        options = msgspec.msgpack.encode(dict(self.options))
        return _describe(self.game, options, self.python, self.needs_display, self.start_seconds, self.memory_mb)


def _leaked(used_mb: float, most_mb: float) -> str:
    return f"leaked: it takes {used_mb:,.0f} MB, more than memory_mb={most_mb:g}"


@functools.lru_cache(maxsize=64)
def _describe(
    game: str, options: bytes, python: str | None, needs_display: bool, limit_s: float, most_mb: float | None
) -> protocol.HostHello:
    """Ask a process that ends at once."""
    launch = protocol.HostLaunch(game=game, options=msgspec.msgpack.decode(options), needs_display=needs_display)
    host = protocol.HostProcess(launch, python, None)
    try:
        deadline = time.monotonic() + limit_s
        while not host.control.poll(max(0.0, min(_LOOK_AT_START_S, deadline - time.monotonic()))):
            if time.monotonic() > deadline:
                raise protocol.HostLost(f"hung: it did not start within {limit_s:g} s")
            if most_mb is not None and (used := host.memory_mb()) > most_mb:
                raise protocol.HostLost(_leaked(used, most_mb))
        hello = host.receive()
        assert isinstance(hello, protocol.HostHello)
        return hello
    except protocol.HostLost as lost:
        where = "" if python is None else f" with {python}"
        why = str(lost).removeprefix("garbage: ")
        raise GameError(f"{game} cannot be started in a process of its own{where}: {why}") from None
    finally:
        host.kill()


def isolate(source: GameSource, how: Isolation) -> GameSource:
    """The same game in processes of its own; wrappers around it stay in this process."""
    limits = {limit.name: getattr(how, limit.name) for limit in fields(Isolation)}

    def isolated(game: GameSource) -> GameSource:
        return replace(game, **limits) if isinstance(game, Isolated) else Isolated(*_written_down(game), **limits)

    return change_innermost(source, isolated)


def own_options(source: Any) -> dict[str, Any]:
    """The options that a game was made with, as far as they can be read from it."""
    if isinstance(source, Lifted):
        return dict(source.factory.keywords) if isinstance(source.factory, partial) else {}
    return (
        {part.name: getattr(source, part.name) for part in fields(source) if part.init} if is_dataclass(source) else {}
    )


def _written_down(source: Any) -> tuple[str, dict[str, Any]]:
    """The address of a game, and its options."""
    maker: Any = type(source)
    options = own_options(source)
    if isinstance(source, Lifted):
        maker = source.factory
        usual = Lifted(source.factory)
        kept = [part.name for part in fields(source) if getattr(source, part.name) != getattr(usual, part.name)]
        if kept:
            raise ValueError(
                f"{source.spec.name} cannot be isolated: its {kept[0]!r} is known in this process only; "
                "write a function that gives the game, and name its address"
            )
        if isinstance(maker, partial):
            maker = maker.func
    for name, value in options.items():
        if not is_plain(value):
            raise ValueError(f"{maker.__name__} cannot be isolated: its {name!r} is no plain value: {value!r}")
    return address_of(maker), options


def is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
