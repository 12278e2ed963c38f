"""Stable-Baselines3 PPO on CartPole-v1: 2 x 64 tanh for actor and critic each, batches of 2,048 in
minibatches of 512, four epochs, one thread."""

from __future__ import annotations

import gymnasium
import torch
from _windows import Windows, parser
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv


class Measure(BaseCallback):
    """A rollout starts after the update on the one before: all steps so far have been learned from."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows
        self._running = True

    def _on_rollout_start(self) -> None:
        self._running = self._windows.note(self.num_timesteps)

    def _on_step(self) -> bool:
        return self._running


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--environments", type=int, default=8)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * chosen.environments),
        n_steps=2_048 // chosen.environments,
        batch_size=512,
        n_epochs=4,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
        seed=0,
    )
    model.learn(total_timesteps=10**9, callback=Measure(Windows(chosen)))


if __name__ == "__main__":
    main()
