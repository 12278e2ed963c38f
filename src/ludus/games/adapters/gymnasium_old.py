"""Environments of the old `gym`, and classes whose `step` returns four values, as games with one seat."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ludus.data.addresses import load_address
from ludus.data.specs import GameSpec
from ludus.games.adapters.gymnasium_tables import OldEnvironment, SingleTables, is_address, spec_of
from ludus.games.game import GameBatch
from ludus.games.tables import GameDefaults


@dataclass(frozen=True, kw_only=True)
class OldGym(GameDefaults):
    """An environment by its id (`CartPole-v1`), or by the address of its class (`my_file.py:MyEnv`)."""

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    max_length: int | None = None
    """Steps after which an episode is cut off; default: the environment's own limit."""
    bins: int | None = None
    """Options per number of a Box of actions, evenly spread between its bounds."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._env()
        limits = [self.max_length, env.limit]
        spec = spec_of(env, self.env_id, bins=self.bins, limits=limits, repeatable=env.takes_seeds)
        env.close()
        return spec

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
