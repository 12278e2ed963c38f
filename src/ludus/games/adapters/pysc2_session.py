"""One table's game: made anew for each episode, and its process replaced when it fails."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ludus.games.adapters.pysc2_bots import Computer
from ludus.games.adapters.pysc2_layers import nearest
from ludus.games.adapters.pysc2_library import (
    features,
    flags,
    maps,
    mock_sc2_env,
    protocol,
    remote_controller,
    sc2_env,
    sc_process,
)
from ludus.games.adapters.pysc2_process import closing_on_error, require_installed
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
