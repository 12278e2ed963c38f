"""Defaults for a game that no recipe is written for: facts about the game decide the whole experiment. `facts_of` looks
at the game and plays it at random for a moment; all else are pure functions of those facts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ludus.algorithms.algorithm import Algorithm, Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import apply_overrides, override
from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.data.schedules import Exponential, Linear
from ludus.data.specs import GameSpec, ObservationSpec, Planes
from ludus.data.trees import put, take
from ludus.experiment import Experiment
from ludus.games.bots import RandomBot
from ludus.games.game import GameSource, NeedsMore, allocate_actions, lost_tables
from ludus.games.search import SearchBot
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay, UniformPast
from ludus.league.promotion import ByScore, BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import ModelConfig
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

Goal = Literal["score", "equilibrium", "strength"]
"""The aim: a high score of a single team, a strategy that nobody can exploit, or to win against all."""

LARGE_PLANES = 16  # planes above this size are pictures; smaller ones are boards and maps
MOST_BATCH_BYTES = 2**28  # observations in a batch take at most this much memory; several batches wait in buffers
MANY_MOVES = 20
"""Games with more simultaneous decisions than this run in real time; self-play with past opponents suits them."""


FEW_SIGHTS = 0.05
"""Below this variety a game is small enough for a moving magnet, which leads to the equilibrium itself."""


@dataclass(frozen=True, kw_only=True)
class GameTraits:
    """What the defaults depend on."""

    spec: GameSpec
    opponents: tuple[str, ...] = ("random",)
    """Bots of the game that are quick enough to be met in every evaluation."""
    hidden: bool | None = None
    """A seat may not know all that has happened; None: neither the spec nor a tree says."""
    simultaneous: bool = False
    """Seats of several teams choose at the same time."""
    decisions: float = 16.0
    """Of one seat in an episode of random play, on average."""
    deviation: float = 1.0
    """Of a seat's total reward in random play."""
    largest: float = 1.0
    """Total reward of a seat in random play, won or lost."""
    variety: float = 1.0
    """Share of the decisions in random play that were made at a sight not seen before."""


def facts_of(game: GameSource) -> GameTraits:
    """The facts of a game. Plays it with random moves for a moment, unless it needs programs of the user's."""
    spec = game.spec
    hidden = spec.hidden_information
    if hidden is None and (root := game.tree()) is not None:
        hidden = hides_information(root)
    quick = [name for name, bot in game.bots().items() if not isinstance(bot, SearchBot)]
    known = GameTraits(spec=spec, opponents=tuple(sorted(quick, key=lambda name: name != "random")), hidden=hidden)
    if isinstance(game, NeedsMore):
        return replace(known, decisions=float(min(spec.max_length, 1_000)))
    return _played(game, known)


def _played(game: GameSource, known: GameTraits, tables: int = 4, steps: int = 400) -> GameTraits:
    spec, bot, rng = known.spec, RandomBot(), np.random.Generator(np.random.PCG64(0))
    team, kind_of = np.array(spec.teams), np.array(spec.seats)
    decisions, totals, sights, looks, simultaneous = [], [], set[bytes](), 0, False
    seats_see = [ObservationSpec(parts=kind.observation.parts).arrays for kind in spec.kinds]  # critics see more
    with closing(game.tables(tables)) as batch:
        view, actions = batch.view, allocate_actions(spec, tables)
        acted, total = np.zeros((tables, spec.num_seats)), np.zeros((tables, spec.num_seats))
        starting = np.arange(tables)
        for _ in range(steps):
            if len(starting):
                batch.reset(starting, rng.integers(2**31, size=len(starting)).astype(np.uint64))
                acted[starting] = total[starting] = 0.0
            for kind, tree in enumerate(actions):
                rows, seats = np.nonzero(view.to_act & (kind_of == kind))
                if len(rows):
                    index = (rows, np.array(spec.column_of_seat)[seats])
                    put(tree, index, bot.act(batch, rows, seats, rng))
                    shown = {name: array for name, array in view.observation[kind].items() if name in seats_see[kind]}
                    seen = take(shown, index)
                    sights |= {b"".join(array[row].tobytes() for array in seen.values()) for row in range(len(rows))}
                    looks += len(rows)
            simultaneous |= any(len(set(team[row])) > 1 for row in view.to_act)
            acted += view.to_act
            batch.step(actions)
            total += view.reward
            ended = view.over | view.truncated
            for table in np.flatnonzero(ended):
                decisions.append(float(acted[table].mean()))
                totals.append(total[table].copy())
            starting = np.union1d(np.flatnonzero(ended), np.array(sorted(lost_tables(batch)), np.int64))
        if not decisions:  # every episode is longer than this: it goes on for as long as it may
            decisions, totals = [float(spec.max_length)], list(total)
    played = replace(
        known, simultaneous=simultaneous, decisions=float(np.mean(decisions)), variety=len(sights) / max(looks, 1)
    )
    won = np.stack(totals)
    if not won.any() or not np.isfinite(won).all():  # random play wins nothing: nothing is known of rewards
        return played
    return replace(played, deviation=float(won.std()), largest=float(np.abs(won).max()))


def hides_information(root: TreeState, most: int = 5_000) -> bool:
    """Whether a seat cannot tell two of the first histories apart that go on differently."""
    seen: dict[tuple[int, object], TreeState] = {}
    waiting = [root]
    for _ in range(most):
        if not waiting:
            return False
        state = waiting.pop()
        if state.seat() >= 0:
            other = seen.setdefault((state.seat(), state.information_state()), state)
            if other is not state and not _same_future(state, other):
                return True
        waiting += _children(state)
    return False


def _children(state: TreeState) -> Iterator[TreeState]:
    seat = state.seat()
    if seat == OVER:
        return
    moves = [outcome for outcome, _ in state.chance_outcomes()] if seat == CHANCE else state.legal_actions()
    for move in moves:
        yield state.child(move)


def _same_future(one: TreeState, other: TreeState, depth: int = 3) -> bool:
    if one.seat() != other.seat():
        return False
    if one.seat() == OVER:
        return list(one.returns()) == list(other.returns())
    if one.seat() == CHANCE and list(one.chance_outcomes()) != list(other.chance_outcomes()):
        return False
    if one.seat() >= 0 and one.information_state() != other.information_state():
        return False
    if depth == 0:
        return True
    children = zip(_children(one), _children(other), strict=True)
    return all(_same_future(left, right, depth - 1) for left, right in children)


def goal_of(facts: GameTraits) -> Goal:
    if facts.spec.num_teams == 1:
        return "score"
    if has_boxes(facts.spec):
        return "strength"  # the magnet of the other goal needs options that can be counted
    if facts.hidden or (facts.simultaneous and facts.decisions <= MANY_MOVES):
        return "equilibrium"
    return "strength"


def has_boxes(spec: GameSpec) -> bool:
    """Whether some actions are real numbers."""
    return any(kind.action.boxes for kind in spec.kinds)


def largest_side(spec: GameSpec) -> int:
    """Of the planes that a seat sees; 0 without planes."""
    parts = [part for kind in spec.kinds for part in kind.observation.parts.values()]
    return max((max(part.height, part.width) for part in parts if isinstance(part, Planes)), default=0)


def has_pictures(spec: GameSpec) -> bool:
    return largest_side(spec) > LARGE_PLANES


def affordable_batch(spec: GameSpec, wanted: int) -> int:
    """The batch size that is wanted, or the power of two whose observations fit into memory."""
    largest = max(
        sum(math.prod(array.shape) * array.dtype.itemsize for array in kind.observation.arrays.values())
        for kind in spec.kinds
    )
    return min(wanted, _power_of_two(MOST_BATCH_BYTES / max(largest, 1)))


def fit_to_teams(episodes: int, teams: int) -> int:
    """At least so many episodes, and every side equally often on every team."""
    return -(-episodes // teams) * teams


def default_budget(facts: GameTraits) -> int:
    if has_pictures(facts.spec):
        return 3_000_000
    return {"score": 500_000, "equilibrium": 4_000_000, "strength": 5_000_000}[goal_of(facts)]


def default_model(facts: GameTraits) -> ModelConfig:
    goal = goal_of(facts)
    scaled = goal == "equilibrium"  # its rewards are scaled already
    base = ActorCritic(
        hidden=(64, 64) if goal == "score" else (128, 128),
        channels=(16, 16),  # on a board of 11 x 11 a third of the work of (32, 32)
        value_normalisation=facts.deviation > 10 and not scaled,
    )
    if has_pictures(facts.spec):
        # Each convolution halves a large picture: as many as make it small, and three at least.
        layers = max(3, math.ceil(math.log2(largest_side(facts.spec) / LARGE_PLANES)))
        channels = (8, 16, *(32,) * (layers - 2))
        return replace(base, hidden=(256,), activation="relu", separate_critic=False, channels=channels)
    return replace(base, activation="relu", separate_critic=False) if goal == "strength" else base


def default_algorithm(facts: GameTraits, budget: int) -> Algorithm:
    if goal_of(facts) == "equilibrium":
        uniform = MagnetPolicyGradient(
            magnet_weight=Exponential(start=0.3, end=last_magnet_weight(budget)),
            step_weight=1.0,
            lambda_=0.95,
            reward_scale=reward_scale(facts),
        )
        if facts.variety >= FEW_SIGHTS:
            return uniform
        updates = budget // default_learner(facts).batch_size
        return replace(uniform, magnet=Reference(copy_every=min(max(updates // 6, 10), 40)), magnet_weight=0.2)
    long = facts.decisions > 50
    if goal_of(facts) == "score":
        entropy_weight = 0.0 if has_boxes(facts.spec) else 0.01  # numbers have to become precise
        return PPO(gamma=0.99, lambda_=0.95 if long else 0.9, clip=0.2, entropy=entropy_weight)
    entropy = Linear(start=0.02, end=0.005) if long else Linear(start=0.05, end=0.01)
    return PPO(gamma=0.995 if facts.decisions > 200 else 1.0, lambda_=0.95, clip=0.2, entropy=entropy)


def last_magnet_weight(budget: int) -> float:
    """A weight that falls too far for what has been learned lets play go round in circles. In single runs of a
    million decisions of liar's dice, live weights ended at a NashConv of 0.26 with 0.1 at the end, of 0.32 and 0.37
    with 0.05, and of 0.91 with 0.02. One that stays high keeps play near uniform."""
    return float(f"{0.1 * math.sqrt(1e6 / max(budget, 1e6)):.2g}")


def reward_scale(facts: GameTraits) -> float:
    """Brings what is at stake to about one, the unit of the magnet's weights. Where random play seldom wins, its
    deviation says too little, and a single win is the unit. Two digits read well among a run's settings."""
    return float(f"{1.0 / max(facts.deviation, min(facts.largest, 1.0)):.2g}")


def default_actor(facts: GameTraits) -> ActorConfig:
    """Trajectories of all seats at all tables together are at most one batch, so that updates come often."""
    pictures, goal = has_pictures(facts.spec), goal_of(facts)
    per_seat = default_learner(facts).batch_size // facts.spec.num_seats
    longest = 128 if pictures and goal == "score" else 32
    whole = _power_of_two(2.0 * facts.decisions - 1.0)  # a whole episode, rounded up
    unroll = min(whole, longest, _power_of_two(per_seat / 16))
    tables = 16 if pictures else 64 if unroll == longest else 256
    unroll = max(8, unroll)
    episodes = min(max(1, round(256 / facts.decisions)), 4 if goal == "score" else 32)
    return ActorConfig(
        num_tables=max(2, min(tables, _power_of_two(per_seat / unroll))),
        matches=2,
        episodes_per_table=fit_to_teams(episodes, facts.spec.num_teams),
        unroll_length=unroll,
    )


def default_learner(facts: GameTraits) -> LearnerConfig:
    pictures, goal = has_pictures(facts.spec), goal_of(facts)
    wanted = 2_048 if goal == "score" or pictures else 4_096 if goal == "equilibrium" else 8_192
    batch = affordable_batch(facts.spec, wanted)
    base = LearnerConfig(batch_size=batch, minibatch_size=-(-batch // 4), epochs=4, buffer_size=4 * batch)
    if goal == "equilibrium":
        falling = Linear(start=1e-3, end=1e-5)
        return replace(base, learning_rate=falling, max_gradient_norm=5.0, average_decay=0.95)
    if pictures:
        rate = Linear(start=7e-4, end=1e-4)
        return replace(
            base, minibatch_size=-(-batch // 8), epochs=3, learning_rate=rate, average_decay=0.9, schedule="async"
        )
    if goal == "score":
        score = replace(base, learning_rate=Linear(start=1e-3, end=1e-5), average_decay=0.9, schedule="async")
        # Numbers take more and smaller steps than choices to become precise.
        return replace(score, minibatch_size=-(-batch // 16), epochs=10) if has_boxes(facts.spec) else score
    rate = Linear(start=1e-3, end=1e-4)
    return replace(
        base, minibatch_size=-(-batch // 8), epochs=3, learning_rate=rate, average_decay=0.98, schedule="async"
    )


def default_league(facts: GameTraits, budget: int) -> LeagueRules:
    goal, every = goal_of(facts), max(budget // 10, 2 * default_learner(facts).batch_size)
    if goal == "score":
        role = Role(promotion=ByScore(min_episodes=20, min_decisions=max(1, budget // 30)), snapshot_weights="average")
        return LeagueRules(roles={"main": role})
    self_play = SelfPlay()
    mixture = Mixture(branches=((0.7, self_play), (0.2, PFSP(weighting="squared")), (0.1, UniformPast())))
    role = Role(
        matchmaking=self_play if goal == "equilibrium" else mixture,
        promotion=BySteps(every=every),
        snapshot_weights="average",
    )
    return LeagueRules(roles={"main": role}, bots=facts.opponents)


def default_evaluation(facts: GameTraits, budget: int) -> EvaluationConfig:
    """A match takes at most about a fiftieth of the budget, so that evaluation never outlasts training."""
    per_episode = facts.decisions * facts.spec.num_seats
    affordable = max(2 * facts.spec.num_teams, round(budget / 50 / per_episode))
    if goal_of(facts) == "score":
        return EvaluationConfig(opponents=(), past=0, episodes=min(affordable, 100))
    return EvaluationConfig(opponents=facts.opponents, past=2, episodes=min(affordable, 512))


def default_experiment(game: GameSource, facts: GameTraits, budget: int | None = None) -> Experiment:
    """The experiment for a game with these facts. Snapshots and checkpoints are spread over the budget."""
    budget = budget or default_budget(facts)
    return Experiment(
        name=re.sub(r"[^\w.+-]+", "-", facts.spec.name).strip("-.") or "game",
        game=game,
        budget=budget,
        model=default_model(facts),
        algorithm=default_algorithm(facts, budget),
        actor=default_actor(facts),
        learner=default_learner(facts),
        league=default_league(facts, budget),
        evaluation=default_evaluation(facts, budget),
        checkpoint_every=max(1, budget // 10),
    )


def experiment_for(game: GameSource, overrides: Mapping[str, Any]) -> tuple[Experiment, str]:
    """The experiment for a game, and why. Options of the game and the budget come first: defaults depend on them."""
    game, others = split_options(game, overrides)
    facts = facts_of(game)
    experiment = default_experiment(game, facts)
    if "budget" in others:
        experiment = default_experiment(game, facts, override(experiment, "budget", others["budget"]).budget)
    return apply_overrides(experiment, others), describe_defaults(facts)


@dataclass(frozen=True, kw_only=True)
class _Playing:
    """A tree with nothing but the game, so that its options have the paths that they have in an experiment."""

    game: GameSource


def split_options(game: GameSource, overrides: Mapping[str, Any]) -> tuple[GameSource, dict[str, Any]]:
    """The game with the options that `game.OPTION` sets, and the overrides of all else."""
    options = {path: value for path, value in overrides.items() if path.partition(".")[0] == "game"}
    others = {path: value for path, value in overrides.items() if path not in options}
    return apply_overrides(_Playing(game=game), options).game, others


def describe_defaults(facts: GameTraits) -> str:
    """Which defaults were chosen and why, in one line."""
    spec, learner, actor = facts.spec, default_learner(facts), default_actor(facts)
    seats = "one seat" if spec.num_seats == 1 else f"one team of {spec.num_seats} seats"
    at_once = "moves at the same time" if facts.simultaneous else "hidden information"
    magnet = "an annealed magnet" if facts.variety >= FEW_SIGHTS else "a moving magnet, which suits small games"
    sight = "that see everything" if facts.hidden is False else "and no hidden_information in the game's spec"
    if facts.simultaneous:
        sight = "in real time"
    chosen = {
        "score": f"{seats}, so PPO with snapshots ranked by mean score",
        "equilibrium": f"{at_once}, so self-play with {magnet}",
        "strength": f"{spec.num_teams} teams {sight}, so PPO by self-play and past opponents",
    }[goal_of(facts)]
    decisions = f"{facts.decisions:,.0f} decision{'s' * (round(facts.decisions) != 1)}"
    pictures = ", convolutions for its pictures" if has_pictures(spec) else ""
    return (
        f"{chosen}{pictures}; batches of {learner.batch_size:,} decisions, unrolls of {actor.unroll_length} "
        f"(about {decisions} of a seat in a random episode)"
    )


def fit_to_game(experiment: Experiment, game: GameSource) -> dict[str, object]:
    """Overrides that let a recipe play another game: bots that it has, and episodes that fit its teams."""
    bots = set(game.bots()) | set(experiment.bots)

    def there(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name in bots) or ("random",) * bool(tuple(names))

    one_team = game.spec.num_teams == 1
    return {
        "game": game,
        "actor.episodes_per_table": fit_to_teams(experiment.actor.episodes_per_table, game.spec.num_teams),
        "league.bots": () if one_team else there(experiment.league.bots),
        "evaluation.opponents": () if one_team else there(experiment.evaluation.opponents),
    }


def _power_of_two(number: float) -> int:
    """The largest that is not above the number; 1 at least."""
    return 1 << int(math.log2(max(number, 1.0)))
