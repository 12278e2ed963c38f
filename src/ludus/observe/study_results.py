"""What the runs of a study say together: means and interquartile means over seeds with intervals, and their curves.
Reads plain files and executes nothing that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ludus.config import ConfigError
from ludus.data.checks import did_you_mean
from ludus.observe.export import Table as CSVTable, as_csv, drawn_bands
from ludus.observe.report import write_tables_page
from ludus.observe.terminal import add_numbers, as_text, new_table
from ludus.store.files import StoreError, atomic_write, read_file, unseal
from ludus.store.run_folder import RunFolderError, read_metrics

Floats = NDArray[np.float64]
DRAWS = 10_000
"""Of the bootstrap."""
POINTS = 100
"""Of a mean curve."""
FEW = 5
"""With fewer seeds than this, a bootstrap interval is clearly too narrow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate:
    """A number over the seeds of one setting, with a 95 % interval; None for a single seed."""

    value: float
    interval: tuple[float, float] | None


def interquartile_mean(values: Floats) -> Floats:
    """The mean of the middle half, over the last axis. The numbers at the quartiles count in part, so that four numbers
    are enough."""
    ordered = np.sort(values, axis=-1)
    number = ordered.shape[-1]
    edges = np.clip(np.arange(number + 1), number / 4, 3 * number / 4)
    return np.asarray(ordered @ (np.diff(edges) / (number / 2)))


def aggregate(values: Floats, statistic: Callable[[Floats], Floats], *, seed: int = 0) -> Aggregate:
    """A statistic of scores [runs, tasks] and its interval by a stratified bootstrap: every task draws its runs anew
    (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice")."""
    runs, tasks = values.shape
    value = float(statistic(values.reshape(-1)))
    if runs == 1:
        return Aggregate(value=value, interval=None)
    drawn = np.random.default_rng(seed).integers(runs, size=(DRAWS, runs, tasks))
    low, high = np.quantile(statistic(values[drawn, np.arange(tasks)].reshape(DRAWS, -1)), [0.025, 0.975])
    return Aggregate(value=value, interval=(float(low), float(high)))


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=-1))


class StudyRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `study.json` has it."""

    name: str
    setting: str
    seed: int
    settings: dict[str, Any]
    measured_by: list[str]


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `study.json` that readers need."""

    format: int
    objective: str
    lower_is_better: bool
    player: str
    runs: list[StudyRun]


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The file of one run's result."""

    measured_by: list[str]
    """The commands that it comes from."""
    value: float | None = None
    values: dict[str, float] = {}
    """What `value` is the mean of, by opponent."""
    failed: str = ""


def read_result(path: Path, measured_by: list[str]) -> RunResult | None:
    """The result that these commands gave; None if there is none. Raises StoreError if it is damaged."""
    try:
        result = msgspec.convert(unseal(read_file(path)), RunResult)
    except FileNotFoundError:
        return None
    except (StoreError, msgspec.ValidationError, OSError) as error:
        raise StoreError(f"its result {path} does not read: {error}") from error
    return result if result.measured_by == measured_by else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingResult:
    """The runs of one setting."""

    setting: str
    settings: Mapping[str, Any]
    planned: int
    values: Mapping[int, float]
    """Seed -> objective, of the runs that are done."""
    failed: Mapping[int, str]
    """Seed -> what went wrong, and where the log is."""
    mean: Aggregate | None
    """None while no run is done."""
    iqm: Aggregate | None


class StudyResults:
    """The results of a study so far. `print` shows them as a table, the best setting first."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._facts = msgspec.convert(unseal(read_file(self.path / "study.json")), _Facts)
        except FileNotFoundError:
            raise RunFolderError(f"{self.path} is not a study, it has no study.json") from None
        except (StoreError, msgspec.ValidationError) as error:
            raise RunFolderError(
                f"{self.path / 'study.json'} cannot be read: {error}; the command that trains the study writes it again"
            ) from error
        if outside := [run.name for run in self._facts.runs if Path(run.name).name != run.name]:
            raise RunFolderError(f"{self.path / 'study.json'} names a run that is not in it: {outside[0]!r}")
        self.objective = self._facts.objective
        by_setting: dict[str, list[StudyRun]] = {}
        for run in self._facts.runs:
            by_setting.setdefault(run.setting, []).append(run)
        found = [self._of_setting(runs) for runs in by_setting.values()]
        sign = 1.0 if self._facts.lower_is_better else -1.0
        self.settings = tuple(sorted(found, key=lambda one: np.inf if one.mean is None else sign * one.mean.value))
        """The best mean first, then those without a result."""

    @property
    def runs(self) -> Sequence[StudyRun]:
        """All that are planned."""
        return self._facts.runs

    @property
    def lower_is_better(self) -> bool:
        return self._facts.lower_is_better

    @property
    def is_complete(self) -> bool:
        return all(len(one.values) == one.planned for one in self.settings)

    @property
    def failures(self) -> list[str]:
        return [f"{one.setting}, seed {seed}: {text}" for one in self.settings for seed, text in one.failed.items()]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: what `ludus study show --json` prints."""
        rows = [
            {
                "setting": one.setting,
                "settings": dict(one.settings),
                "planned": one.planned,
                "values": {str(seed): value for seed, value in one.values.items()},
                **_plain("mean", one.mean),
                **_plain("iqm", one.iqm),
                "failed": {str(seed): text for seed, text in one.failed.items()},
            }
            for one in self.settings
        ]
        return {"study": str(self.path), "objective": self.objective, "settings": rows}

    def table(self) -> Table:
        """The settings, the best first."""
        better = "lower" if self._facts.lower_is_better else "higher"
        table = new_table("setting")
        add_numbers(table, "runs", f"mean {self.objective} (95 %)", "interquartile mean (95 %)", "worst seed to best")
        for one in self.settings:
            cells = ["", "", ""]
            if one.mean is not None and one.iqm is not None:
                ends = sorted(one.values.values(), reverse=self._facts.lower_is_better)
                cells = [_shown(one.mean), _shown(one.iqm), f"{ends[0]:.4g} to {ends[-1]:.4g}"]
            table.add_row(one.setting, f"{len(one.values)} of {one.planned}", *cells)
        table.caption = f"{better.capitalize()} is better. Intervals: stratified bootstrap over seeds."
        if any(1 < len(one.values) < FEW for one in self.settings):
            table.caption += f" Of fewer than {FEW} seeds they are too narrow."
        return table

    def __str__(self) -> str:
        return "\n".join([as_text(self.table()), *(f"failed: {text}" for text in self.failures)])

    __repr__ = __str__

    # --- curves ---

    @property
    def default_metric(self) -> str:
        player = self._facts.player.partition("@")[0].partition(".")[0]
        return f"{player}/{'nash_conv' if self.objective == 'nash_conv' else 'episode_score'}"

    def curves(self, metric: str | None = None) -> dict[str, dict[int, tuple[Floats, Floats]]]:
        """Setting -> seed -> decisions and values of a metric of the runs (`docs/metrics.md`)."""
        name = self.default_metric if metric is None else metric
        found: dict[str, dict[int, tuple[Floats, Floats]]] = {}
        known: dict[str, None] = {}
        for run in self._facts.runs:
            path = self.path / "runs" / run.name / "metrics" / "train.jsonl"
            rows = read_metrics(path)[0] if path.exists() else []
            known |= {key: None for row in rows for key in row}
            both = ((row.get("decisions"), row.get(name)) for row in rows)
            points = [one for one in both if all(isinstance(value, int | float) for value in one)]
            if points:
                steps, values = np.array(points, np.float64).T
                found.setdefault(run.setting, {})[run.seed] = after_resumes(steps, values)
        if not found:
            raise ConfigError(f"{self.path}: no run has a metric {name!r}{did_you_mean(name, known)}")
        return found

    def plot(self, path: str | PathLike[str], metric: str | None = None) -> Path:
        """Write the curves of all runs: a PNG or SVG with the mean of each setting and its 95 % interval, an HTML page
        with the same and the table, or a CSV with every point of every run."""
        target, name = Path(path), self.default_metric if metric is None else metric
        kind = target.suffix.lower().removeprefix(".")
        if kind not in ("png", "svg", "html", "csv"):
            raise ConfigError(f"{target}: the name of a plot ends in .png, .svg, .html or .csv")
        if kind == "csv":
            atomic_write(target, as_csv(_points(self.curves(name), name)).encode(), sync=False)
        elif kind == "html":
            write_tables_page(target, f"Study {self.path.name}", [self.table()], [self._picture("svg", name)])
        else:
            atomic_write(target, self._picture(kind, name), sync=False)
        return target

    def _picture(self, kind: str, metric: str) -> bytes:
        bands = {setting: mean_curve([*runs.values()]) for setting, runs in self.curves(metric).items()}
        return drawn_bands(kind, bands, metric)

    def _of_setting(self, runs: list[StudyRun]) -> SettingResult:
        values: dict[int, float] = {}
        tasks: list[list[float]] = []
        failed: dict[int, str] = {}
        for run in runs:
            try:
                result = read_result(self.path / "results" / f"{run.name}.json", run.measured_by)
            except StoreError as error:
                failed[run.seed] = str(error)
                continue
            if result is not None and result.value is not None:
                if not result.values or (tasks and len(result.values) != len(tasks[0])):
                    failed[run.seed] = "its result is not of the same opponents as those of other seeds"
                    continue
                values[run.seed] = result.value
                tasks.append([*result.values.values()])
            elif result is not None:
                failed[run.seed] = result.failed
        scores = np.array(tasks, np.float64)
        return SettingResult(
            setting=runs[0].setting,
            settings=runs[0].settings,
            planned=len(runs),
            values=values,
            failed=failed,
            mean=aggregate(scores, _mean) if tasks else None,
            iqm=aggregate(scores, interquartile_mean) if tasks else None,
        )


def mean_curve(runs: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Decisions, mean, and the ends of its 95 % interval (bootstrap over runs), where all runs have values."""
    first = max(steps[0] for steps, _ in runs)
    last = max(first, min(steps[-1] for steps, _ in runs))
    steps = np.linspace(first, last, POINTS if last > first else 1)
    values = np.stack([np.interp(steps, *run) for run in runs])
    drawn = np.random.default_rng(0).integers(len(runs), size=(1_000, len(runs)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975], axis=0)
    return steps, values.mean(axis=0), np.asarray(low), np.asarray(high)


def after_resumes(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Without the rows that a run has taken back by falling back to a checkpoint, or written again at its end."""
    kept = steps < np.minimum.accumulate(np.append(steps[1:], np.inf)[::-1])[::-1]
    return steps[kept], values[kept]


def _points(curves: Mapping[str, Mapping[int, tuple[Floats, Floats]]], metric: str) -> CSVTable:
    rows = [
        (setting, seed, step, value)
        for setting, runs in curves.items()
        for seed, points in runs.items()
        for step, value in zip(*(one.tolist() for one in points), strict=True)
    ]
    return ("setting", "seed", "decisions", metric), rows


def _plain(name: str, one: Aggregate | None) -> dict[str, Any]:
    interval = None if one is None or one.interval is None else [*one.interval]
    return {name: None if one is None else one.value, f"{name}_interval": interval}


def _shown(one: Aggregate) -> str:
    if one.interval is None:
        return f"{one.value:.4g}"
    return f"{one.value:.4g} ({one.interval[0]:.4g} to {one.interval[1]:.4g})"
