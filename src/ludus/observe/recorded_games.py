"""Recorded games of a run: `RUN/games/` with one file per game and `index.json`, which lists them. A recording holds
all that a page draws as plain values, so that looking at one executes nothing of the run."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ludus.store.files import UNREADABLE, StoreError, atomic_write, make_folder, open_file

FOLDER, INDEX = "games", "index.json"
MOST_BYTES = 2_000_000
"""Of one recorded game."""
MOST_BYTES_IN_ALL = 64_000_000
_NAME = re.compile(r"[0-9]{6,9}")


class GameMove(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision of one seat, and what its network thought of it."""

    seat: int
    name: str
    """What was chosen, in words."""
    value: float | None = None
    """The score that the network expected for this seat, before the move; None for a bot."""
    options: list[tuple[str, float]] = []
    """The most probable options with their probabilities, and the chosen one; empty for a bot."""


class GameStep(msgspec.Struct, frozen=True, kw_only=True):
    view: dict[str, Any] | None = None
    """The table after these moves, as `game_views.js` draws it; None in a game without a drawing."""
    done: list[GameMove] = []


class GamePlayer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The player on one seat."""

    name: str
    model: str = ""
    """Id of its weights; "" for a bot."""
    weights: str | None = None
    """live, average"""


class GameRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One game from its first position to its end."""

    game: str
    players: list[GamePlayer]
    """By seat."""
    teams: list[int]
    """By seat."""
    score: list[str]
    """By team, as it is written."""
    points: list[float]
    """The same as numbers."""
    outcome: str
    decisions: int
    every: int
    """Each step of the record is so many steps of the game."""
    score_range: tuple[float, float] | None
    real_time: bool
    steps: list[GameStep]


class GameLine(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded game in a list."""

    name: str
    """Of its file, without `.json`."""
    players: list[str]
    """By side of the match: the snapshot, then its opponents."""
    seats: list[str]
    """The same players by team, as they sat."""
    outcome: str
    won: float | None
    """1 if the snapshot won, 0.5 for a draw, 0 if it lost; None with one team."""
    score: list[str]
    """By team."""
    decisions: int
    trained: int
    """Decisions that the snapshot had trained on."""
    match: int
    """The evaluation match after which it was played."""
    time: float
    """Unix time."""
    bytes: int


class GameList(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    games: list[GameLine] = []
    note: str = ""
    """The reason that no further games are recorded; empty if they are."""


class GameFolder:
    """The recorded games of a run folder. One process writes, any may read."""

    def __init__(self, run: Path) -> None:
        self.path = run / FOLDER

    @property
    def changed(self) -> int:
        """A number that is another one after every change; 0 if there are no games."""
        try:
            return (self.path / INDEX).stat().st_mtime_ns
        except OSError:
            return 0

    def listed(self) -> GameList:
        """Raises StoreError if the list is damaged."""
        if not (self.path / INDEX).exists():
            return GameList()
        return _decoded(self.path / INDEX, GameList)

    def read(self, name: str) -> GameRecord:
        """Raises StoreError if there is no such game, or if it is damaged."""
        path = self.path / f"{name}.json"
        if not _NAME.fullmatch(name) or path.is_symlink() or not path.is_file():
            raise StoreError(f"the run has no recorded game {name!r}")
        return _decoded(path, GameRecord)

    # --- writing ---

    def open(self) -> GameList:
        """For the process that writes: the list, and a folder without games that it does not name, as a kill or a
        damaged list leaves them behind. Raises OSError if the folder is a link: it removes no games elsewhere."""
        if self.path.is_symlink():
            raise OSError(errno.ELOOP, "a link; games are recorded in the run folder itself", str(self.path))
        make_folder(self.path)
        try:
            kept = self.listed()
        except StoreError:
            kept = GameList()
        named = [one for one in kept.games if _NAME.fullmatch(one.name)]
        games = [one for one in named if (self.path / f"{one.name}.json").is_file()]
        names = {one.name for one in games}
        for path in self.path.glob("*.json"):
            if _NAME.fullmatch(path.stem) and path.stem not in names:
                path.unlink(missing_ok=True)
        return GameList(games=games)

    def add(self, before: GameList, line: GameLine, content: bytes, *, most: int) -> GameList:
        """Write a game, then the list that has it; the oldest games make room for it. A kill in between loses this
        game and nothing else."""
        games, total = [line], line.bytes
        for one in before.games[: most - 1]:
            total += one.bytes
            if total > MOST_BYTES_IN_ALL:
                break
            games.append(one)
        kept = GameList(games=games)
        atomic_write(self.path / f"{line.name}.json", content, sync=False)
        self.write(kept)
        for one in before.games[len(games) - 1 :]:
            (self.path / f"{one.name}.json").unlink(missing_ok=True)
        return kept

    def write(self, games: GameList) -> None:
        atomic_write(self.path / INDEX, msgspec.json.encode(games), sync=False)


def next_name(games: Sequence[GameLine]) -> str:
    return f"{max((int(one.name) for one in games), default=0) + 1:06d}"


def encode_game(record: GameRecord) -> bytes:
    """Raises StoreError if it is too large to keep."""
    content = msgspec.json.encode(record)
    if len(content) > MOST_BYTES:
        raise StoreError(f"a recorded game has {len(content):,} bytes; at most {MOST_BYTES:,} are kept")
    return content


Document = TypeVar("Document", bound=msgspec.Struct)


def _decoded(path: Path, kind: type[Document]) -> Document:
    try:
        with open_file(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise StoreError(f"{path} has more than {MOST_BYTES:,} bytes")
        return msgspec.json.decode(content, type=kind)
    except (OSError, *UNREADABLE) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
