"""Who turns an actor's observations into actions: the actor's own process, or a policy worker that serves
several actors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ludus.data.trees import Array, IntArray, Tree
from ludus.games.game import Bot
from ludus.models.policy import Acted


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one player: they lie side by side."""

    player: str
    start: int
    stop: int
    want_value: bool
    """Some of them are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Seats of one kind that must act now, by player."""

    kind: int
    groups: tuple[Group, ...]
    observation: Tree
    legal: Tree
    state: Tree
    """Memory before the decision."""
    uniforms: Array
    """float32 [rows, draws]: all the chance there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was decided, row by row."""

    acted: Acted
    version: IntArray
    """[rows]: the step of the weights that decided."""


class Inference(Protocol):
    """An actor's way to policies."""

    def bot(self, player: str) -> Bot | None:
        """The bot of this name; None if the player has a policy."""

    def num_draws(self, kind: int) -> int:
        """Uniform numbers that one row uses up."""

    def refresh(self) -> None:
        """Take newer weights, if there are any: called before every step of the tables."""

    def act_all(self, requests: Sequence[Rows]) -> Sequence[Answer]:
        """Decide for all rows, at most one request for each kind of seat, in as few calls as possible.

        The answers hold until the next call.
        """

    def model_name(self, player: str) -> str:
        """The id of the weights that a player decides with now; "" for a bot."""
