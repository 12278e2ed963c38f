"""Tables of environments with one seat: single ones, or a vector environment for all.

Needs no library: what an environment is called from is the business of its source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray
from ludus.games.adapters.gymnasium_spaces import ActionCodec, observation_leaves, observation_spec
from ludus.games.game import Actions, TableView

DEFAULT_MAX_LENGTH = 10_000
"""Cuts off episodes of environments that set no limit of their own."""


def spec_of(
    env: Any, name: str, *, bins: int | None, limits: list[int | None], repeatable: bool = True
) -> GameSpec:
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
            self._advance(
                running, np.array(rewards, np.float64), np.array(terminated_all), np.array(truncated_all)
            )

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
