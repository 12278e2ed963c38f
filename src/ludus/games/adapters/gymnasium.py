"""Gymnasium environments as games with one seat.

Episodes depend on the table's seed only, wherever the environment allows it: a native vector environment is
taken if it leaves resets to us (`AutoresetMode.DISABLED` with a `reset_mask`); otherwise each table is an
environment of its own. One that resets itself is taken only if it is asked for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from ludus.data.addresses import load_address
from ludus.data.specs import GameSpec
from ludus.data.tree import TreeState
from ludus.games.adapters.gymnasium_old import OldEnvironment, is_address
from ludus.games.adapters.gymnasium_tables import (
    PartialResetAtari,
    PartialResetCartPole,
    PoolTables,
    SelfResettingTables,
    SingleTables,
    VectorTables,
    resets_of,
    spec_of,
)
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch


@dataclass(frozen=True, kw_only=True)
class Gymnasium:
    """An environment by its id (`CartPole-v1`), or by the address of its class (`my_file.py:MyEnv`).

    A class may be an environment of any age, or anything that takes `num_envs` and makes a vector
    environment. One that leaves resets to us takes, in `reset`, a list of seeds and
    `options={"reset_mask": [num_envs] of bool}`.
    """

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the environment."""
    vectorization: Literal["auto", "single", "vector"] = "auto"
    """`auto`: the native vector environment where there is one that leaves resets to us; `vector`: also one
    that resets itself, whose episodes cannot be repeated."""
    max_length: int | None = None
    """Cuts off longer episodes; default: the environment's own limit."""
    bins: int | None = None
    """Every number of a Box of actions becomes a choice among this many, evenly spread."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._single() if self._vector_class is None else self._vector(1)
        if self._vector_class is not None:
            repeatable = resets_of(env) == "mask"
        else:
            repeatable = not isinstance(env, OldEnvironment) or env.takes_seeds
        limits = [self.max_length, _own_limit(env)]
        spec = spec_of(env, self.env_id, bins=self.bins, limits=limits, repeatable=repeatable)
        env.close()
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        if self._vector_class is None:
            return SingleTables(self.spec, [_bare(self._single()) for _ in range(num_tables)], self.bins)
        env = self._vector(num_tables)
        match resets_of(env):
            case "mask":
                return VectorTables(self.spec, env, num_tables, self.bins)
            case "ids":
                return PoolTables(self.spec, env, num_tables, self.bins)
            case mode:
                same_step = mode == "same_step"
                return SelfResettingTables(self.spec, env, num_tables, self.bins, same_step=same_step)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    @cached_property
    def _class(self) -> Any:
        """The class behind an address; None for an id."""
        return load_address(self.env_id) if is_address(self.env_id) else None

    @cached_property
    def _registered(self) -> Any:
        module, _, name = self.env_id.rpartition(":")
        if module:  # which registers it
            importlib.import_module(module)
        return gymnasium.spec(name)

    @cached_property
    def _vector_class(self) -> Callable[..., Any] | None:
        """Makes the vector environment to use, or None for single ones."""
        if self.vectorization == "single":
            return None
        if self._class is not None:
            makes_many = "num_envs" in inspect.signature(self._class).parameters
            if self.vectorization == "vector" and not makes_many:
                raise ValueError(f"{self.env_id} takes no num_envs; use vectorization='single'")
            return _leaving_resets(self._class) if makes_many else None
        entry = self._registered.vector_entry_point
        native: Any = load_env_creator(entry) if isinstance(entry, str) else entry
        if self.vectorization == "vector":
            if native is None:
                raise ValueError(f"{self.env_id}: there is no VectorEnv of its own; use vectorization='single'")
            return _leaving_resets(native)
        if native is CartPoleVectorEnv:
            return PartialResetCartPole
        mode = getattr(native, "metadata", {}).get("autoreset_mode")
        return _leaving_resets(native) if mode == AutoresetMode.DISABLED else None

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


def _leaving_resets(native: Any) -> Callable[..., Any]:
    """The same vector environment with resets table by table, where we know how."""
    if native is CartPoleVectorEnv:
        return PartialResetCartPole
    if getattr(native, "__name__", None) == "AtariVectorEnv":
        return partial(PartialResetAtari, native)
    made: Callable[..., Any] = native
    return made


def _own_limit(env: Any) -> int | None:
    if isinstance(env, OldEnvironment):
        return env.limit
    limit: int | None = getattr(env, "max_episode_steps", None)
    if limit is None:
        limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    return limit


def _bare(env: Any) -> Any:
    """Without the wrappers of `gymnasium.make` whose work is done here: half the cost of a small step."""
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        env = env.env
    return env
