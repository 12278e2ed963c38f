"""A run at a glance, as a document."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ludus.league.players import Standing
from ludus.observe.documents import Concern, Floats, LearnerLine, MetricsTable, Overview, Series
from ludus.observe.league_fold import Counts
from ludus.observe.league_page import curves_of
from ludus.observe.lost_matches import LONGEST_ABSENCE, NO_FAULT, on_one_line
from ludus.observe.progress import NEAR_ZERO
from ludus.observe.run_state import ENDED, STARTING, GpuUse, silence
from ludus.store.run_control import SILENT_AFTER_S, RunStatus
from ludus.store.run_folder import RunFolder

MOST_LEARNERS_IN_CURVES = 8
MEASURED_AFTER_S = 60.0
"""Before that a run without a speed is one that begins."""
LONGEST_UPDATE_S = 600.0
"""More time between two rows of metrics is a pause."""
_CURVES = ("decisions_per_s",)
_PLAYER_CURVES = ("episode_score", "entropy", "lag", "value_loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueGlance:
    """Facts from the ledger for the overview."""

    counts: Counts = field(default_factory=Counts)
    decisions: int = 0
    learners: tuple[Standing, ...] = ()
    concerns: tuple[Concern, ...] = ()


def overview(
    folder: RunFolder,
    experiment: Mapping[str, Any],
    status: RunStatus | None,
    state: str,
    glance: LeagueGlance,
    metrics: MetricsTable,
    concerns: Sequence[Concern],
    gpus: Sequence[GpuUse],
    now: float,
) -> Overview:
    """`state`: of a run that has no status."""
    ended = state != STARTING if status is None else status.state in ENDED
    decisions = status.decisions if status else int(metrics.latest("decisions", glance.decisions))
    left, by = (None, "") if status is None or ended else _time_left(status, now)
    trained, counts = _trained(metrics), glance.counts
    if not counts.issued and status is not None:
        counts = Counts(issued=status.matches, finished=status.matches)
    return Overview(
        run=folder.path.resolve().name,
        experiment=str(experiment.get("name", "")),
        trial=experiment.get("trial"),
        game=kind_of(experiment.get("game")),
        state=status.state if status else state,
        ended=ended,
        time=status.time if status else None,
        silent_s=0.0 if status is None else silence(status, now),
        decisions=decisions,
        budget=status.budget if status else int(experiment.get("budget", 0)),
        decisions_per_s=None if status is None or ended else status.decisions_per_s or None,
        time_left_s=left,
        left_by=by,
        up_s=None if status is None else (status.time if ended else now) - status.started,
        trained_s=trained,
        mean_per_s=decisions / trained if trained else None,
        cpu_s=status.cpu_s if status and ended else None,
        episodes=status.episodes if status else int(metrics.latest("episodes", 0)),
        restarts=status.restarts if status else 0,
        matches=counts,
        learners=[_learner(metrics, status, one) for one in glance.learners],
        workers=list(status.workers) if status else [],
        gpus=list(gpus),
        bottleneck=status.bottleneck if status else None,
        warnings=[*concerns, *glance.concerns],
        curves=_curves(metrics, [one.player.id for one in glance.learners[:MOST_LEARNERS_IN_CURVES]]),
        facts={
            "created": folder.facts.created,
            "command": _command(folder.facts.command),
            "seed": str(folder.facts.seed),
            "runtime": status.runtime if status else str(experiment.get("runtime", "")),
            "ludus": folder.facts.ludus,
            "python": folder.facts.python,
        },
    )


def _command(words: Sequence[str]) -> str:
    """The command as it was typed, without the folder of the program."""
    return shlex.join([Path(words[0]).name, *words[1:]]) if words else ""


def _time_left(status: RunStatus, now: float) -> tuple[float | None, str]:
    limit = max(0.0, status.started + 3600 * status.time_limit_h - now)
    if status.decisions_per_s <= 0 and now - status.started < MEASURED_AFTER_S:
        return None, ""
    if status.state != "training" or status.decisions_per_s <= 0:
        return limit, "time limit"
    budget = max(0, status.budget - status.decisions) / status.decisions_per_s
    return (budget, "budget") if budget < limit else (limit, "time limit")


def _trained(metrics: MetricsTable) -> float | None:
    """Seconds between the rows of metrics, without the pauses between two starts."""
    total = float(update_seconds(metrics).sum())
    return total if total > 0 else None


def update_seconds(metrics: MetricsTable) -> Floats:
    """From each row of metrics to the next; 0 for a pause. The first row of a start has no speed yet."""
    speed, steps = metrics.column("decisions_per_s"), np.diff(metrics.column("time"))
    starts = np.isfinite(speed[:-1]) & ~np.isfinite(speed[1:])
    return np.where((steps > 0) & (steps < LONGEST_UPDATE_S) & ~starts, steps, 0.0)


def _learner(metrics: MetricsTable, status: RunStatus | None, standing: Standing) -> LearnerLine:
    player = standing.player.id

    def latest(name: str) -> float | None:
        value = metrics.latest(f"{player}/{name}")
        return value if np.isfinite(value) else None

    lag = None if status is None else status.lag.get(player)
    return LearnerLine(
        player=player,
        role=standing.player.role,
        decisions=standing.decisions,
        step=standing.step,
        lag=latest("lag") if lag is None else lag,
        entropy=latest("entropy"),
        policy_loss=latest("policy_loss"),
        value_loss=latest("value_loss"),
    )


def _curves(metrics: MetricsTable, learners: Sequence[str]) -> list[Series]:
    present = set(metrics.names)
    names = [name for name in _CURVES if name in present]
    names += [f"{one}/{name}" for name in _PLAYER_CURVES for one in learners if f"{one}/{name}" in present]
    return curves_of(metrics, {name: name for name in names})


def kind_of(encoded: Any) -> str:
    """The class of an encoded part of an experiment."""
    kind = encoded.get("type", "") if isinstance(encoded, dict) else encoded
    return str(kind or "").rpartition(":")[2]


FEWEST_ROWS = 10
"""Fewer rows of metrics say nothing about where they go."""
COLLAPSED = 0.05
"""Share of the initial entropy below which it counts as collapsed."""
EARLY = 1 / 3
"""Share of the budget after which a policy may have made up its mind."""
SURE = 0.25
"""Share of the initial entropy below which a policy hardly explores."""
OVERSHOOTS = 0.01
"""Policy loss of PPO above which updates make the policy worse: without any step it would be 0. docs/running.md"""
FAR_APART = 1.0
"""KL (nats) of averaged from live weights that healthy trainings do not reach. docs/running.md"""
DEAD_ROWS = 5
"""Rows in a row in which a policy gives all positions the same distribution, after which it is called dead."""
STILL = 5
"""Snapshots in a row whose ratings do not differ."""
SURE_ELO = 100.0
"""Half an interval above which a rating, as that of a snapshot with few games, tells nothing about progress."""
MANY_VOIDS = 0.05
FEWEST_VOIDS = 10
MANY_STALE = 0.2
MANY_UNUSED = 1 / 3
"""Of the decisions that are trained on. With the 16 steps of a run that is scaled to a GPU, less than a quarter is."""
LONG_WAIT_S = 30.0
"""A service that has waited no longer for a node may have been about to start."""


def concerns_of_metrics(
    metrics: MetricsTable, learners: Sequence[str], run: str, budget: int | None = None
) -> Iterator[Concern]:
    """`budget`: decisions; None: unknown."""
    for player in learners:
        yield from _concerns_of_policy(metrics, player, run, budget)
        skipped, refused = (metrics.latest(f"{player}/{name}", 0.0) for name in ("skipped", "refused"))
        if skipped or refused:
            yield Concern(
                what=f"{player} met numbers that are not finite",
                why=f"{skipped:,.0f} gradient steps skipped and {refused:,.0f} decisions refused, "
                "because of a NaN or an infinity",
                advice="a smaller learner.learning_rate or learner.max_gradient_norm; where decisions were "
                "refused, `ludus check GAME` looks for such observations and rewards",
            )
        lost = sum(metrics.latest(f"{player}/{name}", 0.0) for name in ("stale", "dropped"))
        trained = metrics.latest("decisions", 0.0) / max(1, len(learners))
        if lost > MANY_STALE * max(trained, 1.0):
            yield Concern(
                what=f"much of what is played for {player} is thrown away",
                why=f"{lost:,.0f} decisions were too old or found the buffer full",
                advice="fewer actors, a larger learner.max_lag, or a faster learner",
            )
        if (unused := metrics.latest(f"{player}/unused", 0.0)) > MANY_UNUSED * max(trained, 1.0):
            yield Concern(
                what=f"much of what is played for {player} is not trained on",
                why=f"{unused:,.0f} decisions had no value after them, or filled too little of a gradient step",
                advice="iterations of more steps: a larger learner.batch_size, or fewer actor.num_tables",
            )


def _concerns_of_policy(metrics: MetricsTable, player: str, run: str, budget: int | None) -> Iterator[Concern]:
    known = _entropy(metrics, player)
    if known is not None:
        decisions, entropy = known
        first, last = float(entropy[:5].mean()), float(entropy[-5:].mean())
        low = np.flatnonzero(_running_mean(entropy) < COLLAPSED * first)
        early = len(low) > 0 and (budget is None or decisions[low[0]] < EARLY * budget)
        if last < NEAR_ZERO or (early and last < COLLAPSED * first):
            when = f" after {decisions[low[0]]:,.0f} decisions" if len(low) else ""
            yield Concern(
                what=f"entropy of {player} has collapsed",
                why=f"{last:.3g} is left of {first:.3g}{when}: it nearly always does the same",
                advice=f"more entropy bonus (`ludus set {run} algorithm.entropy=0.02`) or a smaller "
                "learning rate; if it wins all the same, it has just learned the game",
            )
    constant = metrics.column(f"{player}/constant_policy")
    constant = constant[np.isfinite(constant)]
    if len(constant) > DEAD_ROWS and constant[-DEAD_ROWS:].min() == 1.0 and constant[:-DEAD_ROWS].min() < 1.0:
        yield Concern(
            what=f"the policy of {player} is dead",
            why="it gives all positions the same distribution, which it did not before: its values may still be right, "
            "but it no longer sees what it is shown",
            advice=f"a smaller learning rate (`ludus set {run} learner.learning_rate=0.0003`) for a player that begins "
            "again from a snapshot or is trained anew: units that are dead rarely come back",
        )
    loss, clipped = metrics.column(f"{player}/policy_loss"), metrics.column(f"{player}/clip_fraction")
    loss = loss[np.isfinite(loss) & np.isfinite(clipped)][-FEWEST_ROWS:]
    is_ppo = not np.isfinite(metrics.latest(f"{player}/magnet_kl"))
    if is_ppo and len(loss) == FEWEST_ROWS and (worse := float(np.median(loss))) > OVERSHOOTS:
        yield Concern(
            what=f"updates of {player} overshoot",
            why=f"its policy loss is {worse:+.2g}: after the gradient steps of an update the policy does worse on the "
            "batch than before them",
            advice=f"a smaller learning rate (`ludus set {run} learner.learning_rate=0.0003`), fewer learner.epochs, "
            "or larger batches",
        )
    apart = metrics.column(f"{player}/average_kl")
    apart = apart[np.isfinite(apart)][-5:]
    if len(apart) == 5 and (distance := float(np.median(apart))) > FAR_APART:
        yield Concern(
            what=f"live and averaged weights of {player} play differently",
            why=f"{distance:.2g} nats apart (`average_kl`): each update changes the policy so much that its average, "
            "which snapshots may show, is another player",
            advice=f"a smaller learning rate (`ludus set {run} learner.learning_rate=0.0003`), or a smaller "
            "learner.average_decay",
        )


def _entropy(metrics: MetricsTable, player: str) -> tuple[Floats, Floats] | None:
    """(decisions, entropy) of the rows that have it; None if they are too few to say anything."""
    entropy = metrics.column(f"{player}/entropy")
    there = np.isfinite(entropy)
    return (metrics.column("decisions")[there], entropy[there]) if there.sum() >= FEWEST_ROWS else None


def _running_mean(values: Floats, width: int = 5) -> Floats:
    """Of up to `width` values until each."""
    sums = np.cumsum(values)
    sums[width:] -= sums[:-width].copy()
    return np.asarray(sums / np.minimum(np.arange(1, len(values) + 1), width))


def concerns_of_matches(
    counts: Counts, voids: Mapping[str, int], absent: Mapping[str, str], run: str
) -> Iterator[Concern]:
    if absent:
        player, why = next(iter(absent.items()))
        yield Concern(
            what=f"frozen players without readable weights, which play no matches: {len(absent):,}",
            why=f"{player}: {on_one_line(why, LONGEST_ABSENCE)}",
            advice=f"restore the files in models/; then `ludus train --run {run} --resume` takes the players back. "
            "Their records are kept on the League page",
        )
    ended = {cause: number for cause, number in voids.items() if cause not in NO_FAULT}
    void = sum(ended.values())
    if void and not counts.finished:
        yield Concern(
            what="no match has been finished",
            why=f"all {void:,} are void, the most for: {on_one_line(Counter(ended).most_common(1)[0][0])}",
            advice="`ludus check GAME` plays the game alone; without results there are no ratings",
        )
    elif void >= FEWEST_VOIDS and void > MANY_VOIDS * (counts.finished + void):
        cause, number = Counter(ended).most_common(1)[0]
        yield Concern(
            what="many matches end without a result",
            why=f"{void:,} of {counts.finished + void:,} are void, {number:,} of them for: {cause}",
            advice=f"`ludus logs {run}` shows the logs of the workers; `ludus check GAME` tries the game alone",
        )


def concerns_of_status(
    status: RunStatus | None, now: float, faults: Sequence[Mapping[str, Any]], run: str
) -> Iterator[Concern]:
    if status is None:
        return
    if status.state == "dead":
        yield Concern(
            what="the process that trained this run is gone",
            why="it ended without writing a reason",
            advice=f"`ludus train --run {run} --resume` goes on; `ludus logs {run}` shows its last lines",
        )
    elif status.state == "training" and now - status.time > SILENT_AFTER_S:
        yield Concern(
            what=f"no news for {now - status.time:.0f} s",
            why="the process that trains is busy with something long, or hangs",
            advice=f"`ludus status {run}` on its machine shows its workers",
        )
    if status.restarts:
        last = f"; the last: {faults[-1].get('worker')}: {faults[-1].get('reason')}" if faults else ""
        yield Concern(
            what=f"{status.restarts} restarts of workers",
            why=f"they died or hung and were started again{last}",
            advice=f"`ludus logs {run}`; nothing that was acknowledged is lost",
        )
    unreachable = [fault for fault in faults if fault.get("class") == "models_unreachable"]
    if unreachable:
        yield Concern(
            what="matches are void because a node could not read a model",
            why=f"{len(unreachable)} faults in all; the last: {unreachable[-1].get('reason')}",
            advice="look at the service `models` in `ludus status`, or at Redis (models.backend); workers try again",
        )
    for worker in status.workers:
        if worker.state == "quarantined":
            yield Concern(
                what=f"{worker.name} is given up",
                why="it failed again and again",
                advice=f"`ludus logs {run} {worker.name}` shows why; `ludus scale` brings another",
            )
        elif worker.state == "waiting" and status.time - worker.started > LONG_WAIT_S:
            yield Concern(
                what=f"{worker.name} does not run",
                why="no node of the cluster has free what its service asks for",
                advice="let a node join that has it, or go on by `ludus train --resume` with less in "
                "`services.NAME.resources`",
            )
        elif worker.state == "ended":
            yield Concern(
                what=f"{worker.name} does not run",
                why="it has ended, and its service is not to be started again (`restart` is off)",
                advice=f"`ludus logs {run} {worker.name}` shows its last lines",
            )


def concerns_of_ratings(
    elo: Mapping[str, tuple[float, float]], snapshots: Mapping[str, Sequence[str]], metrics: MetricsTable
) -> Iterator[Concern]:
    """Snapshots that no longer get better, of a policy that hardly tries anything new. A policy that still explores may
    be at an equilibrium, where all ratings are equal. `elo`: with its standard error; `snapshots`: of each learning
    player, oldest first."""
    for player, own in snapshots.items():
        rated = [elo[one] for one in own if one in elo and 2 * elo[one][1] <= SURE_ELO]
        known, newest = _entropy(metrics, player), rated[-STILL:]
        if known is None or len(newest) < STILL or len(own) <= STILL:
            continue
        first, last = float(known[1][:5].mean()), float(known[1][-5:].mean())
        gain = max(value for value, _ in newest[1:]) - newest[0][0]
        error = 2 * float(np.hypot(newest[0][1], newest[-1][1]))
        if gain <= error and last < SURE * first:
            yield Concern(
                what=f"the snapshots of {player} no longer get better",
                why=f"the best of the last {STILL} is {gain:+.0f} Elo from the oldest of them, within the error of "
                f"{error:.0f}, and {last / first:.0%} of the first entropy is left",
                advice="more entropy bonus (algorithm.entropy), a smaller learning rate, or exploiters; the league "
                "shows whom it loses to. It may also be as strong as it can get",
            )
