"""Tables of StarCraft II: each has a game of its own, and all are stepped at the same time.

An episode whose game fails is cut off with a score that is no number, so that its match is void.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree, take
from ludus.games.adapters.pysc2 import Computer, computer_on_seat
from ludus.games.adapters.pysc2_library import actions as pysc2_actions
from ludus.games.adapters.pysc2_library import (
    closing_on_error,
    features,
    flags,
    maps,
    mock_sc2_env,
    protocol,
    remote_controller,
    require_installed,
    sc2_env,
    sc_process,
)
from ludus.games.adapters.pysc2_observations import (
    DELAY,
    FUNCTION,
    NO_OP,
    NOTHING_SEEN,
    FunctionCodec,
    ObservationCodec,
    SeenUnits,
    nearest,
)
from ludus.games.game import Actions, TableView
from ludus.games.seat_rows import GameError

STARTS = 3
"""How often a game is tried to be started before giving up."""

LOST = (
    protocol.ConnectionError,
    protocol.ProtocolError,
    remote_controller.ConnectError,
    remote_controller.RequestError,
    sc_process.SC2LaunchError,
    OSError,
)
"""What PySC2 raises when the game process fails."""


class GameLostError(Exception):
    """The game process ended, hung or fell out of step in the middle of an episode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GameSetup:
    """What all episodes of a table have in common."""

    map_name: str
    step_mul: int
    game_steps_per_episode: int
    interface: Any
    """Keyword arguments of PySC2's `parse_agent_interface_format`."""
    version: str | None
    time_limit_s: int
    episodes_per_process: int
    fast_restart: bool
    mock: bool


class SeededEnv(sc2_env.SC2Env):  # type: ignore[misc]
    """PySC2's environment, but each episode has a seed of its own and may have another opponent."""

    def __init__(self, *, fast_restart: bool, **options: Any) -> None:
        self._fast_restart = fast_restart
        super().__init__(**options)

    def begin(self, seed: int, players: list[Any]) -> Any:
        """As many of the players must be agents as there were at first."""
        self._random_seed, self._players = seed, players
        return self.reset()

    def _restart(self) -> None:
        # PySC2 starts a mini-game again without making it anew, and then there is no way to give a seed.
        if self._fast_restart:
            super()._restart()
            return
        if len(self._controllers) > 1:
            self._parallel.run(controller.leave for controller in self._controllers)
        self._create_join()


class Session:
    """Episodes one after the other, by one game process for each agent."""

    def __init__(self, setup: GameSetup) -> None:
        self._setup = setup
        self._env: Any = None
        self._num_agents = 0
        self._episodes = 0
        self.lost = 0
        """Processes that failed."""
        self.counts_steps = not setup.mock
        """The observations tell the game time."""

    def begin(self, seed: int, races: list[str], computers: list[Computer | None]) -> Any:
        """Start an episode; by place, None is an agent of that race. Gives the agents' first timesteps."""
        players = [
            sc2_env.Agent(sc2_env.Race[race], f"seat {place}") if computer is None else _bot(computer)
            for place, (race, computer) in enumerate(zip(races, computers, strict=True))
        ]
        # Agents come first, so that seats can be swapped without another process.
        players.sort(key=lambda player: isinstance(player, sc2_env.Bot))
        num_agents = sum(computer is None for computer in computers)
        if num_agents != self._num_agents or self._episodes >= self._setup.episodes_per_process:
            self.close()
        for attempt in range(1, STARTS + 1):
            try:
                return self._begin(seed, players, num_agents)
            except LOST as error:
                self._lose()
                if attempt == STARTS:
                    raise GameError(_explained(error, self._setup.time_limit_s)) from error
        raise AssertionError

    def _begin(self, seed: int, players: list[Any], num_agents: int) -> Any:
        if self._env is None:
            self._env = self._start(seed, players)
            self._num_agents, self._episodes = num_agents, 0
        self._episodes += 1
        if self._setup.mock:
            return self._env.reset()
        return self._env.begin(seed, players)

    def _start(self, seed: int, players: list[Any]) -> Any:
        setup = self._setup
        options: dict[str, Any] = {
            "map_name": setup.map_name,
            "players": players,
            "agent_interface_format": [
                features.parse_agent_interface_format(**setup.interface)
                for player in players
                if isinstance(player, sc2_env.Agent)
            ],
            "step_mul": setup.step_mul,
            "game_steps_per_episode": setup.game_steps_per_episode,
            "random_seed": seed,
            "version": setup.version,
        }
        if setup.mock:
            return mock_sc2_env.SC2TestEnv(**options)
        require_installed()
        flags.FLAGS["sc2_timeout"].value = setup.time_limit_s
        with closing_on_error():
            try:
                return SeededEnv(fast_restart=setup.fast_restart, **options)
            except ValueError as error:  # an unknown version or a map that is not there
                raise GameError(_hint(str(error), setup.map_name)) from error

    def step(self, calls: list[Any], game_steps: int) -> Any:
        """The agents' next timesteps. After `GameLostError` the next `begin` starts another process."""
        try:
            return self._env.step(calls, game_steps)
        except LOST as error:
            self._lose()
            raise GameLostError(str(error)) from error
        except ValueError as error:
            if "didn't advance" not in str(error):
                raise
            self._lose()
            raise GameLostError(str(error)) from error

    def _lose(self) -> None:
        self.lost += 1
        self.close()

    def close(self) -> None:
        env, self._env, self._num_agents = self._env, None, 0
        if env is None:
            return
        processes = list(getattr(env, "_sc2_procs", None) or ())
        # A process that has failed may fail to be closed in PySC2's way.
        with suppress(Exception):
            env.close()
        for process in processes:
            with suppress(Exception):
                process.close()


def _bot(computer: Computer) -> Any:
    return sc2_env.Bot(
        sc2_env.Race[computer.race],
        sc2_env.Difficulty[computer.difficulty],
        sc2_env.BotBuild[computer.build],
    )


def find_map(name: str) -> Any:
    known = maps.lib.get_maps()
    if name not in known:
        raise GameError(f"PySC2 knows no map {name!r}{nearest(name, list(known), cutoff=0.0)}")
    return known[name]()


def _hint(error: str, map_name: str) -> str:
    download = find_map(map_name).download
    return f"{error} The map is at {download}." if "not found" in error and download else error


def _explained(error: Exception, time_limit_s: int) -> str:
    notes = "\n".join(getattr(error, "__notes__", ()))
    return f"StarCraft II could not be started in {STARTS} attempts of up to {time_limit_s} s: {error}" + (
        f"\n{notes}" if notes else ""
    )


_log = logging.getLogger(__name__)

_SEEDS = np.uint64(2**31 - 1)
"""The game takes seeds of 31 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How the seats of a game come to a game of StarCraft II."""

    setup: GameSetup
    races: tuple[str, ...]
    """By seat."""
    opponent: Computer | None
    """Plays against the only seat."""
    lobby: bool
    """Built-in bots may take seats."""
    wins: bool
    """Two seats play for the win, so that what one gets, the other loses."""
    actions: FunctionCodec
    observations: ObservationCodec


class SC2Tables:
    def __init__(self, spec: GameSpec, rules: Rules, num_tables: int) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self.view.over[:] = True  # until the first reset nothing can be stepped
        self._tables = [_Table(rules, self.view, table, spec.num_seats) for table in range(num_tables)]
        # Tables mostly wait for their games. A game ends with the thread that started it, so threads stay.
        self._threads = ThreadPoolExecutor(num_tables, thread_name_prefix="starcraft")
        self._closed = False

    @property
    def dropped_units(self) -> int:
        """Units that were not shown because the list had no more rows, over all observations."""
        return sum(table.dropped_units for table in self._tables)

    @property
    def lost_games(self) -> int:
        """Game processes that failed and were replaced."""
        return sum(table.session.lost for table in self._tables)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
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
        """All at the same time; every one has ended when the first error is raised."""
        errors = [future.exception() for future in [self._threads.submit(call) for call in calls]]
        for error in errors:
            if error is not None:
                raise error


class _Table:
    """One table: its game, and its rows of the view."""

    def __init__(self, rules: Rules, view: TableView, table: int, num_seats: int) -> None:
        self._rules = rules
        self._view = view
        self._table = table
        self._seats = range(num_seats)
        self._rows = [take(view.observation[0], (table, seat, ...)) for seat in self._seats]
        self._legal = [take(view.legal[0], (table, seat, ...)) for seat in self._seats]
        self._seen = [NOTHING_SEEN] * num_seats
        self._computers: list[Computer | None] = [None] * num_seats
        self._due = np.zeros(num_seats, np.int64)
        """Game time of each seat's next decision."""
        self._seed = 0
        self._in_lobby = False
        self._loop = 0
        self.session = Session(rules.setup)
        self.dropped_units = 0

    def reset(self, seed: int) -> None:
        view, table = self._view, self._table
        self._seed = seed
        self._loop = 0
        self._computers = [None] * len(self._seats)
        view.reward[table] = view.score[table] = view.clock[table] = 0
        view.over[table] = view.truncated[table] = False
        view.to_act[table] = True
        self._in_lobby = self._rules.lobby
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
        rules = self._rules
        races, computers = list(rules.races), list(self._computers)
        if rules.opponent is not None:
            races.append(rules.opponent.race)
            computers.append(rules.opponent)
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
            calls.append(self._rules.actions.decode(action, self._seen[seat].unit_of_row))
            delay = int(action[DELAY]) + 1 if DELAY in action else self._rules.setup.step_mul
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
        """The seats that are not the computer's, in the order of PySC2's agents."""
        return [seat for seat in self._seats if self._computers[seat] is None]

    def _show(self, steps: Sequence[Any]) -> None:
        for seat, step in zip(self._agents, steps, strict=True):
            seen = self._rules.observations.write(self._rows[seat], step.observation)
            self._rules.actions.write_legal(self._legal[seat], step.observation, seen.alliance)
            self._count_dropped(seen)
            self._seen[seat] = seen
        if self.session.counts_steps:
            self._loop = int(steps[0].observation["game_loop"][0])
        self._view.clock[self._table] = self._loop

    def _count_dropped(self, seen: SeenUnits) -> None:
        if seen.dropped and not self.dropped_units:
            _log.warning("table %d: %d units have no row in the list; max_units", self._table, seen.dropped)
        self.dropped_units += seen.dropped

    def _reward(self, steps: Sequence[Any]) -> None:
        reward = self._view.reward[self._table]
        for seat, step in zip(self._agents, steps, strict=True):
            reward[seat] = step.reward
        if self._rules.wins:
            # The two agents' games may not agree at once that it has ended, and a computer has no reward.
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
