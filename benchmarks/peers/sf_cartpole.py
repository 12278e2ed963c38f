"""Sample Factory on CartPole-v1, asynchronous: two workers with sixteen environments each, a shared trunk of
2 x 64 tanh."""

from __future__ import annotations

from typing import Any

import gymnasium
from _sample_factory import WORK, train
from _windows import parser


def make(_name: str, _cfg: Any, _env_config: Any, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", render_mode=render_mode)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--work", choices=tuple(WORK), default="published")
    chosen = arguments.parse_args()
    train(make, (*WORK[chosen.work], "--num_envs_per_worker=16"), chosen)


if __name__ == "__main__":
    main()
