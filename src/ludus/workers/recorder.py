"""Plays line-ups of players as a tournament does, and hands over a replay of every episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.data.records import Match, Side
from ludus.data.replay import Replay, SeatPlayer
from ludus.games.game import GameSource
from ludus.games.recording import Recording, innermost, record_innermost
from ludus.games.versions import game_version, map_name
from ludus.workers.shelf import Players
from ludus.workers.tournament import Tournament


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Episodes that one line-up is to play."""

    players: tuple[str, ...]
    """One per team."""
    episodes: int


class Recorder(Tournament):
    """Every line-up plays its episodes, seats in rotation. Which episodes are kept is settled beforehand:
    were it the first to end, short games would be favoured."""

    def __init__(
        self,
        game: GameSource,
        players: Players,
        wanted: Sequence[Wanted],
        *,
        address: str,
        options: Mapping[str, Any],
        keep: Callable[[int, Replay], None],
        num_tables: int = 64,
        seed: int = 0,
    ) -> None:
        """`keep` gets the place of the line-up and the replay; `address` and `options` are how the innermost
        game can be made again."""
        self._wanted = tuple(wanted)
        self._keep = keep
        self._players = players
        self._address, self._options = address, dict(options)
        inner = innermost(game)
        self._version, self._map = game_version(inner), map_name(inner)
        self._teams, self._team_of_seat = game.spec.num_teams, game.spec.teams
        self._kept: set[tuple[int, int]] = set()
        self._expected = sum(one.episodes for one in wanted)
        # As many rotations through all teams as are needed, spread evenly over the tables.
        rotations = max(-(-one.episodes // self._teams) for one in wanted)
        rounds = -(-rotations // num_tables)
        super().__init__(
            record_innermost(game, self._ended),
            players,
            [one.players for one in wanted],
            episodes=-(-rotations // rounds) * rounds * self._teams,
            num_tables=-(-rotations // rounds),
            seed=seed,
        )
        self._num_tables = self._actor.seating.match.size

    def record(self) -> None:
        """Play until every wanted episode was kept."""
        with closing(self._actor):
            while len(self._kept) < self._expected:
                self._actor.step()

    def next_match(self, tables: int) -> Match:
        """Each line-up with as many episodes a table as it needs itself."""
        match = super().next_match(tables)
        if match.id < 1:
            return match
        wanted = self._wanted[self.position(match.id)]
        rotations = -(-wanted.episodes // self._teams)
        return Match(
            id=match.id,
            purpose="evaluation",
            sides=tuple(Side(players=(player,)) for player in wanted.players),
            tables=tables,
            episodes_per_table=-(-rotations // tables) * self._teams,
        )

    def _ended(self, recording: Recording) -> None:
        seating, table = self._actor.seating, recording.table
        place = self.position(int(seating.episode_seeds(np.array([table]))[0, 0]))
        if place < 0:
            return  # a table that had nothing left to do
        rotation, team = divmod(int(seating.episode[table]), self._teams)
        number = (rotation * self._num_tables + table) * self._teams + team
        if number >= self._wanted[place].episodes or (place, number) in self._kept:
            return  # more than was asked for, or its match is played again
        names = [seating.player_ids[player] for player in seating.player_of_seat[table].tolist()]
        self._kept.add((place, number))
        self._keep(
            place,
            recording.replay(
                game=self._address,
                options=self._options,
                version=self._version,
                map_name=self._map,
                seats=tuple(SeatPlayer(name, self._players.model_name(name)) for name in names),
                teams=self._team_of_seat,
            ),
        )
