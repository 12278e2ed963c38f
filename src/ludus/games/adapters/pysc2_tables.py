"""Spec and tables of a `PySC2` game: each table has a game of its own, and all are stepped at the same time.

An episode whose game process fails is cut off with NaN as its score, which makes its match void.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec, ObservationSpec
from ludus.data.trees import IntArray, Tree, take
from ludus.games.adapters.pysc2 import UNMARKED, Computer, PySC2, computer_on_seat
from ludus.games.adapters.pysc2_actions import DELAY, FUNCTION, NO_OP, FunctionCodec
from ludus.games.adapters.pysc2_history import BUILD_ORDER, NUM_FACTS, ActionHistory
from ludus.games.adapters.pysc2_library import actions as pysc2_actions, find_map
from ludus.games.adapters.pysc2_observations import NOTHING_SEEN, ObservationCodec
from ludus.games.adapters.pysc2_session import GameLostError, Session, game_steps
from ludus.games.game import Actions, StrategyView, TableView
from ludus.games.seat_rows import GameError
from ludus.games.seeding import uniform
from ludus.games.tables import ArrayTables

_SEEDS = np.uint64(2**31 - 1)
"""Mask for seeds: the game takes 31 bits."""

_log = logging.getLogger(__name__)


def spec_of(source: PySC2) -> GameSpec:
    seats = num_seats(source)
    actions = FunctionCodec(source)
    if has_lobby(source) and set(actions.spec.heads) <= UNMARKED:
        raise GameError("built-in bots need a function that takes an argument; or set builtin_bots=false")
    if source.critic_state and seats == 1:
        raise GameError("critic_state needs a second seat: the computer's view cannot be observed")
    loops = game_steps(source)
    observations = ObservationCodec(source)
    return GameSpec.symmetric(
        name=f"pysc2:{source.map_name}",
        num_seats=seats,
        observation=ObservationSpec(parts=observations.parts, critic=observations.critic),
        action=actions.spec,
        max_length=(loops if source.max_delay else -(-loops // source.step_mul)) + 2,
        zero_sum=seats == 2,
        timed=source.max_delay > 0,
    )


def num_seats(source: PySC2) -> int:
    players = find_map(source.map_name).players
    if players == 1 and source.opponent is not None:
        raise GameError(f"{source.map_name} is for one player: there is no place for an opponent")
    seats = 1 if players == 1 or source.opponent is not None else 2
    if len(source.races) not in (1, seats):
        raise GameError(f"races names {len(source.races)} races for {seats} seats: give one, or one a seat")
    return seats


def has_lobby(source: PySC2) -> bool:
    """Whether computer players may take seats, chosen by a first decision."""
    return source.builtin_bots and num_seats(source) == 2


class SC2Tables(ArrayTables):
    """Tables whose games run in threads of their own."""

    strategy: StrategyView
    """Only with the raw interface, which shows all units of a seat, and not in mini-games."""

    def __init__(self, source: PySC2, num_tables: int) -> None:
        super().__init__(source.spec, num_tables)
        functions = FunctionCodec(source)
        codecs = functions, ObservationCodec(source)
        seats = (num_tables, source.spec.num_seats)
        built = StrategyView(
            build_order=np.full((*seats, BUILD_ORDER), -1, np.int16),
            built=np.zeros((*seats, NUM_FACTS), np.bool_),
            build_place=np.full((*seats, BUILD_ORDER), -1, np.int16),
        )
        if has_strategies(source):
            self.strategy = built
        self._tables = [
            _Table(source, *codecs, self.view, table, _histories(functions, built, table))
            for table in range(num_tables)
        ]
        # Threads mostly wait for their games. They are kept, since a game ends with the thread that started it.
        self._threads = ThreadPoolExecutor(num_tables, thread_name_prefix="starcraft")
        self._closed = False

    @property
    def dropped_units(self) -> int:
        """Units without a row in the list, over all observations."""
        return sum(table.dropped_units for table in self._tables)

    @property
    def lost_games(self) -> int:
        """Game processes that failed and were replaced."""
        return sum(table.session.lost for table in self._tables)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        small = (seeds & _SEEDS).tolist()
        self._run(
            lambda table=table, seed=seed: self._tables[table].reset(seed)
            for table, seed in zip(tables.tolist(), small, strict=True)
        )

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(~(self.view.over | self.view.truncated)).tolist()
        self._run(lambda table=table: self._tables[table].step(take(actions[0], table)) for table in running)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._run(table.session.close for table in self._tables)
            self._threads.shutdown()

    def _run(self, calls: Any) -> None:
        """Run calls at the same time, and raise the first error once all have ended."""
        errors = [future.exception() for future in [self._threads.submit(call) for call in calls]]
        for error in errors:
            if error is not None:
                raise error


def has_strategies(source: PySC2) -> bool:
    """Whether it is known what a seat has built."""
    return source.interface == "raw" and bool(find_map(source.map_name).players != 1)


def _histories(functions: FunctionCodec, strategy: StrategyView, table: int) -> list[ActionHistory]:
    """The histories of a table's seats."""
    assert strategy.build_place is not None
    rows = zip(strategy.build_order[table], strategy.build_place[table], strategy.built[table], strict=True)
    return [ActionHistory(functions, *arrays) for arrays in rows]


class _Table:
    """One table: its game, and its rows of the view."""

    def __init__(
        self,
        source: PySC2,
        actions: FunctionCodec,
        observations: ObservationCodec,
        view: TableView,
        table: int,
        histories: Sequence[ActionHistory],
    ) -> None:
        num_seats = source.spec.num_seats
        self._source = source
        self._actions = actions
        self._observations = observations
        self._view = view
        self._table = table
        self._seats = range(num_seats)
        self._rows = [take(view.observation[0], (table, seat, ...)) for seat in self._seats]
        self._legal = [take(view.legal[0], (table, seat, ...)) for seat in self._seats]
        self._seen = [NOTHING_SEEN] * num_seats
        self._histories = histories
        self._computers: list[Computer | None] = [None] * num_seats
        self._due = np.zeros(num_seats, np.int64)
        """Game time of each seat's next decision."""
        self._seed = 0
        self._in_lobby = False
        self._loop = 0
        self.session = Session(source)
        self.dropped_units = 0

    def reset(self, seed: int) -> None:
        self._seed = seed
        self._loop = 0
        self._computers = [None] * len(self._seats)
        self._in_lobby = has_lobby(self._source)
        draws = uniform(np.full(len(self._seats), seed, np.uint64), np.arange(len(self._seats)))
        for history, draw in zip(self._histories, draws, strict=True):
            history.begin(self._source.mmr, hides_race=bool(draw < self._source.hidden_race))
        if self._in_lobby:
            self._show_lobby()
        else:
            self._begin()

    def _show_lobby(self) -> None:
        for rows, legal in zip(self._rows, self._legal, strict=True):
            for array in rows.values():
                array[...] = 0
            for mask in legal.values():
                mask[:] = False
            legal[FUNCTION][NO_OP] = True

    def _begin(self) -> None:
        source = self._source
        races: list[str] = [*source.races] * (len(self._seats) if len(source.races) == 1 else 1)
        computers = list(self._computers)
        if source.opponent is not None:
            races.append(source.opponent.race)
            computers.append(source.opponent)
        steps = self.session.begin(self._seed, races, computers)
        self._due[:] = 0
        self._show(steps)
        for seat in self._seats:
            self._view.to_act[self._table, seat] = self._computers[seat] is None

    def step(self, actions: Tree) -> None:
        """`actions`: head -> [seats, ...]."""
        self._view.reward[self._table] = 0
        if self._in_lobby:
            self._leave_lobby(actions)
            return
        calls = []
        for seat in self._agents:
            if not self._view.to_act[self._table, seat]:
                calls.append(pysc2_actions.FunctionCall(NO_OP, []))
                continue
            action = take(actions, seat)
            calls.append(self._actions.decode(action, self._seen[seat].unit_of_row))
            self._histories[seat].decide(action, self._loop)
            delay = int(action[DELAY]) + 1 if DELAY in action else self._source.step_mul
            self._due[seat] = self._loop + delay
        until = min(self._due[seat] for seat in self._agents)
        try:
            steps = self.session.step(calls, int(until - self._loop))
        except GameLostError as error:
            self._give_up(error)
            return
        self._loop = int(until)
        self._show(steps)
        self._reward(steps)
        self._end_or_go_on(steps)

    def _leave_lobby(self, actions: Tree) -> None:
        self._computers = [computer_on_seat(take(actions, seat)) for seat in self._seats]
        if all(self._computers):
            raise GameError(
                "two built-in bots cannot play against each other through PySC2: "
                f"{' and '.join(computer.name for computer in self._computers if computer)}"
            )
        self._in_lobby = False
        self._begin()

    @property
    def _agents(self) -> list[int]:
        """The seats without a computer player, in the order of PySC2's agents."""
        return [seat for seat in self._seats if self._computers[seat] is None]

    def _show(self, steps: Sequence[Any]) -> None:
        agents = dict(zip(self._agents, steps, strict=True))
        for (seat, step), abilities in zip(agents.items(), self.session.abilities, strict=True):
            rows, legal, history = self._rows[seat], self._legal[seat], self._histories[seat]
            if self._actions.raw:
                history.see(step.observation, self._source.raw_resolution)
            seen = self._observations.write(rows, step.observation, history)
            self._actions.write_legal(legal, step.observation, seen.alliance, abilities)
            self._observations.write_available(rows, legal)
            now = int(step.observation["game_loop"][0]) if self.session.counts_steps else self._loop
            if 0 < self._source.max_actions <= history.actions_within(now):
                legal[FUNCTION][:] = False
                legal[FUNCTION][NO_OP] = True
            if seen.dropped and not self.dropped_units:
                _log.warning("table %d: %d units have no row in the list; max_units", self._table, seen.dropped)
            self.dropped_units += seen.dropped
            self._seen[seat] = seen
        for seat, step in agents.items():
            other = 1 - seat
            seen_there = (self._rows[other], agents[other].observation) if other in agents else None
            self._observations.write_critic(self._rows[seat], step.observation, seen_there)
        if self.session.counts_steps:
            self._loop = int(steps[0].observation["game_loop"][0])
        self._view.clock[self._table] = self._loop

    def _reward(self, steps: Sequence[Any]) -> None:
        reward = self._view.reward[self._table]
        for seat, step in zip(self._agents, steps, strict=True):
            reward[seat] = step.reward
        if len(self._seats) == 2:
            # The games of two agents may end in different steps, and a computer player has no reward.
            gained = reward[0] or -reward[1]
            reward[:] = gained, -gained
        self._view.score[self._table] += reward

    def _end_or_go_on(self, steps: Sequence[Any]) -> None:
        view, table = self._view, self._table
        if any(step.last() for step in steps):
            over = any(step.last() and step.discount == 0 for step in steps)
            view.over[table], view.truncated[table] = over, not over
            view.to_act[table] = False
            return
        for seat in self._agents:
            view.to_act[table, seat] = self._due[seat] <= self._loop

    def _give_up(self, error: GameLostError) -> None:
        _log.warning("table %d: the game was lost, its episode is void: %s", self._table, error)
        self._view.truncated[self._table] = True
        self._view.to_act[self._table] = False
        self._view.score[self._table] = np.nan
