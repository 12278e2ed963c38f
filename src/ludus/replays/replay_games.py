"""Replay files and their game: how they are written, and how the game is made again without trusting the file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ludus.config import ConfigError, apply_overrides, decode, encode
from ludus.config.annotations import UnknownPathError
from ludus.config.encoding import is_plain
from ludus.data.addresses import address_of
from ludus.data.replay import SUFFIX, Replay, ReplayError, decode_replay, encode_replay
from ludus.games import builtin
from ludus.games.catalog import ADAPTERS, REMOTE, list_games, resolve
from ludus.games.game import GameSource
from ludus.games.isolation.isolated import Isolated
from ludus.games.lift import Lifted
from ludus.games.recording import innermost, map_name
from ludus.games.seat_rows import GameError
from ludus.lookup import loading, parse_settings
from ludus.replays.playback import PlaybackError, play_replays
from ludus.store.files import atomic_write, clean_temporaries, locked, make_folder, read_file, safe_name

CHECKED = 4
"""Episodes that are played again to see whether the game can be replayed."""


def find_game(address: str, settings: tuple[str, ...]) -> GameSource:
    """A game by name or address, with `option=value` settings."""
    with loading(address):
        source = resolve(address)
    overrides = parse_settings(settings)
    if isinstance(source, Isolated):  # options that the isolation does not have are those of the game
        own = {field.name for field in fields(source)}
        known = {name: name if name.partition(".")[0] in own else f"options.+{name}" for name in overrides}
        overrides = {known[name]: value for name, value in overrides.items()}
    try:
        made = apply_overrides(source, overrides) if overrides else source
    except UnknownPathError as error:
        longer = _with_option(address, error.path, overrides.get(error.path, "VALUE"))
        raise UnknownPathError(f"{error}{longer and f', or write {longer}'}", error.path) from None
    if address.partition(":")[0] in ADAPTERS:
        with loading(address):
            _ = made.spec  # some libraries check the name of a game and its options only here
    return made


def _with_option(address: str, name: str, value: str) -> str:
    """The address with this option; empty if addresses of this kind have no options."""
    if address.startswith(REMOTE):
        return f"{address}{'&' if '?' in address else '?'}{name}={value}"
    if address.startswith("openspiel:"):
        known = address.removesuffix(")")
        return f"'{known}{'(' if known == address else ','}{name}={value})'"
    return ""


def game_address(source: GameSource) -> tuple[str, dict[str, Any]]:
    """The address of a game and its options as a replay names them, without folders."""
    if isinstance(source, Isolated):
        return _without_folder(source.game), dict(source.options)
    maker: Any = source.factory if isinstance(source, Lifted) else type(source)
    options = _options(source)
    if isinstance(maker, partial):
        maker, options = maker.func, dict(maker.keywords)
    place, _, name = address_of(maker).rpartition(":")
    for prefix, adapter in ADAPTERS.items():
        if f"{place}:{name}" == adapter.source:
            if adapter.argument is None:
                return prefix, options
            return f"{prefix}:{_without_folder(options.pop(adapter.argument))}", options
    package, _, module = place.rpartition(".")
    return (module if package == builtin.__name__ else _without_folder(f"{place}:{name}")), options


def make_recorded_game(replay: Replay, trusted: GameSource | None = None) -> GameSource:
    """Make the game that a replay names. Raises ValueError unless the game came with Ludus or is the `trusted`
    one: a file must not choose which code runs."""
    if not is_plain(replay.options):
        raise ValueError(f"its options for {replay.game} are not plain values")
    prefix, _, name = replay.game.partition(":")
    adapter = ADAPTERS.get(prefix)
    if adapter is not None and adapter.argument in replay.options:
        raise ValueError(f"its options name another game than {replay.game}")
    own = trusted if trusted is not None and game_address(trusted)[0] == replay.game else None
    known = [entry.address for entry in list_games() if entry.library is None]
    of_library = adapter is not None and adapter.is_data(name, replay.options)
    if not (own is not None or of_library or replay.game in known):
        why = "which did not come with ludus" if adapter is None else "which names code, a program, a server or a file"
        raise ValueError(f"it is of {replay.game}, {why}: name it with --game if you trust it")
    try:
        made = with_options(own if own is not None else resolve(replay.game), replay.options)
        _ = made.spec  # some games check their options only here
    except Exception as error:
        raise ValueError(f"its game cannot be made: {error}") from error
    return made


def with_options(source: GameSource, options: Mapping[str, Any]) -> GameSource:
    """The game with these options, given as plain values that are checked against their types."""
    made: Any = source
    if isinstance(made, Lifted):
        return replace(made, factory=partial(made.factory, **options)) if options else made
    if isinstance(made, Isolated):
        return replace(made, options={**made.options, **options})
    changed: GameSource = decode({**encode(made), **options})
    return changed


def _without_folder(address: str) -> str:
    place, colon, name = address.rpartition(":")
    return f"{Path(place).name}{colon}{name}" if colon else address


def _options(source: GameSource) -> dict[str, Any]:
    """All options as plain values, including defaults, which may change."""
    made: Any = source
    if isinstance(made, Lifted) or not is_dataclass(made):
        return {}
    written = encode(made)
    return {field.name: written[field.name] for field in fields(made) if field.init}


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
    (ended,) = play_replays(source, [(replay, ())])
    if isinstance(ended, PlaybackError):
        raise ended


def _require_same_options(path: Path, options: Mapping[str, Any]) -> None:
    """Games with other options must not count towards the wanted episodes."""
    try:
        before = decode_replay(read_file(path)).options
    except ReplayError:
        return  # the conversion skips it and names it
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(dict(options)))  # as a replay holds them
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{path} was recorded with {name}={before.get(name)}, not {now.get(name)}; choose another folder"
            )
