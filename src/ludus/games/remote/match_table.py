"""One match that the server plays by itself: between its bots, and players who join from elsewhere."""

from __future__ import annotations

import queue
import threading

import numpy as np
from numpy.typing import NDArray

from ludus.data.trees import put, take
from ludus.games.game import Bot, CanLoseTables, GameBatch, GameSource, allocate_actions
from ludus.games.remote.camp_player import CampPlayer
from ludus.games.remote.layout import SharedActions
from ludus.games.remote.messages import MatchConfig, MatchResult, MatchState
from ludus.games.seeding import mix

_TABLE = np.zeros(1, np.int64)
_MOST_EPISODES = 1_000
"""Their scores are all kept and told."""
_LONGEST_WAIT_S = 24 * 3600.0


class MatchRefused(ValueError):  # noqa: N818 - no error of ours
    """What is asked of a match cannot be done."""


class _Void(Exception):  # noqa: N818 - the end of a match
    """The match cannot be played to its end."""


class _Stopped(Exception):  # noqa: N818 - the end of a match
    """Somebody has asked for the end."""


class MatchTable:
    """Plays in a thread of its own from `start` on."""

    def __init__(self, match: str, config: MatchConfig, source: GameSource) -> None:
        """Raises `MatchRefused`."""
        self.match, self.config, self.source = match, config, source
        self._bots = _bots(config, source)
        self._condition = threading.Condition()
        self._stop_asked: str | None = None
        self._players: dict[int, CampPlayer] = {}
        self._rng = np.random.default_rng(config.seed % 2**64)
        waiting = any(camp.bot is None for camp in config.camps)
        self._result = MatchResult(
            match=match, state="waiting" if waiting else "playing", evaluation=config.evaluation
        )
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
                player.leave()  # whoever waits for a decision wakes up

    def wait_stopped(self, most_s: float) -> MatchResult:
        """A game that hangs does not end; those who play it are let go all the same."""
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
        state: MatchState = "finished"
        reason: str | None = None
        try:
            self._wait_for_players()
            self._play()
        except _Stopped as error:
            state, reason = "stopped", str(error)
        except _Void as error:
            state, reason = "void", str(error)
        except Exception as error:
            state, reason = "void", f"raised: {type(error).__name__}: {' '.join(str(error).split())}"
        self._tell(state=state, reason=reason)  # from here on nobody joins
        for player in self._players.values():
            player.end()

    def _tell(self, **news: object) -> None:
        with self._condition:
            facts = {name: getattr(self._result, name) for name in self._result.__struct_fields__}
            self._result = MatchResult(**(facts | news))
            self._condition.notify_all()

    def _wait_for_players(self) -> None:
        wanted = [number for number, camp in enumerate(self.config.camps) if camp.bot is None]
        with self._condition:
            self._condition.wait_for(
                lambda: self._stop_asked is not None or set(wanted) <= set(self._players),
                self.config.join_seconds,
            )
            self._require_going_on()
            missing = [number for number in wanted if number not in self._players]
        if missing:
            raise _Void(f"nobody joined camp {missing[0]} within {self.config.join_seconds:g} s")
        self._tell(state="playing")

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
            if isinstance(batch, CanLoseTables) and batch.lost:
                raise _Void(next(iter(batch.lost.values())))
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
        self._tell(
            scores=(*was.scores, tuple(score)),
            steps=was.steps + steps,
            cut_off=was.cut_off + int(cut or bool(view.truncated[0])),
        )
        for player in self._players.values():
            player.show(view, score if cut else None)
        for player in self._players.values():
            self._answer_of(player)  # it says that it has seen the end

    def _decide(self, batch: GameBatch) -> tuple[dict[str, NDArray[np.generic]], ...]:
        spec, view = self.source.spec, batch.view
        actions = allocate_actions(spec, 1)
        asked = [player for player in self._players.values() if view.to_act[0, list(player.seats)].any()]
        for player in asked:
            player.show(view)
        for camp, bot in self._bots.items():
            for kind, seats_of_kind in enumerate(spec.seats_of_kind):
                seats = [s for s in spec.seats_of_team[camp] if s in seats_of_kind and view.to_act[0, s]]
                if seats:
                    places = np.zeros(len(seats), np.int64)
                    chosen = bot.act(batch, places, np.asarray(seats), self._rng)
                    put(actions[kind], (places, [seats_of_kind.index(seat) for seat in seats]), chosen)
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
            raise _Void(f"camp {camp} did not decide within {self.config.move_seconds:g} s") from None
        self._require_going_on()
        if decision is None:
            raise _Void(f"camp {camp} has left")
        return decision

    def _require_going_on(self) -> None:
        if self._stop_asked is not None:
            raise _Stopped(self._stop_asked)


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
            raise MatchRefused(
                f"{name} must be above 0 and at most {_LONGEST_WAIT_S:g}, got {getattr(config, name)}"
            )
    for number, camp in enumerate(config.camps):
        if camp.bot is not None and camp.bot not in bots:
            raise MatchRefused(
                f"camp {number}: {spec.name} has no bot {camp.bot!r}; it has {', '.join(sorted(bots))}"
            )
    return {number: bots[camp.bot] for number, camp in enumerate(config.camps) if camp.bot is not None}
