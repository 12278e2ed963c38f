"""Vector environments that reset themselves, as tables. Their seeds are their own, so that no episode can be
repeated: `GameSpec.repeatable` is off.

The ways that are understood:
- by ids, as in EnvPool: `reset(ids)` and `step(actions, ids)` concern these tables only;
- SAME_STEP: the step that ends an episode already gives the first observation of the next, and the last one
  in `info` (also the old vector environments, whose `step` gives four values);
- NEXT_STEP: the step after the end resets, and its action is ignored.
Without ids all tables go on together: an episode that we begin late, or after an interruption, begins where
its environment then is. After a NEXT_STEP end there is nothing to see before the next step, so an episode
begins with an empty observation and an action that does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray
from ludus.games.adapters.gymnasium_tables import EnvironmentTables, small_seeds
from ludus.games.game import Actions

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

    def __init__(
        self, spec: GameSpec, env: Any, num_tables: int, bins: int | None, *, same_step: bool
    ) -> None:
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
        observation, reward, terminated, truncated, info = five(
            self._env.step(self._codec.decode(actions[0]))
        )
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
        observation, reward, terminated, truncated, info = five(
            self._env.step(moves, running.astype(np.int32))
        )
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
