"""Atari games with one player, by the Arcade Learning Environment, with the usual preprocessing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ale_py import ALEInterface, LoggerMode, roms

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Planes
from ludus.data.tree_game import TreeState
from ludus.games.adapters.atari_tables import AtariTables
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch


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
        actions: list[Any] = (
            console.getLegalActionSet() if self.all_actions else console.getMinimalActionSet()
        )
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
