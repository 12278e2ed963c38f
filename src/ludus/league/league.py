"""The league: a fold over ledger events, and the pure decisions that are read off it.

`apply` is the only way its state changes, so replaying a ledger gives the live state bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import msgspec

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    Purpose,
    RunStarted,
    ScoreMeasured,
    Side,
)
from ludus.league.draws import match_generator
from ludus.league.matches import MatchBook, changed_incarnation
from ludus.league.matchmaking import Candidates, Law
from ludus.league.payoff import Payoff, PayoffBook
from ludus.league.players import (
    EXTERNAL,
    FROZEN,
    INITIAL,
    SCRIPTED,
    Player,
    Standing,
    check_player_id,
    unknown,
)
from ludus.league.promotion import Snapshot
from ludus.league.quality import QualityBook, quality_rule
from ludus.league.roster import Roster
from ludus.league.rules import LeagueRules


class League:
    """Players, matches and payoff as the ledger tells them.

    Every draw comes from a generator made of the run's seed and the match id (or, for resets, the player
    and the number of its snapshots): a decision that a crash interrupted comes out the same again.
    """

    def __init__(
        self, rules: LeagueRules, *, num_teams: int, seats_per_team: tuple[int, ...], seed: int
    ) -> None:
        if num_teams < 1 or len(seats_per_team) != num_teams or min(seats_per_team) < 1:
            raise ValueError(
                f"{num_teams} teams need as many seat counts of at least 1, got {seats_per_team}"
            )
        if not 0 <= seed < 2**64:
            raise ValueError(f"the run's seed must be from 0 to 2**64 - 1, got {seed}")
        self.rules = rules
        self.num_teams = num_teams
        self.seats_per_team = seats_per_team
        self.seed = seed
        self.matches = MatchBook()
        self.payoffs = PayoffBook(rules.payoff)
        self._roster = Roster(rules, seed)
        found = {name: quality_rule(role.matchmaking) for name, role in rules.roles.items()}
        self._qualities = QualityBook({name: rule for name, rule in found.items() if rule is not None})
        self._num_events = 0
        self._starts = 0
        self._check_rules()

    @property
    def players(self) -> Mapping[str, Player]:
        """Every player that ever was, removed ones too, in joining order."""
        return self._roster.players

    @property
    def num_events(self) -> int:
        """Events folded so far."""
        return self._num_events

    @property
    def starts(self) -> int:
        """How often the run was started: first, and after every stop that was not clean."""
        return self._starts

    @property
    def scores(self) -> Mapping[str, ScoreMeasured]:
        """The latest measured score by player, for games with one team."""
        return self._roster.scores

    @property
    def candidates(self) -> Candidates:
        """The players of now, in joining order."""
        return replace(self._roster.candidates, qualities=self._qualities.scores)

    @property
    def standings(self) -> Mapping[str, Standing]:
        """What is known about each learning player of now."""
        return self._roster.standings

    @property
    def payoff(self) -> Payoff:
        """The payoff that matchmaking and promotion read."""
        return self.payoffs.view(self.rules.decide_on)

    def state_digest(self) -> str:
        """A hash of the whole state: equal digests, equal leagues."""
        state = (
            (self._num_events, self._starts),
            self._roster.state(),
            self._qualities.state(),
            self.matches.state(),
            self.payoffs.fingerprint(),
        )
        return hashlib.blake2b(msgspec.msgpack.encode(state), digest_size=16).hexdigest()

    def apply(self, event: AnyEvent) -> None:
        """Fold one ledger event. An event that is refused with an error leaves the league as it was."""
        match event:
            case RunStarted(start=start):
                self._start_run(start)
            case PlayerAdded():
                self._roster.add(event, joined=self._num_events)
                self._qualities.join(self.players[event.player], self._roster.candidates)
            case PlayerRemoved(player=player):
                self._roster.remove(player)
            case PlayerReset():
                self._reset_player(event)
            case LearnerProgress():
                self._roster.progress(event)
            case ScoreMeasured():
                self._roster.measure(event)
            case MatchIssued(match=issued):
                self._check_match(issued)
                self.matches.issue(issued)
                self._roster.issue(issued)
                self._note_qualities(issued)
            case MatchLeased(match_id=match_id, holder=holder):
                self.matches.lease(match_id, holder)
            case MatchFinished():
                self._finish_match(event)
            case MatchVoid(match_id=match_id):
                self.matches.cancel(match_id)
                self._qualities.cancel(match_id)
            case _:
                assert_never(event)
        self._num_events += 1

    def initial_events(self) -> list[PlayerAdded]:
        """The players that the rules ask for and the league has never had, learning ones first."""
        wanted = [
            PlayerAdded(player=player, role=name, model=role.start)
            for name, role in self.rules.roles.items()
            for player in self.rules.players_of(name)
        ]
        wanted += [PlayerAdded(player=bot, role=SCRIPTED) for bot in self.rules.bots]
        wanted += [
            PlayerAdded(player=player, role=FROZEN, model=model, reason=EXTERNAL)
            for player, model in self.rules.external.items()
        ]
        return [event for event in wanted if event.player not in self.players]

    def next_match(self, match_id: int, *, tables: int, episodes_per_table: int) -> Match:
        """The training match of the learning player with the fewest issued episodes, on side 0.

        Opponents come from its role's matchmaking, drawn again until every team has a side.

        A side trains if it is that player itself, and no other: a player against itself trains on all sides;
        an exploiter against a live main player trains the exploiter alone, and so does a main player against
        another one, because whom a player learns from is for its own role to say. Frozen and scripted players
        never train, and evaluation (`evaluation_match`) trains nobody.
        """
        self.matches.check_new(match_id)
        if not self.standings:
            raise ValueError("the league has no learning player to make a match for")
        learner = min(self.standings.values(), key=lambda s: (s.episodes_issued, s.player.joined)).player
        matchmaking = self.rules.roles[learner.role].matchmaking
        rng = match_generator(self.seed, match_id)
        players = [learner.id]
        while len(players) < self.num_teams:
            opponents = matchmaking.choose(learner.id, self.candidates, self.payoff, rng)
            if not opponents:
                raise ValueError(f"{type(matchmaking).__name__} chose no opponent for {learner.id!r}")
            players.extend(opponents)
        match = Match(
            id=match_id,
            purpose="training",
            sides=tuple(
                Side(players=(player,), trains=player == learner.id) for player in players[: self.num_teams]
            ),
            tables=tables,
            episodes_per_table=episodes_per_table,
        )
        self._check_match(match)
        return match

    def evaluation_match(
        self,
        match_id: int,
        sides: Sequence[str | Sequence[str]],
        *,
        tables: int,
        episodes_per_table: int,
        purpose: Purpose = "evaluation",
    ) -> Match:
        """A match that trains nobody. A side is one player, or one player per seat of its team."""
        self.matches.check_new(match_id)
        match = Match(
            id=match_id,
            purpose=purpose,
            sides=tuple(Side(players=(side,) if isinstance(side, str) else tuple(side)) for side in sides),
            tables=tables,
            episodes_per_table=episodes_per_table,
        )
        self._check_match(match)
        return match

    def opponent_law(self, player: str) -> Law:
        """The probability of each opponent in the next match of a learning player."""
        role = self._roster.standing(player).player.role
        return self.rules.roles[role].matchmaking.probabilities(player, self.candidates, self.payoff)

    def due_snapshots(self) -> list[PlayerAdded]:
        """The frozen players to add now. Who has a reset pending waits for it."""
        due = []
        for standing in self.standings.values():
            if standing.latest_model is None or standing.reset_pending:
                continue
            role = self.rules.roles[standing.player.role]
            if role.initial_snapshot and standing.snapshots == 0:
                decision: Snapshot | None = Snapshot(reason=INITIAL)
            else:
                decision = role.promotion.decide(standing, self.candidates, self.payoff)
            if decision is not None:
                due.append(self.snapshot_of(standing.player.id, decision))
        return due

    def snapshot_of(self, player: str, snapshot: Snapshot) -> PlayerAdded:
        """The event that freezes a learning player under the next free id: main.1, main.2, ..."""
        standing = self._roster.standing(player)
        model = standing.latest_model
        if model is None:
            raise ValueError(f"{player!r} has not published any weights that could be frozen")
        return PlayerAdded(
            player=self._roster.free_id(player),
            role=FROZEN,
            parent=player,
            model=str(model),
            weights=self.rules.roles[standing.player.role].snapshot_weights,
            parent_decisions=standing.decisions,
            reason=snapshot.reason,
        )

    def due_resets(self) -> list[PlayerReset]:
        """The resets that snapshots have asked for and that have not happened yet."""
        return [
            PlayerReset(standing.player.id, standing.incarnation + 1, self._restart_model(standing))
            for standing in self.standings.values()
            if standing.reset_pending
        ]

    def _restart_model(self, standing: Standing) -> str | None:
        restart = self.rules.roles[standing.player.role].restart
        return restart.model(standing, self.candidates, self.payoff)

    def _start_run(self, start: int) -> None:
        if start != self._starts:
            raise ValueError(f"the run has started {self._starts} times, but the event says start={start}")
        self._starts += 1
        self.matches.restart()
        self._qualities.restart()

    def _reset_player(self, event: PlayerReset) -> None:
        self._roster.reset(event)
        if self.rules.roles[self.players[event.player].role].after_reset.clear_payoff:
            self.payoffs.forget(event.player)
            self._qualities.forget(event.player)
        self.matches.outdate(event.player)

    def _note_qualities(self, match: Match) -> None:
        first = self.players.get(match.sides[0].players[0])
        if match.purpose == "training" and first is not None:
            self._qualities.issue(match, first.role, self._roster.candidates)

    def _finish_match(self, event: MatchFinished) -> None:
        """Fold a result, if it is one of the players of now.

        A learning side may go on learning while it plays, and its result counts: the payoff is about
        players, and forgets slowly what their older weights did. It does not count if a player was reset
        after the match was issued, or if a side ended in another incarnation than it began in: then its
        weights come from elsewhere.
        """
        ended = self.matches.finish(event.result)
        if ended.stale or changed_incarnation(event.result):
            self._qualities.cancel(event.result.match_id)
            return
        self._qualities.finish(event.result)
        self.payoffs.record(ended.match, event.result)
        if self.num_teams == 1 and ended.match.purpose == "training":
            fade = self.rules.payoff.fade(event.result.episodes)
            for player in ended.match.sides[0].players:
                self._roster.play(player, event.result.episodes, event.result.score_sum[0], fade)

    def _check_match(self, match: Match) -> None:
        if len(match.sides) != self.num_teams:
            raise ValueError(
                f"match {match.id} has {len(match.sides)} sides; the game has {self.num_teams} teams"
            )
        if match.tables < 1 or match.episodes_per_table < 1:
            raise ValueError(
                f"match {match.id} needs at least one table and one episode per table, "
                f"got tables={match.tables}, episodes_per_table={match.episodes_per_table}"
            )
        for side in match.sides:
            self._check_side(match, side)

    def _check_side(self, match: Match, side: Side) -> None:
        # Sides rotate through the teams, so a line-up must fit all of them.
        seats = set(self.seats_per_team)
        sizes = {1} | seats if len(seats) == 1 else {1}
        if len(side.players) not in sizes:
            raise ValueError(
                f"match {match.id}: line-up {side.players} has {len(side.players)} players; "
                f"for teams of {self.seats_per_team} seats it may have {' or '.join(map(str, sorted(sizes)))}"
            )
        for player in side.players:
            if match.purpose == "human" and player not in self.players:
                check_player_id(player)
            elif player not in self.candidates:
                raise ValueError(f"match {match.id}: {unknown('player', player, self.candidates)}")
            if side.trains and (match.purpose != "training" or player not in self.standings):
                raise ValueError(
                    f"match {match.id}: {player!r} cannot train in it; only learning players train, "
                    f"in matches of purpose 'training', and this is {match.purpose!r}"
                )

    def _check_rules(self) -> None:
        """Ask every role for its law and its promotion once, so that a misspelt name fails at the start."""
        trial = Roster(self.rules, self.seed)
        for joined, event in enumerate(self.initial_events()):
            trial.add(event, joined)
        for player, standing in trial.standings.items():
            role = self.rules.roles[standing.player.role]
            if self.num_teams > 1:
                role.matchmaking.probabilities(player, trial.candidates, self.payoff)
            role.promotion.decide(standing, trial.candidates, self.payoff)
            role.restart.model(standing, trial.candidates, self.payoff)
