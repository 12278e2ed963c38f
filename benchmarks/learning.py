"""What the recipes learn: trains each by the command line, measures it with `ludus eval`, writes a report.

python benchmarks/learning.py                     all of them, about half an hour on two idle cores
python benchmarks/learning.py kuhn connect_four   only these
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import Table, parser, write

RUNS: dict[str, list[str]] = {
    "kuhn": ["kuhn"],
    "leduc": ["leduc"],
    "connect_four": ["connect_four"],
    "connect_four_raw": ["connect_four_raw"],
    "cartpole": ["cartpole"],
    "beacon": ["beacon"],
    "beacon_a2c": ["beacon_a2c"],
}
BAR = {
    "kuhn": "NashConv < 0.03 in 3 minutes",
    "leduc": "NashConv < 0.30 in 16 M decisions",
    "connect_four": "random 99 %, first snapshot 95 %, alpha_beta_2 60 %",
    "connect_four_raw": "random 96 %, alpha_beta_2 45 %",
    "cartpole": "mean score 475",
    "beacon": "mean score 24.7, 90 % of the oracle's, in 30 minutes",
    "beacon_a2c": "mean score 24.7",
}
GAMES = 1000


def ludus(*arguments: str) -> str:
    program = [sys.executable, "-m", "ludus.cli.main", *arguments]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


def measure(name: str, extra: list[str], folder: Path, curves: list[list[str]]) -> list[str]:
    """Train one recipe and put its figures into a row of the table, and the scores of its snapshots into one
    of the curves if it is a game of one seat."""
    run = str(folder / name)
    before, cpu_before = time.monotonic(), _cpu_of_children()
    lines = ludus("train", *RUNS[name], *extra, "--run", run, "--json").splitlines()
    seconds, cpu = time.monotonic() - before, _cpu_of_children() - cpu_before
    end: dict[str, Any] = json.loads(lines[-1])
    players = json.loads(ludus("league", run, "--json"))["players"]
    decisions = players[0]["decisions"]
    curve = [(player["decisions"], *player["score"]) for player in players if player["score"]]
    if curve:
        points = [f"{at / 1e3:.0f} k: {score:.1f} ± {1.96 * error:.1f}" for at, score, error in curve]
        curves.append([" ".join([*RUNS[name], *extra]), ", ".join(points)])
    if end["nash_conv"] is not None:
        figures = [f"{what}: {value:.4f}" for what, value in end["nash_conv"].items()]
    else:
        rows = [json.loads(line) for line in ludus("eval", run, "-n", str(GAMES), "--json").splitlines()]
        figures = [_figure(row) for row in rows]
    return [
        f"`ludus train {' '.join([*RUNS[name], *extra])}`",
        BAR[name],
        "<br>".join(figures),
        f"{decisions / 1e6:.2f} M",
        f"{seconds:.0f} s ({cpu:.0f} s of CPU)",
    ]


def _figure(row: dict[str, Any]) -> str:
    if "win_rate" not in row:
        return f"{row['players'][0]}: {row['score']:.1f} ± {1.96 * row['score_standard_error']:.1f}"
    low, high = row["win_rate_interval"]
    return f"against {row['players'][1]}: {row['win_rate']:.1%} ({low:.1%} to {high:.1%})"


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("recipes", nargs="*", default=list(RUNS), help=", ".join(RUNS))
    arguments.add_argument("--seeds", type=int, default=1)
    chosen = arguments.parse_args()
    curves: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(name, ["--set", f"seed={seed}"] if seed else [], Path(folder) / str(seed), curves)
            for name in chosen.recipes
            for seed in range(chosen.seeds)
        ]
    columns = ("command", "bar", "reached", "decisions", "time")
    tables: list[Table] = [("Results", columns, rows)]
    if curves:
        tables.append(("Mean scores of snapshots, by decisions trained on", ("recipe", "curve"), curves))
    write("learning", "What the recipes learn", tables)


if __name__ == "__main__":
    main()
