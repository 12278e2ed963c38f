"""Plays given line-ups of players and adds up the results, as for `ludus eval`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.records import Match, Result, Side
from ludus.data.replay import Replay, SeatPlayer
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import IntArray
from ludus.games.game import GameBatch, GameSource, Seat, lost_tables
from ludus.games.pictures import Moment, pictured
from ludus.games.recording import Recording, game_version, innermost, map_name, record_innermost
from ludus.games.seat_rows import GameError
from ludus.models.policy import joint_memory
from ludus.workers.actor import Actor, ActorConfig
from ludus.workers.inference import InlineInference
from ludus.workers.player_cache import Players
from ludus.workers.seating import Seating

MOST_TRIES = 5
"""Attempts at a match whose tables are lost."""


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
        seated = [players.get(player) for line_up in line_ups for player in line_up]
        learned = [one.policies for one in seated if one.policies]
        layouts = [
            TrajectoryLayout(
                kind=kind, unroll_length=1, state=joint_memory(policies[index].state_arrays for policies in learned)
            )
            for index, kind in enumerate(game.spec.kinds)
        ]
        num_draws = [max((one[kind].num_draws for one in learned), default=0) for kind in range(len(layouts))]
        self._actor = Actor(
            name="tournament",
            game=game.tables(tables),
            config=ActorConfig(num_tables=tables, matches=1, episodes_per_table=self._per_table, unroll_length=1),
            client=self,
            inference=InlineInference(players, num_draws, [layout.state for layout in layouts]),
            pools=tuple(SlotPool(layout, 1) for layout in layouts),
            trajectories=self,
            hand_over_after=None,
            seed=seed,
            watch=watch,
        )

    def run(self) -> dict[int, Result]:
        """Play everything; the results by position of the line-up."""
        with closing(self._actor):
            while len(self.results) < len(self._line_ups):
                self._actor.step()
        return self.results

    # --- the client of the actor ---

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
        """Index of the line-up of a match; -1: the match is not recorded."""
        return (match_id - 1) % len(self._line_ups) if match_id > 0 else -1

    def put(self, player: str, kind: int, slots: IntArray) -> None:
        raise AssertionError(f"{player!r} does not train in a tournament")

    def complete(self, player: str) -> None:
        raise AssertionError(f"{player!r} does not train in a tournament")


class EvaluationMatch:
    """Every line-up plays exactly `episodes` episodes, seats in rotation. `show` is given every moment of
    them; what it does meanwhile (such as wait) holds the game up."""

    def __init__(
        self,
        game: GameSource,
        players: Players,
        line_ups: Sequence[tuple[str, ...]],
        show: Callable[[Moment], None],
        *,
        episodes: int,
        seat: Seat | None = None,
        seed: int = 0,
    ) -> None:
        """`seat`: whose view is drawn; None: everything is."""
        self._seat = seat
        self._show = show
        self._episodes = episodes
        self._num_line_ups = len(line_ups)
        self._score = np.zeros(game.spec.num_teams)
        self._tournament = Tournament(game, players, line_ups, episodes=episodes, seed=seed, watch=self._watch)

    def run(self) -> None:
        self._tournament.run()

    def _watch(self, tables: GameBatch, seating: Seating) -> None:
        played = len(self._tournament.results)
        if played == self._num_line_ups or lost_tables(tables):
            return  # a surplus episode, or one that will be played again
        view, spec, step = tables.view, tables.spec, int(seating.steps[0])
        if step == 0:
            self._score[:] = 0.0
        else:
            self._score += [view.reward[0, seats].mean() for seats in map(list, spec.seats_of_team)]
        ended = bool(view.over[0] or view.truncated[0])
        shown = tuple((view.score[0] if ended else self._score).tolist())
        moment = Moment(
            game=spec.name,
            players=tuple(seating.player_ids[seating.player_of_seat[0, seats[0]]] for seats in spec.seats_of_team),
            score=shown if ended or spec.reward_is_score else None,
            episode=played * self._episodes + int(seating.episode[0]) + 1,
            episodes=self._num_line_ups * self._episodes,
            step=step,
            clock=int(view.clock[0]) if spec.timed else None,
            seat=self._seat,
            ended=ended,
            draw=partial(_draw, tables, self._seat),
        )
        self._show(moment)


def _draw(tables: GameBatch, seat: Seat | None) -> NDArray[np.uint8]:
    drawn = pictured(tables)
    assert drawn is not None, f"{tables.spec.name} has no pictures"
    picture = drawn.render(0, seat)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise GameError(
            f"{tables.spec.name}: render gives {picture.dtype} {list(picture.shape)}; a picture is uint8 "
            "[height, width, 3]"
        )
    return picture


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
        return msgspec.structs.replace(match, episodes_per_table=-(-rotations // tables) * self._teams)

    def _ended(self, recording: Recording) -> None:
        seating, table = self._actor.seating, recording.table
        place = self.position(int(seating.episode_seeds(np.array([table]))[0, 0]))
        if place < 0:
            return  # a table that had nothing left to do
        rotation, team = divmod(int(seating.episode[table]), self._teams)
        number = (rotation * self._num_tables + int(seating.place[table])) * self._teams + team
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
