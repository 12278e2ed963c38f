"""Where a new run trains: chooses the runtime of an experiment that leaves it open, and scales it to a GPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from ludus.config import ConfigError, apply_overrides
from ludus.data.schedules import Exponential, Linear, Schedule, Warmup, at
from ludus.defaults import facts_of
from ludus.experiment import Experiment
from ludus.league.population import Population
from ludus.league.promotion import AfterReset, AllOf, AnyOf, ByScore, BySteps, ByWinRate
from ludus.models.policy import Gpu, uses_convolutions
from ludus.runtime.device import require_on_device
from ludus.runtime.networks import build_policies
from ludus.workers.config import LearnerConfig


@dataclass(frozen=True, kw_only=True)
class _Size:
    """What a run is scaled to."""

    bytes_of_table: int
    """Memory of the GPU for each table."""
    fewest_tables: int
    most_tables: int
    matches: int
    """At a time, of each learning player."""
    steps_of_iteration: int
    steps_of_match: int
    """Steps of a table in a match, which take seconds, so that the ledger grows by some ten rows a second."""
    updates: int
    """Of each player: minutes on a large GPU."""
    fewest_updates: int
    """With a smaller budget of the user's there are fewer tables instead."""


_SIZE = _Size(
    bytes_of_table=2**18,
    fewest_tables=4_096,
    most_tables=131_072,
    matches=16,
    steps_of_iteration=16,
    steps_of_match=4_096,
    updates=20_000,
    fewest_updates=500,
)
"""A GPU makes some hundreds of steps a second."""
_SIZE_WITH_MAPS = _Size(
    bytes_of_table=2**26,
    fewest_tables=512,
    most_tables=8_192,
    matches=32,
    steps_of_iteration=32,
    steps_of_match=256,
    updates=500,
    fewest_updates=150,
)
"""A network over maps computes a thousand times as much for a decision, and one row of AlphaStar's mini network keeps
0.36 MB for its gradient: fewer and longer iterations, so that a run of minutes has some hundreds of updates."""
_FEWEST_TABLES = 512
"""However small the budget is."""
_FEWEST_MATCHES, _MOST_AT_A_TIME = 200, 64
"""Matches of each player in a run, and at a time. Matches at many tables are few, so that a player meets few opponents:
with 16 matches in 2 M decisions of skirmish, there were scripted players that it never met, and it lost to them."""
_LARGEST_RATE = 3e-4
"""Of PPO with batches of a million decisions. With 1e-3 the network of connect four died within seconds."""
_SHARE_OF_OPENINGS = 0.75
"""Of the training episodes, in games that hide nothing. Without them the network of connect four stopped improving.
Where something is hidden, random moves would change what a position tells."""
_OF_LEARNER = ("batch_size", "minibatch_size", "buffer_size", "learning_rate")
_OF_ROLE = ("promotion", "population", "after_reset", "value_only_at_start")
_COUNTS_DECISIONS: dict[type, tuple[str, ...]] = {
    BySteps: ("every",),
    ByWinRate: ("min_decisions", "max_decisions"),
    ByScore: ("min_decisions",),
    Population: ("every",),
    AfterReset: ("value_only_decisions",),
}
"""Fields of the league's rules that count decisions."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An experiment whose runtime is chosen, and why."""

    experiment: Experiment
    told: tuple[str, ...] = ()
    """For the user, a line each; empty if there was nothing to choose."""


SCALED = (
    "budget",
    "checkpoint_every",
    "actor.num_tables",
    "actor.matches",
    "actor.episodes_per_table",
    "openings.moves",
    "openings.share",
    *(f"{where}learner.{name}" for where in ("", "league.roles.*.") for name in _OF_LEARNER),
    *(f"league.roles.*.{part}" for part in _OF_ROLE),
    "league.turn",
)
"""Settings that depend on the GPU of the machine that a run began on."""


def place(experiment: Experiment, *, written_for: str, gpu: Gpu | None, given: Collection[str], budget: int) -> Placed:
    """Choose the runtime of a new run, if its experiment leaves it open, and scale it to the GPU.

    `written_for`: its runtime without the user's settings; an experiment that is written for the device is not scaled.
    `gpu`: the one that it would train on, if any. `given`: settings of the user's, which are never changed. `budget`:
    of the experiment without them.
    """
    asked = experiment.runtime
    if asked not in ("auto", "device") or written_for == "device" or gpu is None:
        return Placed(experiment=replace(experiment, runtime="local" if asked == "auto" else asked))
    on_gpu = replace(experiment, runtime="device")
    try:
        require_on_device(on_gpu)
        scaled = apply_overrides(on_gpu, scaled_settings(on_gpu, gpu, given=given, budget=budget))
        require_on_device(scaled)
    except ConfigError as error:
        if asked == "device":
            raise
        told = f"runtime:    local, on the CPU although there is a GPU ({gpu.name}): {error}"
        return Placed(experiment=replace(experiment, runtime="local"), told=(told,))
    why = f"device, since all of this experiment fits the GPU ({gpu.name}); --runtime local: with tables on the CPU"
    chosen = why if asked == "auto" else f"device ({gpu.name})"
    return Placed(experiment=scaled, told=(f"runtime:    {chosen}", f"scaled:     {_describe(scaled)}"))


def scaled_settings(experiment: Experiment, gpu: Gpu, *, given: Collection[str], budget: int) -> dict[str, Any]:
    """Settings by path that scale an experiment to a GPU. Numbers that count decisions keep their share of the
    budget, so that a run has as many snapshots as on the CPU."""
    players = sum(role.count for role in experiment.league.roles.values())
    has_maps = any(map(uses_convolutions, build_policies(experiment, experiment.seed)))
    size = _SIZE_WITH_MAPS if has_maps else _SIZE
    wanted = min(max(gpu.memory_bytes // size.bytes_of_table, size.fewest_tables), size.most_tables)
    teams, facts = experiment.game.spec.num_teams, facts_of(experiment.game)
    seats, deciding = experiment.game.spec.num_seats, teams if facts.simultaneous else 1
    steps = facts.decisions * (1 if facts.simultaneous else seats)
    least = max(experiment.actor.episodes_per_table, teams)
    usual = max(least, -(-round(size.steps_of_match / max(steps, 1.0)) // teams) * teams)
    if is_given("budget", given):
        for_updates = experiment.budget // (size.fewest_updates * size.steps_of_iteration * deciding)
        wanted = min(wanted, max(for_updates, _FEWEST_TABLES))
    asked, most = size.matches * players, _MOST_AT_A_TIME * players
    if is_given("actor.matches", given):
        asked = most = experiment.actor.matches
    while True:
        matches, num_tables = asked, max(2, wanted // asked // 2 * 2) * asked
        if is_given("actor.num_tables", given):
            num_tables = experiment.actor.num_tables
            fitting = max(1, min(asked, num_tables // 2))  # of two tables each, where seats move in turn
            matches = next(number for number in range(fitting, 0, -1) if num_tables % number == 0)
        batch = size.steps_of_iteration * deciding * num_tables // players
        if is_given("learner.batch_size", given):
            batch = experiment.learner.batch_size
        total = experiment.budget if is_given("budget", given) else size.updates * batch * players
        of_episode = num_tables // matches * max(facts.decisions, 1.0) * seats
        affordable = int(total / (_FEWEST_MATCHES * players * of_episode)) // teams * teams
        if affordable >= least or 2 * asked > most:
            break
        asked *= 2  # more matches, at fewer tables each
    episodes = max(least, min(usual, affordable))
    found: dict[str, Any] = {
        "actor.num_tables": num_tables,
        "actor.matches": matches,
        "actor.episodes_per_table": episodes,
        "budget": total,
    }
    roles = experiment.league.roles
    own = {f"league.roles.{name}.learner": role.learner for name, role in roles.items()}
    for path, learner in {"learner": experiment.learner, **own}.items():
        if isinstance(learner, LearnerConfig):
            found |= {
                f"{path}.batch_size": batch,
                f"{path}.minibatch_size": max(1, batch // 4),
                f"{path}.buffer_size": max(batch, learner.buffer_size),
                f"{path}.learning_rate": _gentle(learner.learning_rate),
            }
    scale = max(1.0, total / budget)
    if facts.hidden is False and not facts.simultaneous:
        found |= {"openings.moves": round(steps), "openings.share": _SHARE_OF_OPENINGS}
    found["checkpoint_every"] = round(experiment.checkpoint_every * scale)
    for name, role in roles.items():
        place = f"league.roles.{name}"
        for part in _OF_ROLE:
            before = getattr(role, part)
            after = round(before * scale) if isinstance(before, int) else _times(before, scale)
            if after != before:
                found[f"{place}.{part}"] = after
    found["league.turn"] = round(experiment.league.turn * scale)
    return {path: value for path, value in found.items() if not is_given(path, given)}


def is_given(path: str, given: Collection[str]) -> bool:
    """Whether the user has given a setting, a part of it, or what it is a part of."""
    return any(fnmatchcase(path, one) or fnmatchcase(path, f"{one}.*") or one.startswith(f"{path}.") for one in given)


def _times(rule: Any, scale: float) -> Any:
    """A rule of the league with all its numbers of decisions multiplied."""
    if isinstance(rule, AnyOf | AllOf):
        return replace(rule, rules=tuple(_times(one, scale) for one in rule.rules))
    if not is_dataclass(rule) or isinstance(rule, type):
        return rule
    names = _COUNTS_DECISIONS.get(type(rule), ())
    counts = {one.name: getattr(rule, one.name) for one in fields(rule) if one.name in names}
    return replace(rule, **{name: round(count * scale) for name, count in counts.items() if count is not None})


def _gentle(rate: Schedule) -> Schedule:
    """A learning rate for huge batches: it rises at first, and is never above the largest."""
    if isinstance(rate, Warmup):
        rate = rate.then
    factor = min(1.0, _LARGEST_RATE / max(float(at(rate, 0.0)), float(at(rate, 1.0)), 1e-30))
    if isinstance(rate, Linear | Exponential):
        return Warmup(then=replace(rate, start=rate.start * factor, end=rate.end * factor))
    return Warmup(then=rate * factor)


def _describe(experiment: Experiment) -> str:
    actor, learner, starts = experiment.actor, experiment.learner, experiment.openings
    openings = f", {starts.share:.0%} of training episodes after 0 to {starts.moves} random moves" * bool(starts.moves)
    return (
        f"to the GPU: {actor.num_tables:,} tables, batches of {learner.batch_size:,}, "
        f"{experiment.budget:.3g} decisions in all{openings}; what you set yourself stays"
    )
