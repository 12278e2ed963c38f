"""One engine of Google Research Football as a table."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from gfootball.env import config, football_action_set, football_env_core, scenario_builder

from ludus.games.adapters.football import AUTOPILOT, TAKEN, Football, SideView, picture
from ludus.games.game import Observation, Seat, Turn
from ludus.games.seat_rows import GameError

_CHECKPOINTS = 10
_CHECKPOINT_REWARD = 0.1
_FARTHEST, _NEAREST = 0.99, 0.19
"""Distances to the middle of the goal of the first checkpoint and of the last one."""
_OPPOSITE = {1: 5, 2: 6, 3: 7, 4: 8, 5: 1, 6: 2, 7: 3, 8: 4}
"""Directions of one who plays from right to left."""


def steps_of(source: Football) -> int:
    """The most steps of an episode by the scenario; also looks whether there are so many players."""
    known = [name for name in scenario_builder.all_scenarios() if name != "tests"]
    if source.scenario not in known:
        close = difflib.get_close_matches(source.scenario, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
        raise GameError(f"football has no scenario {source.scenario!r}; {hint}")
    scenario = _config(source).ScenarioConfig()
    for side, seats in (("left", source.left), ("right", source.right)):
        players = [player for player in getattr(scenario, f"{side}_team") if player.controllable]
        if seats > len(players):
            raise GameError(
                f"{source.scenario} has {len(players)} players on the {side} that can be controlled, "
                f"but {side} is {seats}"
            )
    steps: int = scenario.game_duration
    return steps


class FootballTable:
    """A `Game`. Seats are those of the left side, then those of the right one."""

    def __init__(self, source: Football) -> None:
        self.spec = source.spec
        self._source = source
        self._config = _config(source)
        self._engine = football_env_core.FootballEnvCore(self._config)
        self._actions = football_action_set.action_set_v1
        self._steps = 0
        self._passed: list[int] = []
        """Per seat, how many checkpoints."""

    def reset(self, seed: int) -> Turn:
        number = seed % 2**31
        # All that the library would draw or count for itself from one episode to the next.
        self._config["game_engine_random_seed"] = number
        self._config["reverse_team_processing"] = bool(number & 1)
        self._config["episode_number"] = number >> 1 & 1
        self._engine.reset(inc=0)
        self._steps = 0
        self._passed = [0] * self.spec.num_seats
        self._look()
        return Turn(observations=self._observations())

    def step(self, actions: Mapping[Seat, Any]) -> Turn:
        seen, goals, done, _ = self._engine.step([self._chosen(seat, actions[seat]) for seat in actions])
        self._steps += 1
        self._look()
        reward = {seat: float(goals if self._is_left(seat) else -goals) for seat in actions}
        if self._source.checkpoints:
            reward = {seat: value + self._checkpoints(seat, value) for seat, value in reward.items()}
        left, right = seen["score"]
        difference = float(left - right)
        teams = [difference, -difference] if self.spec.num_teams == 2 else [difference]
        if not self._source.left:
            teams = [-difference]
        over = done or self._steps >= self.spec.max_length
        return Turn(observations=self._observations(), reward=reward, over=over, score=teams)

    def render(self, seat: Seat | None) -> Any:
        left = seat is None or self._is_left(seat)
        return picture(self._views[left], None if seat is None else self._place(seat))

    def close(self) -> None:
        self._engine.close()

    def _look(self) -> None:
        seen = self._engine.observation()
        self._views = {left: SideView(seen, left=left) for left in (True, False)}

    def _is_left(self, seat: Seat) -> bool:
        return seat < self._source.left

    def _place(self, seat: Seat) -> int:
        """Among the seats of its side."""
        return seat if self._is_left(seat) else seat - self._source.left

    def _observations(self) -> dict[Seat, Observation]:
        # The time that is left is seen, so that its end is an end by the rules.
        time_left = 1.0 - self._steps / self.spec.max_length
        shown: dict[Seat, Observation] = {}
        for seat in range(self.spec.num_seats):
            view, place = self._views[self._is_left(seat)], self._place(seat)
            pitch = view.simple(place) if self._source.view == "simple115v2" else view.minimap(place)
            shown[seat] = {"pitch": pitch, "own": view.own(place, time_left)}
        return shown

    def _chosen(self, seat: Seat, action: Any) -> Any:
        if isinstance(action, Mapping):
            if action[AUTOPILOT] == TAKEN:
                return football_action_set.action_builtin_ai
            action = action["action"]
        return self._actions[action if self._is_left(seat) else _OPPOSITE.get(action, action)]

    def _checkpoints(self, seat: Seat, goals: float) -> float:
        """As the library rewards them: what is left of them at a goal, else those that were reached."""
        before = self._passed[seat]
        if goals > 0:
            self._passed[seat] = _CHECKPOINTS
        else:
            view = self._views[self._is_left(seat)]
            has_ball = view.owner == 0 and view.owning_player == view.controlled[self._place(seat)]
            distance = float(((view.ball[0] - 1.0) ** 2 + view.ball[1] ** 2) ** 0.5)
            while has_ball and self._passed[seat] < _CHECKPOINTS:
                apart = (_FARTHEST - _NEAREST) / (_CHECKPOINTS - 1)
                if distance > _FARTHEST - apart * self._passed[seat]:
                    break
                self._passed[seat] += 1
        return _CHECKPOINT_REWARD * (self._passed[seat] - before)


def _config(source: Football) -> Any:
    return config.Config(
        {
            "level": source.scenario,
            "players": [f"agent:left_players={source.left},right_players={source.right}"],
            "game_engine_random_seed": 0,
            "reverse_team_processing": False,
        }
    )
