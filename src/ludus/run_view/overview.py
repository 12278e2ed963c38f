"""A run at a glance, as a document."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ludus.observe.process_use import GpuUse
from ludus.observe.run_look import ENDED
from ludus.run_view.documents import Concern, Counts, Gpu, LearnerLine, Overview, Series
from ludus.run_view.metrics_table import MetricsTable, thinned
from ludus.run_view.player_page import curve_of
from ludus.store.run_folder import RunFolder
from ludus.store.run_status import SILENT_AFTER_S, RunStatus

MOST_LEARNERS_IN_CURVES = 8
_CURVES = ("decisions_per_s",)
_PLAYER_CURVES = ("episode_score", "entropy", "lag", "value_loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueGlance:
    """What the overview needs of the ledger."""

    counts: Counts = field(default_factory=Counts)
    decisions: int = 0
    learners: tuple[tuple[str, str, int, int | None], ...] = ()
    """Player, role, decisions, step."""
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
    ended = status is None or status.state in ENDED
    decisions = status.decisions if status else int(metrics.latest("decisions", glance.decisions))
    left, by = (None, "") if status is None or ended else _time_left(status, now)
    counts = glance.counts
    if not counts.issued and status is not None:
        counts = Counts(issued=status.matches, finished=status.matches)
    return Overview(
        run=folder.path.resolve().name,
        experiment=str(experiment.get("name", "")),
        trial=experiment.get("trial"),
        game=_kind(experiment.get("game")),
        state=status.state if status else state,
        ended=ended,
        time=status.time if status else None,
        silent_s=_silence(status, now),
        decisions=decisions,
        budget=status.budget if status else int(experiment.get("budget", 0)),
        decisions_per_s=None if status is None or ended else status.decisions_per_s,
        time_left_s=left,
        left_by=by,
        up_s=None if status is None else (status.time if ended else now) - status.started,
        episodes=status.episodes if status else int(metrics.latest("episodes", 0)),
        restarts=status.restarts if status else 0,
        matches=counts,
        learners=[_learner(metrics, status, *one) for one in glance.learners],
        workers=list(status.workers) if status else [],
        gpus=[
            Gpu(name=one.name, utilisation=one.utilisation, memory=one.memory, total_memory=one.total_memory)
            for one in gpus
        ],
        bottleneck=status.bottleneck if status else None,
        warnings=[*concerns, *glance.concerns],
        curves=_curves(metrics, [one[0] for one in glance.learners[:MOST_LEARNERS_IN_CURVES]]),
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
    """As it was typed: where the program lies says nothing."""
    return shlex.join([Path(words[0]).name, *words[1:]]) if words else ""


def _time_left(status: RunStatus, now: float) -> tuple[float | None, str]:
    limit = max(0.0, status.started + 3600 * status.time_limit_h - now)
    if status.state != "training" or status.decisions_per_s <= 0:
        return limit, "time limit"
    budget = max(0, status.budget - status.decisions) / status.decisions_per_s
    return (budget, "budget") if budget < limit else (limit, "time limit")


def _silence(status: RunStatus | None, now: float) -> float:
    if status is None or status.state in ENDED:
        return 0.0
    silent = now - status.time
    return silent if silent > SILENT_AFTER_S else 0.0


def _learner(
    metrics: MetricsTable, status: RunStatus | None, player: str, role: str, decisions: int, step: int | None
) -> LearnerLine:
    def latest(name: str) -> float | None:
        value = metrics.latest(f"{player}/{name}")
        return value if np.isfinite(value) else None

    lag = None if status is None else status.lag.get(player)
    return LearnerLine(
        player=player,
        role=role,
        decisions=decisions,
        step=step,
        lag=latest("lag") if lag is None else lag,
        entropy=latest("entropy"),
        policy_loss=latest("policy_loss"),
        value_loss=latest("value_loss"),
    )


def _curves(metrics: MetricsTable, learners: Sequence[str]) -> list[Series]:
    present = set(metrics.names)
    names = [name for name in _CURVES if name in present]
    names += [f"{one}/{name}" for name in _PLAYER_CURVES for one in learners if f"{one}/{name}" in present]
    if not names:
        return []
    x, *curves = thinned(metrics.column("decisions"), *(metrics.column(name) for name in names))
    return [curve_of(name, name, x, y) for name, y in zip(names, curves, strict=True)]


def _kind(encoded: Any) -> str:
    """The class of an encoded part of an experiment."""
    kind = encoded.get("$type", "") if isinstance(encoded, dict) else encoded
    return str(kind or "").rpartition(":")[2]
