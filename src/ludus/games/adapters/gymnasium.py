"""Gymnasium environments as games with one seat.

Episodes depend only on the table's seed wherever the environment allows it: a native vector environment is used if
single tables can be reset (`AutoresetMode.DISABLED` with a `reset_mask`); otherwise each table is an environment of
its own. A vector environment that resets itself is used only on request.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from ludus.data.addresses import load_address
from ludus.data.specs import GameSpec
from ludus.games.adapters.gymnasium_tables import (
    OldEnvironment,
    PoolTables,
    SelfResettingTables,
    SingleTables,
    VectorTables,
    is_address,
    resets_of,
    spec_of,
)
from ludus.games.game import GameBatch
from ludus.games.tables import GameDefaults


@dataclass(frozen=True, kw_only=True)
class Gymnasium(GameDefaults):
    """An environment by its id (`CartPole-v1`), or by the address of its class (`my_file.py:MyEnv`).

    A class may be an environment with the old or the new interface, or a callable that takes `num_envs` and makes
    a vector environment. Its tables can be reset singly if `reset` takes a list of seeds and
    `options={"reset_mask": [num_envs] of bool}`.
    """

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    vectorization: Literal["auto", "single", "vector"] = "auto"
    """`auto`: the native vector environment if its tables can be reset singly; `vector`: also one that resets
    itself, whose episodes cannot be repeated."""
    max_length: int | None = None
    """Steps after which an episode is cut off; default: the environment's own limit."""
    bins: int | None = None
    """Options per number of a Box of actions, evenly spread between its bounds; None: it takes real numbers."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._single() if self._vector_class is None else self._vector(1)
        vector = self._vector_class is not None
        repeatable = resets_of(env) == "mask" if vector else getattr(env, "takes_seeds", True)
        return spec_of(env, self.env_id, bins=self.bins, max_length=self.max_length, repeatable=repeatable)

    def tables(self, num_tables: int) -> GameBatch:
        if self._vector_class is None:
            return SingleTables(self.spec, [_bare(self._single()) for _ in range(num_tables)], self.bins)
        env = self._vector(num_tables)
        match resets_of(env):
            case "mask":
                return VectorTables(self.spec, num_tables, env, self.bins)
            case "ids":
                return PoolTables(self.spec, num_tables, env, self.bins)
            case mode:
                same_step = mode == "same_step"
                return SelfResettingTables(self.spec, num_tables, env, self.bins, same_step=same_step)

    @cached_property
    def _class(self) -> Any:
        """The class behind an address; None for an id."""
        return load_address(self.env_id) if is_address(self.env_id) else None

    @cached_property
    def _registered(self) -> Any:
        module, _, name = self.env_id.rpartition(":")
        if module:  # importing it registers the environment
            importlib.import_module(module)
        return gymnasium.spec(name)

    @cached_property
    def _vector_class(self) -> Callable[..., Any] | None:
        """Makes the vector environment; None: each table is an environment of its own."""
        if self.vectorization == "single":
            return None
        if self._class is not None:
            makes_many = "num_envs" in inspect.signature(self._class).parameters
            if self.vectorization == "vector" and not makes_many:
                raise ValueError(f"{self.env_id} takes no num_envs; use vectorization='single'")
            return _with_single_resets(self._class) if makes_many else None
        entry = self._registered.vector_entry_point
        native: Any = load_env_creator(entry) if isinstance(entry, str) else entry
        if self.vectorization == "vector":
            if native is None:
                raise ValueError(f"{self.env_id}: there is no VectorEnv of its own; use vectorization='single'")
            return _with_single_resets(native)
        made = _with_single_resets(native)
        mode = getattr(made, "metadata", {}).get("autoreset_mode")
        return made if mode == AutoresetMode.DISABLED else None

    def _single(self) -> Any:
        if self._class is None:
            return gymnasium.make(self.env_id, disable_env_checker=True, **self.options)
        env = self._class(**self.options)
        return env if isinstance(env, gymnasium.Env) else OldEnvironment(env)

    def _vector(self, num_tables: int) -> Any:
        assert self._vector_class is not None
        options = dict(self.options)
        if self._class is None:
            limit = self._registered.max_episode_steps
            options = {**({} if limit is None else {"max_episode_steps": limit}), **options}
            options = {**self._registered.kwargs, **options}
        return self._vector_class(num_envs=num_tables, **options)


def own_spelling(name: str) -> str:
    """`CartPole-v1` for `CartPole`: the latest version of an environment that is named without one."""
    if is_address(name):
        return name
    versions = [
        (spec.version, env_id)
        for env_id, spec in gymnasium.registry.items()
        if spec.version is not None and env_id == f"{name}-v{spec.version}"
    ]
    return max(versions)[1] if versions else name


def _with_single_resets(native: Any) -> Callable[..., Any]:
    """The same vector environment, with resets of single tables for those known below."""
    if native is CartPoleVectorEnv:
        return PartialResetCartPole
    if getattr(native, "__name__", None) == "AtariVectorEnv":
        return partial(PartialResetAtari, native)
    made: Callable[..., Any] = native
    return made


def _bare(env: Any) -> Any:
    """Without the wrappers of `gymnasium.make` that repeat our work, half the cost of a small step."""
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        env = env.env
    return env


class PartialResetAtari:
    """ALE's vector environment with resets of single tables. Ended tables are ignored until their reset. It uses one
    thread, since every actor is a process of its own."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, make: Callable[..., Any], *, num_envs: int, **options: Any) -> None:
        frames = options.get("max_num_frames_per_episode", 108_000)
        self.max_episode_steps = frames // options.get("frameskip", 4)
        self.num_envs = num_envs
        options = {"num_threads": 1, **options, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self._env = make(num_envs=num_envs, **options)
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self._env.reset(seed=0)  # single tables can be reset only after all of them

    def reset(self, *, seed: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        seeds = np.array([seed[table] for table in np.flatnonzero(options["reset_mask"])])
        shown: tuple[Any, Any] = self._env.reset(seed=seeds, options=options)
        return shown

    def step(self, actions: Any) -> Any:
        return self._env.step(actions)

    def close(self) -> None:
        self._env.close()


class PartialResetCartPole(CartPoleVectorEnv):
    """CartPole with resets of single tables: a seed starts a table as it starts the single environment."""

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
        # The pole of an ended table would otherwise spin ever faster, until it overflows.
        self.state[:, resting] = held
        self._resting = resting | terminated | truncated
        self.prev_done[:] = False  # else the next step would reset those tables itself
        return observation, reward, terminated, truncated, info
