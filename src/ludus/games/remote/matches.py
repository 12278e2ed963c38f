"""Matches that a game server plays by itself, between its bots and players that join over the network."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import put, take
from ludus.games.bots import act_among
from ludus.games.game import Bot, GameBatch, GameSource, TableView, allocate_actions, lost_tables
from ludus.games.remote.messages import MatchConfig, MatchResult, SharedActions, View, pack, view_parts
from ludus.games.seeding import mix


class CampPlayer:
    """Passes views from a match to the stream of a player, and actions back."""

    def __init__(self, source: GameSource, seats: tuple[int, ...]) -> None:
        self._spec = source.spec
        self.seats = seats
        self._views: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._decisions: queue.SimpleQueue[SharedActions | None] = queue.SimpleQueue()
        self._earned = TableView.allocate(self._spec, 1)
        """Holds the rewards since the last view of the player; nothing else in it is used."""

    def next_view(self) -> bytes | None:
        """The next frame for the stream; None once the match has ended and every frame was sent."""
        return self._views.get()

    def decide(self, body: memoryview) -> None:
        actions = SharedActions(self._spec, 1)
        actions.take(body)
        self._decisions.put(actions)

    def leave(self) -> None:
        """The stream of the player has ended."""
        self._decisions.put(None)

    def earn(self, view: TableView) -> None:
        """Add up the rewards of a step."""
        self._earned.reward[:] += view.reward
        for earned, paid in zip(self._earned.rewards, view.rewards, strict=True):
            earned += paid

    def show(self, view: TableView, cut_score: Sequence[float] | None = None) -> None:
        """`cut_score`: the episode is truncated here, with this score."""
        shown = self._own(view)
        if cut_score is not None:
            shown.to_act[:], shown.truncated[:], shown.score[0] = False, True, cut_score
        self._views.put(pack(View(), view_parts(shown)))
        for reward in (self._earned.reward, *self._earned.rewards):
            reward[:] = 0.0

    def end(self) -> None:
        self._views.put(None)

    def decision(self, most_s: float) -> SharedActions | None:
        """None if the player has left. Raises `queue.Empty` after `most_s`."""
        return self._decisions.get(timeout=most_s)

    def _own(self, view: TableView) -> TableView:
        """A copy without the observations and turns of other seats."""
        shown = TableView.allocate(self._spec, 1)
        for kind, seats in enumerate(self._spec.seats_of_kind):
            columns = [column for column, seat in enumerate(seats) if seat in self.seats]
            for target, source in (
                (shown.observation[kind], view.observation[kind]),
                (shown.legal[kind], view.legal[kind]),
                ({"": shown.rewards[kind]}, {"": self._earned.rewards[kind]}),
            ):
                put(target, (slice(None), columns), take(source, (slice(None), columns)))
        own = list(self.seats)
        shown.to_act[:, own], shown.reward[:, own] = view.to_act[:, own], self._earned.reward[:, own]
        for name in ("over", "truncated", "score", "clock"):
            getattr(shown, name)[:] = getattr(view, name)
        return shown


_TABLE = np.zeros(1, np.int64)
_MOST_EPISODES = 1_000  # the limit for one match, because its result holds all scores
_LONGEST_WAIT_S = 24 * 3600.0


class MatchRefused(ValueError):  # noqa: N818 - no error of ours
    """A request about a match cannot be fulfilled."""


class _Ended(Exception):  # noqa: N818 - no error of ours
    """The match is not played to its end: the state that it ends in, and the reason."""


class MatchTable:
    """One match, which is played in a thread of its own."""

    def __init__(self, match: str, config: MatchConfig, source: GameSource) -> None:
        """Raises `MatchRefused`."""
        self.match, self.config, self.source = match, config, source
        self._bots = _bots(config, source)
        self._condition = threading.Condition()
        self._stop_asked: str | None = None
        self._players: dict[int, CampPlayer] = {}
        self._rng = np.random.default_rng(config.seed % 2**64)
        waiting = any(camp.bot is None for camp in config.camps)
        self._result = MatchResult(match=match, state="waiting" if waiting else "playing", evaluation=config.evaluation)
        self._thread = threading.Thread(target=self._run, name=f"match {match}", daemon=True)

    @property
    def result(self) -> MatchResult:
        with self._condition:
            return self._result

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self, reason: str) -> None:
        with self._condition:
            self._stop_asked = self._stop_asked or reason
            self._condition.notify_all()
            for player in self._players.values():
                player.leave()  # wakes the thread that waits for a decision

    def wait_stopped(self, most_s: float) -> MatchResult:
        """The players are released even if the game hangs."""
        result = self.wait(most_s)
        if not result.ended:
            for player in self._players.values():
                player.end()
        return result

    def wait(self, most_s: float) -> MatchResult:
        with self._condition:
            self._condition.wait_for(lambda: self._result.ended, most_s)
            return self._result

    def join(self, camp: int) -> CampPlayer:
        """The camp's player; raises `MatchRefused`."""
        with self._condition:
            if not 0 <= camp < len(self.config.camps):
                raise MatchRefused(f"match {self.match!r} has camps 0 to {len(self.config.camps) - 1}")
            if self.config.camps[camp].bot is not None:
                bot = self.config.camps[camp].bot
                raise MatchRefused(f"camp {camp} of match {self.match!r} is played by bot {bot!r}")
            if self._result.ended:
                raise MatchRefused(f"match {self.match!r} has ended: {self._result.state}")
            if camp in self._players:
                raise MatchRefused(f"camp {camp} of match {self.match!r} has its player")
            player = CampPlayer(self.source, self.source.spec.seats_of_team[camp])
            self._players[camp] = player
            self._condition.notify_all()
            return player

    def _run(self) -> None:
        state, reason = "finished", None
        try:
            self._wait_for_players()
            self._play()
        except _Ended as ended:
            state, reason = ended.args
        except Exception as error:
            state, reason = "void", f"raised: {type(error).__name__}: {' '.join(str(error).split())}"
        self._change(state=state, reason=reason)  # from here on nobody joins
        for player in self._players.values():
            player.end()

    def _change(self, **changes: Any) -> None:
        with self._condition:
            self._result = msgspec.structs.replace(self._result, **changes)
            self._condition.notify_all()

    def _wait_for_players(self) -> None:
        wanted = [number for number, camp in enumerate(self.config.camps) if camp.bot is None]
        with self._condition:
            self._condition.wait_for(
                lambda: self._stop_asked is not None or set(wanted) <= set(self._players), self.config.join_seconds
            )
            self._require_going_on()
            missing = [number for number in wanted if number not in self._players]
        if missing:
            raise _Ended("void", f"nobody joined camp {missing[0]} within {self.config.join_seconds:g} s")
        self._change(state="playing")

    def _play(self) -> None:
        batch = self.source.tables(1)
        try:
            seeds = mix(np.array([self.config.seed % 2**64], np.uint64), np.arange(self.config.episodes))
            for seed in seeds:
                batch.reset(_TABLE, np.array([seed], np.uint64))
                self._play_episode(batch)
        finally:
            batch.close()

    def _play_episode(self, batch: GameBatch) -> None:
        view, spec = batch.view, self.source.spec
        total = np.zeros(spec.num_seats)
        limit, steps = self.config.frame_limit, 0
        while True:
            self._require_going_on()
            if lost := lost_tables(batch):
                raise _Ended("void", next(iter(lost.values())))
            ended = bool(view.over[0] or view.truncated[0])
            cut = not ended and limit is not None and steps >= limit
            if ended or cut:
                break
            batch.step(self._decide(batch))
            for player in self._players.values():
                player.earn(view)
            total += view.reward[0]
            steps += 1
        score = [
            float(view.score[0, team] if ended else total[list(seats)].mean())
            for team, seats in enumerate(spec.seats_of_team)
        ]
        was = self._result
        self._change(
            scores=(*was.scores, tuple(score)),
            steps=was.steps + steps,
            cut_off=was.cut_off + int(cut or bool(view.truncated[0])),
        )
        for player in self._players.values():
            player.show(view, score if cut else None)
        for player in self._players.values():
            self._answer_of(player)  # confirms that it has seen the end

    def _decide(self, batch: GameBatch) -> tuple[dict[str, NDArray[np.generic]], ...]:
        spec, view = self.source.spec, batch.view
        actions = allocate_actions(spec, 1)
        asked = [player for player in self._players.values() if view.to_act[0, list(player.seats)].any()]
        for player in asked:
            player.show(view)
        for camp, bot in self._bots.items():
            act_among(bot, batch, np.equal(spec.teams, camp), self._rng, actions)
        for player in asked:
            told = self._answer_of(player).actions
            for kind, seats_of_kind in enumerate(spec.seats_of_kind):
                columns = [column for column, seat in enumerate(seats_of_kind) if seat in player.seats]
                put(actions[kind], (slice(None), columns), take(told[kind], (slice(None), columns)))
        return actions

    def _answer_of(self, player: CampPlayer) -> SharedActions:
        camp = self.source.spec.teams[player.seats[0]]
        try:
            decision = player.decision(self.config.move_seconds)
        except queue.Empty:
            raise _Ended("void", f"camp {camp} did not decide within {self.config.move_seconds:g} s") from None
        self._require_going_on()
        if decision is None:
            raise _Ended("void", f"camp {camp} has left")
        return decision

    def _require_going_on(self) -> None:
        if self._stop_asked is not None:
            raise _Ended("stopped", self._stop_asked)


def _bots(config: MatchConfig, source: GameSource) -> dict[int, Bot]:
    """Camp -> its bot."""
    spec, bots = source.spec, source.bots()
    if len(config.camps) != spec.num_teams:
        raise MatchRefused(f"{spec.name} has {spec.num_teams} camps, not {len(config.camps)}")
    if not 1 <= config.episodes <= _MOST_EPISODES:
        raise MatchRefused(f"episodes must be 1 to {_MOST_EPISODES}, got {config.episodes}")
    if config.frame_limit is not None and config.frame_limit < 1:
        raise MatchRefused(f"frame_limit must be at least 1, got {config.frame_limit}")
    for name in ("join_seconds", "move_seconds"):
        if not 0 < getattr(config, name) <= _LONGEST_WAIT_S:
            raise MatchRefused(f"{name} must be above 0 and at most {_LONGEST_WAIT_S:g}, got {getattr(config, name)}")
    for number, camp in enumerate(config.camps):
        if camp.bot is not None and camp.bot not in bots:
            raise MatchRefused(f"camp {number}: {spec.name} has no bot {camp.bot!r}; it has {', '.join(sorted(bots))}")
    return {number: bots[camp.bot] for number, camp in enumerate(config.camps) if camp.bot is not None}


KEPT = 1_000  # ended matches whose results are kept
_LONGEST_NAME = 200
_STOPPING_S = 5.0


class UnknownServerMatch(KeyError):  # noqa: N818 - no error of ours
    """No match has this name."""

    def __str__(self) -> str:
        return str(self.args[0])


class ServerMatches:
    """All matches of a server. Safe to use from any thread. A match is started once, however often a client asks."""

    def __init__(
        self, game: Callable[[str, Mapping[str, Any]], GameSource], most_at_once: int, kept: int = KEPT
    ) -> None:
        """`game` builds a game from its name (empty: the one that is served) and options."""
        self._game = game
        self._most_at_once, self._kept = most_at_once, kept
        self._lock = threading.Lock()
        self._tables: dict[str, MatchTable] = {}

    def start(self, match: str, config: MatchConfig) -> MatchResult:
        """Raises `MatchRefused`."""
        if not match or len(match) > _LONGEST_NAME:
            raise MatchRefused(f"a match has a name of 1 to {_LONGEST_NAME} letters, got {match[:80]!r}")
        with self._lock:
            known = self._tables.get(match)
            if known is not None:
                return _same(known, config)
        try:
            heroes = [list(camp.heroes) for camp in config.camps]
            source = self._game("", {**config.options, **({"heroes": heroes} if any(heroes) else {})})
        except (ValueError, TypeError) as error:
            raise MatchRefused(str(error)) from error
        table = MatchTable(match, config, source)
        with self._lock:
            known = self._tables.get(match)
            if known is not None:
                return _same(known, config)
            going_on = [other for other in self._tables.values() if not other.result.ended]
            if len(going_on) >= self._most_at_once:
                raise MatchRefused(f"{len(going_on)} matches are going on, which is as many as there may be")
            ended = [name for name, other in self._tables.items() if other.result.ended]
            for name in ended[: max(0, len(ended) + 1 - self._kept)]:
                del self._tables[name]
            self._tables[match] = table
            table.start()
        return table.result

    def table(self, match: str) -> MatchTable:
        """Raises `UnknownServerMatch`."""
        with self._lock:
            if match not in self._tables:
                raise UnknownServerMatch(f"there is no match {match!r}")
            return self._tables[match]

    def is_played(self, match: str) -> bool:
        return any(result.match == match and not result.ended for result in self.all())

    def stop(self, match: str) -> MatchResult:
        """Waits a little for the end."""
        table = self.table(match)
        table.ask_to_stop("asked for by a client")
        return table.wait_stopped(_STOPPING_S)

    def all(self) -> tuple[MatchResult, ...]:
        with self._lock:
            return tuple(table.result for table in self._tables.values())

    def close(self) -> None:
        with self._lock:
            playing = [table for table in self._tables.values() if not table.result.ended]
        for table in playing:
            table.ask_to_stop("the server ends")
        until = time.monotonic() + _STOPPING_S
        for table in playing:
            table.wait_stopped(max(0.0, until - time.monotonic()))


def _same(known: MatchTable, config: MatchConfig) -> MatchResult:
    if known.config != config:
        raise MatchRefused(f"there is a match {known.match!r} already, with another configuration")
    return known.result
