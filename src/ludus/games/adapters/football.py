"""Google Research Football: academy scenarios against the game's own players, and matches of two teams."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import (
    CRITIC_PREFIX,
    ActionSpec,
    Choice,
    GameSpec,
    Head,
    ObservationSpec,
    Part,
    Planes,
    SeatKind,
    Vector,
    When,
)
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch, Observation, Seat, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError, nearest
from ludus.games.tables import GameDefaults

NUM_SIMPLE = 115
NUM_OWN = 11
"""Flags of the ten sticky actions (eight directions, sprint, dribble), and the time left."""
_PLAYERS = 11
_STATE_OF_PLAYER = 4 + 10
"""Tired, booked, on the pitch, controlled by a seat, and its sticky actions."""
NUM_STATE = NUM_SIMPLE + 2 * _PLAYERS * _STATE_OF_PLAYER + 2
"""For critics: `simple115v2` with the ball's player in place of the seat's own, all players, lead and time left."""
MINIMAP = (4, 72, 96)
"""Planes (own team, other team, ball, the seat's player), rows and columns."""
_PLACES = 22
_HALF_WIDTH = 1 / 2.25
"""Of the map: the pitch has x from -1 to 1 and y from -0.42 to 0.42, and the map goes a little beyond."""
_OPPOSITE_STICKY = [4, 5, 6, 7, 0, 1, 2, 3, 8, 9]
"""Sticky actions of a right-hand side, as a left-hand side would see them."""
_COLOURS = ((230, 60, 50), (60, 90, 230), (255, 255, 255), (255, 220, 60))
_GRASS = (40, 110, 50)
_ENLARGED = 4

Seen = Mapping[str, Any]
"""The library's observation, by name."""

INSTALL = "ludus games --install football"
NUM_ACTIONS = 19
"""Idle, eight directions, three passes, shot, sprint, stand, walk, slide, dribble, stop dribbling."""
AUTOPILOT = "autopilot"
TAKEN = -1
"""Value of the head `autopilot`: the game's own player decides for this seat."""

_CHECKPOINTS = 10
_CHECKPOINT_REWARD = 0.1
_FARTHEST, _NEAREST = 0.99, 0.19
"""Distances of the first and of the last checkpoint from the middle of the goal."""
_OPPOSITE = {1: 5, 2: 6, 3: 7, 4: 8, 5: 1, 6: 2, 7: 3, 8: 4}
"""Directions for a side that attacks from right to left."""

View = Literal["simple115v2", "extracted"]


@dataclass(frozen=True, kw_only=True)
class Football(GameDefaults):
    """A scenario of the library by its name, such as `5_vs_5`.

    A goal is worth 1 to every seat of the team that scores it and -1 to the other side's. Both sides see the
    pitch from the left, so that one policy can play either. The game itself plays players without a seat.
    """

    scenario: str
    left: int = 1
    """Seats of the left side. A single seat controls the player that the game picks, mostly the nearest to the ball."""
    right: int = 0
    view: View = "simple115v2"
    """115 numbers of positions and speeds, or four planes of a map of the pitch."""
    checkpoints: bool = False
    """Add 0.1 for each of ten lines towards the goal that a seat first carries the ball across. The reward is then
    not the score."""
    builtin_bot: bool = False
    """Offer the game's own player as the bot `builtin`. This adds a second head, which never counts."""
    max_length: int | None = None
    """Steps after which an episode ends; default: the scenario's own limit."""
    critic_state: bool = False
    """Show critics (`model.central_critic`) the whole match as its side sees it: also the score, tired and booked
    players, which players have seats, and what they keep doing."""

    def __post_init__(self) -> None:
        for side, number in (("left", self.left), ("right", self.right)):
            if not 0 <= number <= 11:
                raise GameError(f"{side} must be 0 to 11 seats, got {number}")
        if not self.left + self.right:
            raise GameError("left and right are both 0: at least one player needs a seat")
        if self.view not in get_args(View):
            raise GameError(f"view must be {' or '.join(get_args(View))}, got {self.view!r}")
        if self.max_length is not None and self.max_length < 1:
            raise GameError(f"max_length must be at least 1, got {self.max_length}")

    @cached_property
    def spec(self) -> GameSpec:
        own_limit = _scenario_steps(self)
        action: dict[str, Head] = {"action": Choice(num=NUM_ACTIONS, masked=False)}
        if self.builtin_bot:
            action[AUTOPILOT] = Choice(num=1, when=When(head="action", values=()), masked=False)
        channels, height, width = MINIMAP
        pitch: Part = Vector(size=NUM_SIMPLE)
        if self.view == "extracted":
            pitch = Planes(channels=channels, height=height, width=width, dtype="uint8")
        critic: dict[str, Part] = {"state": Vector(size=NUM_STATE)} if self.critic_state else {}
        observation = ObservationSpec(parts={"pitch": pitch, "own": Vector(size=NUM_OWN)}, critic=critic)
        both = bool(self.left and self.right)
        return GameSpec(
            name=f"football:{self.scenario}",
            kinds=(SeatKind(name="player", observation=observation, action=ActionSpec(heads=action)),),
            seats=(0,) * (self.left + self.right),
            teams=(0,) * self.left + (int(both),) * self.right,
            max_length=min(own_limit, self.max_length or own_limit),
            zero_sum=both and not self.checkpoints,
            reward_is_score=not self.checkpoints,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return LiftedBatch(self.spec, [FootballTable(self) for _ in range(num_tables)])

    def bots(self) -> Mapping[str, Bot]:
        builtin = {"builtin": BuiltinBot()} if self.builtin_bot else {}
        return {"random": RandomBot(), **builtin}


@dataclass(frozen=True, kw_only=True)
class BuiltinBot:
    """Leaves its seat to the game's own player."""

    def act(self, game: Any, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        idle = np.zeros(len(tables), np.int32)
        return {"action": idle, AUTOPILOT: np.full_like(idle, TAKEN)}


class FootballTable:
    """A `Game`: one engine. Seats are those of the left side, then those of the right side."""

    def __init__(self, source: Football) -> None:
        self.spec = source.spec
        self._source = source
        self._config = _config(source)
        self._engine = _library("football_env_core").FootballEnvCore(self._config)
        self._action_set = _library("football_action_set")
        self._steps = 0
        self._passed: list[int] = []
        """Per seat, the number of checkpoints passed."""

    def reset(self, seed: int) -> Turn:
        number = seed % 2**31
        # The library would otherwise draw or count these itself from one episode to the next.
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
        return seat if self._is_left(seat) else seat - self._source.left

    def _observations(self) -> Mapping[Seat, Observation]:
        # Observations show the time left, so its end is an end by the rules.
        time_left = 1.0 - self._steps / self.spec.max_length
        shown: dict[Seat, dict[str, Array]] = {}
        for seat in range(self.spec.num_seats):
            view, place = self._views[self._is_left(seat)], self._place(seat)
            pitch = view.simple(place) if self._source.view == "simple115v2" else view.minimap(place)
            shown[seat] = {"pitch": pitch, "own": view.own(place, time_left)}
        if self._source.critic_state:
            state = {left: {f"{CRITIC_PREFIX}state": view.state(time_left)} for left, view in self._views.items()}
            shown = {seat: {**seen, **state[self._is_left(seat)]} for seat, seen in shown.items()}
        return shown

    def _chosen(self, seat: Seat, action: Any) -> Any:
        if isinstance(action, Mapping):
            if action[AUTOPILOT] == TAKEN:
                return self._action_set.action_builtin_ai
            action = action["action"]
        return self._action_set.action_set_v1[action if self._is_left(seat) else _OPPOSITE.get(action, action)]

    def _checkpoints(self, seat: Seat, goals: float) -> float:
        """The library's reward: all remaining checkpoints at a goal, else those newly reached."""
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


class SideView:
    """The match as one side sees it: attacking from left to right, its own team first."""

    def __init__(self, seen: Seen, *, left: bool) -> None:
        sign, (own, other) = (1.0, ("left", "right")) if left else (-1.0, ("right", "left"))
        self._left = left
        self._players = [
            sign * seen[part]
            for part in (f"{own}_team", f"{own}_team_direction", f"{other}_team", f"{other}_team_direction")
        ]
        turned = np.array([sign, sign, 1.0])
        self.ball = turned * seen["ball"]
        self._ball_direction = turned * seen["ball_direction"]
        owner: int = seen["ball_owned_team"]
        self.owner = owner if left or owner < 0 else 1 - owner
        """Owner of the ball: -1 nobody, 0 this side, 1 the other."""
        self.owning_player: int = seen["ball_owned_player"]
        self._mode: int = seen["game_mode"]
        self.controlled: list[int] = seen[f"{own}_agent_controlled_player"]
        """Per seat of this side, its player; -1: none at the moment."""
        self._sticky = seen[f"{own}_agent_sticky_actions"]
        self._seen = seen
        self._sides = (own, other)

    def simple(self, seat: int | None) -> NDArray[np.float32]:
        """The library's `simple115v2`; None: without the mark of a seat's player."""
        row = np.zeros(NUM_SIMPLE, np.float32)
        for index, places in enumerate(self._players):
            part = row[index * _PLACES : (index + 1) * _PLACES]
            part[:] = -1.0
            part[: places.size] = places.reshape(-1)
        row[88:91] = self.ball
        row[91:94] = self._ball_direction
        row[94 + (self.owner + 1)] = 1.0
        if seat is not None and self.controlled[seat] >= 0:
            row[97 + self.controlled[seat]] = 1.0
        row[108 + self._mode] = 1.0
        return row

    def minimap(self, seat: int) -> NDArray[np.uint8]:
        """The library's `extracted`, channels first."""
        planes = np.zeros(MINIMAP, np.uint8)
        places = [self._players[0], self._players[2], self.ball[None, :2]]
        if self.controlled[seat] >= 0:
            places.append(self._players[0][[self.controlled[seat]]])
        _, height, width = MINIMAP
        for plane, marked in zip(planes, places, strict=False):
            columns = ((marked[:, 0] + 1.0) / 2.0 * width).astype(int).clip(0, width - 1)
            rows = ((marked[:, 1] + _HALF_WIDTH) / (2.0 * _HALF_WIDTH) * height).astype(int)
            plane[rows.clip(0, height - 1), columns] = 255
        return planes

    def own(self, seat: int, time_left: float) -> NDArray[np.float32]:
        sticky = np.asarray(self._sticky[seat], np.float32)
        return np.append(sticky if self._left else sticky[_OPPOSITE_STICKY], np.float32(time_left))

    def state(self, time_left: float) -> NDArray[np.float32]:
        """The whole match, this side first, with no seat in the middle of it."""
        seen = self._seen
        owning = np.zeros(_PLAYERS, np.float32)
        if self.owner >= 0:
            owning[self.owning_player] = 1.0
        simple = self.simple(None)
        parts = [simple[:97], owning, simple[108:]]
        for side in self._sides:
            players = np.zeros((_PLAYERS, _STATE_OF_PLAYER), np.float32)
            for column, name in enumerate(("tired_factor", "yellow_card", "active")):
                values = seen[f"{side}_team_{name}"]
                players[: len(values), column] = values
            sticky = np.asarray(seen[f"{side}_agent_sticky_actions"], np.float32).reshape(-1, 10)
            for player, lasting in zip(seen[f"{side}_agent_controlled_player"], sticky, strict=True):
                if player >= 0:
                    players[player, 3] = 1.0
                    players[player, 4:] = lasting if self._left else lasting[_OPPOSITE_STICKY]
            parts.append(players.reshape(-1))
        left, right = seen["score"]
        parts.append(np.array([left - right if self._left else right - left, time_left], np.float32))
        return np.concatenate(parts)


def picture(side: SideView, seat: int | None) -> NDArray[np.uint8]:
    """The pitch from above: own side red, other side blue, ball white, the seat's player yellow."""
    planes = side.minimap(seat if seat is not None else 0)
    _, height, width = MINIMAP
    drawn = np.empty((height, width, 3), np.uint8)
    drawn[:] = _GRASS
    drawn[:, width // 2] = drawn[[0, -1]] = drawn[:, [0, -1]] = (200, 220, 200)
    for index in (0, 1, 3, 2):
        if index != 3 or seat is not None:
            drawn[planes[index] > 0] = _COLOURS[index]
    return np.ascontiguousarray(drawn.repeat(_ENLARGED, 0).repeat(_ENLARGED, 1))


def _scenario_steps(source: Football) -> int:
    """The scenario's own limit of steps; raises `GameError` if it has fewer players than seats."""
    known = [name for name in _library("scenario_builder").all_scenarios() if name != "tests"]
    if source.scenario not in known:
        raise GameError(f"football has no scenario {source.scenario!r}{nearest(source.scenario, known)}")
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


def _config(source: Football) -> Any:
    return _library("config").Config(
        {
            "level": source.scenario,
            "players": [f"agent:left_players={source.left},right_players={source.right}"],
            "game_engine_random_seed": 0,
            "reverse_team_processing": False,
        }
    )


def _library(module: str) -> Any:
    """A module of the library, imported when the game is used, so that recipes can be read without it."""
    if importlib.util.find_spec("gfootball") is None:
        raise GameError(f"football needs the library gfootball, which is not installed; {INSTALL} adds it")
    return importlib.import_module(f"gfootball.env.{module}")
