r"""From replays to a league on skirmish: records bots, clones them, trains leagues from the clone, measures.

python benchmarks/replays_to_league.py                        on two idle cores, some hours
python benchmarks/replays_to_league.py --only "league, teacher" "AlphaStar" --seed 11
                                                              PPO's league and AlphaStar's, with the same budget
python benchmarks/replays_to_league.py --budget 20000 --games 4 --epochs 1 -n 20 --exploit-budget 0 \
    --no-report                                               to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _report import Table, parser, write

from ludus.games.builtin.skirmish_bots import STRATEGIES

BOTS = tuple(STRATEGIES)
TRAININGS: dict[str, tuple[str, list[str]]] = {
    "league, teacher": ("skirmish", []),
    "self-play, teacher": ("skirmish", ["--set", "league.roles.main.matchmaking={type: SelfPlay}"]),
    "league, no teacher": ("skirmish", ["--set", "algorithm.teacher=null"]),
    "AlphaStar": ("skirmish_alphastar", []),
}
"""By name: the recipe, whose network the clone has too, and its settings."""


INTERRUPTED = 130


def ludus(*arguments: str, minutes: float | None = None) -> str:
    """What a command prints. After so many minutes it is asked to save and stop."""
    program = [sys.executable, "-m", "ludus.cli.main", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as running:
        right = [0]
        try:
            out, _ = running.communicate(timeout=None if minutes is None else 60 * minutes)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            right.append(INTERRUPTED)
            out, _ = running.communicate()
    if running.returncode not in right:
        raise SystemExit(f"{' '.join(program)} ended with {running.returncode}:\n{out}")
    return out


class Study:
    """Folders and commands of one study. In a folder that is kept, another call goes on where one ended."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        self.replays = options.replays or folder / "replays"

    def record(self) -> None:
        ludus("record", "skirmish", *BOTS, "--all-pairs", "-n", str(self.options.games), "--quiet",
              "--out", str(self.replays))  # fmt: skip

    def clone(self, name: str, *filters: str, recipe: str = "skirmish") -> tuple[Path, dict[str, Any]]:
        """A player that does what was done in the replays that pass the filters, and its last line."""
        data, run = self.folder / f"data-{name}", self.folder / f"clone-{name}"
        ludus("convert", str(self.replays), "--out", str(data), "--quiet", *filters)
        what = ["--resume"] if _begun(run) else [str(data), recipe, *self.options.clone_set]
        out = ludus("clone", *what, "--run", str(run), "--epochs", str(self.options.epochs),
                    "--threads", str(self.options.threads), "--json")  # fmt: skip
        return run, json.loads(out.splitlines()[-1])

    def train(self, name: str, start: Path) -> Path:
        run = self.folder / name.replace(", ", "-").replace(" ", "-")
        recipe, settings = TRAININGS[name]
        what = [recipe, "--inference", self.options.inference,
                "--set", f"league.roles.*.start={start}#main@best", "--set", f"seed={self.options.seed}",
                *settings, *self.options.train_set]  # fmt: skip
        ludus("train", *(["--resume"] if _begun(run) else what), "--run", str(run), "--quiet",
              "--actors", str(self.options.actors), "--set", f"budget={self.options.budget}",
              minutes=self.options.minutes)  # fmt: skip
        return run

    def decisions(self, run: Path) -> str:
        """That the main player has trained on."""
        return f"{json.loads(ludus('league', str(run), '--json'))['players'][0]['decisions']:,}"

    def win_rates(self, run: Path, player: str) -> list[str]:
        """Against each bot, with intervals."""
        out = ludus("eval", str(run), player, *BOTS, "-n", str(self.options.episodes), "--json")
        rows = [json.loads(line) for line in out.splitlines()]
        return [f"{row['win_rate']:.1%} ({_interval(row)})" for row in rows]

    def exploit(self, run: Path, start: Path) -> str:
        """The win rate of a trained best response."""
        if not self.options.exploit_budget:
            return ""
        out = ludus("exploit", str(run), "main", "--budget", str(self.options.exploit_budget), "--start",
                    f"{start}#main@best", "--set", "algorithm.teacher=null", "--json",
                    "-n", str(self.options.episodes))  # fmt: skip
        measured = json.loads(out.splitlines()[-1])["trained"]["measured"]
        return f"{measured['win_rate']:.1%} ({_interval(measured)})"


def _begun(run: Path) -> bool:
    return (run / "run.json").exists()


def _interval(row: dict[str, Any]) -> str:
    low, high = row["win_rate_interval"]
    return f"{low:.1%} to {high:.1%}"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_report(Study(folder, options), options)


def write_report(study: Study, options: argparse.Namespace) -> None:
    study.record()
    tables: list[Table] = []
    columns = ("player", *(f"against {bot}" for bot in BOTS))
    one, _ = study.clone(options.bot, "--player", options.bot)
    rows = [
        [f"`{options.bot}` itself", *study.win_rates(one, options.bot)],
        [f"clone of `{options.bot}`", *study.win_rates(one, "main@best")],
    ]
    tables.append((f"A clone of `{options.bot}`", columns, rows))
    recipes = dict.fromkeys(TRAININGS[name][0] for name in options.only)
    clones = {recipe: study.clone(f"winners-{recipe}", "--outcome", "win", recipe=recipe) for recipe in recipes}
    rows = [
        [f"clone of all bots where they won, {recipe}", "", *study.win_rates(run, "main@best"), ""]
        for recipe, (run, _) in clones.items()
    ]
    starts = {name: clones[TRAININGS[name][0]][0] for name in options.only}
    with ThreadPoolExecutor(options.together) as pool:
        runs = dict(zip(starts, pool.map(study.train, starts, starts.values()), strict=True))
        beaten = list(pool.map(lambda run: study.win_rates(run, "main"), runs.values()))
        exploited = list(pool.map(study.exploit, runs.values(), starts.values()))
    trained = map(study.decisions, runs.values())
    rows += [
        [name, decisions, *wins, loss]
        for name, decisions, wins, loss in zip(runs, trained, beaten, exploited, strict=True)
    ]
    head, *others = columns
    tables.append(("After training", (head, "decisions", *others, "best response wins"), rows))
    facts = {
        "command": " ".join(sys.argv),
        **{f"clone, {name}": json.dumps(last) for name, (_, last) in clones.items()},
    }
    write("replays-to-league", "From replays to a league", tables, facts=facts, keep=not options.no_report)


def _options() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="where everything is kept; default: nowhere")
    arguments.add_argument("--replays", type=Path, help="recorded before; default: recorded now")
    arguments.add_argument("--games", type=int, default=100, help="recorded for each pair of bots")
    arguments.add_argument("--bot", choices=BOTS, default="boom", help="the one that is cloned alone")
    arguments.add_argument("--epochs", type=float, default=20.0, help="of cloning")
    arguments.add_argument("--budget", type=int, default=2_000_000, help="decisions of each training")
    arguments.add_argument("--minutes", type=float, help="of each training, at most; default: any time")
    arguments.add_argument("--exploit-budget", type=int, default=300_000, help="of each best response; 0: none")
    arguments.add_argument("-n", "--episodes", type=int, default=400, help="games that measure a win rate")
    arguments.add_argument("--only", nargs="+", choices=[*TRAININGS], default=[*TRAININGS], metavar="TRAINING")
    arguments.add_argument("--seed", type=int, default=0, help="of every training")
    arguments.add_argument("--together", type=int, default=1, help="trainings side by side")
    arguments.add_argument("--actors", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of cloning")
    arguments.add_argument("--inference", choices=("inline", "worker"), default="inline")
    arguments.add_argument("--set", dest="train_set", type=_setting, action="extend", default=[])
    arguments.add_argument("--clone-set", type=_setting, action="extend", default=[])
    arguments.add_argument("--no-report", action="store_true")
    return arguments.parse_args()


def _setting(text: str) -> Sequence[str]:
    return ["--set", text]


if __name__ == "__main__":
    main()
