"""Plays given pairs of players against each other and adds up the results: what `ludus eval` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from ludus.data.records import Match, Result, Side
from ludus.data.specs import ArraySpec
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import IntArray
from ludus.games.game import GameBatch, GameSource
from ludus.games.seat_rows import GameError
from ludus.workers.actor import Actor, ActorConfig
from ludus.workers.inline_inference import InlineInference
from ludus.workers.seating import Seating
from ludus.workers.shelf import Players

MOST_TRIES = 5
"""A match whose tables were lost is played again, but not for ever."""


class Tournament:
    """Every line-up plays at least `episodes` episodes, seats in rotation, on `num_tables` tables."""

    def __init__(
        self,
        game: GameSource,
        players: Players,
        line_ups: Sequence[tuple[str, ...]],
        *,
        episodes: int,
        num_tables: int = 64,
        seed: int = 0,
        watch: Callable[[GameBatch, Seating], None] | None = None,
    ) -> None:
        """`watch` sees one table, at which exactly `episodes` are played, after every reset and step."""
        teams = 1 if watch else game.spec.num_teams
        self._line_ups = tuple(line_ups)
        tables = 1 if watch else min(num_tables, -(-episodes // teams))
        self._per_table = -(-episodes // (tables * teams)) * teams
        self._waiting = deque((number, 0) for number in range(len(line_ups)))
        """Position of a line-up, and how often it was tried."""
        self.results: dict[int, Result] = {}
        """By position of the line-up."""
        layouts = [
            TrajectoryLayout(kind=kind, unroll_length=1, state=self._memory_of(index, players))
            for index, kind in enumerate(game.spec.kinds)
        ]
        self._actor = Actor(
            name="tournament",
            game=game.tables(tables),
            config=ActorConfig(
                num_tables=tables, matches=1, episodes_per_table=self._per_table, unroll_length=1
            ),
            desk=self,
            inference=InlineInference(players, self._draws(game, players)),
            pools=tuple(SlotPool(layout, 1) for layout in layouts),
            trajectories=self,
            hand_over_after=None,
            seed=seed,
            watch=watch,
        )

    def _draws(self, game: GameSource, players: Players) -> list[int]:
        """Uniform numbers per row and kind of seat: what any of the policies needs."""
        seated = [players.get(player) for line_up in self._line_ups for player in line_up]
        return [
            max((one.policies[kind].num_draws for one in seated if one.policies), default=0)
            for kind in range(len(game.spec.kinds))
        ]

    def _memory_of(self, kind: int, players: Players) -> Mapping[str, ArraySpec]:
        """What the policies of one kind of seat remember; all have the same shape, bots have none."""
        seated = (players.get(player) for line_up in self._line_ups for player in line_up)
        return next((one.policies[kind].state_arrays for one in seated if one.policies), {})

    def run(self) -> dict[int, Result]:
        """Play everything; the results by position of the line-up."""
        with closing(self._actor):
            while len(self.results) < len(self._line_ups):
                self._actor.step()
        return self.results

    # --- the desk of the actor ---

    def next_match(self, tables: int) -> Match:
        """The next line-up; when none is left, tables that are done go on with the last one unrecorded."""
        number, tries = self._waiting.popleft() if self._waiting else (-1, 0)
        return Match(
            id=tries * len(self._line_ups) + number + 1,  # other chances for another try
            purpose="evaluation",
            sides=tuple(Side(players=(player,)) for player in self._line_ups[number]),
            tables=tables,
            episodes_per_table=self._per_table,
        )

    def report(self, result: Result) -> None:
        if result.match_id > 0:
            self.results[self.position(result.match_id)] = result

    def void_match(self, match_id: int, reason: str) -> None:
        """Play the line-up again, all of it: games that were finished first would favour short ones."""
        if match_id < 1:
            return
        tries = 1 + (match_id - 1) // len(self._line_ups)
        if tries >= MOST_TRIES:
            players = " against ".join(self._line_ups[self.position(match_id)])
            raise GameError(f"{players} ended without a result {tries} times, at last: {reason}")
        self._waiting.appendleft((self.position(match_id), tries))

    def position(self, match_id: int) -> int:
        """Of the line-up that a match is played by; -1: it is not recorded."""
        return (match_id - 1) % len(self._line_ups) if match_id > 0 else -1

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        raise AssertionError(f"{player!r} does not train in a tournament")

    def complete(self, player: str) -> None:
        raise AssertionError(f"{player!r} does not train in a tournament")
