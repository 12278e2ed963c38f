"""What the trainer and the host of a game say to each other. Arrays lie in shared memory and never travel.

A command is one byte, answered by one byte; `MESSAGE` says that a message follows, packed and with its
length in front. Nothing that is said can be executed.
"""

from __future__ import annotations

from typing import Any

import msgspec

STEP, RESET, MESSAGE, DONE = b"s", b"r", b"m", b"."


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a host: which game, and which of its tables."""

    game: str
    options: dict[str, Any]
    start: int
    stop: int
    """Its tables are from `start` up to `stop` of those in shared memory; none: it is only asked what the
    game is like."""
    num_tables: int
    needs_display: bool


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="message", tag="hello"):
    """The first answer: what the game is like."""

    spec: dict[str, Any]
    bots: tuple[str, ...]
    has_pictures: bool = False
    strategy: tuple[int, int] | None = None
    """If seats build things: places of a build order, and facts."""


class Failed(msgspec.Struct, frozen=True, tag_field="message", tag="failed"):
    """The host ends."""

    kind: str
    """`raised`: by an error of the game's; `garbage`: it has shown or given what it must not."""
    reason: str


class BotAct(msgspec.Struct, frozen=True, tag_field="message", tag="bot_act"):
    """A scripted player is to choose for the rows that shared memory marks."""

    bot: str
    seed: int


class Draw(msgspec.Struct, frozen=True, tag_field="message", tag="draw"):
    table: int
    seat: int | None


class Picture(msgspec.Struct, frozen=True, tag_field="message", tag="picture"):
    height: int
    width: int
    rgb: bytes


ToHost = BotAct | Draw
FromHost = Hello | Failed | Picture
