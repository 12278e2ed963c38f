"""The roster: all players of a league, changed by ledger events, and the turns in which they train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from itertools import islice

import msgspec
from msgspec.structs import replace

from ludus.data.checks import unknown
from ludus.data.records import LearnerProgress, Match, PlayerAbsent, PlayerAdded, PlayerReset, Result, ScoreMeasured
from ludus.league.matchmaking import Candidates
from ludus.league.players import FROZEN, SCRIPTED, UNPROMPTED, Player, Standing, check_player_id, reset_draw
from ludus.league.rules import LeagueRules


class SavedRoster(msgspec.Struct, frozen=True, kw_only=True):
    players: list[Player]
    removed: list[str]
    absent: dict[str, str]
    decisions_of_removed: int
    standings: dict[str, Standing]
    scores: dict[str, ScoreMeasured]


class Roster:
    """All players that ever joined, and the standing of learning ones. Every method checks its event first."""

    def __init__(self, rules: LeagueRules, seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self.players: dict[str, Player] = {}
        """All players, including removed ones, in joining order."""
        self._removed: set[str] = set()
        self.absent: dict[str, str] = {}
        """Frozen players whose weights cannot be read, and why. They are no candidates until they return."""
        self.decisions_of_removed = 0
        """Decisions that removed learning players had trained on."""
        self.standings: dict[str, Standing] = {}
        self.scores: dict[str, ScoreMeasured] = {}
        """The latest measured score by player."""
        self.candidates = Candidates(players=(), roles=tuple(rules.roles))
        """The current players, in joining order."""

    def change_rules(self, rules: LeagueRules) -> None:
        self._rules = rules
        self._list_candidates()

    def __contains__(self, player: object) -> bool:
        """Whether it is a current player; in constant time, unlike `candidates`."""
        return player in self.players and player not in self._removed and player not in self.absent

    def has_left(self, player: str) -> bool:
        return player in self._removed

    def standing(self, player: str) -> Standing:
        if player not in self.standings:
            raise ValueError(unknown("learning player", player, self.standings))
        return self.standings[player]

    def free_id(self, parent: str) -> str:
        """The id of the parent's next snapshot: main.1, main.2, ..."""
        number = self.standing(parent).snapshots + 1
        while f"{parent}.{number}" in self.players:
            number += 1
        return f"{parent}.{number}"

    def add(self, event: PlayerAdded, joined: int) -> None:
        self._check_added(event)
        player = Player(
            id=event.player,
            role=event.role,
            parent=event.parent,
            parent_role=None if event.parent is None else self.players[event.parent].role,
            model=event.model,
            weights=event.weights,
            digest=event.digest,
            parent_decisions=event.parent_decisions,
            joined=joined,
            reason=event.reason,
        )
        self.players[player.id] = player
        if player.learning:
            # A late joiner starts level with the rest, or it would get every match until it had caught up.
            others = self.standings.values()
            level = min((one.trained for one in others), default=0)
            seconds = max((one.seconds for one in others), default=0.0)
            self.standings[player.id] = Standing(
                player=player,
                episodes_issued=min((one.episodes_issued for one in others), default=0),
                matches_issued=min((one.matches_issued for one in others), default=0),
                trained=level,
                trained_before=level,
                reset_at=level,
                seconds=seconds,
                interval_seconds=seconds,
                ancestor=player.model,
                value_only_until=event.value_only,
            )
        elif player.frozen and event.parent in self.standings:
            self._freeze(self.standings[event.parent], event)
        self._list_candidates()

    def remove(self, player: str) -> None:
        if player not in self and player not in self.absent:
            raise ValueError(unknown("player", player, self.candidates))
        self.absent.pop(player, None)
        self._removed.add(player)
        if player in self.standings:
            self.decisions_of_removed += self.standings.pop(player).decisions
        self._list_candidates()

    def leave(self, event: PlayerAbsent) -> None:
        if event.player not in self or not self.players[event.player].frozen:
            raise ValueError(unknown("frozen player", event.player, self.candidates.frozen()))
        self.absent[event.player] = event.reason
        self._list_candidates()

    def come_back(self, player: str) -> None:
        if player not in self.absent:
            raise ValueError(unknown("absent player", player, self.absent))
        del self.absent[player]
        self._list_candidates()

    def reset(self, event: PlayerReset) -> None:
        standing = self.standing(event.player)
        if event.incarnation <= standing.incarnation:
            raise ValueError(
                f"reset of {event.player!r} to incarnation {event.incarnation}: it must be higher than "
                f"{standing.incarnation}, so that a model id never means two contents"
            )
        self.standings[event.player] = standing.after_reset(event)

    def progress(self, event: LearnerProgress) -> None:
        if not min(event.incarnation, event.step, event.decisions, event.seconds) >= 0:
            raise ValueError(f"negative counts in {event}")
        if event.player not in self._removed:  # a removed player's learner may not have heard yet
            self.standings[event.player] = self.standing(event.player).progressed(event)

    def measure(self, event: ScoreMeasured) -> None:
        if not math.isfinite(event.mean) or event.episodes < 1:
            raise ValueError(f"a measured score needs a finite mean and at least one episode, got {event}")
        if event.player not in self.players:
            raise ValueError(unknown("player", event.player, self.players))
        self.scores[event.player] = event

    def play(self, player: str, result: Result, fade: float) -> None:
        """Add the scores of a training match in a game with one team."""
        if player in self.standings:
            self.standings[player] = self.standings[player].played(result, fade)

    def issue(self, match: Match) -> None:
        """Count a training match for the players that train in it."""
        for player in {player for side in match.sides if side.trains for player in side.trainees}:
            standing = self.standings[player]
            self.standings[player] = replace(
                standing,
                episodes_issued=standing.episodes_issued + match.episodes,
                matches_issued=standing.matches_issued + (player == match.sides[0].stands_for),
            )

    def begin_turn(self, player: str, others: Iterable[str]) -> None:
        """Set the player level with the `others` that train, or it would get every match until it caught up."""
        issued = [self.standings[other].episodes_issued for other in others]
        if issued:
            self.standings[player] = replace(self.standings[player], episodes_issued=min(issued))

    def save(self) -> SavedRoster:
        return SavedRoster(
            players=[*self.players.values()],
            removed=sorted(self._removed),
            absent=self.absent,
            decisions_of_removed=self.decisions_of_removed,
            standings=self.standings,
            scores=self.scores,
        )

    def load(self, saved: SavedRoster) -> None:
        """Become what was saved; this roster is new."""
        self.players.update((player.id, player) for player in saved.players)
        self._removed.update(saved.removed)
        self.absent.update(saved.absent)
        self.decisions_of_removed = saved.decisions_of_removed
        self.standings.update(saved.standings)
        self.scores.update(saved.scores)
        self._list_candidates()

    def state(self) -> object:
        """The whole state as plain values, for the league's digest."""
        players = [astuple(player) for player in self.players.values()]
        removed = (sorted(self._removed), self.decisions_of_removed, sorted(self.absent))
        return players, removed, [*self.standings.values()], sorted(self.scores.items())

    def _freeze(self, parent: Standing, event: PlayerAdded) -> None:
        promoted = event.reason not in UNPROMPTED
        probability = self._rules.roles[parent.player.role].reset_probability
        drawn = reset_draw(self._seed, parent.player.joined, parent.snapshots) < probability
        self.standings[parent.player.id] = parent.frozen(
            event.model, promoted=promoted, reset=parent.reset_pending or (promoted and drawn)
        )

    def _check_added(self, event: PlayerAdded) -> None:
        check_player_id(event.player)
        if event.player in self.players:
            raise ValueError(f"player id {event.player!r} was given already; ids are never used again")
        roles = (*self._rules.roles, FROZEN, SCRIPTED)
        if event.role not in roles:
            raise ValueError(unknown("role", event.role, roles))
        if event.parent is not None and event.parent not in self.players:
            raise ValueError(unknown("parent", event.parent, self.players))
        if event.role == FROZEN and event.model is None:
            raise ValueError(f"frozen player {event.player!r} has no model to be pinned to")

    def _list_candidates(self) -> None:
        self.candidates = Candidates(
            players=tuple(player for player in self.players.values() if player.id in self),
            roles=tuple(self._rules.roles),
        )


def next_turns(
    turns: Mapping[str, int], standings: Mapping[str, Standing], *, capacity: int, length: int
) -> dict[str, int]:
    """The turns that run next: player -> its `trained` at the start of the turn. A turn ends after `length` decisions.
    A free place goes to the player that has trained least; ties go to the player that joined first."""
    going = {
        player: start
        for player, start in turns.items()
        if player in standings and standings[player].trained - start < length
    }
    found = dict(islice(going.items(), capacity))
    waiting = [standing for player, standing in standings.items() if player not in found]
    waiting.sort(key=lambda standing: (standing.trained, standing.player.joined))
    return found | {one.player.id: one.trained for one in waiting[: capacity - len(found)]}
