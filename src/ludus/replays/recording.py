"""Recording: the replay files of a folder, and the check that a game can be recorded at all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ludus.config import ConfigError
from ludus.data.replay import SUFFIX, Replay, ReplayError, decode_replay, encode_replay
from ludus.games.game import GameSource
from ludus.games.recording import innermost, map_name
from ludus.games.seat_rows import GameError
from ludus.replays.playback import Playback, PlaybackError
from ludus.replays.replay_games import game_address
from ludus.store.files import atomic_write, clean_temporaries, locked, make_folder, safe_name

CHECKED = 4
"""Episodes that are played again to see whether the game can be replayed."""


def line_ups(num_teams: int, players: Sequence[str], all_pairs: bool) -> list[tuple[str, ...]]:
    """Players by team: the first against each of the others, or with `all_pairs` everybody against everybody."""
    if num_teams == 1:
        return [(player,) for player in dict.fromkeys(players)]
    if len(players) < 2:
        raise ConfigError("name at least two players: the first meets each of the others")
    pairs = (
        itertools.combinations(dict.fromkeys(players), 2)
        if all_pairs
        else dict.fromkeys((players[0], other) for other in players[1:])
    )
    return [(one, *(other,) * (num_teams - 1)) for one, other in pairs]


class ReplayFolder:
    """A folder of replays of one game. `open` locks it for this process."""

    def __init__(self, path: Path, game: GameSource) -> None:
        self.path = path
        self.game = innermost(game)
        self.address, self.options = game_address(self.game)
        self._to_check = CHECKED

    @classmethod
    @contextmanager
    def open(cls, path: Path, game: GameSource) -> Iterator[ReplayFolder]:
        make_folder(path)
        with locked(path):
            clean_temporaries(path)
            yield cls(path, game)

    @property
    def num_replays(self) -> int:
        return sum(1 for _ in self.path.glob(f"*{SUFFIX}"))

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.glob(f"*{SUFFIX}"))

    def files(self, line_up: Sequence[str]) -> ReplayFiles:
        place = self.address.rpartition("/")[2].replace(":", "-")
        map_ = map_name(self.game)
        words = [place, *([] if map_ in (place, self.game.spec.name) else [map_]), *dict.fromkeys(line_up)]
        return ReplayFiles(self, line_up, "-".join(safe_name(word, "a player") for word in words))

    def check(self, replay: Replay) -> None:
        """Play the first few replays again. Raises `GameError` if the game does not repeat itself."""
        if self._to_check:
            self._to_check -= 1
            try:
                require_replayable(self.game, replay)
            except PlaybackError as error:
                raise GameError(
                    f"{self.game.spec.name} cannot be recorded: with the same seed and the same actions {error}; "
                    "what happens at a table must depend on these only (`ludus check` says more)"
                ) from error


class ReplayFiles:
    """The replays of one line-up in a folder, numbered from 1."""

    def __init__(self, folder: ReplayFolder, line_up: Sequence[str], prefix: str) -> None:
        self.line_up = line_up
        self._folder = folder
        self._prefix = prefix
        pattern = re.compile(re.escape(prefix) + r"-(\d+)" + re.escape(SUFFIX))
        paths = {int(found[1]): path for path in folder.path.iterdir() if (found := pattern.fullmatch(path.name))}
        self.count = len(paths)
        self._next = max(paths, default=0) + 1
        if paths:
            _require_same_options(paths[self._next - 1], folder.options)

    def write(self, replay: Replay) -> None:
        self._folder.check(replay)
        atomic_write(self._folder.path / f"{self._prefix}-{self._next:06d}{SUFFIX}", encode_replay(replay))
        self._next += 1
        self.count += 1


def require_replayable(source: GameSource, replay: Replay) -> None:
    """Raises `PlaybackError` if the game does not play this replay as it was recorded."""
    if not source.spec.repeatable:
        raise PlaybackError("it plays on by chances of its own")
    game = source.tables(1)
    try:
        playback = Playback(game)
        playback.start(0, replay, ())
        while playback.free == []:
            for ended in playback.step().values():
                if isinstance(ended, PlaybackError):
                    raise ended
    finally:
        game.close()


def _require_same_options(path: Path, options: Mapping[str, Any]) -> None:
    """Games with other options must not count towards the wanted episodes."""
    try:
        before = decode_replay(path.read_bytes()).options
    except ReplayError:
        return  # the conversion skips it and names it
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(dict(options)))  # as a replay holds them
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{path} was recorded with {name}={before.get(name)}, not {now.get(name)}; choose another folder"
            )
