"""Tables of environments with one seat: single ones, or a vector environment for all.

Needs no library: what an environment is called from is the business of its source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray
from ludus.games.adapters.gymnasium_spaces import ActionCodec, observation_leaves, observation_spec
from ludus.games.game import Actions, TableView

DEFAULT_MAX_LENGTH = 10_000
"""Cuts off episodes of environments that set no limit of their own."""


def spec_of(env: Any, name: str, *, bins: int | None, limits: list[int | None], repeatable: bool = True) -> GameSpec:
    """The spec of a single or vector environment; its limit is the lowest of those that are given."""
    observation, action = spaces_of(env)
    known = [limit for limit in limits if limit is not None]
    return GameSpec.symmetric(
        name=name,
        num_seats=1,
        observation=observation_spec(observation_leaves(observation)),
        action=ActionCodec.of(action, name, bins).spec,
        max_length=min(known, default=DEFAULT_MAX_LENGTH),
        zero_sum=False,
        repeatable=repeatable,
    )


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Of one table. Vector environments outside Gymnasium show only these."""
    observation = getattr(env, "single_observation_space", None) or env.observation_space
    action = getattr(env, "single_action_space", None) or env.action_space
    return observation, action


class EnvironmentTables:
    """What all kinds of batch share: the view, and how episodes begin and end."""

    def __init__(self, spec: GameSpec, num_tables: int, env: Any, bins: int | None) -> None:
        observation, action = spaces_of(env)
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self.view.over[:] = True  # until the first reset nothing can be stepped
        self._codec = ActionCodec.of(action, spec.name, bins)
        leaves = observation_leaves(observation)
        self._parts = [(self.view.observation[0][leaf.name][:, 0], leaf.read) for leaf in leaves]
        self._steps = np.zeros(num_tables, np.int64)
        self._total = np.zeros(num_tables, np.float64)

    def _begin(self, tables: IntArray) -> None:
        view = self.view
        view.over[tables] = view.truncated[tables] = False
        view.to_act[tables] = True
        view.reward[tables] = view.score[tables] = 0.0
        self._steps[tables] = 0
        self._total[tables] = 0.0

    def _advance(
        self,
        tables: IntArray,
        reward: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Record one step of these tables: row i belongs to `tables[i]`."""
        view = self.view
        rows = self._rows(tables)
        view.reward[rows, 0] = reward
        self._total[rows] += reward
        self._steps[rows] += 1
        cut = (truncated | (self._steps[rows] >= self.spec.max_length)) & ~terminated
        ended = tables[terminated | cut]
        if len(ended):
            view.over[rows] = terminated
            view.truncated[rows] = cut
            view.to_act[ended] = False
            view.score[ended, 0] = self._total[ended]

    def _rows(self, tables: IntArray) -> IntArray | slice:
        """The index of these tables; a slice if it is all of them, as mostly, which is far cheaper."""
        return slice(None) if len(tables) == self.num_tables else tables


class SingleTables(EnvironmentTables):
    """One environment per table, stepped one after the other."""

    def __init__(self, spec: GameSpec, envs: list[Any], bins: int | None = None) -> None:
        super().__init__(spec, len(envs), envs[0], bins)
        self._envs = envs
        self._step_calls = [env.step for env in envs]

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        for table, seed in zip(tables.tolist(), small_seeds(seeds), strict=True):
            observation, _ = self._envs[table].reset(seed=seed)
            for array, read in self._parts:
                array[table] = read(observation)
        self._begin(tables)

    def step(self, actions: Actions) -> None:
        moves = self._codec.decode(actions[0])
        listed = moves.tolist() if moves.ndim == 1 else moves
        running = np.flatnonzero(self.view.to_act[:, 0])
        parts, calls = self._parts, self._step_calls
        ends: list[tuple[float, bool, bool]] = []
        for table in running.tolist():
            observation, reward, terminated, truncated, _ = calls[table](listed[table])
            for array, read in parts:
                array[table] = read(observation)
            ends.append((reward, terminated, truncated))
        if ends:
            rewards, terminated_all, truncated_all = zip(*ends, strict=True)
            self._advance(running, np.array(rewards, np.float64), np.array(terminated_all), np.array(truncated_all))

    def close(self) -> None:
        for env in self._envs:
            env.close()


class VectorTables(EnvironmentTables):
    """One vector environment that leaves resets to us, for all tables."""

    def __init__(self, spec: GameSpec, env: Any, num_tables: int, bins: int | None = None) -> None:
        super().__init__(spec, num_tables, env, bins)
        self._env = env

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        listed: list[int | None] = [None] * self.num_tables
        for table, seed in zip(tables.tolist(), small_seeds(seeds), strict=True):
            listed[table] = seed
        mask = np.zeros(self.num_tables, np.bool_)
        mask[tables] = True
        observation, _ = self._env.reset(seed=listed, options={"reset_mask": mask})
        self._show(tables, observation)
        self._begin(tables)

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(self.view.to_act[:, 0])
        if len(running):
            observation, *outcome, _ = self._env.step(self._codec.decode(actions[0]))
            rows = self._rows(running)
            self._show(rows, observation)
            self._advance(running, *(array[rows] for array in outcome))

    def close(self) -> None:
        self._env.close()

    def _show(self, rows: IntArray | slice, observation: Any) -> None:
        for array, read in self._parts:
            array[rows] = read(observation)[rows]


def small_seeds(seeds: NDArray[np.uint64]) -> list[int]:
    """Seeds that environments written in C take too: 31 bits."""
    listed: list[int] = (seeds & np.uint64(2**31 - 1)).tolist()
    return listed


Resets = Literal["mask", "ids", "same_step", "next_step"]
"""Who begins an episode at a table: we by a mask or by ids, or the environment."""

_IDS = {"env_id", "env_ids", "ids"}
_LAST = ("final_obs", "final_observation", "terminal_observation")


def resets_of(env: Any) -> Resets:
    """How a vector environment resets, by what it says of itself."""
    mode = getattr(env, "metadata", None) or {}
    mode = mode.get("autoreset_mode", getattr(env, "autoreset_mode", None))
    name = str(getattr(mode, "name", mode)).upper()
    if name == "DISABLED":
        return "mask"
    if _IDS & set(inspect.signature(env.reset).parameters):
        return "ids"
    return "next_step" if name == "NEXT_STEP" else "same_step"


class SelfResettingTables(EnvironmentTables):
    """All tables of a vector environment that takes no resets for single tables."""

    def __init__(self, spec: GameSpec, env: Any, num_tables: int, bins: int | None, *, same_step: bool) -> None:
        super().__init__(spec, num_tables, env, bins)
        self._env = env
        self._same_step = same_step
        self._now = [np.zeros_like(array) for array, _ in self._parts]
        """What each environment shows, also where nobody looks."""
        self._asleep = np.zeros(num_tables, np.bool_)
        """Ended; will be reset by the next step."""
        self._started = False

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        if not self._started:
            self._started = True
            self._look(first_reset(self._env, small_seeds(seeds[:1])[0]))
        for (array, _), now in zip(self._parts, self._now, strict=True):
            array[tables] = now[tables]
            array[tables[self._asleep[tables]]] = 0
        self._begin(tables)

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(self.view.to_act[:, 0])
        if not len(running):
            return
        observation, reward, terminated, truncated, info = five(self._env.step(self._codec.decode(actions[0])))
        self._look(observation)
        for (array, _), now in zip(self._parts, self._now, strict=True):
            array[running] = now[running]
        if self._same_step:
            self._show_last(np.intersect1d(running, np.flatnonzero(terminated | truncated)), info)
        else:
            self._asleep = terminated | truncated
        self._advance(running, reward[running], terminated[running], truncated[running])

    def close(self) -> None:
        self._env.close()

    def _look(self, observation: Any) -> None:
        for now, (_, read) in zip(self._now, self._parts, strict=True):
            now[:] = read(observation)

    def _show_last(self, ended: IntArray, info: Any) -> None:
        for table in ended.tolist():
            last = _last_observation(info, table)
            if last is not None:
                for array, read in self._parts:
                    array[table] = read(last)


class PoolTables(EnvironmentTables):
    """Tables of an environment pool that takes the ids of those that are meant."""

    def __init__(self, spec: GameSpec, env: Any, num_tables: int, bins: int | None) -> None:
        super().__init__(spec, num_tables, env, bins)
        self._env = env

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        observation, info = two(self._env.reset(tables.astype(np.int32)))
        self._show(_ids(info, tables), observation)
        self._begin(tables)

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(self.view.to_act[:, 0])
        if not len(running):
            return
        moves = self._codec.decode(actions[0])[running]
        observation, reward, terminated, truncated, info = five(self._env.step(moves, running.astype(np.int32)))
        ids = _ids(info, running)
        self._show(ids, observation)
        order = np.argsort(ids)
        self._advance(ids[order], reward[order], terminated[order], truncated[order])

    def close(self) -> None:
        self._env.close()

    def _show(self, ids: IntArray, observation: Any) -> None:
        for array, read in self._parts:
            array[ids] = read(observation)


def two(reset: Any) -> tuple[Any, Any]:
    """Observation and info, from a reset of any age."""
    return reset if isinstance(reset, tuple) and len(reset) == 2 else (reset, {})


def five(step: Any) -> tuple[Any, Array, NDArray[np.bool_], NDArray[np.bool_], Any]:
    """Observation, reward, terminated, truncated and info of all tables, from a step of any age."""
    if len(step) == 5:
        observation, reward, over, cut, info = step
    else:
        observation, reward, done, info = step
        done = np.asarray(done, np.bool_)
        cut = done & _flags(info, "TimeLimit.truncated", len(done))
        over = done & ~cut
    return observation, np.asarray(reward), np.asarray(over, np.bool_), np.asarray(cut, np.bool_), info


def first_reset(env: Any, seed: int) -> Any:
    """The observations of all tables."""
    takes_seed = "seed" in inspect.signature(env.reset).parameters
    return two(env.reset(seed=seed) if takes_seed else env.reset())[0]


def _flags(info: Any, name: str, num: int) -> NDArray[np.bool_]:
    if isinstance(info, dict):
        return np.asarray(info.get(name, np.zeros(num)), np.bool_)
    return np.array([one.get(name, False) for one in info], np.bool_)


def _last_observation(info: Any, table: int) -> Any:
    """Of the episode that ended; None if the environment does not keep it."""
    holders: Iterable[Any] = [info] if isinstance(info, dict) else [info[table]]
    for holder in holders:
        for name in _LAST:
            if name in holder:
                return _row(holder[name], table) if isinstance(info, dict) else holder[name]
    return None


def _row(values: Any, table: int) -> Any:
    if isinstance(values, dict):
        return {name: _row(value, table) for name, value in values.items()}
    return tuple(_row(value, table) for value in values) if isinstance(values, tuple) else values[table]


def _ids(info: Any, asked: IntArray) -> IntArray:
    """Which tables the rows are of: pools may answer in an order of their own."""
    found = info.get("env_id") if isinstance(info, dict) else None
    return asked if found is None else np.asarray(found, np.int64)


class PartialResetAtari:
    """What ended tables do until we reset them, with a seed, is not looked at. One thread: the actors bring
    their own processes."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, make: Callable[..., Any], *, num_envs: int, **options: Any) -> None:
        frames = options.get("max_num_frames_per_episode", 108_000)
        self.max_episode_steps = frames // options.get("frameskip", 4)
        self.num_envs = num_envs
        options = {"num_threads": 1, **options, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self._env = make(num_envs=num_envs, **options)
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self._env.reset(seed=0)  # before a reset of all, there is none of some

    def reset(self, *, seed: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        seeds = np.array([seed[table] for table in np.flatnonzero(options["reset_mask"])])
        shown: tuple[Any, Any] = self._env.reset(seed=seeds, options=options)
        return shown

    def step(self, actions: Any) -> Any:
        return self._env.step(actions)

    def close(self) -> None:
        self._env.close()


class PartialResetCartPole(CartPoleVectorEnv):
    """Starts each table as the single environment does from that seed; an ended table rests until reset."""

    metadata = {**CartPoleVectorEnv.metadata, "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    state: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state = np.zeros((4, self.num_envs))
        self._resting = np.ones(self.num_envs, np.bool_)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        mask = np.ones(self.num_envs, np.bool_) if options is None else options["reset_mask"]
        for table in np.flatnonzero(mask):
            rng, _ = seeding.np_random(None if seed is None else seed[table])
            self.state[:, table] = rng.uniform(self.low, self.high, 4)
        self.steps[mask] = 0
        self._resting[mask] = False
        return self.state.T.astype(np.float32), {}

    def step(self, action: NDArray[Any]) -> tuple[Any, ...]:
        resting = self._resting
        held = self.state[:, resting]
        observation, reward, terminated, truncated, info = super().step(action)
        # Left alone, a fallen pole would spin ever faster, to overflow.
        self.state[:, resting] = held
        self._resting = resting | terminated | truncated
        self.prev_done[:] = False  # else the next step would reset those tables from a seed of its own
        return observation, reward, terminated, truncated, info
