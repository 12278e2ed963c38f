"""The league: a fold over ledger events, and the pure decisions that are read off it.

`apply` is the only way its state changes, so replaying a ledger gives the live state bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import msgspec
import numpy as np

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
    Settings,
    SettingsChanged,
    Side,
)
from ludus.league.matches import MatchBook, changed_incarnation, check_match
from ludus.league.matchmaking import Candidates, Law
from ludus.league.payoff import Payoff, PayoffBook
from ludus.league.players import (
    EXTERNAL,
    FROZEN,
    INITIAL,
    SCRIPTED,
    LineageBook,
    Player,
    Standing,
    match_generator,
)
from ludus.league.promotion import Snapshot
from ludus.league.quality import QualityBook, quality_rules
from ludus.league.roster import Roster, next_turns
from ludus.league.rules import LeagueRules, Role, check_line_up, make_sides, seat_players

LEAGUE_PATH = "league."
"""Where the rules of the league are in an experiment."""

ChangeRules = Callable[[LeagueRules, Settings], LeagueRules]
"""The rules with other values at these paths inside them."""


def _no_change(rules: LeagueRules, settings: Settings) -> LeagueRules:
    raise ValueError(f"this league cannot change its rules, asked for {settings}")


def later_settings(before: Settings, after: Settings) -> Settings:
    """Both together; what comes later takes the place of what was at its path and below it."""
    kept = {
        path: value
        for path, value in before.items()
        if not any(path == later or path.startswith(f"{later}.") for later in after)
    }
    return {**kept, **after}


class League:
    """Players, matches and payoff as the ledger tells them.

    Every draw comes from a generator made of the run's seed and the match id (or, for resets, the player
    and the number of its snapshots): a decision that a crash interrupted comes out the same again.
    """

    def __init__(
        self,
        rules: LeagueRules,
        *,
        num_teams: int,
        seats_per_team: tuple[int, ...],
        seed: int,
        change_rules: ChangeRules = _no_change,
    ) -> None:
        if num_teams < 1 or len(seats_per_team) != num_teams or min(seats_per_team) < 1:
            raise ValueError(f"{num_teams} teams need as many seat counts of at least 1, got {seats_per_team}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"the run's seed must be from 0 to 2**64 - 1, got {seed}")
        self.rules = rules
        self.num_teams = num_teams
        self.seats_per_team = seats_per_team
        self.seed = seed
        self.matches = MatchBook()
        self.lineage = LineageBook()
        self.payoffs = PayoffBook(rules.payoff)
        self._roster = Roster(rules, seed)
        self._qualities = QualityBook(quality_rules(rules.roles))
        self._change_rules = change_rules
        self._settings: Settings = {}
        self._own_settings: dict[str, Settings] = {}
        self._turns: dict[str, int] = {}
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
    def active(self) -> tuple[str, ...]:
        """The learning players that get training matches now, in joining order."""
        everyone = self.rules.capacity is None
        return tuple(player for player in self.standings if everyone or player in self._turns)

    @property
    def settings(self) -> Settings:
        """What was changed in the experiment since it began, for all players, by path."""
        return dict(self._settings)

    def settings_of(self, player: str) -> Settings:
        """What was changed in the experiment for one player; what is its own goes before what is for all."""
        return later_settings(self._settings, self.own_settings(player))

    def own_settings(self, player: str) -> Settings:
        """What was changed for one player alone."""
        return dict(self._own_settings.get(player, {}))

    @property
    def decisions_of_removed(self) -> int:
        """What learning players had trained on when they left: it is spent of the budget all the same."""
        return self._roster.decisions_of_removed

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
            list(self._turns.items()),
            sorted(self._settings.items()),
            [(player, sorted(own.items())) for player, own in sorted(self._own_settings.items())],
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
                self._keep_settings(event.player, event.settings)
                if self.players[event.player].learning:
                    self.lineage.join(event)
            case PlayerRemoved(player=player):
                self._roster.remove(player)
            case PlayerReset():
                self._reset_player(event)
            case SettingsChanged():
                self._change_settings(event)
            case LearnerProgress():
                self._roster.progress(event)
            case ScoreMeasured():
                self._roster.measure(event)
            case MatchIssued(match=issued):
                check_match(issued, self.seats_per_team, self._roster)
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
        self._pass_turns()
        self._num_events += 1

    def initial_events(self) -> list[PlayerAdded]:
        """The players that the rules ask for and the league has never had, learning ones first."""
        wanted = [
            PlayerAdded(
                player=player,
                role=name,
                model=role.start,
                settings=self.new_settings(name, player),
                value_only=0 if role.start is None else role.value_only_at_start,
            )
            for name, role in self.rules.roles.items()
            for player in self.rules.players_of(name)
        ]
        wanted += [PlayerAdded(player=bot, role=SCRIPTED) for bot in self.rules.bots]
        wanted += [
            PlayerAdded(player=player, role=FROZEN, model=model, reason=EXTERNAL)
            for player, model in self.rules.external.items()
        ]
        return [event for event in wanted if event.player not in self.players]

    def new_settings(self, role: str, player: str) -> Settings:
        """The settings of its own that a new player of a learning role begins with."""
        population = self.rules.roles[role].population
        return {} if population is None else population.new_settings(self.seed, player)

    def next_match(self, match_id: int, *, tables: int, episodes_per_table: int) -> Match:
        """The training match of the active player with the fewest issued episodes, on side 0.

        Opponents come from its role's matchmaking, drawn again until every team has a side; who sits beside
        them and beside the player comes from its role's line-up.

        Unless its role says otherwise, that player trains wherever it sits, and no other: a player against
        itself trains on all sides; an exploiter against a live main player trains the exploiter alone, and so
        does a main player against another one, because whom a player learns from is for its own role to say.
        Only active players train, frozen and scripted ones never, and evaluation (`evaluation_match`) trains
        nobody.
        """
        self.matches.check_new(match_id)
        if not self.standings:
            raise ValueError("the league has no learning player to make a match for")
        active = (self.standings[player] for player in self.active)
        learner = min(active, key=lambda s: (s.episodes_issued, s.matches_issued, s.player.joined)).player
        role = self.rules.roles[learner.role]
        rng = match_generator(self.seed, match_id)
        captains = [learner.id]
        while len(captains) < self.num_teams:
            opponents = role.matchmaking.choose(learner.id, self.candidates, self.payoff, rng)
            if not opponents:
                raise ValueError(f"{type(role.matchmaking).__name__} chose no opponent for {learner.id!r}")
            captains.extend(opponents)
        teams = [
            (captain, self._seated(role, captain, index > 0, rng))
            for index, captain in enumerate(captains[: self.num_teams])
        ]
        match = Match(
            id=match_id,
            purpose="training",
            sides=make_sides(teams, role.trains, self.active),
            tables=tables,
            episodes_per_table=episodes_per_table,
        )
        check_match(match, self.seats_per_team, self._roster)
        return match

    def _seated(self, role: Role, captain: str, is_opponent: bool, rng: np.random.Generator) -> tuple[str, ...]:
        line_up = {} if is_opponent and role.opponents == "repeated" else role.line_up
        return seat_players(line_up, captain, self.seats_per_team[0], self.candidates, self.payoff, rng)

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
        check_match(match, self.seats_per_team, self._roster)
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
        return [self.reset_of(standing) for standing in self.standings.values() if standing.reset_pending]

    def reset_of(self, standing: Standing) -> PlayerReset:
        """The event that starts a learning player again as its role says."""
        role = self.rules.roles[standing.player.role]
        return PlayerReset(
            player=standing.player.id,
            incarnation=standing.incarnation + 1,
            model=role.restart.model(standing, self.candidates, self.payoff),
            value_only=role.after_reset.value_only_decisions,
        )

    def _start_run(self, start: int) -> None:
        if start != self._starts:
            raise ValueError(f"the run has started {self._starts} times, but the event says start={start}")
        self._starts += 1
        self.matches.restart()
        self._qualities.restart()

    def _reset_player(self, event: PlayerReset) -> None:
        self._roster.reset(event)
        self._turns.pop(event.player, None)
        self._keep_settings(event.player, event.settings)
        self.lineage.reset(event, self.standings[event.player].decisions, self.own_settings(event.player))
        after = self.rules.roles[self.players[event.player].role].after_reset
        if after.clear_payoff or event.donor is not None:
            self.payoffs.forget(event.player)
            self._qualities.forget(event.player)
        self.matches.outdate(event.player)

    def _keep_settings(self, player: str, settings: Settings) -> None:
        if settings:
            self._own_settings[player] = later_settings(self.own_settings(player), settings)

    def _change_settings(self, event: SettingsChanged) -> None:
        of_league = {
            path.removeprefix(LEAGUE_PATH): value
            for path, value in event.settings.items()
            if path.startswith(LEAGUE_PATH)
        }
        if event.player is not None:
            self._roster.standing(event.player)
            if of_league:
                rule = LEAGUE_PATH + next(iter(of_league))
                raise ValueError(f"{rule} is a rule of the whole league, not of {event.player!r} alone")
            self._keep_settings(event.player, event.settings)
            return
        if of_league:
            rules = self._change_rules(self.rules, of_league)
            rules.require_model_ids()
            self._check_changed(rules)
            self.rules = rules
            self._roster.change_rules(rules)
            self._qualities.change_rules(quality_rules(rules.roles))
            self.payoffs.change_rules(rules.payoff)
        self._settings = later_settings(self._settings, event.settings)

    def check_players(self) -> None:
        """Raises if a learning player cannot go on: its role names another that does not exist, or an
        opponent that has left."""
        self._check_changed(self.rules)
        for player in self.standings if self.num_teams > 1 else ():
            for opponent in self.opponent_law(player):
                if opponent not in self.candidates:
                    raise ValueError(f"{player!r} is to meet {opponent!r}, who is not in the league")

    def _check_changed(self, rules: LeagueRules) -> None:
        """The players of now must be able to go on under other rules."""
        candidates = replace(self.candidates, roles=tuple(rules.roles))
        payoff = self.payoffs.view(rules.decide_on)
        for player, standing in self.standings.items():
            if standing.player.role not in rules.roles:
                raise ValueError(f"role {standing.player.role!r} cannot go: {player!r} plays it")
            self._try_role(rules.roles[standing.player.role], standing, candidates, payoff)

    def _try_role(self, role: Role, standing: Standing, candidates: Candidates, payoff: Payoff) -> None:
        """Ask for its law, its promotion and its restart once, so that a misspelt name fails here."""
        if self.num_teams > 1:
            role.matchmaking.probabilities(standing.player.id, candidates, payoff)
        check_line_up(role.line_up, self.seats_per_team, (*candidates.roles, *candidates))
        for who in role.line_up.values():
            if not isinstance(who, str):
                who.probabilities(standing.player.id, candidates, payoff)
        role.promotion.decide(standing, candidates, payoff)
        role.restart.model(standing, candidates, payoff)

    def _pass_turns(self) -> None:
        before = self._turns
        if self.rules.capacity is None:
            self._turns = {}
            return
        self._turns = next_turns(before, self.standings, capacity=self.rules.capacity, length=self.rules.turn)
        going = [player for player in self._turns if player in before]
        for player in self._turns:
            if player not in before:
                self._roster.begin_turn(player, going)

    def _note_qualities(self, match: Match) -> None:
        first = self.players.get(match.sides[0].stands_for or "")
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
            for player in ended.match.sides[0].trainees:
                self._roster.play(
                    player,
                    event.result.episodes,
                    event.result.score_sum[0],
                    event.result.score_square_sum[0],
                    fade,
                )

    def _check_rules(self) -> None:
        """Try every role on the players that the league begins with."""
        self.rules.require_model_ids()
        trial = Roster(self.rules, self.seed)
        for joined, event in enumerate(self.initial_events()):
            trial.add(event, joined)
        for standing in trial.standings.values():
            self._try_role(self.rules.roles[standing.player.role], standing, trial.candidates, self.payoff)
