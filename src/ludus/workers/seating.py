"""Seating: the matches that an actor holds, their tables and players, and the tallies. A match has as many places as
its block has tables, and a quota of episodes at each. A table that has played the quota of its place takes the next
place that nobody has begun, of the same match or the next: quick tables take more places, and few matches are open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.records import Match, Pair, Result
from ludus.data.specs import GameSpec
from ludus.data.trees import Array, IntArray, Tree, under


class MatchClient(Protocol):
    """Where an actor gets its matches and reports their results: the controller, or a client of it."""

    def next_match(self, tables: int) -> Match: ...
    def report(self, result: Result) -> None: ...
    def void_match(self, match_id: int, reason: str) -> None:
        """The match ends without a result."""


ModelNames = Callable[[str], str]
"""Player -> the id of the weights that it plays with now."""


class Seating:
    """All arrays are [tables, ...] or [matches held, ...]; a match held has a small number, used again."""

    def __init__(self, spec: GameSpec, num_tables: int, num_blocks: int, client: MatchClient) -> None:
        if num_tables % num_blocks:
            raise ValueError(
                f"actor.num_tables ({num_tables}) must be a multiple of actor.matches ({num_blocks}), "
                "so that every match gets an equal block of tables"
            )
        self._spec = spec
        self._client = client
        self._block_of_table = np.arange(num_tables) // (num_tables // num_blocks)
        self._block_size = num_tables // num_blocks
        teams = spec.num_teams
        rotation = np.arange(teams)[:, None]
        self._side_by_rotation = (np.array(spec.teams)[None, :] - rotation) % teams
        self._rotation_on_team = (np.arange(teams)[None, :] - np.arange(teams)[:, None]) % teams
        """[sides, teams]: the rotation in which the side sits on the team."""
        self._share_of_seat = np.array([1 / len(spec.seats_of_team[team]) for team in spec.teams])
        self._place_in_team = np.array([spec.seats_of_team[team].index(seat) for seat, team in enumerate(spec.teams)])
        self._waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(num_blocks)]
        """Per block: places that no table has begun, (number of the match, place in it)."""
        self._matches: dict[int, Match] = {}
        self._first_models: dict[int, tuple[str, ...]] = {}
        self._player_numbers: dict[str, int] = {}
        self.player_ids: list[str] = []
        """By number."""

        self.match = np.full(num_tables, -1, np.int64)
        self.place = np.zeros(num_tables, np.int64)
        self.episode = np.zeros(num_tables, np.int64)
        self.quota = np.zeros(num_tables, np.int64)
        self.steps = np.zeros(num_tables, np.int64)
        self.reward = np.zeros((num_tables, spec.num_seats), np.float64)
        """[tables, seats]: earned in this episode."""
        self.player_of_seat = np.zeros((num_tables, spec.num_seats), np.int64)
        """[tables, seats]: a player's number (see `player_number`)."""
        self.owner_of_seat = np.full((num_tables, spec.num_seats), -1, np.int64)
        """[tables, seats]: the player whose learner gets the seat's trajectory; -1 for none."""
        self.side_of_seat = np.zeros((num_tables, spec.num_seats), np.int64)
        self.role_score = np.zeros((num_tables, teams, teams), np.float64)
        """[tables, rotations, teams]: scores of the present cycle of rotations, in games that compare roles."""
        self._tally = self._new_tally(4)

    def player_number(self, player: str) -> int:
        if player not in self._player_numbers:
            self._player_numbers[player] = len(self.player_ids)
            self.player_ids.append(player)
        return self._player_numbers[player]

    def start(self, tables: IntArray) -> None:
        """Give these tables their next place and seat its players for their first episode."""
        for table, block in zip(tables.tolist(), self._block_of_table[tables].tolist(), strict=True):
            waiting = self._waiting[block]
            if not waiting:
                number = self._take_match()
                waiting.extend((number, place) for place in range(self._block_size))
            self.match[table], self.place[table] = waiting.popleft()
            self.quota[table] = self._matches[self.match[table]].episodes_per_table
        self.episode[tables] = 0
        self._seat(tables)

    def episode_seeds(self, tables: IntArray) -> NDArray[np.uint64]:
        """Three numbers that name an episode: match id, place in it, episode. [tables, 3]."""
        ids = self._tally["match_id"][self.match[tables]]
        return np.stack([ids, self.place[tables], self.episode[tables]], axis=1).astype(np.uint64)

    def count_decisions(self, tables: IntArray, seats: IntArray) -> None:
        tally = self._tally["decisions"]
        at = self.match[tables] * self._spec.num_teams + self.side_of_seat[tables, seats]
        tally += np.bincount(at, minlength=tally.size).reshape(tally.shape)

    def count_step(self, models: ModelNames) -> None:
        """All tables are about to be stepped; a match that was not played before begins with these models."""
        self.steps += 1
        for number in self._matches.keys() - self._first_models.keys():
            self._first_models[number] = self._side_models(self._matches[number], models)

    def begin_again(self, tables: IntArray) -> None:
        """The episode at these tables starts again, with the same players; nothing of it counts."""
        self._seat(tables)

    def finish_episodes(self, tables: IntArray, score: NDArray[np.float32], models: ModelNames) -> IntArray:
        """Count the ended episodes (score: [len(tables), teams]); returns the tables that leave their match."""
        sides = np.arange(self._spec.num_teams)
        team_of_side = (sides[None, :] + self.episode[tables, None]) % self._spec.num_teams
        by_side = np.take_along_axis(score, team_of_side, axis=1).astype(np.float64)
        numbers = self.match[tables]
        tally = self._tally
        above: Array
        if self._spec.compares_roles:
            above, equal = self._compare_roles(tables, score)
            at = (numbers[:, None], sides[None, :], team_of_side)
            np.add.at(tally["role_score_sum"], at, by_side)
            np.add.at(tally["role_score_square_sum"], at, by_side**2)
        else:
            above = by_side[:, :, None] > by_side[:, None, :]
            equal = by_side[:, :, None] == by_side[:, None, :]
        np.add.at(tally["episodes"], numbers, 1)
        np.add.at(tally["steps"], numbers, self.steps[tables])
        np.add.at(tally["wins"], numbers, above)
        np.add.at(tally["draws"], numbers, equal)
        np.add.at(tally["score_sum"], numbers, by_side)
        np.add.at(tally["score_square_sum"], numbers, by_side**2)
        earned = self.reward[tables] * self._share_of_seat
        np.add.at(tally["reward_sum"], (numbers[:, None], self.side_of_seat[tables]), earned)
        complete = numbers[tally["episodes"][numbers] == tally["expected"][numbers]]
        for number in np.unique(complete).tolist():
            self._report(number, models)
        self.episode[tables] += 1
        stays = self.episode[tables] < self.quota[tables]
        self._seat(tables[stays])
        return tables[~stays]

    def _compare_roles(self, tables: IntArray, score: NDArray[np.float32]) -> tuple[IntArray, IntArray]:
        """(wins, draws) [tables, sides, sides] of the cycle of rotations that ends here, if it does. Two sides are
        compared once on each team: as many comparisons as episodes."""
        teams = self._spec.num_teams
        rotation = self.episode[tables] % teams
        self.role_score[tables, rotation] = score
        by_role = self.role_score[tables][:, self._rotation_on_team, np.arange(teams)]  # [tables, sides, teams]
        complete = (rotation == teams - 1)[:, None, None]
        one, other = by_role[:, :, None], by_role[:, None, :]
        return (one > other).sum(axis=3) * complete, (one == other).sum(axis=3) * complete

    def void(self, lost: Mapping[int, str]) -> IntArray:
        """End the matches at lost tables, for these reasons; returns all tables that were still playing them."""
        where = {int(self.match[table]): table for table in lost}
        tables = np.flatnonzero(np.isin(self.match, list(where)))
        for number, table in where.items():
            match = self._forget(number)
            self._client.void_match(match.id, f"game: {lost[table]}")
        return tables

    def save(self) -> tuple[Tree, dict[str, Any]]:
        arrays = {name: getattr(self, name) for name in _SAVED}
        arrays.update({f"tally.{name}": array for name, array in self._tally.items()})
        facts = {
            "matches": {str(number): msgspec.json.encode(match).decode() for number, match in self._matches.items()},
            "first_models": {str(number): list(models) for number, models in self._first_models.items()},
            "waiting": [[list(place) for place in waiting] for waiting in self._waiting],
            "players": list(self.player_ids),
        }
        return arrays, facts

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        for name in _SAVED:
            if name in arrays:  # checkpoints of earlier versions have no scores by role
                getattr(self, name)[...] = arrays[name]
        saved = {name: array.copy() for name, array in under("tally.", arrays).items()}
        self._tally = self._new_tally(len(saved["episodes"])) | saved
        matches = facts["matches"].items()
        self._matches = {int(number): msgspec.json.decode(match, type=Match) for number, match in matches}
        self._first_models = {int(number): tuple(models) for number, models in facts["first_models"].items()}
        self._waiting = [deque((number, place) for number, place in waiting) for waiting in facts["waiting"]]
        self.player_ids = list(facts["players"])
        self._player_numbers = {player: number for number, player in enumerate(self.player_ids)}

    def _new_tally(self, capacity: int) -> Tree:
        teams, seats = self._spec.num_teams, self._spec.num_seats
        return {
            "match_id": np.zeros(capacity, np.int64),
            "expected": np.zeros(capacity, np.int64),
            "episodes": np.zeros(capacity, np.int64),
            "steps": np.zeros(capacity, np.int64),
            "decisions": np.zeros((capacity, teams), np.int64),
            "wins": np.zeros((capacity, teams, teams), np.int64),
            "draws": np.zeros((capacity, teams, teams), np.int64),
            "score_sum": np.zeros((capacity, teams), np.float64),
            "score_square_sum": np.zeros((capacity, teams), np.float64),
            "reward_sum": np.zeros((capacity, teams), np.float64),
            "role_score_sum": np.zeros((capacity, teams, teams), np.float64),
            "role_score_square_sum": np.zeros((capacity, teams, teams), np.float64),
            "player_by_rotation": np.zeros((capacity, teams, seats), np.int64),
            "owner_by_rotation": np.zeros((capacity, teams, seats), np.int64),
        }

    def _take_match(self) -> int:
        match = self._client.next_match(self._block_size)
        capacity = len(self._tally["episodes"])
        number = next((n for n in range(capacity) if n not in self._matches), capacity)
        if number == capacity:
            grown = self._new_tally(2 * capacity)
            for name, array in self._tally.items():
                grown[name][:capacity] = array
            self._tally = grown
        for array in self._tally.values():
            array[number] = 0
        self._matches[number] = match
        self._tally["match_id"][number] = match.id
        self._tally["expected"][number] = match.episodes
        for rotation, sides in enumerate(self._side_by_rotation):
            for seat, side_number in enumerate(sides):
                side = match.sides[side_number]
                place = self._place_in_team[seat] if len(side.players) > 1 else 0
                player = self.player_number(side.players[place])
                owner = player if side.players[place] in side.trainees else -1
                self._tally["player_by_rotation"][number, rotation, seat] = player
                self._tally["owner_by_rotation"][number, rotation, seat] = owner
        return number

    def _seat(self, tables: IntArray) -> None:
        rotation = self.episode[tables] % self._spec.num_teams
        number = self.match[tables]
        self.player_of_seat[tables] = self._tally["player_by_rotation"][number, rotation]
        self.owner_of_seat[tables] = self._tally["owner_by_rotation"][number, rotation]
        self.side_of_seat[tables] = self._side_by_rotation[rotation]
        self.steps[tables] = 0
        self.reward[tables] = 0.0

    @staticmethod
    def _side_models(match: Match, models: ModelNames) -> tuple[str, ...]:
        return tuple(",".join(models(player) for player in side.players) for side in match.sides)

    def _forget(self, number: int) -> Match:
        """The match is over; its number can be used again."""
        self._waiting = [deque(one for one in waiting if one[0] != number) for waiting in self._waiting]
        self._first_models.pop(number, None)
        return self._matches.pop(number)

    def _by_role(self, sums: Array) -> tuple[tuple[float, ...], ...]:
        return tuple(map(tuple, sums.tolist())) if self._spec.compares_roles else ()

    def _report(self, number: int, models: ModelNames) -> None:
        match, first_models = self._matches[number], self._first_models[number]
        tally = {name: array[number] for name, array in self._tally.items()}
        wins, draws = tally["wins"].tolist(), tally["draws"].tolist()
        result = Result(
            match_id=match.id,
            episodes=int(tally["episodes"]),
            steps=int(tally["steps"]),
            decisions=tuple(tally["decisions"].tolist()),
            pairs=tuple(
                Pair(side, other, wins[side][other], draws[side][other], wins[other][side])
                for side, other in combinations(range(len(match.sides)), 2)
            ),
            score_sum=tuple(tally["score_sum"].tolist()),
            score_square_sum=tuple(tally["score_square_sum"].tolist()),
            first_models=first_models,
            last_models=self._side_models(match, models),
            reward_sum=tuple(tally["reward_sum"].tolist()) if np.isfinite(tally["reward_sum"]).all() else (),
            role_score_sum=self._by_role(tally["role_score_sum"]),
            role_score_square_sum=self._by_role(tally["role_score_square_sum"]),
        )
        self._forget(number)
        self._client.report(result)


_SAVED = (
    "match",
    "place",
    "episode",
    "quota",
    "steps",
    "reward",
    "player_of_seat",
    "owner_of_seat",
    "side_of_seat",
    "role_score",
)
