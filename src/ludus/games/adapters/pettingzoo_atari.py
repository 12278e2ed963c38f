"""PettingZoo's Atari games with two to four players, with the standard preprocessing.

`multi_atari:pong_v3`; without preprocessing, `pettingzoo:atari.pong_v3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Part, Planes, Vector
from ludus.games.adapters.pettingzoo_library import ZERO_SUM, base_name, make_env, team_of_each
from ludus.games.game import Action, GameBatch, Observation, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.pictures import averaging
from ludus.games.tables import GameDefaults


@dataclass(frozen=True, kw_only=True)
class MultiAtari(GameDefaults):
    """A game of PettingZoo's Atari family, observed as a stack of grey pictures."""

    game: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the environment, such as `num_players` or `game_version`."""
    size: int = 84
    """Height and width of the picture, each pixel the mean of what it covers."""
    rows: tuple[int, int] | None = None
    """First row of the screen that is seen, and the row after the last; default: all rows."""
    stack: int = 4
    """Pictures in an observation, the newest last."""
    frame_skip: int = 4
    """Frames per action; the picture is the maximum of the last two."""
    sticky: float = 0.25
    """Probability that a seat's previous action is repeated instead of the chosen one."""
    no_ops: int = 30
    """Most frames without action at the start; the number is drawn from the seed."""
    flipped: tuple[str, ...] = ()
    """Agents that see the picture mirrored left to right, so that all agents of Pong defend the same side."""
    agent_indicator: bool = True
    """Add a one-hot vector of the seat to the observation."""
    teams: tuple[tuple[str, ...], ...] = ()
    """Per team, names or patterns of its agents; default: as known for the game, or each for itself."""
    zero_sum: bool | None = None
    """Whether the teams' totals add up to zero; default: as known for the game, else no."""
    max_length: int = 10_000
    """Actions after which an episode is cut off."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", size=self.size, stack=self.stack, frame_skip=self.frame_skip)
        require_in(self, "[0, 1)", sticky=self.sticky)
        require_in(self, "[0, inf]", no_ops=self.no_ops)

    @cached_property
    def spec(self) -> GameSpec:
        env = self._make()
        agents = env.possible_agents
        unknown = [name for name in self.flipped if name not in agents]
        if unknown:
            raise ValueError(f"flipped: no agent {unknown[0]!r}; there are {', '.join(agents)}")
        parts: dict[str, Part] = {
            "screen": Planes(channels=self.stack, height=self.size, width=self.size, dtype="uint8")
        }
        if self.agent_indicator:
            parts["seat"] = Vector(size=len(agents))
        return GameSpec.symmetric(
            name=self.game,
            num_seats=len(agents),
            observation=ObservationSpec(parts=parts),
            action=ActionSpec(heads={"move": Choice(num=len(env.action_mapping), masked=False)}),
            max_length=self.max_length,
            teams=team_of_each(self.game, agents, self.teams),
            zero_sum=base_name(self.game) in ZERO_SUM if self.zero_sum is None else self.zero_sum,
        )

    def tables(self, num_tables: int) -> GameBatch:
        spec = self.spec
        return LiftedBatch(spec, [AtariTable(spec, self._make(), self) for _ in range(num_tables)])

    def _make(self) -> Any:
        return make_env(f"atari.{self.game}", "parallel", {"seed": 0, **self.options})


class AtariTable:
    """One console. It drives the emulator directly, because PettingZoo's `step` fetches every frame."""

    def __init__(self, spec: GameSpec, env: Any, settings: MultiAtari) -> None:
        self.spec = spec
        self._settings = settings
        self._num_seats = len(env.possible_agents)
        self._console = env.ale
        self._console.reset_game()
        # PettingZoo's reset reloads the game, which takes 100 ms, and always leads to the same state.
        self._start = self._console.cloneSystemState()
        self._moves: NDArray[np.int32] = np.asarray(env.action_mapping, np.int32)
        self._still = np.zeros(self._num_seats, np.int32)
        width, height = self._console.getScreenDims()
        self._frames = np.zeros((2, height, width, 1), np.uint8)
        first, last = settings.rows or (0, height)
        if not 0 <= first < last <= height:
            raise ValueError(f"rows must lie within 0 to {height}, got {first} to {last}")
        self._rows = slice(first, last)
        self._down = averaging(last - first, settings.size)
        self._across = averaging(width, settings.size).T.copy()
        self._stack = np.zeros((settings.stack, settings.size, settings.size), np.uint8)
        self._indicator = np.eye(self._num_seats, dtype=np.float32)
        self._flips = [agent in settings.flipped for agent in env.possible_agents]
        self._here = list(range(self._num_seats))
        self._held = self._still
        self._steps = 0
        self._rng = np.random.default_rng(0)

    def reset(self, seed: int) -> Turn:
        self._rng = np.random.default_rng(seed)
        self._console.restoreSystemState(self._start)
        # A restored console shows its last picture until it has drawn a new frame.
        for _ in range(1 + int(self._rng.integers(self._settings.no_ops + 1))):
            self._console.act(self._still)
        self._here = list(range(self._num_seats))
        self._held = self._still
        self._steps = 0
        self._frames[0] = 0
        self._console.getScreenGrayscale(self._frames[1])
        self._stack[:] = self._picture()
        return Turn(observations=self._seen(self._here))

    def step(self, actions: Mapping[int, Action]) -> Turn:
        console, skip = self._console, self._settings.frame_skip
        moves = self._choose(actions)
        reward = np.zeros(self._num_seats)
        self._frames[:] = 0
        for frame in range(skip):
            reward += console.act(moves)
            if frame >= skip - 2:
                console.getScreenGrayscale(self._frames[frame % 2])
            if console.game_over():
                break
        self._steps += 1
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._picture()
        # Players without lives stay at the console, and some games still change their score.
        paid = {seat: float(reward[seat]) for seat in self._here}
        lives = console.allLives()
        self._here = [seat for seat in self._here if lives[seat] >= 0]
        if console.game_over() or not self._here:
            return Turn(observations={}, reward=paid, over=True)
        if self._steps >= self._settings.max_length:
            return Turn(observations=self._seen(range(self._num_seats)), reward=paid, truncated=True)
        return Turn(observations=self._seen(self._here), reward=paid)

    def render(self, seat: int | None) -> NDArray[np.uint8]:
        return np.asarray(self._console.getScreenRGB())

    def close(self) -> None:
        self._console.deleteState(self._start)

    def _choose(self, actions: Mapping[int, Action]) -> NDArray[np.int32]:
        chosen = self._still.copy()
        for seat, action in actions.items():
            chosen[seat] = self._moves[action]
        if self._settings.sticky:
            repeated = self._rng.random(self._num_seats) < self._settings.sticky
            chosen = np.where(repeated, self._held, chosen)
        self._held = chosen
        return chosen

    def _picture(self) -> NDArray[np.uint8]:
        earlier, later = self._frames[:, self._rows, :, 0]
        brighter = np.maximum(earlier, later).astype(np.float32)
        mean: NDArray[np.float32] = self._down @ brighter @ self._across
        return np.rint(mean).astype(np.uint8)

    def _seen(self, seats: Any) -> dict[int, Observation]:
        screens = {flip: self._stack[:, :, ::-1] if flip else self._stack for flip in set(self._flips)}
        if not self._settings.agent_indicator:
            return {seat: screens[self._flips[seat]] for seat in seats}
        return {seat: {"screen": screens[self._flips[seat]], "seat": self._indicator[seat]} for seat in seats}
