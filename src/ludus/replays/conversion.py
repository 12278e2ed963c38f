"""Conversion: replay files are played again, and what their seats saw and did becomes a dataset.

`plan_conversion` finds the files and the game, `Conversion.dataset` opens the dataset and `convert` adds every
replay that it does not have yet. `ReplayEpisodes` plays the replays of Ludus; games with replays of their own
(`HasOwnReplays`) bring another source of episodes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ludus.config import ConfigError
from ludus.data.checks import unknown
from ludus.data.replay import (
    SUFFIX,
    DatasetError,
    DecodedReplay,
    Episode,
    EpisodeFacts,
    EpisodeFilter,
    EpisodeSource,
    NoOp,
    Replay,
    ReplayError,
    decode_replay,
    first_choice,
    kept_decisions,
)
from ludus.data.specs import Choice, GameSpec, SeatKind, differences
from ludus.games.game import GameSource, HasStrategy
from ludus.games.recording import game_version
from ludus.replays.dataset_writer import SPARE_BYTES, DatasetWriter, write_dataset
from ludus.replays.playback import PlaybackError, WatchedSeat, decisions_of_seat, play_replays, require_same_game
from ludus.replays.replay_games import game_address, make_recorded_game
from ludus.store.files import read_file

SAMPLE_REPLAYS = 32
"""Replays with episodes from which the size of the dataset is estimated."""


@runtime_checkable
class HasOwnReplays(Protocol):
    """A `GameSource` whose game writes replays in a format of its own."""

    replay_suffix: str
    """The suffix of their files."""

    def replay_episodes(self, files: Mapping[str, Path], no_op: NoOp | None) -> EpisodeSource: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """A source of episodes and the choice of those that go into a dataset."""

    episodes: EpisodeSource
    wanted: EpisodeFilter
    no_op: NoOp | None
    """The decision to do nothing, most of which are left out; None: all decisions are kept."""
    num_files: int

    def dataset(self, folder: Path) -> AbstractContextManager[DatasetWriter]:
        """A new dataset, or the one that an equal conversion began."""
        wanted = {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self.wanted).items()}
        return write_dataset(
            folder,
            game=self.episodes.game,
            kind=self.episodes.kind,
            strategy=self.episodes.strategy,
            settings={**wanted, "no_op": None if self.no_op is None else asdict(self.no_op)},
        )


def plan_conversion(
    places: Sequence[Path],
    wanted: EpisodeFilter,
    *,
    trusted: GameSource | None = None,
    kind: str | None = None,
    no_op: int | None = None,
    keep_no_ops: bool = False,
    num_tables: int = 32,
) -> Conversion:
    """Find replay files and their game. `trusted` is a game whose code may run although it did not come with
    Ludus; `kind` is the kind of seat, where the game has several; `no_op` is the value that does nothing."""
    own = trusted if isinstance(trusted, HasOwnReplays) else None
    files = find_replays(places, own.replay_suffix if own else SUFFIX)
    address, source = ("", trusted) if isinstance(trusted, HasOwnReplays) else _game_of(files, trusted, wanted.map)
    number = _kind_number(source, kind)
    nothing = None if keep_no_ops else _no_op(source.spec.kinds[number], no_op)
    episodes: EpisodeSource = (
        own.replay_episodes(files, nothing)
        if own
        else ReplayEpisodes(
            files,
            lambda replay: make_recorded_game(replay, trusted),
            game=address,
            source=source,
            kind=number,
            no_op=nothing,
            num_tables=num_tables,
        )
    )
    return Conversion(episodes=episodes, wanted=wanted, no_op=nothing, num_files=len(files))


def find_replays(places: Sequence[Path], suffix: str) -> Mapping[str, Path]:
    """Files by name, in order of name; a name is FOLDER/FILE."""
    found: dict[str, Path] = {}
    for place in places:
        if place.is_dir():
            inside = {f"{place.resolve().name}/{path.relative_to(place).as_posix()}": path
                      for path in place.rglob(f"*{suffix}")}  # fmt: skip
            if not inside:
                raise ConfigError(f"{place} holds no replays (files that end in {suffix})")
        elif place.is_file():
            inside = {f"{place.resolve().parent.name}/{place.name}": place}
        else:
            raise ConfigError(f"there is no file or folder {place}")
        for name, path in inside.items():
            if found.setdefault(name, path).resolve() != path.resolve():
                raise ConfigError(f"{found[name]} and {path} would both be called {name}; rename a folder")
    return dict(sorted(found.items()))


def _game_of(files: Mapping[str, Path], trusted: GameSource | None, map_name: str | None) -> tuple[str, GameSource]:
    """The game of the first readable replay of the right game and map. The seats of all others must fit it."""
    problem, maps = "", set[str]()
    wanted = None if trusted is None else game_address(trusted)[0]
    for name, path in files.items():
        try:
            replay: Replay = decode_replay(read_file(path))
            if wanted not in (None, replay.game):
                raise ValueError(f"it is of {replay.game}, not of {wanted}")
            maps.add(replay.map)
            if map_name is None or replay.map == map_name:
                return replay.game, make_recorded_game(replay, trusted)
        except OSError as error:
            problem = problem or f"{name}: cannot be read: {error.strerror}"
        except ValueError as error:
            problem = problem or f"{name}: {error}"
    if map_name is not None and maps and map_name not in maps:
        problem = unknown("map", map_name, maps)
    raise ConfigError(f"none of the {len(files)} replays can be used: {problem}")


def _kind_number(source: GameSource, kind: str | None) -> int:
    names = [one.name for one in source.spec.kinds]
    if kind is None:
        if len(names) > 1:
            raise ConfigError(f"{source.spec.name} has several kinds of seat: say --kind {' or '.join(names)}")
        return 0
    if kind not in names:
        raise ConfigError(unknown("kind of seat", kind, names))
    return names.index(kind)


def _no_op(kind: SeatKind, value: int | None) -> NoOp | None:
    """The no-op of a game. With a single head, as in most board games, every option usually does something."""
    head = first_choice(kind)
    if head is None or (value is None and len(kind.action.heads) < 2):
        if value is not None:
            raise ConfigError("--no-op: no head of this game is a choice")
        return None
    options = kind.action.heads[head]
    assert isinstance(options, Choice)
    if value is not None and value >= options.num:
        raise ConfigError(f"--no-op: head {head!r} has the values 0 to {options.num - 1}, got {value}")
    return NoOp(head=head, value=value or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionProgress:
    replays: int
    total: int
    episodes: int
    decisions: int
    num_bytes: int
    estimated_bytes: int
    """Size of the whole dataset, estimated from the replays so far."""


def convert(
    source: EpisodeSource,
    writer: DatasetWriter,
    wanted: EpisodeFilter,
    progress: Callable[[ConversionProgress], None] = lambda _: None,
) -> None:
    """Add all replays that the dataset does not have yet. Raises `DatasetError` if they do not fit on the disk, as
    soon as the size can be estimated."""
    names = source.replays()
    todo = [name for name in names if name not in writer.done]
    before, bytes_before = len(names) - len(todo), writer.num_bytes
    samples = 0
    for number, replay in enumerate(source.decode(todo, wanted), 1):
        writer.add(replay)
        written = writer.num_bytes - bytes_before
        estimate = bytes_before + written * len(todo) // number
        samples += bool(replay.episodes)
        if (replay.episodes and samples == SAMPLE_REPLAYS) or number == len(todo):
            _require_room(writer, estimate)
        progress(
            ConversionProgress(
                replays=before + number,
                total=len(names),
                episodes=writer.num_episodes,
                decisions=writer.num_decisions,
                num_bytes=writer.num_bytes,
                estimated_bytes=estimate,
            )
        )


def _require_room(writer: DatasetWriter, estimate: int) -> None:
    free = shutil.disk_usage(writer.folder).free
    needed = estimate - writer.committed_bytes
    if needed + SPARE_BYTES > free:
        raise DatasetError(
            f"{writer.folder}: by the replays so far, the dataset needs about {needed >> 20} MiB more and "
            f"{free >> 20} MiB are free; choose fewer replays, or a folder on a larger disk"
        )


class _Task(NamedTuple):
    """A replay to play again."""

    name: str
    replay: Replay
    watched: tuple[WatchedSeat, ...]
    dropped: Counter[str]


class ReplayEpisodes:
    """An `EpisodeSource` that plays replays of Ludus again, many at a time, and yields them in order."""

    def __init__(
        self,
        files: Mapping[str, Path],
        make_game: Callable[[Replay], GameSource],
        *,
        game: str,
        source: GameSource,
        kind: int = 0,
        no_op: NoOp | None = None,
        num_tables: int = 32,
    ) -> None:
        """`files` by name. `make_game` raises ValueError if the game of a replay may not or cannot be made. `source`
        is the game whose seats of this `kind` are wanted, also in replays of other games (maps)."""
        self._files = files
        self._make_game = make_game
        self.game = game
        self._source = source
        self.kind: SeatKind = source.spec.kinds[kind]
        self._no_op = no_op
        self._num_tables = num_tables
        self._sources: dict[str, GameSource | str] = {}
        """By game and options: the game, or why it cannot be made."""

    @property
    def strategy(self) -> tuple[int, int, bool] | None:
        tables = self._source.tables(1)
        try:
            if not isinstance(tables, HasStrategy):
                return None
            return tables.strategy.sizes
        finally:
            tables.close()

    def replays(self) -> Sequence[str]:
        return list(self._files)

    def decode(self, names: Sequence[str], wanted: EpisodeFilter) -> Iterator[DecodedReplay]:
        """In batches of tables; a batch ends where the game or its options change."""
        waiting: list[_Task | DecodedReplay] = []
        tasks: list[_Task] = []
        for name in names:
            found = self._prepare(name, wanted)
            if isinstance(found, _Task):
                if tasks and (_key(found.replay) != _key(tasks[0].replay) or len(tasks) >= self._num_tables):
                    yield from self._in_order(waiting, tasks)
                    waiting, tasks = [], []
                tasks.append(found)
            elif not tasks:
                yield found
                continue
            waiting.append(found)
        yield from self._in_order(waiting, tasks)

    def _in_order(self, waiting: Iterable[_Task | DecodedReplay], tasks: Sequence[_Task]) -> Iterator[DecodedReplay]:
        played = iter(self._play(tasks) if tasks else ())
        for one in waiting:
            yield next(played) if isinstance(one, _Task) else one

    def _prepare(self, name: str, wanted: EpisodeFilter) -> _Task | DecodedReplay:
        try:
            replay = decode_replay(read_file(self._files[name]))
            source = self._source_of(replay)
            require_same_game(source.spec, replay)
            watched, dropped = self._chosen(name, replay, source, wanted)
        except OSError as error:
            return DecodedReplay(name=name, skipped=f"cannot be read: {error.strerror}")
        except (ReplayError, PlaybackError) as error:
            return DecodedReplay(name=name, skipped=str(error))
        if not watched:
            return DecodedReplay(name=name, dropped=dropped)
        return _Task(name, replay, watched, dropped)

    def _source_of(self, replay: Replay) -> GameSource:
        key = _key(replay)
        if key not in self._sources:
            try:
                self._sources[key] = self._make_game(replay)
            except ValueError as error:
                self._sources[key] = str(error)
        found = self._sources[key]
        if isinstance(found, str):
            raise PlaybackError(found)
        return found

    def _kind_of(self, source: GameSource) -> int:
        """The number that the wanted kind of seat has in this game."""
        for number, kind in enumerate(source.spec.kinds):
            if kind.name == self.kind.name:
                for path, values in differences(kind, self.kind).items():
                    raise PlaybackError(f"a seat of {source.spec.name} differs: {path} is {values[0]}, not {values[1]}")
                return number
        raise PlaybackError(f"{source.spec.name} has no seats of kind {self.kind.name!r}")

    def _chosen(
        self, name: str, replay: Replay, source: GameSource, wanted: EpisodeFilter
    ) -> tuple[tuple[WatchedSeat, ...], Counter[str]]:
        spec, kind = source.spec, self._kind_of(source)
        _, seats = replay.decisions()
        watched: list[WatchedSeat] = []
        dropped: Counter[str] = Counter()
        for seat, player in enumerate(replay.seats):
            if spec.seats[seat] != kind:
                continue
            one = EpisodeFacts(
                replay=name,
                game=replay.game,
                map=replay.map,
                version=replay.version,
                matchup=replay.matchup,
                player=player.name,
                seat=seat,
                outcome=replay.outcome(seat),
                score=replay.score[replay.teams[seat]],
                length=int((seats == seat).sum()),
            )
            reason = wanted.drops(one) or ("no decisions" if not one.length else None)
            if reason is None:
                watched.append(WatchedSeat(facts=one, kept=self._kept(spec, replay, seat)))
            else:
                dropped[reason] += 1
        return tuple(watched), dropped

    def _kept(self, spec: GameSpec, replay: Replay, seat: int) -> NDArray[np.bool_]:
        actions = decisions_of_seat(spec, replay, seat)
        if self._no_op is None:
            return np.ones(len(next(iter(actions.values()))), np.bool_)
        return kept_decisions(actions[self._no_op.head] == self._no_op.value)

    def _play(self, tasks: Sequence[_Task]) -> list[DecodedReplay]:
        """Play replays of one game, each at its own table."""
        source = self._source_of(tasks[0].replay)
        try:
            played = play_replays(source, [(task.replay, task.watched) for task in tasks])
            return [_decoded(source, task, ended) for task, ended in zip(tasks, played, strict=True)]
        except Exception as error:
            if len(tasks) == 1:
                return [_decoded(source, tasks[0], PlaybackError(f"the game refuses it: {error}"))]
        # One of them makes the game fail. Tables are independent, so each is played alone.
        return [one for task in tasks for one in self._play([task])]


def _decoded(source: GameSource, task: _Task, ended: tuple[Episode, ...] | PlaybackError) -> DecodedReplay:
    if not isinstance(ended, PlaybackError):
        return DecodedReplay(name=task.name, episodes=ended, dropped=task.dropped)
    recorded, now = task.replay.version, game_version(source)
    versions = f" (recorded with version {recorded}, this is {now})" if recorded != now else ""
    return DecodedReplay(name=task.name, skipped=f"does not play as recorded: {ended}{versions}")


def _key(replay: Replay) -> str:
    return repr((replay.game, sorted(replay.options.items())))
