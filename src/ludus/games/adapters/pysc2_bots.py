"""StarCraft II's own computer players, as bots that take a seat before the game begins.

A game with two seats starts in a lobby: one decision in which nobody can do anything but wait. There a bot
gives its seat to the computer, by a negative number in a head that does not count. The game is then made
with a computer player in that place, and the seat never acts again. As this is part of the actions, a table
is still a function of its seed and its actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import Pointer
from ludus.data.trees import IntArray, Tree
from ludus.games.game import Bot, GameBatch
from ludus.games.seat_rows import GameError

Race = Literal["terran", "zerg", "protoss", "random"]
Difficulty = Literal[
    "very_easy",
    "easy",
    "medium",
    "medium_hard",
    "hard",
    "harder",
    "very_hard",
    "cheat_vision",
    "cheat_money",
    "cheat_insane",
]
Build = Literal["random", "rush", "timing", "power", "macro", "air"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Computer:
    """A computer player of the game itself."""

    race: Race = "random"
    difficulty: Difficulty = "very_easy"
    build: Build = "random"

    def __post_init__(self) -> None:
        for name, known in (("race", Race), ("difficulty", Difficulty), ("build", Build)):
            given, allowed = getattr(self, name), get_args(known)
            if given not in allowed:
                raise GameError(f"Computer.{name} must be one of {', '.join(allowed)}, got {given!r}")

    @property
    def name(self) -> str:
        build = "" if self.build == "random" else f"_{self.build}"
        return f"builtin_{self.race}_{self.difficulty}{build}"


COMPUTERS = tuple(
    Computer(race=race, difficulty=difficulty, build=build)
    for race, difficulty, build in product(get_args(Race), get_args(Difficulty), get_args(Build))
)


@dataclass(frozen=True, kw_only=True)
class ComputerBot:
    """Gives its seat to the computer."""

    computer: Computer

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        action = game.spec.kinds[game.spec.seats[int(seats[0])]].action
        chosen: Tree = {}
        for name, head in action.heads.items():
            several = isinstance(head, Pointer) and head.picks > 1
            shape = (len(tables), *action.arrays[name].shape)
            chosen[name] = np.full(shape, -1 if several else 0, np.int32)
        chosen[_marked(list(action.heads))][:] = -1 - COMPUTERS.index(self.computer)
        return chosen


def bots_of(builds: Sequence[Build]) -> Mapping[str, Bot]:
    """One for each race and difficulty, and for each of these ways to play."""
    return {
        computer.name: ComputerBot(computer=computer) for computer in COMPUTERS if computer.build in builds
    }


def computer_on_seat(heads: Mapping[str, NDArray[np.int32]]) -> Computer | None:
    """Who takes the seat, by its action in the lobby; None: the player that is asked for actions."""
    value = int(heads[_marked(list(heads))])
    return COMPUTERS[-1 - value] if value < 0 else None


def _marked(heads: Sequence[str]) -> str:
    """A head with one number that never counts in the lobby: an argument of a function other than no-op."""
    return next(name for name in heads if name not in ("function", "delay", "unit_tags"))
