"""The controller: issues matches, records results, freezes and resets players. It writes to the ledger first."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    ModelId,
    PlayerAbsent,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    PlayerReturned,
    Result,
    RunStarted,
    ScoreMeasured,
    Settings,
    SettingsChanged,
)
from ludus.data.trees import Tree
from ludus.league.league import League
from ludus.league.matches import MatchConflictError, OpenMatch, check_result
from ludus.league.players import BY_HAND, FINAL, FROZEN, POPULATION, RETIRED, Player
from ludus.league.promotion import Snapshot
from ludus.league.rules import EvaluationConfig
from ludus.league.summary import due_retirements, named_models
from ludus.league.takeovers import Takeover, due_takeovers, is_frozen_now, reset_for
from ludus.store.ledger import Ledger
from ludus.store.model_pool import ModelPool, ModelPoolError, require_pinned
from ludus.system.text import shortened
from ludus.workers.config import Supervision
from ludus.workers.evaluator import EvaluationBook, Evaluator
from ludus.workers.worker import IDLE, Progress, TrainingFailed


def unreadable_models(league: League, models: ModelPool, players: Collection[str] | None = None) -> dict[str, str]:
    """Frozen players, of these or of all, whose weights cannot be read, and why."""
    found = {}
    for player in (*league.candidates.frozen(), *league.absent):
        if players is not None and player not in players:
            continue
        try:
            _fetch(league.players[player], models)
        except ModelPoolError as error:
            found[player] = str(error)
    return found


def _fetch(player: Player, models: ModelPool) -> tuple[ModelId, Tree]:
    if player.model is None:
        raise ValueError(f"player {player.id!r} ({player.role}) has no frozen weights")
    model = ModelId.parse(player.model)
    weights = models.fetch(model, player.weights)
    require_pinned(models, model, player)
    return model, weights


class Controller:
    """Owns the ledger. Also the actors' `MatchClient` and their source of frozen models."""

    def __init__(
        self,
        *,
        league: League,
        ledger: Ledger,
        models: ModelPool,
        learner: LearnerClient,
        evaluator: Evaluator,
        evaluations: EvaluationBook,
        episodes_per_table: int,
        most_void: int = Supervision().most_void,
        name: str = "controller",
        holder: str = "actor",
    ) -> None:
        self.name = name
        self.league = league
        self._ledger = ledger
        self._models = models
        self._learner = learner
        self._evaluator = evaluator
        self._evaluations = evaluations
        self._episodes_per_table = episodes_per_table
        self._holder = holder
        self._most_void = most_void
        self._void_of: Counter[str | None] = Counter()
        """By actor: its matches that the game has made void since a match was last finished."""
        self._next_match_id = ledger.next_match_id()
        self._retired: dict[str, int] = {}
        """Snapshots that left, whose weights are to be deleted, and the row in which they did."""
        self._retired_until = 0
        """The last row that was searched for them."""
        self.episodes = EpisodeStatistics()
        self.clock = TrainingClock(league.seconds)

    def start(self, start: int, reason: str = "restart") -> list[PlayerAbsent | PlayerReturned]:
        """Start a run, or start it again, which voids open matches. Returns frozen players that have become absent
        because their weights cannot be read, and those that have returned."""
        if start:
            self._ledger.void_open(reason)
            self.follow_ledger()
        self._commit([RunStarted(start)])
        self._commit(self.league.initial_events())
        return self.check_frozen()

    def check_frozen(self, suspects: Collection[str] | None = None) -> list[PlayerAbsent | PlayerReturned]:
        """Read the weights of all frozen players. Those whose weights cannot be read are absent until they can. With
        `suspects`, theirs are read first, and the others only if one of theirs cannot be read."""
        if suspects is not None and not unreadable_models(self.league, self._models, suspects):
            return []
        unreadable, absent = unreadable_models(self.league, self._models), self.league.absent
        events: list[PlayerAbsent | PlayerReturned] = [
            *(PlayerAbsent(player, why) for player, why in unreadable.items() if player not in absent),
            *(PlayerReturned(player) for player in absent if player not in unreadable),
        ]
        self._commit(events)
        self._evaluations.move_best(self.league, self.league.standings)
        return events

    def repeat_resets(self, after: int, player: str | None = None) -> None:
        """Repeat the resets after event `after`, at which the learner's checkpoint was made; of one player or all."""
        for _, event in self._ledger.replay(after=after):
            if not isinstance(event, PlayerReset) or event.player not in self.league.standings:
                continue
            if player in (None, event.player):
                self._learner.reset(event)

    def configure_learner(self) -> None:
        self._configure(self.league.standings)

    def follow_ledger(self) -> None:
        """Apply events of the ledger that the league has not applied yet."""
        self._ledger.fold(self.league.apply, after=self.league.num_events)

    def next_match(self, tables: int, holder: str | None = None) -> Match:
        match = self.next_evaluation(tables, holder)
        return match or self.next_trainings(tables, [None], holder)[0]

    def next_evaluation(self, tables: int, holder: str | None = None) -> Match | None:
        """The next match that measures; None if none is due."""
        sides = self._evaluator.next_sides()
        if sides is None:
            return None
        episodes = self._evaluator.episodes_per_table(tables)
        match = self.league.evaluation_match(self._next_match_id, sides, tables=tables, episodes_per_table=episodes)
        return self._issue([match], holder)[0]

    def next_trainings(self, tables: int, players: Sequence[str | None], holder: str | None = None) -> list[Match]:
        """A training match of each of these learning players; None: of the one whose turn it is."""
        matches = [
            self.league.next_match(match_id, tables=tables, episodes_per_table=self._episodes_per_table, player=player)
            for match_id, player in enumerate(players, self._next_match_id)
        ]
        return self._issue(matches, holder)

    def _issue(self, matches: list[Match], holder: str | None) -> list[Match]:
        self._next_match_id += len(matches)
        leased = holder or self._holder
        self._commit([event for match in matches for event in (MatchIssued(match), MatchLeased(match.id, leased))])
        return matches

    def report(self, result: Result) -> None:
        """Record the end of a match; when this returns, it is on disk. It is void if a score is not finite or a player
        was reset meanwhile. A result that does not fit is refused; one that is sent twice changes nothing."""
        self.report_all([result])

    def report_all(self, results: Sequence[Result]) -> None:
        """Record the ends of matches as `report` does, those that count in one commit."""
        finished: list[tuple[Match, Result]] = []
        events: list[AnyEvent] = []
        void: dict[int, str] = {}
        for result in results:
            held = self._held(result)
            if held is None:
                continue
            if reason := _unusable(held.match, result):
                void[result.match_id] = reason
            elif held.stale:
                events.append(MatchVoid(result.match_id, "a player was reset"))
            else:
                score = [self._score(held.match, result)] if self._evaluator.is_score(held.match) else []
                events += [MatchFinished(result), *score]
                finished.append((held.match, result))
        self._commit(events)
        if finished:
            self._void_of.clear()
        for match, result in finished:
            self.episodes.note(match, result)
            if match.purpose == "evaluation":
                self._evaluations.note(self.league, match, result)
        for match_id, reason in void.items():
            self.void_match(match_id, reason)

    def _held(self, result: Result) -> OpenMatch | None:
        """The open match of a result; None if the result was recorded already."""
        try:
            return self.league.matches.find(result.match_id)
        except MatchConflictError:
            if self._ledger.end_of(result.match_id) == MatchFinished(result):
                return None
            raise

    def void(self, holder: str | None, reason: str) -> list[int]:
        """Void all matches of a holder that is gone (None: of all holders); returns their ids."""
        matches = self.league.matches.open_matches
        held = [number for number, entry in matches.items() if holder in (None, entry.holder)]
        self._commit([MatchVoid(number, shortened(reason)) for number in held])
        return held

    def void_match(self, match_id: int, reason: str, *, by_game: bool = True) -> None:
        """End a match whose tables (or models: not `by_game`) were lost, without a result. Raises `TrainingFailed` if
        the game makes one match after the other void and none is finished: only the ledger would grow."""
        holder = self.league.matches.find(match_id).holder
        reason = shortened(reason)
        self._commit([MatchVoid(match_id, reason)])
        self._void_of[holder] += by_game
        if self._void_of[holder] >= self._most_void:
            raise TrainingFailed(
                f"{self.void_in_a_row:,} matches in a row are void and none is finished (supervision.most_void), at "
                f"last: {reason}. `ludus check GAME` plays the game alone and says what is wrong with it"
            )

    @property
    def void_in_a_row(self) -> int:
        """Matches that the game has made void since one was last finished."""
        return self._void_of.total()

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]:
        return _fetch(self.league.players[player], self._models)

    def step(self) -> Progress:
        """Record the learners' progress, which it consumes as counters; freeze and reset players that are due."""
        news = self.record_progress()
        if not news:
            return IDLE
        # Chosen by this progress: a snapshot may report newer progress, and no player is judged twice by the same.
        takeovers = due_takeovers(self.league, {event.player for event in news})
        for snapshot in self.league.due_snapshots():
            self._freeze(snapshot)
            self._retire(snapshot.parent)
        for reset in self.league.due_resets():
            self._reset(reset)
        for takeover in takeovers:
            self._take_over(takeover)
        return Progress(count=len(news))

    def record_progress(self) -> list[LearnerProgress]:
        """Record what the learners have reported and the ledger does not have yet; returns that."""
        progress = {player: self._learner.report(player) for player in self.league.standings}
        news = [event for player, event in progress.items() if not self._is_known(player, event)]
        self._note_progress(news)
        return news

    def freeze_all(self) -> None:
        """Freeze every player that has learned since its last snapshot or reset, at the end of training."""
        self.step()
        for player, standing in list(self.league.standings.items()):
            if standing.decisions != standing.interval_start:
                self._freeze(self.league.snapshot_of(player, Snapshot(reason=FINAL)))

    def edit(self, events: Sequence[AnyEvent]) -> None:
        """Commit the events of a user's edit, all or none, and inform the learner."""
        hosted = list(self.league.standings)
        self._commit(events)
        for event in events:
            if isinstance(event, PlayerReset):
                self._learner.reset(event)
        if any(isinstance(event, SettingsChanged) for event in events):
            self._configure(hosted)
        if any(isinstance(event, PlayerRemoved) for event in events):  # the removed player may have been the best
            self._evaluations.move_best(self.league, self.league.standings)

    def freeze_by_hand(self, player: str) -> PlayerAdded:
        """Add a snapshot of the player's current weights to the league."""
        return self._freeze(self.league.snapshot_of(player, Snapshot(reason=BY_HAND)))

    def record_game(self, sides: Sequence[Sequence[str]], result: Result | None, void: str) -> int:
        """Record a game of a human as a match, in one commit; returns the id of the match."""
        number = self._next_match_id
        match = self.league.evaluation_match(number, sides, tables=1, episodes_per_table=1, purpose="human")
        end: AnyEvent = MatchVoid(number, void)
        if result is not None:
            end = MatchFinished(msgspec.structs.replace(result, match_id=number))
            check_result(match, end.result)
        self._next_match_id += 1
        self._commit([MatchIssued(match), end])
        return number

    def publish(self, player: str) -> ModelId:
        """Put a learning player's current weights into the pool, without adding a player."""
        event = self._store(self.league.snapshot_of(player, Snapshot(reason=BY_HAND)))
        assert event.model is not None
        return ModelId.parse(event.model)

    def change_evaluation(self, config: EvaluationConfig) -> None:
        self._evaluator = Evaluator(config, self.league)

    @property
    def is_measuring(self) -> bool:
        """Whether evaluation matches are due or open."""
        return self._evaluator.is_busy

    def close(self) -> None:
        self._ledger.close()

    def _commit(self, events: Sequence[AnyEvent]) -> None:
        if events:
            events = [self._with_digest(event) for event in events]
            self._ledger.append(events)
            for event in events:
                self.league.apply(event)

    def _with_digest(self, event: AnyEvent) -> AnyEvent:
        """Name the weights of a player that is frozen, so that those of another run are not taken for them."""
        if not isinstance(event, PlayerAdded) or event.role != FROZEN or event.model is None:
            return event
        try:
            digest = self._models.entry(ModelId.parse(event.model), event.weights).digest
        except ModelPoolError:  # it is absent from the start, which is told
            return event
        return msgspec.structs.replace(event, digest=digest)

    def _configure(self, players: Iterable[str]) -> None:
        for player in players:
            if settings := self.league.settings_of(player):
                self._learner.configure(player, settings)

    def _freeze(self, event: PlayerAdded) -> PlayerAdded:
        stored = self._store(event)
        self._commit([stored])
        return stored

    def _store(self, event: PlayerAdded) -> PlayerAdded:
        """Put the weights of a snapshot into the pool; returns the event for the weights that were stored."""
        assert event.parent is not None
        ancestor = self.league.standings[event.parent].ancestor
        report = self._learner.freeze(event.parent, ModelId.parse(ancestor) if ancestor else None)
        if not self._is_known(event.parent, report):  # it has learned since its last report
            self._note_progress([report])
            event = self.league.snapshot_of(event.parent, Snapshot(reason=event.reason))
        return event

    def _note_progress(self, reports: Sequence[LearnerProgress]) -> None:
        """Commit reports of learners, with the time if a rule reads it: the league has no clock of its own."""
        if self.league.is_timed:
            seconds = round(self.clock.seconds, 3)
            reports = [msgspec.structs.replace(report, seconds=seconds) for report in reports]
        self._commit(reports)

    def _retire(self, player: str | None) -> None:
        """Remove the snapshots of a player that its role's history has no room for."""
        if player is not None and (events := due_retirements(self.league, player)):
            self._commit(events)
            self._evaluations.move_best(self.league, [player])

    def delete_retired(self, before: int) -> None:
        """Delete the weights of snapshots that left the league up to row `before`, where the history of their role says
        so and nothing names them. It follows from the ledger, so what a kill leaves over is deleted after a restart."""
        rules = self.league.rules.roles
        deleting = {name for name, role in rules.items() if role.history is not None and role.history.delete_models}
        if not deleting:
            return
        for row, event in self._ledger.absences(self._retired_until):
            if isinstance(event, PlayerRemoved) and event.reason == RETIRED:
                self._retired[event.player] = row
        self._retired_until = self._ledger.position[0]
        players, named = self.league.players, named_models(self.league)
        due = {
            player: ModelId.parse(model)
            for player, row in self._retired.items()
            if row <= before
            and players[player].parent_role in deleting
            and (model := players[player].model) is not None
            and model not in named
        }
        held = self._models.discard(due.values())
        for player, its_model in due.items():
            if its_model not in held:
                del self._retired[player]

    def _take_over(self, takeover: Takeover) -> None:
        """Commit the donor's snapshot, if it is new, and the reset together, so that a kill never parts them."""
        pair = (takeover.player, takeover.donor)
        if any(self.league.standings[player].latest_model is None for player in pair):
            return
        frozen: list[AnyEvent] = []
        if not is_frozen_now(self.league, takeover.donor):
            frozen = [self._store(self.league.snapshot_of(takeover.donor, Snapshot(reason=POPULATION)))]
        self._reset(reset_for(self.league, takeover), frozen)

    def _reset(self, event: PlayerReset, before: Sequence[AnyEvent] = ()) -> None:
        self._commit([*before, event])
        self._learner.reset(event)
        if event.settings:
            self._learner.configure(event.player, self.league.settings_of(event.player))

    def _is_known(self, player: str, event: LearnerProgress) -> bool:
        standing = self.league.standings[player]
        known = (standing.incarnation, standing.step, standing.decisions)
        return known == (event.incarnation, event.step, event.decisions)

    def _score(self, match: Match, result: Result) -> ScoreMeasured:
        mean, standard_error = result.mean_score(0)
        return ScoreMeasured(
            player=match.sides[0].players[0],
            model=result.last_models[0],
            mean=mean,
            standard_error=standard_error,
            episodes=result.episodes,
        )


def _unusable(match: Match, result: Result) -> str:
    """Why a match has no result, if so. Raises if the result does not fit the match."""
    if not all(map(math.isfinite, (*result.score_sum, *result.score_square_sum))):
        return "a score is not finite"
    check_result(match, result)
    return "" if any(result.decisions) else "every episode ended at reset, before any seat could decide"


class TrainingClock:
    """Seconds that a run has trained, over all its starts; a pause does not count."""

    def __init__(self, before: float = 0.0) -> None:
        """`before`: seconds of earlier starts, as the ledger has them."""
        self._counted, self._since = before, time.monotonic()
        self._is_held = False

    @property
    def seconds(self) -> float:
        return self._counted + (0.0 if self._is_held else time.monotonic() - self._since)

    def hold(self, held: bool) -> None:
        """Stop for a pause, or go on after it."""
        self._counted, self._since, self._is_held = self.seconds, time.monotonic(), held


class LearnerClient(Protocol):
    """A learner, as the controller reaches it."""

    def report(self, player: str) -> LearnerProgress: ...
    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        """Put the player's live and averaged weights into the model pool; returns its progress."""

    def reset(self, event: PlayerReset) -> None:
        """Restart a player from the weights that the event names."""

    def configure(self, player: str, settings: Settings) -> None:
        """Change settings of the experiment for one player."""


class EpisodeStatistics:
    """Means over the episodes of matches that have ended since they were last taken."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._episodes: Counter[str] = Counter()
        self.total = 0
        """Episodes of all matches, also those taken before."""

    def note(self, match: Match, result: Result) -> None:
        """Add the result of a match for every player that trains in it."""
        self.total += result.episodes
        for index, side in enumerate(match.sides):
            measured = {"episode_score": result.score_sum[index], "episode_length": float(result.steps)}
            if result.reward_sum:
                measured["episode_reward"] = result.reward_sum[index]
            for player in set(side.trainees):
                for name, value in measured.items():
                    self._sums[f"{player}/{name}"] += value
                    self._episodes[f"{player}/{name}"] += result.episodes

    def take(self) -> dict[str, float]:
        """The means by PLAYER/STATISTIC, of players with episodes since the last call."""
        found = {name: total / self._episodes[name] for name, total in self._sums.items()}
        self._sums.clear()
        self._episodes.clear()
        return found
