"""ale-py's vector environment with resets table by table, each from its own seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode


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
