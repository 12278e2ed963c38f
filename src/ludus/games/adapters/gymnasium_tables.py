"""Tables of environments with one seat: an environment per table, or a vector environment for all tables; `OldGym`.

This module works with Gymnasium, the old gym and classes with the same methods, and imports none of them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.data.addresses import load_address
from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray
from ludus.games.adapters.gymnasium_spaces import ActionCodec, observation_leaves, observation_spec
from ludus.games.game import Actions, GameBatch
from ludus.games.tables import ArrayTables, GameDefaults

DEFAULT_MAX_LENGTH = 10_000
"""Steps after which episodes are cut off if the environment has no limit of its own."""

_IDS = {"env_id", "env_ids", "ids"}
_LAST = ("final_obs", "final_observation", "terminal_observation")

Resets = Literal["mask", "ids", "same_step", "next_step"]
"""How a vector environment resets tables: by a mask, by ids, or itself in the same or the next step."""


@dataclass(frozen=True, kw_only=True)
class OldGym(GameDefaults):
    """An environment of the old `gym` by its id (`CartPole-v1`), or by the address of its class
    (`my_file.py:MyEnv`), whose `step` may return four values."""

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    max_length: int | None = None
    """Steps after which an episode is cut off; default: the environment's own limit."""
    bins: int | None = None
    """Options per number of a Box of actions, evenly spread between its bounds; None: it takes real numbers."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._env()
        return spec_of(env, self.env_id, bins=self.bins, max_length=self.max_length, repeatable=env.takes_seeds)

    def tables(self, num_tables: int) -> GameBatch:
        return SingleTables(self.spec, [self._env() for _ in range(num_tables)], self.bins)

    def _env(self) -> OldEnvironment:
        if is_address(self.env_id):
            return OldEnvironment(load_address(self.env_id)(**self.options))
        make = importlib.import_module("gym").make
        # The checker of gym's last release uses types that numpy no longer has.
        unchecked = "disable_env_checker" in inspect.signature(make).parameters
        options = {"disable_env_checker": True, **self.options} if unchecked else self.options
        return OldEnvironment(make(self.env_id, **options))


def spec_of(env: Any, name: str, *, bins: int | None, max_length: int | None, repeatable: bool) -> GameSpec:
    """The spec of a single or vector environment, which is closed. The lower limit of steps counts: `max_length` or
    the environment's own."""
    observation, action = spaces_of(env)
    own: int | None = getattr(env, "max_episode_steps", None)
    if own is None:
        own = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    known = [limit for limit in (max_length, own) if limit is not None]
    spec = GameSpec.symmetric(
        name=name,
        num_seats=1,
        observation=observation_spec(observation_leaves(observation)),
        action=ActionCodec.of(action, name, bins).spec,
        max_length=min(known, default=DEFAULT_MAX_LENGTH),
        zero_sum=False,
        repeatable=repeatable,
    )
    env.close()
    return spec


def spaces_of(env: Any) -> tuple[Any, Any]:
    """Observation and action space of one table."""
    observation = getattr(env, "single_observation_space", None) or env.observation_space
    action = getattr(env, "single_action_space", None) or env.action_space
    return observation, action


def resets_of(env: Any) -> Resets:
    """How a vector environment resets, by its metadata and signature."""
    mode = getattr(env, "metadata", None) or {}
    mode = mode.get("autoreset_mode", getattr(env, "autoreset_mode", None))
    name = str(getattr(mode, "name", mode)).upper()
    if name == "DISABLED":
        return "mask"
    if _IDS & set(inspect.signature(env.reset).parameters):
        return "ids"
    return "next_step" if name == "NEXT_STEP" else "same_step"


class EnvironmentTables(ArrayTables):
    """Base of all batches of environments: how episodes begin and end."""

    def __init__(self, spec: GameSpec, num_tables: int, env: Any, bins: int | None) -> None:
        super().__init__(spec, num_tables)
        observation, action = spaces_of(env)
        self._env = env
        self._codec = ActionCodec.of(action, spec.name, bins)
        leaves = observation_leaves(observation)
        self._parts = [(self.view.observation[0][leaf.name][:, 0], leaf.read) for leaf in leaves]
        self._steps = np.zeros(num_tables, np.int64)
        self._total = np.zeros(num_tables, np.float64)

    def close(self) -> None:
        self._env.close()

    def _start_episodes(self, tables: IntArray) -> None:
        super()._start_episodes(tables)
        self._steps[tables] = 0
        self._total[tables] = 0.0

    def _advance(
        self, tables: IntArray, reward: NDArray[Any], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
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

    def _moves(self, actions: Actions) -> Array:
        """[tables, ...]: actions of the environment."""
        self._require_within_bounds(actions)
        return self._codec.decode(actions[0])

    def _rows(self, tables: IntArray) -> IntArray | slice:
        """An index of these tables; for all tables a slice, which is far cheaper."""
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
        self._start_episodes(tables)

    def step(self, actions: Actions) -> None:
        moves = self._moves(actions)
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
    """One vector environment for all tables whose episodes are reset table by table, with a mask."""

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        listed: list[int | None] = [None] * self.num_tables
        for table, seed in zip(tables.tolist(), small_seeds(seeds), strict=True):
            listed[table] = seed
        mask = np.zeros(self.num_tables, np.bool_)
        mask[tables] = True
        observation, _ = self._env.reset(seed=listed, options={"reset_mask": mask})
        self._show(tables, observation)
        self._start_episodes(tables)

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(self.view.to_act[:, 0])
        if len(running):
            observation, *outcome, _ = self._env.step(self._moves(actions))
            rows = self._rows(running)
            self._show(rows, observation)
            self._advance(running, *(array[rows] for array in outcome))

    def _show(self, rows: IntArray | slice, observation: Any) -> None:
        for array, read in self._parts:
            array[rows] = read(observation)[rows]


class PoolTables(EnvironmentTables):
    """Tables of an environment pool whose calls take the ids of tables."""

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        observation, info = _reset_values(self._env.reset(tables.astype(np.int32)))
        self._show(_ids(info, tables), observation)
        self._start_episodes(tables)

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(self.view.to_act[:, 0])
        if not len(running):
            return
        moves = self._moves(actions)[running]
        observation, reward, terminated, truncated, info = _step_values(self._env.step(moves, running.astype(np.int32)))
        ids = _ids(info, running)
        self._show(ids, observation)
        order = np.argsort(ids)
        self._advance(ids[order], reward[order], terminated[order], truncated[order])

    def _show(self, ids: IntArray, observation: Any) -> None:
        for array, read in self._parts:
            array[ids] = read(observation)


class SelfResettingTables(EnvironmentTables):
    """All tables of a vector environment that resets its tables itself."""

    def __init__(self, spec: GameSpec, num_tables: int, env: Any, bins: int | None, *, same_step: bool) -> None:
        super().__init__(spec, num_tables, env, bins)
        self._same_step = same_step
        self._now = [np.zeros_like(array) for array, _ in self._parts]
        """The latest observations of all environments, including ended tables."""
        self._asleep = np.zeros(num_tables, np.bool_)
        """Tables that ended and that the next step resets."""
        self._started = False

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        if not self._started:
            self._started = True
            takes_seed = "seed" in inspect.signature(self._env.reset).parameters
            seed = {"seed": small_seeds(seeds[:1])[0]} if takes_seed else {}
            self._look(_reset_values(self._env.reset(**seed))[0])
        for (array, _), now in zip(self._parts, self._now, strict=True):
            array[tables] = now[tables]
            array[tables[self._asleep[tables]]] = 0
        self._start_episodes(tables)

    def step(self, actions: Actions) -> None:
        running = np.flatnonzero(self.view.to_act[:, 0])
        if not len(running):
            return
        observation, reward, terminated, truncated, info = _step_values(self._env.step(self._moves(actions)))
        self._look(observation)
        for (array, _), now in zip(self._parts, self._now, strict=True):
            array[running] = now[running]
        if self._same_step:
            for table in np.intersect1d(running, np.flatnonzero(terminated | truncated)).tolist():
                last = _last_observation(info, table)
                if last is not None:
                    for array, read in self._parts:
                        array[table] = read(last)
        else:
            self._asleep = terminated | truncated
        self._advance(running, reward[running], terminated[running], truncated[running])

    def _look(self, observation: Any) -> None:
        for now, (_, read) in zip(self._now, self._parts, strict=True):
            now[:] = read(observation)


class OldEnvironment:
    """Gives an environment with the old or the new interface the `reset` and `step` of Gymnasium."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.spec = getattr(env, "spec", None)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        parameters = inspect.signature(env.reset).parameters
        keywords = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._seeded_reset = "seed" in parameters or (keywords and not hasattr(env, "seed"))
        self._seed = None if self._seeded_reset else getattr(env, "seed", None)

    @property
    def takes_seeds(self) -> bool:
        return self._seeded_reset or self._seed is not None

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        if self._seed is not None:
            self._seed(seed)
        return _reset_values(self.env.reset(seed=seed) if self._seeded_reset else self.env.reset())

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        observation, reward, done, *more = self.env.step(action)
        if len(more) == 2:
            return observation, float(reward), bool(done), bool(more[0]), more[1]
        cut = bool(done) and bool(more[0].get("TimeLimit.truncated", False))
        return observation, float(reward), bool(done) and not cut, cut, more[0]

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


def is_address(env_id: str) -> bool:
    """Whether the name is the address of a class; an id may look like `module:Name-v1`."""
    return ":" in env_id and not re.search(r"-v\d+$", env_id)


def small_seeds(seeds: NDArray[np.uint64]) -> list[int]:
    """Seeds of 31 bits, which environments written in C accept too."""
    listed: list[int] = (seeds & np.uint64(2**31 - 1)).tolist()
    return listed


def _reset_values(reset: Any) -> tuple[Any, Any]:
    """Observation and info from a reset of the old or the new interface."""
    with_info = isinstance(reset, tuple) and len(reset) == 2 and isinstance(reset[1], dict)
    return reset if with_info else (reset, {})


def _step_values(step: Any) -> tuple[Any, Array, NDArray[np.bool_], NDArray[np.bool_], Any]:
    """Observation, reward, terminated, truncated and info from a step of the old or the new interface."""
    if len(step) == 5:
        observation, reward, over, cut, info = step
    else:
        observation, reward, done, info = step
        done = np.asarray(done, np.bool_)
        name = "TimeLimit.truncated"
        cut = info.get(name, False) if isinstance(info, dict) else [one.get(name, False) for one in info]
        cut = done & np.asarray(cut, np.bool_)
        over = done & ~cut
    return observation, np.asarray(reward), np.asarray(over, np.bool_), np.asarray(cut, np.bool_), info


def _last_observation(info: Any, table: int) -> Any:
    """The last observation of an ended episode; None if the environment does not keep it."""
    shared = isinstance(info, dict)
    holder = info if shared else info[table]
    for name in _LAST:
        if name in holder:
            return _row(holder[name], table) if shared else holder[name]
    return None


def _row(values: Any, table: int) -> Any:
    if isinstance(values, dict):
        return {name: _row(value, table) for name, value in values.items()}
    return tuple(_row(value, table) for value in values) if isinstance(values, tuple) else values[table]


def _ids(info: Any, asked: IntArray) -> IntArray:
    """The tables of the rows: pools may answer in another order."""
    found = info.get("env_id") if isinstance(info, dict) else None
    return asked if found is None else np.asarray(found, np.int64)
