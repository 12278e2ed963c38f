"""Environments of the old `gym`, and any class whose `step` gives four values, as games with one seat."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ludus.data.addresses import load_address
from ludus.data.specs import GameSpec
from ludus.data.tree import TreeState
from ludus.games.adapters.gymnasium_tables import SingleTables, spec_of
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch


@dataclass(frozen=True, kw_only=True)
class OldGym:
    """An environment by its id (`CartPole-v1`), or by the address of its class (`my_file.py:MyEnv`)."""

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the environment."""
    max_length: int | None = None
    """Cuts off longer episodes; default: the environment's own limit."""
    bins: int | None = None
    """Every number of a Box of actions becomes a choice among this many, evenly spread."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._env()
        spec = spec_of(
            env,
            self.env_id,
            bins=self.bins,
            limits=[self.max_length, env.limit],
            repeatable=env.takes_seeds,
        )
        env.close()
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        return SingleTables(self.spec, [self._env() for _ in range(num_tables)], self.bins)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    def _env(self) -> OldEnvironment:
        if is_address(self.env_id):
            return OldEnvironment(load_address(self.env_id)(**self.options))
        make = importlib.import_module("gym").make
        # The checker of its last release knows types that numpy no longer has.
        unchecked = "disable_env_checker" in inspect.signature(make).parameters
        options = {"disable_env_checker": True, **self.options} if unchecked else self.options
        return OldEnvironment(make(self.env_id, **options))


class OldEnvironment:
    """Gives an environment of any age the `reset` and `step` of Gymnasium."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        parameters = inspect.signature(env.reset).parameters
        keywords = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._seeded_reset = "seed" in parameters or (keywords and not hasattr(env, "seed"))
        self._seed = None if self._seeded_reset else getattr(env, "seed", None)

    @property
    def takes_seeds(self) -> bool:
        return self._seeded_reset or self._seed is not None

    @property
    def limit(self) -> int | None:
        """Steps after which it cuts an episode off."""
        limit: int | None = getattr(getattr(self.env, "spec", None), "max_episode_steps", None)
        return limit

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        if self._seed is not None:
            self._seed(seed)
        shown = self.env.reset(seed=seed) if self._seeded_reset else self.env.reset()
        with_info = isinstance(shown, tuple) and len(shown) == 2 and isinstance(shown[1], dict)
        return shown if with_info else (shown, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        observation, reward, done, *more = self.env.step(action)
        if len(more) == 2:
            return observation, float(reward), bool(done), bool(more[0]), more[1]
        cut = bool(done) and bool(more[0].get("TimeLimit.truncated", False))
        return observation, float(reward), bool(done) and not cut, cut, more[0]

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


def is_address(env_id: str) -> bool:
    """Whether it names a class; an id may look like `module:Name-v1`."""
    return ":" in env_id and not re.search(r"-v\d+$", env_id)
