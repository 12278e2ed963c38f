"""Does a league beat self-play? Trains every preset with the same algorithm and the same budget of decisions,
on Leduc poker, Colonel Blotto and Goofspiel, and measures all of them exactly, on the game tree.

python benchmarks/league.py                          everything, about two hours on two idle cores
python benchmarks/league.py --games blotto_4 goofspiel --algorithms ppo
python benchmarks/league.py --games blotto --seeds 1 --keep-in /tmp/league
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _league_run import SETTINGS
from _report import REPORTS, parser, write
from numpy.typing import NDArray

from ludus.data.game_tree import FlatTree
from ludus.league.equilibrium import nash, zero_sum_value
from ludus.league.ratings import fit_elo
from ludus.workers.exploitability import ExactGame

PRESETS = ("self_play", "fsp", "pfsp", "alphastar", "psro")
ALGORITHMS = ("ppo", "magnet")
SEEDS = (101, 102, 103)
"""Settings were chosen on seed 0."""
Floats = NDArray[np.float64]


@cache
def exact(game: str) -> ExactGame:
    root = SETTINGS[game].game.tree()
    assert root is not None
    return ExactGame(root)


@cache
def wins_only(game: str) -> FlatTree:
    """The same tree, in which a win is 1 and a loss is -1, however high."""
    tree = exact(game).tree
    return replace(tree, returns=np.sign(tree.returns))


@dataclass(frozen=True)
class Trained:
    """What one training left behind."""

    game: str
    algorithm: str
    preset: str
    seed: int
    facts: dict[str, Any]
    live: Floats
    average: Floats

    @classmethod
    def load(cls, path: Path) -> Trained:
        facts = json.loads(path.read_text())
        tables = np.load(path.with_suffix(".npz"))
        own = (facts[name] for name in ("game", "algorithm", "preset", "seed"))
        return cls(*own, facts, tables["live"], tables["average"])

    @property
    def mains(self) -> list[int]:
        """Snapshots of the main player, oldest first."""
        return [i for i, one in enumerate(self.facts["snapshots"]) if one["parent"] == "main"]

    @cached_property
    def scores(self) -> Floats:
        """Of every member of the population against every other."""
        return scores_between(exact(self.game).tree, self.population, self.population)

    @cached_property
    def population(self) -> Floats:
        """Every snapshot, first with its live and then with its averaged weights."""
        return np.stack([self.live, self.average], 1).reshape(-1, *self.live.shape[1:])

    def mixture(self, upto: int | None = None) -> Floats:
        """Of the population of the first snapshots, the mixture that none of it beats, as one strategy."""
        size = 2 * (len(self.live) if upto is None else upto)
        weights = nash(self.scores[:size, :size]).row
        return exact(self.game).mixture(list(self.population[:size]), weights)

    def nash_conv(self, strategy: Floats) -> float:
        return exact(self.game).nash_conv(strategy)

    @cached_property
    def answer(self) -> Floats:
        """What the method offers as its strategy at the end: plain self-play its latest weights, a league
        the equilibrium mixture of its snapshots."""
        return self.live[self.mains[-1]] if self.preset == "self_play" else self.mixture()

    def curve(self) -> tuple[list[int], list[float]]:
        """Decisions, and NashConv of the answer of that time."""
        spent = [one["decisions"] for one in self.facts["snapshots"]]
        if self.preset == "self_play":
            return spent, [self.nash_conv(table) for table in self.live]
        return spent, [self.nash_conv(self.mixture(index + 1)) for index in range(len(spent))]

    def worst_past(self) -> float:
        """Lowest win rate of the answer against any snapshot of the main player."""
        return float(win_rates(self.game, self.answer[None], self.live[self.mains]).min())


def scores_between(tree: FlatTree, rows: Floats, columns: Floats) -> Floats:
    """Mean score of each against each, over both seats."""
    first = tree.infostate_seat[:, None] == 0
    found = np.zeros((len(rows), len(columns)))
    for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
        as_first = tree.values(np.where(first, row, column))[0]
        as_second = tree.values(np.where(first, column, row))[1]
        found[i, j] = (as_first + as_second) / 2
    return found


def win_rates(game: str, rows: Floats, columns: Floats) -> Floats:
    """A draw is half a win."""
    return (1.0 + scores_between(wins_only(game), rows, columns)) / 2


def joint_elo(runs: Sequence[Trained]) -> dict[tuple[str, int], float]:
    """Of the answers of all trainings in one league, relative to their mean."""
    finals = np.stack([run.answer for run in runs])
    points = win_rates(runs[0].game, finals, finals)
    np.fill_diagonal(points, 0.0)
    games = 1.0 - np.eye(len(runs))
    names = [f"{run.preset}/{run.seed}" for run in runs]
    weight = 1_000.0  # exact rates: as many games as the prior needs not to matter
    elo = np.array([rating.elo for rating in fit_elo(names, weight * games, weight * points).values()])
    return {(run.preset, run.seed): float(one) for run, one in zip(runs, elo - elo.mean(), strict=True)}


def against_self_play(run: Trained, runs: Iterable[Trained]) -> float:
    """Relative population performance: what its snapshots' best mixture wins against self-play's best one."""
    other = next(one for one in runs if one.preset == "self_play" and one.seed == run.seed)
    return zero_sum_value(scores_between(exact(run.game).tree, run.population, other.population))


# --- training ---


def train(jobs: list[dict[str, Any]], workers: int) -> None:
    """Each training in a process of its own, `workers` at a time; what is there already is not repeated."""
    waiting = [job for job in jobs if not _json_of(job).exists()]
    running: list[tuple[dict[str, Any], subprocess.Popen[bytes]]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("_league_run.py")
    done, began = len(jobs) - len(waiting), time.monotonic()
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            shutil.rmtree(_json_of(job).with_suffix(""), ignore_errors=True)  # half-finished: begin again
            program = [sys.executable, str(script), json.dumps(job)]
            running.append((job, subprocess.Popen(program, env=environment)))
        time.sleep(0.2)
        for entry in [entry for entry in running if entry[1].poll() is not None]:
            running.remove(entry)
            job, process = entry
            if process.returncode:
                raise SystemExit(f"{_name(job)} failed with exit code {process.returncode}")
            done += 1
            print(f"{done}/{len(jobs)} {_name(job)} ({time.monotonic() - began:.0f} s)", flush=True)


def _name(job: dict[str, Any]) -> str:
    return "-".join(str(job[key]) for key in ("game", "algorithm", "preset", "seed", "budget"))


def _json_of(job: dict[str, Any]) -> Path:
    return Path(job["folder"]) / f"{_name(job)}.json"


# --- report ---


def rows_of(runs: Sequence[Trained]) -> list[list[str]]:
    """One row per preset; means over the seeds, with the lowest and the highest."""
    elo = joint_elo(runs)
    rows = []
    for preset in dict.fromkeys(run.preset for run in runs):
        own = [run for run in runs if run.preset == preset]
        rows.append(
            [
                preset,
                f"**{_spread([run.nash_conv(run.answer) for run in own])}**",
                _spread([run.nash_conv(run.live[run.mains[-1]]) for run in own]),
                _spread([run.nash_conv(run.average[run.mains[-1]]) for run in own]),
                _spread([run.nash_conv(run.mixture()) for run in own]),
                _spread([elo[run.preset, run.seed] for run in own], ".0f"),
                _spread([100 * run.worst_past() for run in own], ".0f"),
                _spread([against_self_play(run, runs) for run in own], "+.3f"),
                f"{np.mean([len(run.live) for run in own]):.0f}",
                f"{np.mean([run.facts['cpu'] for run in own]):.0f} s",
            ]
        )
    return rows


COLUMNS = (
    "preset",
    "NashConv of its answer",
    "NashConv, live main",
    "NashConv, averaged main",
    "NashConv, equilibrium mixture",
    "Elo (joint league)",
    "lowest win rate against its past, %",
    "RPP against self_play",
    "snapshots",
    "CPU",
)


def _spread(values: Sequence[float], form: str = ".3f") -> str:
    mean, low, high = np.mean(values), min(values), max(values)
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"


def draw(runs: Sequence[Trained], path: Path) -> None:
    """NashConv of the answers over the budget, one panel per game and algorithm."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((run.game, run.algorithm) for run in runs))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False)
    # Okabe-Ito colours and different dashes: readable without colour as well
    colours = dict(zip(PRESETS, ("#000000", "#E69F00", "#56B4E9", "#D55E00", "#009E73"), strict=True))
    dashes = dict(zip(PRESETS, ("-", "--", "-.", "-", ":"), strict=True))
    for axis, (game, algorithm) in zip(axes[0], panels, strict=True):
        for preset in PRESETS:
            own = [r for r in runs if (r.game, r.algorithm, r.preset) == (game, algorithm, preset)]
            if not own:
                continue
            grid = np.linspace(0, SETTINGS[game].budget, 60)
            curves = np.array([np.interp(grid, *run.curve()) for run in own])
            look = {"color": colours[preset], "linestyle": dashes[preset]}
            axis.plot(grid / 1e6, curves.mean(0), label=preset, linewidth=1.8, **look)
            axis.fill_between(grid / 1e6, curves.min(0), curves.max(0), color=colours[preset], alpha=0.12)
        axis.set(title=f"{game}, {algorithm}", xlabel="million decisions", yscale="log")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("NashConv of its answer")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--games", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    arguments.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    arguments.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    arguments.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    arguments.add_argument("--budget", type=float, default=1.0, help="times the usual budget")
    arguments.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--keep-in", type=Path, help="keep the runs here, and go on with those there")
    chosen = arguments.parse_args()
    if "self_play" not in chosen.presets:
        arguments.error(f"--presets {' '.join(chosen.presets)}: every preset is compared with self_play; name it too")
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep_in or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [
            {
                "game": game,
                "algorithm": algorithm,
                "preset": preset,
                "seed": seed,
                "budget": int(SETTINGS[game].budget * chosen.budget),
                "folder": str(folder),
            }
            for seed in chosen.seeds
            for game, algorithm, preset in product(chosen.games, chosen.algorithms, chosen.presets)
        ]
        train(jobs, chosen.jobs)
        runs = [Trained.load(_json_of(job)) for job in jobs]
    tables = []
    for game, algorithm in product(chosen.games, chosen.algorithms):
        own = [run for run in runs if (run.game, run.algorithm) == (game, algorithm)]
        own.sort(key=lambda run: (PRESETS.index(run.preset), run.seed))
        budget = own[0].facts["budget"]
        tables.append((f"{game}, {algorithm}, {budget / 1e6:g} M decisions", COLUMNS, rows_of(own)))
    whole = len(chosen.seeds) >= 3 and chosen.budget >= 1 and set(chosen.presets) == set(PRESETS)
    everything = len(tables) == len(SETTINGS) * len(ALGORITHMS)
    name = "league" if everything else "-".join(("league", *chosen.games, *chosen.algorithms))
    write(name, "League presets against self-play", tables, notes=NOTES, keep=whole)
    if whole:
        draw(runs, REPORTS / f"{name}.png")


NOTES = (
    "Same network, algorithm, learner settings and budget of trained decisions in every row of a table; a "
    "league with several learning players shares the budget among them. Mean over the seeds (lowest to "
    "highest). All measures are exact, on the game tree. NashConv is the sum over both seats of what a best "
    "response gains; 0 is unbeatable.",
    "The answer of plain self-play is its latest live weights; that of a league is its equilibrium mixture: "
    "of all its snapshots, with live and with averaged weights, the mixture that none of them beats, played "
    "as one strategy. The "
    "next three columns have all three measures for every row: the main player's live weights, its averaged "
    "weights, and the equilibrium mixture, which for self_play is of snapshots that nobody trained against. "
    "Elo and the lowest win rate are of the answers. RPP: what the best mixture of the row's snapshots "
    "scores against the best one of self_play's of the same seed.",
)

if __name__ == "__main__":
    main()
