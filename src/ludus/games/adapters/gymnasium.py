"""Gymnasium environments as games with one seat.

Episodes depend on the table's seed only, so a native vector environment is used only if it leaves resets
to us (`AutoresetMode.DISABLED` with a `reset_mask`); otherwise each table is an environment of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from ludus.data.files import load_address
from ludus.data.specs import GameSpec
from ludus.data.tree_game import TreeState
from ludus.data.trees import IntArray
from ludus.games.adapters.gymnasium_cartpole import PartialResetCartPole
from ludus.games.adapters.gymnasium_spaces import (
    ActionCodec,
    Leaf,
    observation_leaves,
    observation_spec,
)
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch, TableView

DEFAULT_MAX_LENGTH = 10_000
"""Cuts off episodes of environments that set no limit of their own."""


@dataclass(frozen=True, kw_only=True)
class Gymnasium:
    """An environment by its id (`CartPole-v1`), or by the address of its class (`my_file.py:MyEnv`).

    A class may be a `gymnasium.Env`, or a `VectorEnv` that takes `num_envs`, leaves resets to us and, in
    `reset`, takes a list of seeds and `options={"reset_mask": [num_envs] of bool}`.
    """

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the environment."""
    vectorization: Literal["auto", "single", "vector"] = "auto"
    """`auto`: the native vector environment where there is one that leaves resets to us."""
    max_length: int | None = None
    """Cuts off longer episodes; default: the environment's own limit."""

    @cached_property
    def spec(self) -> GameSpec:
        if self._vector_class is None:
            env = self._single()
            observation, action = env.observation_space, env.action_space
        else:
            env = self._vector(1)
            observation, action = env.single_observation_space, env.single_action_space
        limits = [limit for limit in (self.max_length, _own_limit(env)) if limit is not None]
        env.close()
        return GameSpec.symmetric(
            name=self.env_id,
            num_seats=1,
            observation=observation_spec(observation_leaves(observation)),
            action=ActionCodec.of(action, self.env_id).spec,
            max_length=min(limits, default=DEFAULT_MAX_LENGTH),
            zero_sum=False,
        )

    def tables(self, num_tables: int) -> GameBatch:
        if self._vector_class is not None:
            return VectorTables(self.spec, self._vector(num_tables))
        return SingleTables(self.spec, [_bare(self._single()) for _ in range(num_tables)])

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    @cached_property
    def _class(self) -> Any:
        """The class behind an address; None for an id, which may look like `module:Name-v1`."""
        is_address = ":" in self.env_id and not re.search(r"-v\d+$", self.env_id)
        return load_address(self.env_id) if is_address else None

    @cached_property
    def _vector_class(self) -> Callable[..., Any] | None:
        """Makes the vector environment to use, or None for single ones."""
        if self.vectorization == "single":
            return None
        native = self._class
        if native is None:
            entry = gymnasium.spec(self.env_id).vector_entry_point
            native = load_env_creator(entry) if isinstance(entry, str) else entry
        if native is CartPoleVectorEnv:
            return PartialResetCartPole
        is_vector = isinstance(native, type) and issubclass(native, VectorEnv)
        mode = native.metadata.get("autoreset_mode") if is_vector else None
        if mode == AutoresetMode.DISABLED:
            return native  # type: ignore[no-any-return]
        if self.vectorization == "vector" or (is_vector and self._class is not None):
            found = f"{native.__name__} has autoreset_mode {mode}" if is_vector else "there is no VectorEnv"
            raise ValueError(
                f"{self.env_id}: {found}, but per-table resets need a VectorEnv whose "
                "metadata['autoreset_mode'] is AutoresetMode.DISABLED; use vectorization='single'"
            )
        return None

    def _single(self) -> Any:
        if self._class is not None:
            return self._class(**self.options)
        return gymnasium.make(self.env_id, disable_env_checker=True, **self.options)

    def _vector(self, num_tables: int) -> Any:
        assert self._vector_class is not None
        options = dict(self.options)
        if self._class is None:
            registered = gymnasium.spec(self.env_id)
            options = {**registered.kwargs, "max_episode_steps": registered.max_episode_steps, **options}
        return self._vector_class(num_envs=num_tables, **options)


class _Tables:
    """What both kinds of batch share: the view, and how episodes begin and end."""

    def __init__(self, spec: GameSpec, num_tables: int, leaves: list[Leaf], actions: ActionCodec) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)
        self._codec = actions
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


class SingleTables(_Tables):
    """One environment per table, stepped one after the other."""

    def __init__(self, spec: GameSpec, envs: list[Any]) -> None:
        leaves = observation_leaves(envs[0].observation_space)
        super().__init__(spec, len(envs), leaves, ActionCodec.of(envs[0].action_space, spec.name))
        self._envs = envs
        self._step_calls = [env.step for env in envs]

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        for table, seed in zip(tables.tolist(), _small(seeds), strict=True):
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


class VectorTables(_Tables):
    """One vector environment for all tables."""

    def __init__(self, spec: GameSpec, env: Any) -> None:
        leaves = observation_leaves(env.single_observation_space)
        super().__init__(spec, env.num_envs, leaves, ActionCodec.of(env.single_action_space, spec.name))
        self._env = env

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        listed: list[int | None] = [None] * self.num_tables
        for table, seed in zip(tables.tolist(), _small(seeds), strict=True):
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


def _small(seeds: NDArray[np.uint64]) -> list[int]:
    """Seeds that environments written in C take too: 31 bits."""
    listed: list[int] = (seeds & np.uint64(2**31 - 1)).tolist()
    return listed


def _own_limit(env: Any) -> int | None:
    limit = getattr(env, "max_episode_steps", None)
    if limit is None and env.spec is not None:
        limit = env.spec.max_episode_steps
    return limit


def _bare(env: Any) -> Any:
    """Without the wrappers of `gymnasium.make` whose work is done here: half the cost of a small step."""
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        env = env.env
    return env
