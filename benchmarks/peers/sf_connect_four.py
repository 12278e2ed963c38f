"""Sample Factory on PettingZoo's connect four, one policy for both seats, asynchronous: two workers with
eight environments each, a shared trunk of 2 x 64 tanh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from _sample_factory import WORK, train
from _windows import parser
from numpy.typing import NDArray
from pettingzoo.classic.connect_four.connect_four import raw_env

Observations = list[NDArray[np.float32]]


class BothSeats(gymnasium.Env[Any, Any]):
    """Both seats choose in every step and their stones fall one after the other, so that every agent frame
    is a decision, though the second seat has not seen the stone of the first. The bare environment is used;
    instead of an illegal column the first legal one is played."""

    is_multiagent = True
    num_agents = 2
    observation_space = gymnasium.spaces.Box(0, 1, (84,), np.float32)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._game = raw_env()

    def reset(self, **_: Any) -> tuple[Observations, list[dict[str, Any]]]:  # type: ignore[override]
        self._game.reset()
        return self._observe(), [{}, {}]

    def step(  # type: ignore[override]
        self, actions: Sequence[int]
    ) -> tuple[Observations, list[float], list[bool], list[bool], list[dict[str, Any]]]:
        game = self._game
        over = False
        for action in actions:
            column = int(action)
            if game.board[column]:
                column = game.board.index(0)  # the first seven cells are the top row
            game.step(column)
            over = game.terminations["player_0"]
            if over:
                break
        rewards = [float(game.rewards[player]) for player in game.possible_agents]
        infos: list[dict[str, Any]] = [{}, {}]
        observations = self.reset()[0] if over else self._observe()
        return observations, rewards, [over] * 2, [False] * 2, infos

    def _observe(self) -> Observations:
        shown = (self._game.observe(player) for player in self._game.possible_agents)
        return [one["observation"].reshape(-1).astype(np.float32) for one in shown]


def make(_name: str, _cfg: Any, _env_config: Any, render_mode: str | None = None) -> BothSeats:
    return BothSeats(render_mode)


def main() -> None:
    chosen = parser(__doc__).parse_args()
    train(make, (*WORK["published"], "--num_envs_per_worker=8"), chosen)


if __name__ == "__main__":
    main()
