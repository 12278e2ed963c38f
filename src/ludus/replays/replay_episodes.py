"""Our own replays as a source of episodes: read, chosen, played again many at a time, and given in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ludus.data.replay import (
    DecodedReplay,
    Episode,
    EpisodeFacts,
    EpisodeFilter,
    EpisodeSource,
    NoOp,
    Replay,
    ReplayError,
    decode_replay,
    kept_decisions,
)
from ludus.data.specs import SeatKind, differences
from ludus.games.game import GameBatch, GameSource, HasStrategy
from ludus.games.recording import game_version
from ludus.replays.playback import (
    Playback,
    PlaybackError,
    SeatPlan,
    SeatView,
    decisions_of_seat,
    require_same_game,
)

MakeGame = Callable[[Replay], GameSource]
"""The game of a replay; raises ValueError if it may not or cannot be made."""


@runtime_checkable
class HasOwnReplays(Protocol):
    """A `GameSource` whose game writes replays of its own kind."""

    replay_suffix: str
    """How the names of their files end."""

    def replay_episodes(self, files: Mapping[str, Path], no_op: NoOp | None) -> EpisodeSource: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """A replay that is to be played again."""

    number: int
    """Its place in the order."""
    name: str
    replay: Replay
    facts: Mapping[int, EpisodeFacts]
    """Of each seat that is wanted."""
    plans: tuple[SeatPlan, ...]
    dropped: Counter[str]


class ReplayEpisodes:
    """An `EpisodeSource` from replay files."""

    def __init__(
        self,
        files: Mapping[str, Path],
        make_game: MakeGame,
        *,
        game: str,
        source: GameSource,
        kind: int = 0,
        no_op: NoOp | None = None,
        num_tables: int = 32,
    ) -> None:
        """`files` by name. `source` is the game whose seats of this `kind` are wanted; replays of other games
        with the same kind of seat (other maps) are taken too."""
        self._files = files
        self._make_game = make_game
        self.game = game
        self._source = source
        self.kind: SeatKind = source.spec.kinds[kind]
        self._no_op = no_op
        self._num_tables = num_tables
        self._sources: dict[str, GameSource | str] = {}
        """By game and options: the game, or why there is none."""

    @property
    def strategy(self) -> tuple[int, int] | None:
        tables = self._source.tables(1)
        try:
            if not isinstance(tables, HasStrategy):
                return None
            return tables.strategy.build_order.shape[2], tables.strategy.built.shape[2]
        finally:
            tables.close()

    def replays(self) -> Sequence[str]:
        return list(self._files)

    def decode(self, names: Sequence[str], wanted: EpisodeFilter) -> Iterator[DecodedReplay]:
        """In batches of tables; a batch ends where the game or its options change."""
        waiting: list[_Task] = []
        ready: dict[int, DecodedReplay] = {}
        given, key = 0, ""
        for number, name in enumerate(names):
            found = self._prepare(number, name, wanted)
            if isinstance(found, DecodedReplay):
                ready[number] = found
            else:
                if waiting and (_key(found.replay) != key or len(waiting) >= self._num_tables):
                    ready |= self._play(waiting)
                    waiting = []
                key = _key(found.replay)
                waiting.append(found)
            while given in ready:
                yield ready.pop(given)
                given += 1
        if waiting:
            ready |= self._play(waiting)
        for number in range(given, len(names)):
            yield ready.pop(number)

    # --- choosing ---

    def _prepare(self, number: int, name: str, wanted: EpisodeFilter) -> _Task | DecodedReplay:
        try:
            replay = decode_replay(self._files[name].read_bytes())
            source = self._source_of(replay)
            require_same_game(source.spec, replay)
            facts, dropped = self._chosen(name, replay, source, wanted)
            plans = tuple(self._plan(source, replay, seat) for seat in facts)
        except OSError as error:
            return DecodedReplay(name=name, skipped=f"cannot be read: {error.strerror}")
        except (ReplayError, PlaybackError) as error:
            return DecodedReplay(name=name, skipped=str(error))
        if not facts:
            return DecodedReplay(name=name, dropped=dropped)
        return _Task(number=number, name=name, replay=replay, facts=facts, plans=plans, dropped=dropped)

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
        """The number of the kind of seat that is wanted, in this game."""
        for number, kind in enumerate(source.spec.kinds):
            if kind.name == self.kind.name:
                for path, values in differences(kind, self.kind).items():
                    raise PlaybackError(f"a seat of {source.spec.name} differs: {path} is {values[0]}, not {values[1]}")
                return number
        raise PlaybackError(f"{source.spec.name} has no seats of kind {self.kind.name!r}")

    def _chosen(
        self, name: str, replay: Replay, source: GameSource, wanted: EpisodeFilter
    ) -> tuple[dict[int, EpisodeFacts], Counter[str]]:
        spec, kind = source.spec, self._kind_of(source)
        _, seats = replay.decisions()
        facts: dict[int, EpisodeFacts] = {}
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
                facts[seat] = one
            else:
                dropped[reason] += 1
        return facts, dropped

    def _plan(self, source: GameSource, replay: Replay, seat: int) -> SeatPlan:
        actions = decisions_of_seat(source.spec, replay, seat)
        if self._no_op is None:
            return SeatPlan(seat=seat, kept=np.ones(len(next(iter(actions.values()))), np.bool_))
        return SeatPlan(seat=seat, kept=kept_decisions(actions[self._no_op.head] == self._no_op.value))

    # --- playing ---

    def _play(self, tasks: Sequence[_Task]) -> dict[int, DecodedReplay]:
        """All of one game, at a table each."""
        source = self._source_of(tasks[0].replay)
        try:
            return _play_together(source, tasks)
        except Exception as error:
            if len(tasks) == 1:
                return {tasks[0].number: _skipped(source, tasks[0], f"the game refuses it: {error}")}
        # One of them brings the game down, and only it: a table depends on nothing else.
        return {number: one for task in tasks for number, one in self._play([task]).items()}


def require_replayable(source: GameSource, replay: Replay) -> None:
    """Raises `PlaybackError` if the game does not play this replay as it was recorded."""
    if not source.spec.repeatable:
        raise PlaybackError("it plays on by chances of its own")
    game: GameBatch = source.tables(1)
    try:
        playback = Playback(game)
        playback.start(0, replay, ())
        while playback.free == []:
            for ended in playback.step().values():
                if isinstance(ended, PlaybackError):
                    raise ended
    finally:
        game.close()


def _play_together(source: GameSource, tasks: Sequence[_Task]) -> dict[int, DecodedReplay]:
    game: GameBatch = source.tables(len(tasks))
    found: dict[int, DecodedReplay] = {}
    try:
        playback = Playback(game)
        for table, task in enumerate(tasks):
            playback.start(table, task.replay, task.plans)
        while len(found) < len(tasks):
            for table, ended in playback.step().items():
                task = tasks[table]
                if isinstance(ended, PlaybackError):
                    found[task.number] = _skipped(source, task, str(ended))
                else:
                    found[task.number] = _decoded(task, ended)
    finally:
        game.close()
    return found


def _decoded(task: _Task, views: Sequence[SeatView]) -> DecodedReplay:
    return DecodedReplay(
        name=task.name,
        episodes=tuple(
            Episode(
                facts=task.facts[view.seat],
                columns=view.columns,
                has_bootstrap=view.has_bootstrap,
                build_order=view.build_order,
                built=view.built,
            )
            for view in views
        ),
        dropped=task.dropped,
    )


def _skipped(source: GameSource, task: _Task, reason: str) -> DecodedReplay:
    recorded, now = task.replay.version, game_version(source)
    versions = f" (recorded with version {recorded}, this is {now})" if recorded != now else ""
    return DecodedReplay(name=task.name, skipped=f"does not play as recorded: {reason}{versions}")


def _key(replay: Replay) -> str:
    return repr((replay.game, sorted(replay.options.items())))
