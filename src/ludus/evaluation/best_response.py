"""Best responses to a frozen target: a run of its own, whose only learning player meets the target alone."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.algorithms.algorithm import Algorithm
from ludus.data.records import ModelId, Result, mean_and_error
from ludus.data.search import with_search
from ludus.data.trees import Tree
from ludus.evaluation.exploitability import ExactMeasure, Member, SharesFrom, Target
from ludus.evaluation.tournament import Tournament
from ludus.experiment import Experiment
from ludus.games.game import GameSource
from ludus.league.league import League
from ludus.league.matchmaking import FixedLaw
from ludus.league.payoff import wilson_interval
from ludus.league.players import MAX_ID_LENGTH
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.runtime.assemble import create_run, load_players
from ludus.runtime.coordinator import Training
from ludus.runtime.networks import with_each_model
from ludus.runtime.rounds import FINISHED
from ludus.store.model_pool import Variant
from ludus.store.run_folder import NewRun, RunFolder
from ludus.workers.exploitability import EXPLOIT_FOLDER
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer

EXPLOITER = "exploiter"
MOST_BUDGET = 2_000_000
"""Decisions that an exploiter trains on unless told otherwise, and no more than the run itself may."""
START = ModelId(f"{EXPLOITER}.start", 0, 0)
"""The model that an exploiter starts from, if it is given one."""
SNAPSHOTS = 5
"""Points of the curve after the untrained start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExploiterStart:
    """Weights that an exploiter starts from."""

    address: str
    """The address that the weights came from."""
    weights: Tree


def exploiter_experiment(
    experiment: Experiment, target: Target, *, seed: int, start: ExploiterStart | None = None
) -> Experiment:
    """The run's experiment with one exploiter, which meets the target alone. It has no teacher, which would hold it
    near where it starts, no strategies to follow, and no evaluations: its snapshots are measured afterwards."""
    role = Role(
        matchmaking=FixedLaw(shares={id_of(member): member.share for member in target.members}),
        promotion=BySteps(every=-(-experiment.budget // SNAPSHOTS)),
        start=None if start is None else str(START),
    )
    algorithm = _without_teacher(experiment.algorithm)
    recompute = tuple(one for one in experiment.learner.recompute if one in algorithm.recomputable)
    with_worker = experiment.learner.buffer_worker and bool(recompute)
    return replace(
        experiment.without_strategies(),
        name=f"{EXPLOITER} of {target.name}",
        algorithm=algorithm,
        learner=replace(experiment.learner, recompute=recompute, buffer_worker=with_worker),
        frozen_models=tuple(view.model for view in with_each_model(experiment)[1:]),
        league=LeagueRules(
            roles={EXPLOITER: role},
            bots=tuple(id_of(member) for member in target.members if member.seated.model is None),
            external={
                id_of(member): with_search(str(_model_of(member)), member.seated.simulations)
                for member in target.members
                if member.seated.model is not None
            },
        ),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
        middleware=(),
        metrics=(),
        checkpoint_every=experiment.budget,
        seed=seed,
    )


def _without_teacher(algorithm: Algorithm) -> Algorithm:
    if getattr(algorithm, "teacher", None) is None:
        return algorithm
    return replace(algorithm, teacher=None)  # type: ignore[type-var]


def create_folder(
    root: Path, experiment: Experiment, target: Target, command: list[str], start: ExploiterStart | None = None
) -> RunFolder:
    """`ROOT/PLAYER-NNN`, with the target's models in its pool, and what the exploiter starts from."""
    new = NewRun(None, _plain(target.name), root=root)
    with new.build() as path:
        folder = create_run(path, experiment, command)
        for member in target.members:
            if member.seated.model is not None:
                facts = {"model": member.seated.model_name, "weights": member.weights or ""}
                folder.models.publish(_model_of(member), member.arrays, parent=None, facts=facts)
        if start is not None:
            folder.models.publish(START, start.weights, parent=None, facts={"source": start.address})
    return new.folder


def id_of(member: Member) -> str:
    """Its id in the exploiter's league: its own name as far as that is free and a legal id."""
    if member.seated.model is None:
        return member.name
    name = _plain(member.name)
    return f"target-{name}" if name.partition(".")[0] == EXPLOITER else name


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]", "-", name).lstrip("-.")[: MAX_ID_LENGTH - len("target-")]


def _model_of(member: Member) -> ModelId:
    """The copy of its model: the same weights under the id that the exploiter's league gives it."""
    model = member.seated.model
    assert model is not None
    return ModelId(id_of(member), model.incarnation, model.step)


Z_95 = 1.96


class RoleGain(msgspec.Struct, frozen=True, kw_only=True):
    """An exploiter on one team, and what the target itself gets there against itself."""

    role: str
    score: float
    own: float
    gain: float
    gain_interval: tuple[float, float]


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Against the target; intervals of 95 %. A draw is half a win."""

    episodes: int
    win_rate: float
    win_rate_interval: tuple[float, float]
    score: float
    score_interval: tuple[float, float]
    roles: tuple[RoleGain, ...] = ()
    """By team, in games that compare roles, where a score alone says nothing; else empty."""
    gain: float | None = None
    """Mean of the gains by role."""
    gain_interval: tuple[float, float] | None = None


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an exploiter, which draws its actions or always takes the most probable one."""

    seed: int
    player: str
    model: str
    weights: Variant | None = None
    """The weights that it plays with; None in records that do not say."""
    decisions: int
    greedy: bool
    measured: Measured


RoleMeans = NDArray[np.float64]
"""[2, teams]: the mean score by team and its variance."""


def measure_own(game: GameSource, target: Target, *, episodes: int, seed: int) -> RoleMeans:
    """What the target gets on each team when it sits on all of them."""
    players = FixedPlayers({id_of(member): member.seated for member in target.members})
    own = np.zeros((2, game.spec.num_teams))
    for number, members in enumerate(itertools.product(target.members, repeat=game.spec.num_teams)):
        share = math.prod(member.share for member in members)
        line_up = tuple(id_of(member) for member in members)
        result = _play(game, players, line_up, share * episodes, seed + number)
        sides = len(line_up)  # each of them has sat on every team, in episodes of its own
        own += np.sum([_by_role(result, side, share / sides) for side in range(sides)], axis=0)
    return own


def _play(game: GameSource, players: FixedPlayers, line_up: tuple[str, ...], episodes: float, seed: int) -> Result:
    least = max(math.ceil(episodes), 2 * game.spec.num_teams)
    return Tournament(game, players, [line_up], episodes=least, seed=seed).run()[0]


def _by_role(result: Result, side: int, share: float) -> RoleMeans:
    """The part of a mixture's scores that one line-up with this share makes up."""
    teams = len(result.role_score_sum[side])
    sums = zip(result.role_score_sum[side], result.role_score_square_sum[side], strict=True)
    means = [mean_and_error(result.episodes / teams, total, squares) for total, squares in sums]
    return np.array([[share * mean for mean, _ in means], [(share * error) ** 2 for _, error in means]])


def _with_gains(measured: Measured, roles: Sequence[str], got: RoleMeans, own: RoleMeans) -> Measured:
    gains, spreads = got[0] - own[0], Z_95 * np.sqrt(got[1] + own[1])
    mean, spread = float(gains.mean()), float(np.linalg.norm(spreads)) / len(roles)
    return msgspec.structs.replace(
        measured,
        roles=tuple(
            RoleGain(role=role, score=score, own=itself, gain=gain, gain_interval=(gain - half, gain + half))
            for role, score, itself, gain, half in zip(
                roles, got[0].tolist(), own[0].tolist(), gains.tolist(), spreads.tolist(), strict=True
            )
        ),
        gain=mean,
        gain_interval=(mean - spread, mean + spread),
    )


def measure_exploiter(
    game: GameSource, exploiter: SeatedPlayer, target: Target, *, episodes: int, seed: int, own: RoleMeans | None = None
) -> Measured:
    """At least `episodes` games. The members of a mixture get games by their shares, and their results are
    weighted with these; with more than two teams every other team draws its own member. `own`: what the target itself
    gets on each team, for the gain over it."""
    players = FixedPlayers({id_of(member): member.seated for member in target.members} | {EXPLOITER: exploiter})
    rate = score = variance = 0.0
    played = 0
    got = np.zeros((2, game.spec.num_teams))
    line_ups = list(itertools.product(target.members, repeat=game.spec.num_teams - 1))
    for number, members in enumerate(line_ups):
        share = math.prod(member.share for member in members)
        line_up = (EXPLOITER, *(id_of(member) for member in members))
        result = _play(game, players, line_up, share * episodes, seed + number)
        if own is not None:
            got += _by_role(result, 0, share)
        mean, error = result.mean_score(0)
        against = [pair for pair in result.pairs if pair.side == 0]
        points = sum(pair.wins + pair.draws / 2 for pair in against) / len(against)
        rate += share * points / result.episodes
        score += share * mean
        variance += (share * error) ** 2
        played += result.episodes
    spread = Z_95 * math.sqrt(variance)
    # Games by share spread at most as much as `episodes` games with members drawn at random would.
    counted = played if len(line_ups) == 1 else episodes
    measured = Measured(
        episodes=played,
        win_rate=rate,
        win_rate_interval=wilson_interval(rate * counted, counted),
        score=score,
        score_interval=(score - spread, score + spread),
    )
    return measured if own is None else _with_gains(measured, game.spec.role_names, got, own)


def measure_curve(
    experiment: Experiment, folder: RunFolder, league: League, target: Target, *, episodes: int, seed: int
) -> Iterator[CurvePoint]:
    """Every snapshot of the exploiter, both ways of playing, each with games of its own."""
    names = league.candidates.history_of(EXPLOITER)
    for greedy in (False, True):
        seated = load_players(experiment, folder, league, names, greedy=greedy)
        for number, (name, exploiter) in enumerate(seated.items()):
            measured = measure_exploiter(
                experiment.grouped_game,
                exploiter,
                target,
                episodes=episodes,
                seed=seed + 1_000_003 * (2 * number + greedy),
            )
            yield CurvePoint(
                seed=experiment.seed,
                player=name,
                model=exploiter.model_name,
                weights=league.players[name].weights,
                decisions=league.players[name].parent_decisions,
                greedy=greedy,
                measured=measured,
            )


def best_of(points: Sequence[CurvePoint]) -> CurvePoint:
    """By mean score, which is what exploitability is about; the later of equals."""
    return max(points, key=lambda point: (point.measured.score, point.decisions))


class ExploitedPlayer(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the target, with its share of the matches."""

    name: str
    share: float
    model: str | None
    """None for a bot."""
    digest: str | None
    weights: Variant | None


class TrainedMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """The best trained exploiter, chosen by its curve and measured on other games: a lower bound."""

    budget: int
    """Decisions, per seed."""
    start: str | None = None
    """Address of the model that the exploiters began with; None: fresh weights."""
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    """Folders of the exploiters below the run's, one per seed."""
    chosen: CurvePoint
    measured: Measured
    curve: tuple[CurvePoint, ...]
    curve_episodes: int
    """Games that each point of the curve is measured on, at least."""


class ExploitRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Either `exact` or `trained` holds the measure, as `method` says."""

    time: str
    """In UTC, ISO 8601."""
    game: str
    zero_sum: bool = True
    """Whether what one team gains the others lose, so that a mean score of 0 is even."""
    target: str
    players: tuple[ExploitedPlayer, ...]
    shares_from: SharesFrom | None = None
    method: Literal["exact", "best response"]
    exact: ExactMeasure | None = None
    trained: TrainedMeasure | None = None


def players_of(target: Target) -> tuple[ExploitedPlayer, ...]:
    return tuple(
        ExploitedPlayer(
            name=member.name,
            share=member.share,
            model=member.seated.model_name or None,
            digest=member.digest,
            weights=member.weights,
        )
        for member in target.members
    )


LEAST_CURVE_EPISODES = 256
MEASURING_SEED = 1 << 62
"""Far from the seeds of the curve: the chosen exploiter is measured on games that did not choose it."""

Starting = Callable[[Experiment, RunFolder], AbstractContextManager[Training]]
"""Starts the training of an exploiter, which ends with the block."""
Watching = Callable[[Training], AbstractContextManager[Callable[[Training], None]]]
"""Shows the progress of an exploiter's training."""


class Attempt:
    """Trains one exploiter per seed and measures its snapshots. Knows how far it has come if stopped."""

    def __init__(
        self,
        run: RunFolder,
        experiment: Experiment,
        target: Target,
        *,
        seeds: int,
        episodes: int,
        start: ExploiterStart | None = None,
        root: Path | None = None,
    ) -> None:
        """`root`: where the folders of the exploiters are made; None: `RUN/exploits`."""
        self.budget = experiment.budget
        self.seeds = tuple((experiment.seed + 1 + index) % 2**63 for index in range(seeds))
        self.curve_episodes = max(min(LEAST_CURVE_EPISODES, episodes), episodes // 4)
        self.curve: list[CurvePoint] = []
        self.stopped_at: tuple[int, float | None] | None = None
        """Decisions of the exploiter that was stopped, and its win rate in recent training, if it has any."""
        self._run, self._experiment, self._target = run, experiment, target
        self._episodes, self._start = episodes, start
        self._root = run.path / EXPLOIT_FOLDER if root is None else root
        self._folders: list[RunFolder] = []
        """Folders of all exploiters, also of those that could not start."""
        self._trained: dict[int, tuple[Experiment, RunFolder, League]] = {}

    def run(
        self,
        command: list[str],
        starting: Starting,
        watching: Watching,
        tell: Callable[[str], None] = lambda line: None,
    ) -> TrainedMeasure | None:
        """Train and measure; None if the training was stopped. An exploiter is measured before its training ends,
        because the target or the game may call services that run with it."""
        for number, seed in enumerate(self.seeds):
            experiment = exploiter_experiment(self._experiment, self._target, seed=seed, start=self._start)
            folder = create_folder(self._root, experiment, self._target, command, self._start)
            self._folders.append(folder)
            with starting(experiment, folder) as training:
                self._trained[seed] = (experiment, folder, training.league)
                with watching(training) as watch:
                    reason = training.run(watch)
                if reason != FINISHED:
                    self.stopped_at = (int(training.numbers()["decisions"]), self._recent(training.league))
                    return None
                tell(f"measuring its snapshots, drawn and greedy, in {self.curve_episodes:,} games each")
                for point in measure_curve(
                    experiment,
                    folder,
                    training.league,
                    self._target,
                    episodes=self.curve_episodes,
                    seed=(number + 1) << 32,
                ):
                    self.curve.append(point)
                    way = "greedy" if point.greedy else "drawn"
                    tell(f"  {point.player}, {way}: won {point.measured.win_rate:.1%}")
                if seed == self.seeds[-1]:
                    tell(f"measuring the best in {self._episodes:,} other games (-n N)")
                    return self._measure_best()
        raise AssertionError("at least one exploiter is trained")

    def _measure_best(self) -> TrainedMeasure:
        """On games that did not choose it."""
        chosen = best_of(self.curve)
        experiment, folder, league = self._trained[chosen.seed]
        best = load_players(experiment, folder, league, [chosen.player], greedy=chosen.greedy)[chosen.player]
        game, own = experiment.grouped_game, None
        if game.spec.compares_roles:
            own = measure_own(game, self._target, episodes=self._episodes, seed=MEASURING_SEED + (1 << 32))
        return TrainedMeasure(
            budget=self.budget,
            start=None if self._start is None else self._start.address,
            seeds=self.seeds,
            runs=self.runs,
            chosen=chosen,
            curve_episodes=self.curve_episodes,
            measured=measure_exploiter(game, best, self._target, episodes=self._episodes, seed=MEASURING_SEED, own=own),
            curve=tuple(self.curve),
        )

    @property
    def runs(self) -> tuple[str, ...]:
        """Folders of the exploiters, below the run's."""
        folders = (folder.path.relative_to(self._run.path) for folder in self._folders)
        return tuple(path.as_posix() for path in folders)

    def _recent(self, league: League) -> float | None:
        payoff = league.payoffs.view("training")
        if not any(payoff.games(EXPLOITER, id_of(member)) for member in self._target.members):
            return None
        return sum(member.share * payoff.win_rate(EXPLOITER, id_of(member)) for member in self._target.members)
