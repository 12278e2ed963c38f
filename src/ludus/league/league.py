"""The league: a fold over ledger events. Only `apply` changes its state, so a replay reproduces it bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import msgspec
import numpy as np
from msgspec import structs

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    LossAccepted,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    PlayerAbsent,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    PlayerReturned,
    Purpose,
    Result,
    RunStarted,
    ScoreMeasured,
    Settings,
    SettingsChanged,
    Side,
)
from ludus.data.search import split_search
from ludus.data.unread import UnreadError
from ludus.league.matches import MatchBook, MatchState, changed_incarnation, check_match
from ludus.league.matchmaking import Candidates, Law
from ludus.league.payoff import Payoff, PayoffBook
from ludus.league.players import EXTERNAL, FROZEN, INITIAL, SCRIPTED, Descent, Player, Standing, match_generator
from ludus.league.promotion import Snapshot, is_timed
from ludus.league.quality import QualityBook, QualityState, quality_rules
from ludus.league.role_scores import RoleScores
from ludus.league.roster import Roster, SavedRoster, next_turns
from ludus.league.rules import OWN_PARTS, LeagueRules, Role, check_line_up, make_sides, seat_players

LEAGUE_PATH = "league."
"""Path of the league's rules in an experiment."""

ChangeRules = Callable[[LeagueRules, Settings], LeagueRules]
"""Returns the rules with the settings applied, by path inside the rules."""


def _no_change(rules: LeagueRules, settings: Settings) -> LeagueRules:
    raise ValueError(f"this league cannot change its rules, asked for {settings}")


def later_settings(before: Settings, after: Settings) -> Settings:
    """Both merged; a later setting replaces the earlier ones at its path and below."""
    kept = {
        path: value
        for path, value in before.items()
        if not any(path == later or path.startswith(f"{later}.") for later in after)
    }
    return {**kept, **after}


class SavedLeague(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a league as plain values: what `League.load` needs beside the rules to go on from there."""

    num_events: int
    starts: int
    roster: SavedRoster
    matches: MatchState
    qualities: QualityState
    payoffs: bytes
    role_scores: bytes
    lineage: dict[str, list[Descent]]
    settings: Settings
    own_settings: dict[str, Settings]
    turns: dict[str, int]
    rule_changes: list[Settings]


class League:
    """Players, matches and payoffs, folded from the ledger. Every draw is seeded by the run's seed and what it is for,
    so that a decision interrupted by a crash comes out the same when it is repeated."""

    def __init__(
        self,
        rules: LeagueRules,
        *,
        num_teams: int,
        seats_per_team: tuple[int, ...],
        seed: int,
        change_rules: ChangeRules = _no_change,
        checked: bool = True,
    ) -> None:
        """`checked`: try every rule once, so that a misspelt name fails here. A reader does not import users' rules."""
        if num_teams < 1 or len(seats_per_team) != num_teams or min(seats_per_team) < 1:
            raise ValueError(f"{num_teams} teams need as many seat counts of at least 1, got {seats_per_team}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"the run's seed must be from 0 to 2**64 - 1, got {seed}")
        self.rules = rules
        self.num_teams = num_teams
        self.seats_per_team = seats_per_team
        self.seed = seed
        self.matches = MatchBook()
        self.payoffs = PayoffBook(rules.payoff)
        self.role_scores = RoleScores(rules.payoff)
        """From training and evaluation together; empty unless the game compares roles."""
        self._roster = Roster(rules, seed)
        self.players: Mapping[str, Player] = self._roster.players
        """Every player that ever joined, including removed ones, in joining order."""
        self.standings: Mapping[str, Standing] = self._roster.standings
        """The state of each current learning player."""
        self.scores: Mapping[str, ScoreMeasured] = self._roster.scores
        """The latest measured score by player, for games with one team."""
        self.absent: Mapping[str, str] = self._roster.absent
        """Frozen players whose weights cannot be read, and why."""
        self.lineage: dict[str, list[Descent]] = {}
        """The descents of every learning player that ever joined, oldest first."""
        self._qualities = QualityBook(quality_rules(rules.roles))
        self._change_rules = change_rules
        self._settings: Settings = {}
        self._rule_changes: list[Settings] = []
        """Changes of the rules so far, in order."""
        self._own_settings: dict[str, Settings] = {}
        self._turns: dict[str, int] = {}
        self.num_events = 0
        self.starts = 0
        """How often the run was started, resumes after unclean stops included."""
        self._checked = checked
        if checked:
            self._check_rules()

    @property
    def candidates(self) -> Candidates:
        """The current players, in joining order."""
        return replace(self._roster.candidates, qualities=self._qualities.scores)

    @property
    def active(self) -> tuple[str, ...]:
        """The learning players that get training matches now, in joining order."""
        everyone = self.rules.capacity is None
        return tuple(player for player in self.standings if everyone or player in self._turns)

    @property
    def settings(self) -> Settings:
        """Settings changed for all players since the run began, by path."""
        return dict(self._settings)

    def has_left(self, player: str) -> bool:
        """Whether it was removed from the league. Its weights may be deleted."""
        return self._roster.has_left(player)

    def role_of(self, player: str) -> str | None:
        """The role of a learning player that is or was in the league; None for any other."""
        known = self.players.get(player)
        return known.role if known is not None and known.learning else None

    def settings_of(self, player: str) -> Settings:
        """Settings changed for this player, its role or all. Its own take precedence, then those of its role, which
        stand at the paths of the part that they replace (`learner.learning_rate`)."""
        role = self.players[player].role
        own = [part for part in OWN_PARTS if getattr(self.rules.roles[role], part) is not None]
        of_role = {
            path.removeprefix(f"{LEAGUE_PATH}roles.{role}."): value
            for path, value in self._settings.items()
            if path.startswith(tuple(f"{LEAGUE_PATH}roles.{role}.{part}" for part in own))
        }
        of_all = {path: value for path, value in self._settings.items() if path.partition(".")[0] not in own}
        return later_settings(later_settings(of_all, of_role), self.own_settings(player))

    def own_settings(self, player: str) -> Settings:
        """Settings changed for this player only."""
        return dict(self._own_settings.get(player, {}))

    @property
    def decisions_of_removed(self) -> int:
        """Decisions that removed learning players had trained on; they count towards the budget."""
        return self._roster.decisions_of_removed

    @property
    def payoff(self) -> Payoff:
        """The payoff that matchmaking and promotion read."""
        return self.payoffs.view(self.rules.decide_on)

    def state_digest(self) -> str:
        state = (
            (self.num_events, self.starts),
            self._roster.state(),
            self._qualities.state(),
            self.matches.state(),
            self.payoffs.fingerprint() + self.role_scores.fingerprint(),
            list(self._turns.items()),
            sorted(self._settings.items()),
            [(player, sorted(own.items())) for player, own in sorted(self._own_settings.items())],
        )
        return hashlib.blake2b(msgspec.msgpack.encode(state), digest_size=16).hexdigest()

    def save(self) -> SavedLeague:
        return SavedLeague(
            num_events=self.num_events,
            starts=self.starts,
            roster=self._roster.save(),
            matches=self.matches.state(),
            qualities=self._qualities.state(),
            payoffs=self.payoffs.fingerprint(),
            role_scores=self.role_scores.fingerprint(),
            lineage=self.lineage,
            settings=self._settings,
            own_settings=self._own_settings,
            turns=self._turns,
            rule_changes=self._rule_changes,
        )

    def load(self, saved: SavedLeague) -> None:
        """Become the league that was saved, as if its events had been applied. This league is new and has the rules
        that the other one began with."""
        for change in saved.rule_changes:
            self._change_league_rules(change)
        self._roster.load(saved.roster)
        self.matches.load(saved.matches)
        self._qualities.load(saved.qualities)
        self.payoffs.load(saved.payoffs)
        self.role_scores.load(saved.role_scores)
        self.lineage |= saved.lineage
        self._settings, self._own_settings, self._turns = saved.settings, saved.own_settings, saved.turns
        self.num_events, self.starts = saved.num_events, saved.starts

    def apply(self, event: AnyEvent) -> None:
        """Fold one ledger event. If it raises, the league is unchanged."""
        match event:
            case MatchIssued(match=issued):  # those of matches first: nearly all events are theirs
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
            case RunStarted(start=start):
                self._start_run(start)
            case PlayerAdded():
                self._roster.add(event, joined=self.num_events)
                self._qualities.join(self.players[event.player], self._roster.candidates)
                self._keep_settings(event.player, event.settings)
                if self.players[event.player].learning:
                    self.lineage[event.player] = [Descent.of(event, 0, event.settings)]
            case PlayerRemoved(player=player):
                self._roster.remove(player)
                self._forget_games(player)
            case PlayerAbsent():
                self._roster.leave(event)
            case PlayerReturned(player=player):
                self._roster.come_back(player)
            case PlayerReset():
                self._reset_player(event)
            case SettingsChanged():
                self._change_settings(event)
            case LearnerProgress():
                self._roster.progress(event)
            case LossAccepted(models=models):
                for player in models:
                    self._roster.standing(player)
                for player, model in models.items():
                    self.lineage[player].append(
                        Descent.after_loss(event, model, self.standings[player], self.own_settings(player))
                    )
            case ScoreMeasured():
                self._roster.measure(event)
            case _:
                assert_never(event)
        if self._turns or self.rules.capacity is not None:
            self._pass_turns()
        self.num_events += 1

    def initial_events(self) -> list[PlayerAdded]:
        """Events that add the players of the rules which never joined, learning players first."""
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
            PlayerAdded(player=player, role=FROZEN, model=split_search(model)[0], reason=EXTERNAL)
            for player, model in self.rules.external.items()
        ]
        return [event for event in wanted if event.player not in self.players]

    def new_settings(self, role: str, player: str) -> Settings:
        """The player's own settings at its start, drawn by its role's population."""
        population = self.rules.roles[role].population
        return {} if population is None else population.new_settings(self.seed, player)

    def next_match(self, match_id: int, *, tables: int, episodes_per_table: int, player: str | None = None) -> Match:
        """A training match for `player` or the active player with the fewest issued episodes, as side 0. Its role's
        matchmaking draws opponents until every team has a side, its line-up fills the seats beside them, and
        `Role.trains` says which active players train."""
        self.matches.check_new(match_id)
        if not self.standings:
            raise ValueError("the league has no learning player to make a match for")
        active = (self.standings[player] for player in self.active)
        if player is None:
            learner = min(active, key=lambda s: (s.episodes_issued, s.matches_issued, s.player.joined)).player
        else:
            learner = self._roster.standing(player).player
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
        """A match in which no player trains. A side is one player, or one player per seat of its team."""
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

    def shown_law(self, player: str) -> Law | None:
        """The same; None where the rule is code that was not imported."""
        try:
            return self.opponent_law(player)
        except UnreadError:
            return None

    def due_snapshots(self) -> list[PlayerAdded]:
        """The snapshots to take now. Players with a pending reset are skipped."""
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

    @property
    def is_timed(self) -> bool:
        """Whether a promotion rule reads the time, which rows of progress have to hold then."""
        return any(is_timed(role.promotion) for role in self.rules.roles.values())

    @property
    def seconds(self) -> float:
        """Seconds that the run had trained at the latest report that says so."""
        return max((standing.seconds for standing in self.standings.values()), default=0.0)

    def due_resets(self) -> list[PlayerReset]:
        return [self.reset_of(standing) for standing in self.standings.values() if standing.reset_pending]

    def reset_of(self, standing: Standing) -> PlayerReset:
        """The event that resets a learning player as its role says."""
        role = self.rules.roles[standing.player.role]
        return PlayerReset(
            player=standing.player.id,
            incarnation=standing.incarnation + 1,
            model=role.restart.model(standing, self.candidates, self.payoff),
            value_only=role.after_reset.value_only_decisions,
        )

    def _start_run(self, start: int) -> None:
        if start != self.starts:
            raise ValueError(f"the run has started {self.starts} times, but the event says start={start}")
        self.starts += 1
        self.matches.restart()
        self._qualities.restart()

    def _reset_player(self, event: PlayerReset) -> None:
        self._roster.reset(event)
        self._turns.pop(event.player, None)
        self._keep_settings(event.player, event.settings)
        decisions = self.standings[event.player].decisions
        self.lineage[event.player].append(Descent.of(event, decisions, self.own_settings(event.player)))
        after = self.rules.roles[self.players[event.player].role].after_reset
        if after.clear_payoff or event.donor is not None:
            self._forget_games(event.player)
            self._qualities.forget(event.player)
        self.matches.outdate(event.player)

    def _forget_games(self, player: str) -> None:
        self.payoffs.forget(player)
        self.role_scores.forget(player)

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
            self._change_league_rules(of_league)
        self._settings = later_settings(self._settings, event.settings)

    def _change_league_rules(self, settings: Settings) -> None:
        """`settings`: by path inside the rules."""
        rules = self._change_rules(self.rules, settings)
        rules.require_model_ids()
        if self._checked:
            self._check_changed(rules)
        self.rules = rules
        self._rule_changes.append(settings)
        self._roster.change_rules(rules)
        self._qualities.rules = quality_rules(rules.roles)
        self.payoffs.change_rules(rules.payoff)
        self.role_scores.change_rules(rules.payoff)

    def check_players(self) -> None:
        """Raise if a learning player cannot continue, because its role names a missing player or opponent."""
        self._check_changed(self.rules)
        for player in self.standings if self.num_teams > 1 else ():
            for opponent in self.opponent_law(player):
                if opponent not in self.candidates:
                    raise ValueError(f"{player!r} is to meet {opponent!r}, who is not in the league")

    def _check_changed(self, rules: LeagueRules) -> None:
        """Raise if a current player cannot continue under these rules."""
        candidates = replace(self.candidates, roles=tuple(rules.roles))
        payoff = self.payoffs.view(rules.decide_on)
        for player, standing in self.standings.items():
            if standing.player.role not in rules.roles:
                raise ValueError(f"role {standing.player.role!r} cannot go: {player!r} plays it")
            self._try_role(rules.roles[standing.player.role], standing, candidates, payoff)

    def _try_role(self, role: Role, standing: Standing, candidates: Candidates, payoff: Payoff) -> None:
        """Evaluate the role's rules once, so that a misspelt name fails here."""
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
        if match.purpose != "training" or not self._qualities.rules:
            return
        first = self.players.get(match.sides[0].stands_for or "")
        if first is not None:
            self._qualities.issue(match, first.role, self._roster.candidates)

    def _finish_match(self, event: MatchFinished) -> None:
        """Fold a result, unless a player of the match was reset since it was issued or while it was played."""
        ended = self.matches.finish(event.result)
        if ended.stale or changed_incarnation(event.result):
            self._qualities.cancel(event.result.match_id)
            return
        self._qualities.finish(event.result)
        result = self._among_members(ended.match, event.result)
        self.payoffs.record(ended.match, result)
        if ended.match.purpose != "human":
            self.role_scores.record(ended.match, result)
        if self.num_teams == 1 and ended.match.purpose == "training":
            fade = self.rules.payoff.fade(event.result.episodes)
            for player in ended.match.sides[0].trainees:
                self._roster.play(player, event.result, fade)

    def _among_members(self, match: Match, result: Result) -> Result:
        """The result without the pairs of a player that has left the league since the match was issued."""
        left = {index for index, side in enumerate(match.sides) if self.has_left(side.stands_for or "")}
        if not left:
            return result
        return structs.replace(result, pairs=tuple(p for p in result.pairs if not left & {p.side, p.other}))

    def _check_rules(self) -> None:
        """Try every role on the league's initial players."""
        self.rules.require_model_ids()
        trial = Roster(self.rules, self.seed)
        for joined, event in enumerate(self.initial_events()):
            trial.add(event, joined)
        for standing in trial.standings.values():
            self._try_role(self.rules.roles[standing.player.role], standing, trial.candidates, self.payoff)
