"""Episodes of a `PySC2` game one after the other: its process, how it is asked to play, and what happens on failure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ludus.games.adapters.pysc2 import Computer, PySC2
from ludus.games.adapters.pysc2_actions import query_abilities
from ludus.games.adapters.pysc2_library import (
    closing_on_error,
    features,
    find_map,
    flags,
    mock_sc2_env,
    protocol,
    remote_controller,
    require_installed,
    sc2_env,
    sc_process,
)
from ludus.games.seat_rows import GameError

STARTS = 3

LOST = (
    protocol.ConnectionError,
    protocol.ProtocolError,
    remote_controller.ConnectError,
    remote_controller.RequestError,
    sc_process.SC2LaunchError,
    OSError,
)
"""Errors of PySC2 when the game process fails."""

_MINI_GAME_SECONDS = {
    "BuildMarines": 900,
    "CollectMineralsAndGas": 420,
    "CollectMineralShards": 120,
    "DefeatRoaches": 120,
    "DefeatZerglingsAndBanelings": 120,
    "FindAndDefeatZerglings": 180,
    "MoveToBeacon": 120,
}
"""Seconds after which these maps end by themselves; PySC2 knows no limit for them."""
_STEPS_A_SECOND = 16


def game_steps(source: PySC2) -> int:
    """The most game steps of an episode."""
    own: int = find_map(source.map_name).game_steps_per_episode
    if source.map_name in _MINI_GAME_SECONDS:
        # Two more decisions, so that the map's own end comes first.
        last = max(source.step_mul, source.max_delay)
        own = _MINI_GAME_SECONDS[source.map_name] * _STEPS_A_SECOND + 2 * last
    chosen = own if source.game_steps_per_episode is None else source.game_steps_per_episode
    most: int = sc2_env.MAX_STEP_COUNT
    return min(chosen, most) if chosen > 0 else most


def interface_options(source: PySC2) -> dict[str, Any]:
    """Arguments of PySC2's `parse_agent_interface_format`."""
    raw = source.interface == "raw"
    options: dict[str, Any] = {
        "feature_screen": source.screen or None,
        "feature_minimap": source.minimap or None,
        "use_feature_units": bool(source.max_units) and not raw,
        "use_raw_units": raw,
        "use_raw_actions": raw,
        "hide_specific_actions": not source.specific_functions,
        "crop_to_playable_area": True,
        "raw_crop_to_playable_area": raw,
    }
    if raw:
        options |= {"raw_resolution": source.raw_resolution, "max_selected_units": source.max_selected}
    return options


class Session:
    """Plays episodes one after the other, with one game process for each agent."""

    def __init__(self, source: PySC2) -> None:
        self._source = source
        self._env: Any = None
        self._num_agents = 0
        self._episodes = 0
        self.lost = 0
        self.counts_steps = not source.mock
        """Whether observations contain the game time."""
        self.abilities: list[set[int] | None] = []
        """By agent, the abilities of its units in the last observation; None: not asked for."""

    def begin(self, seed: int, races: list[str], computers: list[Computer | None]) -> Any:
        """Start an episode and return the agents' first timesteps; a computer of None is an agent of that race."""
        players = [
            sc2_env.Agent(sc2_env.Race[race], f"seat {place}") if computer is None else _bot(computer)
            for place, (race, computer) in enumerate(zip(races, computers, strict=True))
        ]
        # Agents come first, so that seats can be swapped without a new process.
        players.sort(key=lambda player: isinstance(player, sc2_env.Bot))
        num_agents = sum(computer is None for computer in computers)
        if num_agents != self._num_agents or self._episodes >= self._source.episodes_per_process:
            self.close()
        for attempt in range(1, STARTS + 1):
            try:
                return self._begin(seed, players, num_agents)
            except LOST as error:
                self._lose()
                if attempt == STARTS:
                    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                    raise GameError(
                        f"StarCraft II could not be started in {STARTS} attempts of up to "
                        f"{self._source.time_limit_s} s: {error}{notes}"
                    ) from error
        raise AssertionError

    def _begin(self, seed: int, players: list[Any], num_agents: int) -> Any:
        if self._env is None:
            self._env = self._start(seed, players)
            self._num_agents, self._episodes = num_agents, 0
        self._episodes += 1
        return self._asked(self._env.reset() if self._source.mock else self._env.begin(seed, players))

    def _asked(self, steps: Any) -> Any:
        """The same timesteps, after the game was asked for abilities if seats see which actions are available."""
        self.abilities = [None] * len(steps)
        if self._source.inputs == "published" and not self._source.mock and not steps[0].last():
            self.abilities = self._env.abilities([step.observation["raw_units"] for step in steps])
        return steps

    def _start(self, seed: int, players: list[Any]) -> Any:
        source = self._source
        options: dict[str, Any] = {
            "map_name": source.map_name,
            "players": players,
            "agent_interface_format": [
                features.parse_agent_interface_format(**interface_options(source))
                for player in players
                if isinstance(player, sc2_env.Agent)
            ],
            "step_mul": source.step_mul,
            "game_steps_per_episode": game_steps(source),
            "random_seed": seed,
            "version": source.version,
        }
        if source.mock:
            return mock_sc2_env.SC2TestEnv(**options)
        require_installed()
        flags.FLAGS["sc2_timeout"].value = source.time_limit_s
        with closing_on_error():
            try:
                return SeededEnv(fast_restart=source.fast_restart, **options)
            except ValueError as error:  # an unknown version or a missing map
                download = find_map(source.map_name).download
                hint = f" The map is at {download}." if "not found" in str(error) and download else ""
                raise GameError(f"{error}{hint}") from error

    def step(self, calls: list[Any], game_steps: int) -> Any:
        """The agents' next timesteps. After `GameLostError` the next `begin` starts another process."""
        try:
            return self._asked(self._env.step(calls, game_steps))
        except (*LOST, ValueError) as error:
            if isinstance(error, ValueError) and "didn't advance" not in str(error):
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
        # PySC2 may be unable to close a process that has failed.
        with suppress(Exception):
            env.close()
        for process in processes:
            with suppress(Exception):
                process.close()


def _bot(computer: Computer) -> Any:
    return sc2_env.Bot(
        sc2_env.Race[computer.race], sc2_env.Difficulty[computer.difficulty], sc2_env.BotBuild[computer.build]
    )


class SeededEnv(sc2_env.SC2Env):  # type: ignore[misc]
    """PySC2's environment with a seed for each episode and a changeable opponent."""

    def __init__(self, *, fast_restart: bool, **options: Any) -> None:
        self._fast_restart = fast_restart
        super().__init__(**options)

    def begin(self, seed: int, players: list[Any]) -> Any:
        """Start an episode; the number of agents among the players must stay the same."""
        self._random_seed, self._players = seed, players
        return self.reset()

    def abilities(self, units: Sequence[Any]) -> list[set[int] | None]:
        """By agent, the abilities of its units."""
        asked = zip(self._controllers, units, strict=True)
        found: list[set[int] | None] = self._parallel.run((query_abilities, *one) for one in asked)
        return found

    def _restart(self) -> None:
        # PySC2 restarts a mini-game without recreating it, and then takes no seed.
        if self._fast_restart:
            super()._restart()
            return
        if len(self._controllers) > 1:
            self._parallel.run(controller.leave for controller in self._controllers)
        self._create_join()


class GameLostError(Exception):
    """The game process ended, hung or lost step during an episode."""
