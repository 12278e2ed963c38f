"""Atari games with one player, by the Arcade Learning Environment, with the usual preprocessing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from ale_py import ALEInterface, LoggerMode, roms
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch, TableView

_NO_OP, _FIRE = 0, 1


class AtariTables:
    """Consoles start from a saved state, so that no episode depends on the one before."""

    def __init__(
        self,
        spec: GameSpec,
        consoles: Sequence[Any],
        actions: Sequence[Any],
        *,
        frame_skip: int,
        most_no_ops: int,
        fire_on_reset: bool,
        sticky: float,
        clip_reward: bool,
        episodic_life: bool,
    ) -> None:
        self.spec = spec
        self.num_tables = len(consoles)
        self.view = TableView.allocate(spec, self.num_tables)
        self.view.over[:] = True  # until the first reset nothing can be stepped
        self._consoles = list(consoles)
        self._starts = [console.cloneState() for console in consoles]
        self._actions = list(actions)
        self._frame_skip = frame_skip
        self._most_no_ops = most_no_ops
        self._fires = fire_on_reset and len(actions) > _FIRE and actions[_FIRE].name == "FIRE"
        self._sticky = sticky
        self._clip_reward = clip_reward
        self._episodic_life = episodic_life
        self._random = [Random() for _ in consoles]
        self._held = [_NO_OP] * self.num_tables
        """The action of the latest frame."""
        self._lives = [0] * self.num_tables
        self._goes_on = [False] * self.num_tables
        """A life was lost, but not the game."""
        self._steps = np.zeros(self.num_tables, np.int64)
        height, width = consoles[0].getScreenDims()
        self._frames = np.zeros((self.num_tables, 2, height, width), np.uint8)
        self._screen = self.view.observation[0]["screen"][:, 0]
        size = self._screen.shape[-1]
        self._down, self._across = averaging(height, size), averaging(width, size).T

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self.view
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._random[table].seed(seed)
            self._begin(table)
        view.over[tables] = view.truncated[tables] = False
        view.to_act[tables] = True
        view.reward[tables] = view.score[tables] = 0.0
        self._steps[tables] = 0
        self._screen[tables] = self._pictures(tables)[:, None]

    def step(self, actions: Actions) -> None:
        view = self.view
        running = np.flatnonzero(view.to_act[:, 0])
        if not len(running):
            return
        moves = actions[0]["move"][:, 0].tolist()
        points = np.array([self._play(table, moves[table], self._frame_skip) for table in running.tolist()])
        self._screen[running, :-1] = self._screen[running, 1:]
        self._screen[running, -1] = self._pictures(running)
        self._steps[running] += 1
        view.reward[running, 0] = np.sign(points) if self._clip_reward else points
        view.score[running, 0] += points
        for table in running.tolist():
            self._look_for_an_end(table)

    def close(self) -> None:
        """Consoles hold memory only."""

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = self._consoles[table].getScreenRGB()
        return picture

    def _begin(self, table: int) -> None:
        console = self._consoles[table]
        no_ops = self._random[table].randint(1, max(self._most_no_ops, 1))
        if self._goes_on[table]:
            self._play(table, _NO_OP, 1)
        else:
            console.restoreState(self._starts[table])
            self._held[table] = _NO_OP
            self._play(table, _NO_OP, no_ops)
        if self._fires:
            self._play(table, _FIRE, self._frame_skip)
        self._goes_on[table] = False
        if console.game_over():  # by doing nothing: start without
            console.restoreState(self._starts[table])
            self._play(table, _NO_OP, 1)
        self._lives[table] = console.lives()

    def _play(self, table: int, move: int, num_frames: int) -> float:
        """Hold an action for some frames; the points they bring. Keeps the last two frames."""
        console, frames, draw = self._consoles[table], self._frames[table], self._random[table].random
        points = 0.0
        for left in range(num_frames - 1, -1, -1):
            if not self._sticky or draw() >= self._sticky:
                self._held[table] = move
            points += console.act(self._actions[self._held[table]])
            ended = console.game_over()
            if left < 2 or ended:
                console.getScreenGrayscale(frames[left % 2])
            if ended or num_frames == 1:
                frames[:] = frames[left % 2]
            if ended:
                break
        return points

    def _look_for_an_end(self, table: int) -> None:
        view, console = self.view, self._consoles[table]
        lives = console.lives()
        over = bool(console.game_over())
        if self._episodic_life and lives < self._lives[table] and not over:
            self._goes_on[table] = over = True
        self._lives[table] = lives
        view.over[table] = over
        view.truncated[table] = not over and self._steps[table] >= self.spec.max_length
        view.to_act[table] = not (over or view.truncated[table])

    def _pictures(self, tables: IntArray) -> NDArray[np.uint8]:
        """[tables, size, size]: the brighter of the last two frames, averaged over what each place covers."""
        brighter = self._frames[tables].max(axis=1).astype(np.float32)
        small: NDArray[np.uint8] = np.rint(self._down @ (brighter @ self._across)).astype(np.uint8)
        return small


def averaging(length: int, size: int) -> NDArray[np.float32]:
    """[size, length]: each row means over its share of a line, with pixels cut where shares meet."""
    edges = np.linspace(0, length, size + 1)
    starts, ends = edges[:-1, None], edges[1:, None]
    pixels = np.arange(length)
    covered = np.minimum(ends, pixels + 1) - np.maximum(starts, pixels)
    return (covered.clip(0) * (size / length)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Atari:
    """A game by its name, such as `pong` or `ms_pacman`. All chance comes from the seed of the table."""

    game: str
    frame_skip: int = 4
    """Frames that an action is held for. What is seen is the brighter of the last two, which flicker."""
    size: int = 84
    """Height and width of the grey picture."""
    stack: int = 4
    """Pictures that are seen together, the latest last."""
    most_no_ops: int = 30
    """An episode begins after one to this many frames without action, by the seed."""
    fire_on_reset: bool = True
    """Press the button at the start, in games that wait for it."""
    sticky: float = 0.0
    """Probability with which a frame repeats the action before; 0.25 is usual where there are no no-ops."""
    clip_reward: bool = True
    """Learn from the sign of the points of a decision; the score stays what the game counts."""
    episodic_life: bool = False
    """A lost life ends the episode, and the next goes on from there: then no episode can be repeated."""
    max_frames: int = 108_000
    """Cuts off longer episodes: half an hour of play."""
    all_actions: bool = False
    """All eighteen, also those that the game ignores."""
    mode: int = 0
    difficulty: int = 0
    """Variants of the game, as on the console."""

    def __post_init__(self) -> None:
        for name in ("frame_skip", "size", "stack"):
            if getattr(self, name) < 1:
                raise ValueError(f"Atari.{name} must be at least 1, got {getattr(self, name)}")
        if self.most_no_ops < 0:
            raise ValueError(f"Atari.most_no_ops must be at least 0, got {self.most_no_ops}")
        if not 0.0 <= self.sticky < 1.0:
            raise ValueError(f"Atari.sticky must be a probability below 1, got {self.sticky}")
        if self.max_frames < self.frame_skip:
            raise ValueError(f"Atari.max_frames must be at least {self.frame_skip}, got {self.max_frames}")

    @cached_property
    def spec(self) -> GameSpec:
        picture = Planes(channels=self.stack, height=self.size, width=self.size, dtype="uint8")
        return GameSpec.symmetric(
            name=self.game,
            num_seats=1,
            observation=ObservationSpec(parts={"screen": picture}),
            action=ActionSpec(heads={"move": Choice(num=len(self._actions), masked=False)}),
            max_length=self.max_frames // self.frame_skip,
            zero_sum=False,
            reward_is_score=not self.clip_reward,
            repeatable=not self.episodic_life,
        )

    def tables(self, num_tables: int) -> GameBatch:
        consoles = [self._console() for _ in range(num_tables)]
        return AtariTables(
            self.spec,
            consoles,
            self._actions,
            frame_skip=self.frame_skip,
            most_no_ops=self.most_no_ops,
            fire_on_reset=self.fire_on_reset,
            sticky=self.sticky,
            clip_reward=self.clip_reward,
            episodic_life=self.episodic_life,
        )

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    @cached_property
    def _actions(self) -> list[Any]:
        console = self._console()
        actions: list[Any] = console.getLegalActionSet() if self.all_actions else console.getMinimalActionSet()
        return actions

    def _console(self) -> Any:
        known = roms.get_all_rom_ids()
        if self.game not in known:
            close = difflib.get_close_matches(self.game, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "ale_py.roms.get_all_rom_ids() lists them"
            raise ValueError(f"there is no Atari game {self.game!r}; {hint}")
        ALEInterface.setLoggerMode(LoggerMode.Error)
        console: Any = ALEInterface()
        console.setFloat("repeat_action_probability", 0.0)  # we repeat, by the seed of the table
        console.loadROM(roms.get_rom_path(self.game))
        for name, wanted, there in (
            ("mode", self.mode, console.getAvailableModes()),
            ("difficulty", self.difficulty, console.getAvailableDifficulties()),
        ):
            if wanted not in there:
                raise ValueError(f"{self.game} has no {name} {wanted}; there are {list(there)}")
        console.setMode(self.mode)
        console.setDifficulty(self.difficulty)
        console.reset_game()
        return console
