"""Games of a run that are recorded to be looked at: after each evaluation match of a training one more game between the
same players, and any game that somebody asks for on the dashboard."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from ludus.data.records import Match
from ludus.data.trees import Tree
from ludus.evaluation.play.house import PERSON, Kept, Opponents, PlayHost
from ludus.evaluation.play.replays import drawing_of
from ludus.evaluation.play.session import PolicyOutput, SeatedOpponent, within
from ludus.evaluation.play.views import GameView, find_view, has_own_view, named_choice, written_numbers
from ludus.experiment import Experiment
from ludus.games.game import GameBatch, GameSource, NeedsMore, Seat, allocate_actions, lost_tables
from ludus.games.isolation.isolated import Isolated
from ludus.games.pictures import written_score
from ludus.games.recording import innermost
from ludus.games.remote.engine import Engine
from ludus.games.remote.source import Remote
from ludus.games.seat_rows import GameError
from ludus.games.tables import WrappedTables
from ludus.league.matches import first_players
from ludus.observe.recorded_games import (
    GameFolder,
    GameLine,
    GameList,
    GameMove,
    GamePlayer,
    GameRecord,
    GameStep,
    encode_game,
    next_name,
)
from ludus.runtime.assemble import load_experiment, load_players, load_state
from ludus.runtime.coordinator import Training
from ludus.runtime.faults import Fault
from ludus.store.run_folder import RunFolder, trusting
from ludus.workers.player_cache import SeatedPlayer

FEWEST_STEPS = 160
"""A longer game is thinned out: it keeps at least so many of its steps, and at most twice as many."""
MOST_OPTIONS = 8
"""Options of a decision that are kept with their probabilities."""
TABLE = np.array([0])


@dataclass(frozen=True, kw_only=True)
class TeamPlayer:
    """A player of one team."""

    name: str
    seated: SeatedPlayer
    weights: str | None = None


class TooSlow(GameError):  # noqa: N818
    """A game took more processor time than it may."""


def play_game(source: GameSource, entrants: Sequence[TeamPlayer], *, seed: int, seconds: float) -> GameRecord:
    """Play one game and record it. `entrants`: by team. Raises TooSlow after so many seconds of processor time."""
    began = time.thread_time()
    with closing(source.tables(1)) as tables:
        spec, table = tables.spec, tables.view
        opponents = [SeatedOpponent(one.seated, seed=_seed(seed, team)) for team, one in enumerate(entrants)]
        film = _Film(tables, find_view(source), drawn=has_own_view(source))
        actions = allocate_actions(spec, 1)
        tables.reset(TABLE, np.array([seed], np.uint64))
        film.begin()
        while not (table.over[0] or table.truncated[0]):
            acting = np.flatnonzero(table.to_act[0]).tolist()
            decided: dict[Seat, tuple[Tree, PolicyOutput | None]] = {}
            for team, opponent in enumerate(opponents):
                if seats := [seat for seat in acting if spec.teams[seat] == team]:
                    decided |= opponent.decide(tables, seats)
            film.decide(decided)
            for seat, (tree, _) in decided.items():
                for head, array in actions[spec.seats[seat]].items():
                    array[0, spec.column_of_seat[seat]] = tree[head][0]
            tables.step(actions)
            if reason := lost_tables(tables).get(0):
                raise GameError(f"{spec.name}: the table was lost: {reason}")
            film.step()
            if time.thread_time() - began > seconds:
                raise TooSlow(f"a game of {spec.name} takes more than {seconds:g} s")
        score = table.score[0].tolist()
    players = [
        GamePlayer(name=one.name, model=one.seated.model_name, weights=one.weights)
        for one in (entrants[team] for team in spec.teams)
    ]
    return film.finish(players, score, [one.name for one in entrants])


class _Film:
    """The steps of a game as they are kept."""

    def __init__(self, tables: GameBatch, view: GameView, *, drawn: bool) -> None:
        self._tables = tables
        self._plain = _plain(tables)
        self._view = view
        self._drawn = drawn
        self._steps: list[GameStep] = []
        self._moves: list[GameMove] = []
        """Since the last step that was kept."""
        self._latest: int | None = None
        self._number = self._decisions = 0
        self._every = 1

    def begin(self) -> None:
        self._keep()

    def decide(self, decided: Mapping[Seat, tuple[Tree, PolicyOutput | None]]) -> None:
        """Before the table is stepped: what an option is called may depend on the position."""
        new = [self._move(seat, tree, output) for seat, (tree, output) in sorted(decided.items())]
        self._decisions += len(new)
        self._latest = _first(next(iter(decided.values()))[0]) if len(decided) == 1 else None
        if self._view.real_time:  # most decisions let things go on
            seats = {move.seat for move in new}
            self._moves = [move for move in self._moves if move.seat not in seats]
        self._moves += new

    def step(self) -> None:
        self._number += 1
        table = self._tables.view
        if self._number % self._every == 0 or table.over[0] or table.truncated[0]:
            self._keep()

    def finish(self, players: Sequence[GamePlayer], score: Sequence[float], names: Sequence[str]) -> GameRecord:
        """`score` and `names`: by team."""
        return GameRecord(
            game=self._tables.spec.name,
            players=list(players),
            teams=list(self._tables.spec.teams),
            score=[written_score(one) for one in score],
            points=list(score),
            outcome=_outcome(score, names),
            decisions=self._decisions,
            every=self._every,
            score_range=self._view.score_range,
            real_time=self._view.real_time,
            steps=self._steps,
        )

    def _keep(self) -> None:
        view = self._view.show(self._plain, None, self._latest) if self._drawn else None
        self._steps.append(GameStep(view=view, done=self._moves))
        self._moves = []
        if len(self._steps) > 2 * FEWEST_STEPS:
            self._every *= 2
            pairs = zip(self._steps[1::2], self._steps[2::2], strict=False)
            thinner = [GameStep(view=late.view, done=self._merged(early.done, late.done)) for early, late in pairs]
            self._steps = [self._steps[0], *thinner]

    def _merged(self, early: Sequence[GameMove], late: Sequence[GameMove]) -> list[GameMove]:
        if not self._view.real_time:
            return [*early, *late]
        seats = {move.seat for move in late}
        return [*(move for move in early if move.seat not in seats), *late]

    def _move(self, seat: Seat, tree: Tree, output: PolicyOutput | None) -> GameMove:
        chosen, names = _first(tree), self._names(seat)
        # A head that picks several things, and later heads, are told by their numbers.
        said = named_choice(names, next(iter(tree.values())))
        if not self._drawn:
            more = [f"{head} {written_numbers(array[0, ...])}" for head, array in list(tree.items())[1:]]
            said = ", ".join([said, *more])
        if output is None:
            return GameMove(seat=seat, name=said)
        likely = sorted(range(len(output.probabilities)), key=lambda one: -output.probabilities[one])[:MOST_OPTIONS]
        if 0 <= chosen < len(output.probabilities) and chosen not in likely:
            likely.append(chosen)
        return GameMove(
            seat=seat,
            name=said,
            value=round(within(output.value, self._view.score_range), 4) if np.isfinite(output.value) else None,
            options=[
                (names[one] if one < len(names) else str(one), round(output.probabilities[one], 4))
                for one in likely
                if output.probabilities[one] > 0.0005 or one == chosen
            ],
        )

    def _names(self, seat: Seat) -> Sequence[str]:
        return self._view.options(self._plain, seat)


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _first(action: Tree) -> int:
    """What the first head chose."""
    return int(next(iter(action.values())).flat[0])


def _plain(tables: GameBatch) -> GameBatch:
    """The tables of the game itself: wrappers change what a player sees, not the table."""
    while isinstance(tables, WrappedTables):
        tables = tables.game
    return tables


def _outcome(score: Sequence[float], names: Sequence[str]) -> str:
    if len(score) < 2:
        return "ended"
    best = max(score)
    if score.count(best) > 1:
        return "draw"
    return f"{names[score.index(best)]} wins"


# --- during training ---

SHARE = 0.006
"""Of the time that a run trains, for recording; besides, `FREE_S` for a run that has just begun, and once more at its
end, for the last snapshot."""
FREE_S = 0.1
SLOWEST_S = 5.0
"""Processor time of one game; longer ones are not recorded."""
MOST_WAITING = 64
MOST_SEATED = 8
"""Players that are kept in memory from one game to the next."""
MOST_FAILURES = 3
"""In a row."""
IN_PROCESS = ("openspiel", "pgx", "pettingzoo", "gymnasium", "slimevolley")
"""Adapters whose tables are cheap: no program is started for them."""


def why_not_recorded(source: GameSource) -> str:
    """The reason that no games of this game are recorded during training; empty if they are."""
    inner = innermost(source)
    home, _, module = type(inner).__module__.rpartition(".")
    if isinstance(inner, Isolated | Remote | Engine | NeedsMore) or (
        home.endswith(".adapters") and module not in IN_PROCESS
    ):
        return f"a further table of {source.spec.name} would start a program of its own"
    return "" if source.spec.repeatable else f"games of {source.spec.name} cannot be repeated"


@dataclass(frozen=True, kw_only=True)
class _Due:
    match: int
    sides: tuple[str, ...]
    trained: int
    most: int


class GameRecorder:
    """Records one game per snapshot and opponent while `training` runs, in a thread of the coordinator's process. It
    never holds the training up: what would cost more than its share of the time waits, the newest pair first."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._folder = GameFolder(training.folder.path)
        self._list = GameList()
        self._known: set[tuple[str, ...]] = set()
        self._experiment: Experiment | None = None
        """The recorder's own: the training may play with its game and bots at the same time."""
        self._seated: dict[str, SeatedPlayer] = {}
        """Players of the latest games; those that are evaluated never change."""
        self._due: deque[_Due] = deque(maxlen=MOST_WAITING)
        self._changed = threading.Condition()
        self._is_ending = False
        """The training is over: record what there is time for."""
        self._is_broken_off = False
        """It has failed: record nothing more."""
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._problem = ""
        self._told = False
        self.recorded = 0
        self.seconds = 0.0
        """Processor time that recording has taken."""

    def __enter__(self) -> GameRecorder:
        self._training.on_evaluation = self.evaluated
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_ending, self._is_broken_off = True, kind is not None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._tell_problem()

    def evaluated(self, match: Match) -> None:
        """An evaluation match has been played; called by the coordinator."""
        sides, league = first_players(match), self._training.league
        most = self._training.experiment.evaluation.recorded_games
        self._tell_problem()
        if not most or self._problem:
            return
        due = _Due(match=match.id, sides=sides, trained=league.players[sides[0]].parent_decisions, most=most)
        with self._changed:
            self._due.append(due)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._record_all, name="game recorder", daemon=True)
            self._thread.start()

    def _tell_problem(self) -> None:
        if self._problem and not self._told:
            self._told = True
            self._training.faults.note(Fault("recording", self._problem), "recorder", "no further games are recorded")

    # --- the thread ---

    def _record_all(self) -> None:
        failures, longest = 0, 0.0
        try:
            self._open()
            while not self._problem and (due := self._next(longest)) is not None:
                began = time.thread_time()
                try:
                    self._record(due)
                    failures = 0
                except (OSError, TooSlow) as error:
                    self._stop(str(error))
                except Exception as error:  # of the game or a player: a recording is not worth a training
                    failures += 1
                    if failures >= MOST_FAILURES:
                        self._stop(f"{type(error).__name__}: {error}")
                longest = max(longest / 2, time.thread_time() - began)
                self.seconds = time.thread_time()
        except OSError as error:
            self._problem = str(error)

    def _open(self) -> None:
        self._list = self._folder.open()
        self._known = {tuple(one.players) for one in self._list.games}
        try:
            self._experiment = load_experiment(self._training.folder)
        except Exception as error:  # of the code that the run names
            self._stop(f"{type(error).__name__}: {error}")
        else:
            if reason := why_not_recorded(self._experiment.measured_game):
                self._problem, self._told = reason, True  # the page says it; it is no fault
                self._folder.write(GameList(games=self._list.games, note=reason))

    def _stop(self, reason: str) -> None:
        self._problem = reason
        self._folder.write(GameList(games=self._list.games, note=f"no further games are recorded: {reason}"))

    def _next(self, cost: float) -> _Due | None:
        """The newest pair that is due, once there is time for it; None at the end."""
        with self._changed:
            while True:
                has_left = self._training.league.has_left
                while self._due and (self._due[-1].sides in self._known or any(map(has_left, self._due[-1].sides))):
                    self._due.pop()
                now = time.monotonic()
                free = 2 * FREE_S if self._is_ending else FREE_S
                wait = (time.thread_time() + cost - free) / SHARE - (now - self._began)
                if self._due and wait <= 0 and not self._is_broken_off:
                    return self._due.pop()
                if self._is_ending:  # nobody waits for its share of the time
                    return None
                self._changed.wait(wait if self._due else None)

    def _record(self, due: _Due) -> None:
        experiment, league = self._experiment, self._training.league
        assert experiment is not None
        missing = [name for name in dict.fromkeys(due.sides) if name not in self._seated]
        self._seated |= load_players(experiment, self._training.folder, league, missing)
        entrants = [
            TeamPlayer(name=name, seated=self._seated[name], weights=league.players[name].played_weights)
            for name in due.sides
        ]
        for name in list(self._seated)[:-MOST_SEATED]:
            del self._seated[name]
        turn = due.match % len(entrants)  # sides sit on every team in turn
        by_team = [*entrants[turn:], *entrants[:turn]]
        record = play_game(experiment.measured_game, by_team, seed=_seed(experiment.seed, due.match), seconds=SLOWEST_S)
        content = encode_game(record)
        line = game_line(record, next_name(self._list.games), due.sides, turn, len(content), due.match, due.trained)
        self._known.add(due.sides)
        self._list = self._folder.add(self._list, line, content, most=due.most)
        self.recorded += 1


def game_line(
    record: GameRecord, name: str, sides: Sequence[str], turn: int, size: int, match: int, trained: int
) -> GameLine:
    """`turn`: side s sits on team (s - turn) % teams."""
    teams = len(sides)
    seats = [sides[(team + turn) % teams] for team in range(teams)]
    own = -turn % teams
    others = [points for team, points in enumerate(record.points) if team != own]
    won = None if not others else 0.5 if record.points[own] == max(others) else float(record.points[own] > max(others))
    return GameLine(
        name=name,
        players=list(sides),
        seats=seats,
        outcome=record.outcome,
        won=won,
        score=record.score,
        decisions=record.decisions,
        trained=trained,
        match=match,
        time=time.time(),
        bytes=size,
    )


# --- on request ---

LONGEST_REQUEST_S = 60.0


class GamesOnRequest:
    """Plays games between players of a run, one at a time, for `ludus watch`. The first request loads the experiment,
    and with it the code that the run names, by the rule of `ludus play`: none that lies inside the run folder, unless
    the run is trusted."""

    def __init__(self, folder: RunFolder, *, trusted: bool) -> None:
        self._folder = folder
        self._trusted = trusted
        self._lock = threading.Lock()
        self._loaded: tuple[GameSource, Opponents] | None = None

    def play(self, names: Sequence[str]) -> GameRecord:
        """`names`: by team. Raises ValueError, StoreError, GameError or TooSlow with a reason for the page."""
        if not self._lock.acquire(blocking=False):
            raise ValueError("another game is being played; try again when it is over")
        try:
            source, opponents = self._load()
            teams = source.spec.num_teams
            if len(names) != teams:
                raise ValueError(
                    f"{source.spec.name} has {teams} teams, so {teams} players are needed, not {len(names)}"
                )
            entrants = [
                TeamPlayer(name=name, seated=opponents.seat(name)[1], weights=opponents.weights_of(name))
                for name in names
            ]
            seed = _seed(time.time_ns())
            return play_game(source, entrants, seed=seed, seconds=LONGEST_REQUEST_S)
        finally:
            self._lock.release()

    def host(self) -> PlayHost:
        """A host of games of a person. They are not recorded: looking at a run changes nothing."""
        with self._lock:
            source, opponents = self._load()
        return PlayHost(source, opponents, person=PERSON, keep=_not_kept, drawing=drawing_of)

    def _load(self) -> tuple[GameSource, Opponents]:
        if self._loaded is None:
            with trusting(self._trusted):
                folder = RunFolder.open(self._folder.path)
            experiment, league = load_state(folder)
            if isinstance(innermost(experiment.measured_game), Remote):
                raise ValueError(f"{experiment.game.spec.name} is played on a server; `ludus eval` plays it")
            opponents = Opponents(experiment, folder, league, weights="average", greedy=False)
            self._loaded = experiment.measured_game, opponents
        return self._loaded


def _not_kept(*_: object) -> Kept:
    return Kept(text="not recorded: the dashboard changes nothing; ludus play keeps games")
