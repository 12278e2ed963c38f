"""Atari games for one player from the Arcade Learning Environment, with the standard preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from ale_py import ALEInterface, LoggerMode, roms
from numpy.typing import NDArray

from ludus.data.checks import require_in
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes
from ludus.data.trees import IntArray
from ludus.games.game import Actions, GameBatch
from ludus.games.pictures import averaging
from ludus.games.seat_rows import nearest
from ludus.games.tables import ArrayTables, GameDefaults

_NO_OP, _FIRE = 0, 1


@dataclass(frozen=True, kw_only=True)
class Atari(GameDefaults):
    """A game by its name, such as `pong` or `ms_pacman`. All randomness comes from the seed of the table."""

    game: str
    frame_skip: int = 4
    """Frames per action. The observation is the maximum of the last two frames, since sprites flicker."""
    size: int = 84
    """Height and width of the grey picture."""
    stack: int = 4
    """Pictures per observation, the latest last."""
    most_no_ops: int = 30
    """An episode begins after 1 to this many frames without action, drawn from the seed."""
    fire_on_reset: bool = True
    """Press the button at the start, in games that wait for it."""
    sticky: float = 0.0
    """Probability that a frame repeats the previous action; 0.25 is usual without no-ops."""
    clip_reward: bool = True
    """Reward the sign of the points of a decision; the score stays the points of the game."""
    episodic_life: bool = False
    """A lost life ends the episode, and the next one continues from there. Episodes cannot be repeated then."""
    max_frames: int = 108_000
    """Longer episodes are cut off; the default is half an hour of play."""
    all_actions: bool = False
    """Offer all eighteen actions, including those that the game ignores."""
    mode: int = 0
    difficulty: int = 0
    """Variants of the game, as on the console."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", frame_skip=self.frame_skip, size=self.size, stack=self.stack)
        require_in(self, "[0, inf]", most_no_ops=self.most_no_ops)
        require_in(self, "[0, 1)", sticky=self.sticky)
        require_in(self, f"[{self.frame_skip}, inf]", max_frames=self.max_frames)

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
        return AtariTables(self, [self._console() for _ in range(num_tables)], self._actions)

    @cached_property
    def _actions(self) -> list[Any]:
        console = self._console()
        return list(console.getLegalActionSet() if self.all_actions else console.getMinimalActionSet())

    def _console(self) -> Any:
        known = roms.get_all_rom_ids()
        if self.game not in known:
            hint = nearest(self.game, known, otherwise="ale_py.roms.get_all_rom_ids() lists them")
            raise ValueError(f"there is no Atari game {self.game!r}{hint}")
        ALEInterface.setLoggerMode(LoggerMode.Error)
        console: Any = ALEInterface()
        console.setFloat("repeat_action_probability", 0.0)  # repeated here instead, by the seed of the table
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


class AtariTables(ArrayTables):
    """Consoles start from a saved state, so that no episode depends on the one before."""

    def __init__(self, source: Atari, consoles: Sequence[Any], actions: Sequence[Any]) -> None:
        super().__init__(source.spec, len(consoles))
        self._source = source
        self._consoles = list(consoles)
        self._starts = [console.cloneState() for console in consoles]
        self._actions = list(actions)
        self._fires = source.fire_on_reset and len(actions) > _FIRE and actions[_FIRE].name == "FIRE"
        self._random = [Random() for _ in consoles]
        self._held = [_NO_OP] * self.num_tables
        """Per table, the action of the latest frame."""
        self._lives = [0] * self.num_tables
        self._goes_on = [False] * self.num_tables
        """Per table, whether the episode ended with a lost life and the game continues."""
        self._steps = np.zeros(self.num_tables, np.int64)
        height, width = consoles[0].getScreenDims()
        self._frames = np.zeros((self.num_tables, 2, height, width), np.uint8)
        self._screen = self.view.observation[0]["screen"][:, 0]
        size = self._screen.shape[-1]
        self._down, self._across = averaging(height, size), averaging(width, size).T

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._random[table].seed(seed)
            self._start_game(table)
        self._steps[tables] = 0
        self._screen[tables] = self._pictures(tables)[:, None]

    def step(self, actions: Actions) -> None:
        view = self.view
        running = np.flatnonzero(view.to_act[:, 0])
        if not len(running):
            return
        moves = actions[0]["move"][:, 0].tolist()
        points = np.array([self._play(table, moves[table], self._source.frame_skip) for table in running.tolist()])
        self._screen[running, :-1] = self._screen[running, 1:]
        self._screen[running, -1] = self._pictures(running)
        self._steps[running] += 1
        view.reward[running, 0] = np.sign(points) if self._source.clip_reward else points
        view.score[running, 0] += points
        for table in running.tolist():
            self._end_if_over(table)

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        return np.asarray(self._consoles[table].getScreenRGB())

    def _start_game(self, table: int) -> None:
        console = self._consoles[table]
        no_ops = self._random[table].randint(1, max(self._source.most_no_ops, 1))
        if self._goes_on[table]:
            self._play(table, _NO_OP, 1)
        else:
            console.restoreState(self._starts[table])
            self._held[table] = _NO_OP
            self._play(table, _NO_OP, no_ops)
        if self._fires:
            self._play(table, _FIRE, self._source.frame_skip)
        self._goes_on[table] = False
        if console.game_over():  # the no-ops alone ended the game: start without them
            console.restoreState(self._starts[table])
            self._play(table, _NO_OP, 1)
        self._lives[table] = console.lives()

    def _play(self, table: int, move: int, num_frames: int) -> float:
        """Hold an action for some frames and keep the last two; returns the points."""
        console, frames, draw = self._consoles[table], self._frames[table], self._random[table].random
        sticky = self._source.sticky
        points = 0.0
        for left in range(num_frames - 1, -1, -1):
            if not sticky or draw() >= sticky:
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

    def _end_if_over(self, table: int) -> None:
        view, console = self.view, self._consoles[table]
        lives = console.lives()
        over = bool(console.game_over())
        if self._source.episodic_life and lives < self._lives[table] and not over:
            self._goes_on[table] = over = True
        self._lives[table] = lives
        view.over[table] = over
        view.truncated[table] = not over and self._steps[table] >= self.spec.max_length
        view.to_act[table] = not (over or view.truncated[table])

    def _pictures(self, tables: IntArray) -> NDArray[np.uint8]:
        """[tables, size, size]: the maximum of the last two frames, averaged down to size."""
        brighter = self._frames[tables].max(axis=1).astype(np.float32)
        small: NDArray[np.uint8] = np.rint(self._down @ (brighter @ self._across)).astype(np.uint8)
        return small
