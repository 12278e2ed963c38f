r"""From replays to a league on skirmish: records bots, clones them, trains leagues from the clones, measures.

python benchmarks/replays_to_league.py                        on two idle cores, some hours
python benchmarks/replays_to_league.py --runtime device --clones clones --only "league, teacher" AlphaStar \
    --seeds 11 12 13 --together 3 --decisions 2e7 --minutes 8 --exploit-budget 2e6 --folder study --slim
                                                              PPO's league and AlphaStar's on a GPU, with as many
                                                              decisions of the main player
python benchmarks/replays_to_league.py ... --phases train     and later, maybe on another machine, with the same
python benchmarks/replays_to_league.py ... --phases exploit measure                           --folder and --clones
python benchmarks/replays_to_league.py --decisions 20000 --games 4 --epochs 1 -n 20 --exploit-budget 0 \
    --bot "" --no-report                                      to see that it runs

A folder of clones has the runs `ppo` and `alphastar`, which `ludus clone` made by the recipes `skirmish` and
`skirmish_alphastar`. What is measured of a run is kept in its folder as study.json; the report is made of these files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _report import Table, parser, write

from ludus.games.builtin.skirmish_bots import STRATEGIES

BOTS = tuple(STRATEGIES)
PHASES = ("train", "exploit", "measure")
INTERRUPTED = 130
CLONES = {"skirmish": "ppo", "skirmish_alphastar": "alphastar"}
"""By recipe, whose network a clone has, its folder."""


@dataclass(frozen=True)
class Training:
    recipe: str
    settings: tuple[str, ...] = ()
    share: float = 1.0
    """Of all decisions, those of the main player."""

    @property
    def clone(self) -> str:
        return CLONES[self.recipe]


TRAININGS = {
    "league, teacher": Training("skirmish"),
    "self-play, teacher": Training("skirmish", ("league.roles.main.matchmaking={type: SelfPlay}",)),
    "league, no teacher": Training("skirmish", ("algorithm.teacher=null",)),
    "AlphaStar": Training("skirmish_alphastar", share=0.42),
}
EXPLOITER = (
    "algorithm={type: PPO, gamma: 0.998, lambda_: 0.95, dual_clip: 3.0, entropy: 0.003}",
    "learner.epochs=2",
    "learner.adam_beta1=0.9",
    "learner.adam_beta2=0.999",
    "learner.learning_rate={type: Linear, start: 3e-4, end: 3e-5}",
)
"""Settings of every best response, so that all players are attacked in the same way: those of the recipe `skirmish`."""


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


def settings_of(given: Iterable[str]) -> list[str]:
    return [part for one in given for part in ("--set", one)]


@dataclass(frozen=True)
class League:
    """A training with a seed, in a folder of its own."""

    name: str
    seed: int
    folder: Path

    @property
    def training(self) -> Training:
        return TRAININGS[self.name]

    @property
    def run(self) -> Path:
        return self.folder / f"{self.name.replace(', ', '-').replace(' ', '-')}-{self.seed}"

    def kept(self) -> dict[str, Any]:
        """What was measured so far."""
        file = self.run / "study.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def keep(self, **measured: Any) -> None:
        (self.run / "study.json").write_text(json.dumps({**self.kept(), **measured}, indent=1))


class Study:
    """Folders and commands of one study. In a folder that is kept, another call goes on where one ended."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.replays = options.replays or folder / "replays"
        self.clones: Path = options.clones or folder / "clones"
        self.leagues = [League(name, seed, folder) for name in options.only for seed in options.seeds]

    # --- clones ---

    def clone_all(self) -> dict[str, str]:
        """Clones of all recipes in use, from replays that are recorded if need be. Returns their last lines."""
        if self.options.clones is not None:
            return {}
        recipes = {league.training.recipe: league.training.clone for league in self.leagues}
        return {
            f"clone, {recipe}": self.clone(self.clones / name, "--outcome", "win", recipe=recipe)
            for recipe, name in recipes.items()
        }

    def clone(self, run: Path, *filters: str, recipe: str = "skirmish") -> str:
        """A player that does what was done in the replays that pass the filters."""
        if not self.replays.exists():
            ludus("record", "skirmish", *BOTS, "--all-pairs", "-n", str(self.options.games), "--quiet",
                  "--out", str(self.replays))  # fmt: skip
        data = self.folder / f"data-{run.name}"
        ludus("convert", str(self.replays), "--out", str(data), "--quiet", *filters)
        what = ["--resume"] if _begun(run) else [str(data), recipe, *settings_of(self.options.clone_set)]
        out = ludus("clone", *what, "--run", str(run), "--epochs", str(self.options.epochs),
                    "--threads", str(self.options.threads), "--json")  # fmt: skip
        return out.splitlines()[-1]

    def start_of(self, league: League) -> str:
        return f"{self.clones / league.training.clone}#main@best"

    # --- trainings ---

    def train(self, league: League) -> None:
        options, training = self.options, league.training
        if "players" in league.kept():  # done, and maybe slim
            return
        what = [training.recipe, "--runtime", options.runtime,
                *settings_of([f"league.roles.*.start={self.start_of(league)}", f"seed={league.seed}"]),
                *settings_of(training.settings), *settings_of(options.settings)]  # fmt: skip
        budget, local = round(options.decisions / training.share), []
        if options.runtime != "device":
            what += ["--inference", options.inference]
            local = ["--actors", str(options.actors)]
        ludus("train", *(["--resume"] if _begun(league.run) else what), "--run", str(league.run), "--quiet", *local,
              *settings_of([f"budget={budget}"]),
              minutes=options.minutes)  # fmt: skip
        players = json.loads(ludus("league", str(league.run), "--json"))["players"]
        found = {one["id"]: one["decisions"] for one in players if one["role"] not in ("frozen", "scripted")}
        # A run that has ended has a snapshot of its last weights; one that was interrupted has them in its checkpoint.
        if sum(found.values()) < budget:
            ludus("league", str(league.run), "freeze", "main")
        main = make_slim(league.run) if options.slim else "main"
        league.keep(players=found, seconds=_seconds(league.run), main=main)

    # --- measurements ---

    def exploit(self, league: League) -> None:
        """The win rate of a trained best response."""
        options = self.options
        if not options.exploit_budget or "exploited" in league.kept():
            return
        out = ludus("exploit", str(league.run), league.kept()["main"], "--train",
                    "--budget", str(options.exploit_budget),
                    "--start", self.start_of(league), *settings_of(EXPLOITER), *settings_of(options.exploit_set),
                    "--runtime", options.runtime, "--discard", "--json", "-n", str(options.episodes))  # fmt: skip
        league.keep(exploited=json.loads(out.splitlines()[-1])["trained"])

    def measure(self, league: League) -> None:
        if "against" not in league.kept():
            league.keep(against=self.win_rates(league.run, league.kept()["main"]))

    def win_rates(self, run: Path, player: str) -> dict[str, Any]:
        """Against each bot."""
        out = ludus("eval", str(run), player, *BOTS, "-n", str(self.options.episodes), "--json")
        rows = [json.loads(line) for line in out.splitlines()]
        return {bot: {name: row[name] for name in ("win_rate", "win_rate_interval")}
                for bot, row in zip(BOTS, rows, strict=True)}  # fmt: skip

    def each(self, work: Callable[[League], None]) -> None:
        with ThreadPoolExecutor(self.options.together) as pool:
            list(pool.map(work, self.leagues))

    # --- the report ---

    def rows(self) -> list[list[str]]:
        """A row for each league, then one for the mean over the seeds of each training."""
        rows = []
        for league in self.leagues:
            kept = league.kept()
            players, against = kept.get("players", {}), kept.get("against", {})
            measured = [against.get(bot) for bot in BOTS]
            exploited = kept.get("exploited", {}).get("measured")
            numbers = [f"{players['main']:,}", f"{sum(players.values()):,}"] if players else ["", ""]
            rows.append([league.name, str(league.seed), *numbers, *map(_shown, [*measured, exploited])])
        for name in self.options.only if len(self.options.seeds) > 1 else ():
            kept_of_all = [league.kept() for league in self.leagues if league.name == name]
            columns = [[one["against"][bot]["win_rate"] for one in kept_of_all if "against" in one] for bot in BOTS]
            columns.append([one["exploited"]["measured"]["win_rate"] for one in kept_of_all if "exploited" in one])
            shown = [f"{statistics.mean(one):.1%} ({min(one):.1%} to {max(one):.1%})" if one else "" for one in columns]
            rows.append([f"{name}: mean (range)", "", "", "", *shown])
        return rows


def make_slim(run: Path) -> str:
    """Leave of a run only what the measurements need, some MB: the ledger and the averaged weights of the main player.
    Returns the address of these."""
    for part in ("checkpoints", "logs"):
        shutil.rmtree(run / part, ignore_errors=True)
    models = run / "models"
    newest = max((models / "main").glob("*.average.safetensors"), key=lambda file: file.stat().st_mtime)
    stem = newest.name.removesuffix(".safetensors")
    for file in [*models.rglob("*.safetensors"), *models.rglob("*.json"), *models.rglob("*.gone")]:
        if file.parent.name == "tags" or (file.parent == newest.parent and file.name.startswith(f"{stem}.")):
            continue
        file.unlink()
    incarnation, _, step = stem.removesuffix(".average").partition("-")
    return f"main:{incarnation}:{step}"


def _begun(run: Path) -> bool:
    return (run / "run.json").exists()


def _seconds(run: Path) -> float:
    """From the first row of metrics to the last."""
    rows = [json.loads(line) for line in (run / "metrics" / "train.jsonl").read_text().splitlines()]
    times = [row["time"] for row in rows if "time" in row]
    return float(times[-1] - times[0]) if times else 0.0


def _shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    low, high = row["win_rate_interval"]
    return f"{row['win_rate']:.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        carry_out(Study(folder, options), options)


def carry_out(study: Study, options: argparse.Namespace) -> None:
    facts = {"command": " ".join(sys.argv), **study.clone_all()}
    tables: list[Table] = []
    columns = tuple(f"against {bot}" for bot in BOTS)
    if "train" in options.phases:
        study.each(study.train)
    if "exploit" in options.phases:
        study.each(study.exploit)
    if "measure" in options.phases:
        study.each(study.measure)
        rows = []
        if options.bot and options.clones is None:
            one = study.folder / f"clone-{options.bot}"
            study.clone(one, "--player", options.bot)
            players = {f"`{options.bot}` itself": options.bot, f"clone of `{options.bot}`": "main@best"}
            rows += [[shown, *_all(study.win_rates(one, player))] for shown, player in players.items()]
        clones = dict.fromkeys(league.training.clone for league in study.leagues)
        rows += [
            [f"clone of winners, {one}", *_all(study.win_rates(study.clones / one, "main@best"))] for one in clones
        ]
        tables.append(("Clones", ("player", *columns), rows))
    heads = ("training", "seed", "decisions of main", "of all players", *columns, "best response wins")
    tables.append(("After training", heads, study.rows()))
    write("replays-to-league", "From replays to a league", tables, facts=facts, keep=not options.no_report)


def _all(against: dict[str, Any]) -> list[str]:
    return [_shown(against[bot]) for bot in BOTS]


def _options() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="where everything is kept; default: nowhere")
    arguments.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES, metavar="PHASE")
    arguments.add_argument("--clones", type=Path, help="a folder of clones made before; default: made now")
    arguments.add_argument("--replays", type=Path, help="recorded before; default: recorded now")
    arguments.add_argument("--games", type=int, default=100, help="recorded for each pair of bots")
    arguments.add_argument("--bot", default="boom", help="the one that is cloned alone; empty: none")
    arguments.add_argument("--epochs", type=float, default=20.0, help="of cloning")
    arguments.add_argument("--decisions", type=_count, default=2_000_000, help="of the main player in each training")
    arguments.add_argument("--minutes", type=float, help="of each training, at most; default: any time")
    arguments.add_argument("--exploit-budget", type=_count, default=300_000, help="of each best response; 0: none")
    arguments.add_argument("-n", "--episodes", type=int, default=400, help="games that measure a win rate")
    arguments.add_argument("--only", nargs="+", choices=[*TRAININGS], default=[*TRAININGS], metavar="TRAINING")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0], help="of every training")
    arguments.add_argument("--together", type=int, default=1, help="trainings, and measurements, side by side")
    arguments.add_argument("--runtime", choices=("local", "device"), default="local")
    arguments.add_argument("--actors", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    arguments.add_argument("--inference", choices=("inline", "worker"), default="inline")
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of cloning")
    arguments.add_argument("--slim", action="store_true", help="keep of a run what is needed to measure it, some MB")
    arguments.add_argument("--set", dest="settings", action="append", default=[], help="of every training")
    arguments.add_argument("--exploit-set", action="append", default=[], help="of every best response")
    arguments.add_argument("--clone-set", action="append", default=[])
    arguments.add_argument("--no-report", action="store_true")
    return arguments.parse_args()


def _count(text: str) -> int:
    return round(float(text))


if __name__ == "__main__":
    main()
