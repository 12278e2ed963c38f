"""The tensors of an iteration: matches at the tables, decisions, what came out of them, and sums for the results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ludus.games.device.tensor_game import TensorState


class Seats(NamedTuple):
    """The matches at the tables, as tensors that are rewritten between iterations; their memory stays."""

    weights: Tensor
    """[blocks, sides] int64: row of the stack of weights that a side plays with."""
    trains: Tensor
    """[blocks, sides] bool."""
    bots: Tensor
    """[blocks, sides] int64: number of the bot on a side, -1 if there is none; never one on side 0."""
    quota: Tensor
    """[blocks] int32: episodes of each table that count for the match."""
    restart: Tensor
    """[blocks] bool: a new match begins with the next iteration."""

    @classmethod
    def allocate(cls, blocks: int, sides: int, device: torch.device) -> Seats:
        return cls(
            torch.zeros(blocks, sides, dtype=torch.int64, device=device),
            torch.zeros(blocks, sides, dtype=torch.bool, device=device),
            torch.full((blocks, sides), -1, device=device),
            torch.zeros(blocks, dtype=torch.int32, device=device),
            torch.ones(blocks, dtype=torch.bool, device=device),
        )


class Tally(NamedTuple):
    """Sums over the counted episodes of a match: names of the columns that `Rollout.tally` holds per block."""

    episodes: int
    steps: int
    decisions: slice
    wins: slice
    draws: slice
    score: slice
    square: slice
    width: int

    @classmethod
    def of(cls, sides: int) -> Tally:
        ends = [2]
        for width in (sides, sides**2, sides**2, sides, sides):
            ends.append(ends[-1] + width)
        decisions, wins, draws, score, square = (slice(first, last) for first, last in pairwise(ends))
        return cls(0, 1, decisions, wins, draws, score, square, ends[-1])


class Played(NamedTuple):
    """What was played in an iteration, by step; row r of a step belongs to group r // rows. What was decided after the
    last step is not played, but shows who would decide next, and the value of that."""

    state: TensorState
    """Before the step, as far as decisions depend on it: [steps + 1, tables, ...]."""
    seat: Tensor
    """[steps + 1, rows] int64."""
    acted: Tensor
    """[steps + 1, rows]"""
    action: dict[str, Tensor]
    """By head: [steps + 1, rows] or [steps + 1, rows, picks]."""
    log_prob: Tensor
    """[steps + 1, rows, heads]"""
    value: Tensor
    """[steps + 1, rows]"""
    reward: Tensor
    """[steps, tables, sides, rewards]: the main one first."""
    over: Tensor
    """[steps, tables]"""
    elapsed: Tensor | None
    """[steps, tables] float32: game time that the step took, in games with a clock."""
    first: Tensor | None
    """[steps + 1, rows]: whether a decision is the first of its side in the episode, if the policy has memory."""
    memory: dict[str, Tensor]
    """[pieces, phases, rows, ...]: the memory at the beginning of each sequence."""
    search_policy: Tensor | None = None
    """[steps, rows, options]: the policy that a search has improved, where sides that train search."""
    truncated: Tensor | None = None
    """[steps, tables]: where an episode is over but not by the rules, in games that have such ends."""

    def tensors(self) -> Iterator[Tensor]:
        """All of them, in a fixed order."""
        for part in self:
            if isinstance(part, dict):
                yield from part.values()
            elif part is not None:
                yield part


class Tables(NamedTuple):
    """The state of all tables between two steps."""

    game: TensorState
    episode: Tensor
    """[tables] int32: episodes that the table has finished in its match."""
    earned: Tensor
    """[tables, sides] float32: reward of each side in this episode."""
    length: Tensor
    """[tables] int32: steps of this episode."""


class Decided(NamedTuple):
    """The decisions of one step, by row."""

    seat: Tensor
    acted: Tensor
    action: dict[str, Tensor]
    log_prob: Tensor
    """[rows, heads]"""
    value: Tensor
    memory: dict[str, Tensor]
    """After the decision, where one was made."""


class Advanced(NamedTuple):
    """The result of playing the decisions of a step."""

    tables: Tables
    reward: Tensor
    """[tables, sides, rewards]"""
    over: Tensor
    elapsed: Tensor | None
    tally: Tensor
    """[blocks, columns]: what the step adds."""
    truncated: Tensor | None = None
