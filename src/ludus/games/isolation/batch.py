"""Tables that are played in processes of their own."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ludus.data.kind_json import spec_from_json
from ludus.data.shared_memory import Region, bytes_needed
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.game import Actions, Seat, StrategyView, TableView
from ludus.games.isolation.messages import DONE, RESET, STEP, BotAct, Draw, FromHost, Hello, Launch, Picture
from ludus.games.isolation.process import HostLost, HostProcess
from ludus.games.isolation.shared_tables import SharedTables
from ludus.games.seat_rows import GameError

if TYPE_CHECKING:
    from ludus.games.isolation.source import Isolated

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
        place.host.send(Draw(table - place.start, seat))
        answers = self._wait_for([place], "drawing", self._source.step_seconds)
        self._quiet()
        if not answers:
            raise GameError(f"table {table} was lost while it was drawn: {place.reason}")
        picture = answers[0]
        assert isinstance(picture, Picture)
        return np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)

    # --- starting and losing processes ---

    def _start(self, places: Sequence[_Place]) -> list[Hello]:
        """Start the processes of these places, together; those that fail are lost."""
        source = self._source
        for place in places:
            place.host = HostProcess(
                Launch(
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
            assert isinstance(hello, Hello)
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
