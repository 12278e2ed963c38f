"""What the ranks of a learner say to each other. Rank 0 decides what is done; the others do it too and say
what waits for them."""

from __future__ import annotations

import msgspec

from ludus.runtime.messages import Configure, Forget, Request, Reset


class Train(Request, frozen=True, tag="train"):
    """To all ranks: train these players, in this order, on what waits in each rank."""

    parts: dict[str, float]
    """By player: the share of it, the newest first; 1: all."""


class Compare(Request, frozen=True, tag="compare"):
    """To all ranks: make sure that all have come to the same weights."""


class Standing(msgspec.Struct, frozen=True):
    """What waits in a rank."""

    decisions: dict[str, int]
    """By player."""
    held_up: dict[str, list[bool]]
    """By player and actor: whether that waits for the learner."""
    preparing: list[str] = []
    """Players of whom something is with the buffer worker."""
    orders: int = 0
    """How many the rank has obeyed so far: what it said before the latest means nothing any more."""


ToRank = Train | Compare | Reset | Configure | Forget
