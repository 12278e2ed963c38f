"""What a large league costs: choosing a match, recording a result, memory, and `ludus league`.

Makes a run folder with a ledger of 200 frozen players whose strengths are planted, then measures the league,
the evaluator and the controller on it as a run would use them. Nothing is trained or played.

python benchmarks/league_size.py                                     200 players, 20,000 results
python benchmarks/league_size.py --players 50 --results 1000         to see that it runs; writes no report
python benchmarks/league_size.py --opening --results 100000 --before ../old/src
                                                                     `ludus league` alone, beside another tree
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from _report import parser, write

import ludus
from ludus.config import encode
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    ModelId,
    Pair,
    PlayerAdded,
    PlayerReset,
    Result,
    RunStarted,
    Settings,
)
from ludus.experiment import Experiment
from ludus.league import presets
from ludus.league.league import League
from ludus.league.rules import LeagueRules
from ludus.observe.league_fold import FOLD_FILE
from ludus.recipes import leduc
from ludus.runtime.assemble import new_league
from ludus.store.run_folder import RunFolder
from ludus.workers.controller import Controller
from ludus.workers.evaluator import EvaluationBook, Evaluator

PRESETS: dict[str, Callable[[], LeagueRules]] = {
    "fsp": presets.fsp,
    "pfsp": presets.pfsp,
    "alphastar": lambda: presets.alphastar(main_exploiters=1, league_exploiters=1),
    "openai_five": presets.openai_five,
    "psro": presets.psro,
}
EPISODES = 64
EVALUATION = leduc.experiment().evaluation
CHOICES = 500
RECORDS = 300


class NoLearner:
    """Nobody learns here."""

    def report(self, player: str) -> LearnerProgress:
        raise NotImplementedError

    def freeze(self, player: str, parent: ModelId | None) -> LearnerProgress:
        raise NotImplementedError

    def reset(self, event: PlayerReset) -> None:
        raise NotImplementedError

    def configure(self, player: str, settings: Settings) -> None:
        raise NotImplementedError


class Planted:
    """Results between players of known strength, some of which beat each other in circles."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def strength(self, player: str) -> tuple[float, float]:
        number = float(player.rpartition(".")[2]) if "." in player else 200.0 if player == "main" else 0.0
        return 0.02 * number, number

    def result(self, match: Match) -> Result:
        (a, phase), (b, other) = (self.strength(side.players[0]) for side in match.sides)
        chance = 1 / (1 + np.exp(b - a - 0.3 * np.sin(phase - other)))
        wins, episodes = int(self._rng.binomial(match.episodes, chance)), match.episodes
        margin = float(2 * wins - episodes)
        models = tuple(f"{side.players[0]}:0:0" if "." in side.players[0] else "" for side in match.sides)
        return Result(
            match_id=match.id,
            episodes=episodes,
            steps=5 * episodes,
            decisions=(3 * episodes, 3 * episodes),
            pairs=(Pair(side=0, other=1, wins=wins, draws=0, losses=episodes - wins),),
            score_sum=(margin, -margin),
            score_square_sum=(float(episodes), float(episodes)),
            first_models=models,
            last_models=models,
        )


def history(league: League, evaluator: Evaluator, num_players: int, num_results: int) -> Iterator[AnyEvent]:
    """The ledger of a run in which main was frozen so often and so many matches were finished. Folds each
    event before it gives it."""
    planted = Planted()
    match_id = 0

    def tell(event: AnyEvent) -> AnyEvent:
        league.apply(event)
        return event

    def play(match: Match) -> Iterator[AnyEvent]:
        yield tell(MatchIssued(match))
        yield tell(MatchLeased(match.id, "actor"))
        yield tell(MatchFinished(planted.result(match)))

    yield tell(RunStarted(0))
    for event in league.initial_events():
        yield tell(event)
    for number in range(1, num_players + 1):
        yield tell(LearnerProgress("main", 0, number, 1000 * number))
        yield tell(
            PlayerAdded(
                player=f"main.{number}",
                role="frozen",
                parent="main",
                model=f"main:0:{number}",
                parent_decisions=1000 * number,
                reason="planted",
            )
        )
        while (sides := evaluator.next_sides()) is not None:
            match_id += 1
            yield from play(league.evaluation_match(match_id, sides, tables=1, episodes_per_table=EPISODES))
        while league.matches.finished < num_results * number // num_players:
            match_id += 1
            yield from play(league.next_match(match_id, tables=1, episodes_per_table=EPISODES))


def make_run(folder: Path, rules: LeagueRules, num_players: int, num_results: int) -> RunFolder:
    experiment = describe(rules)
    run = RunFolder.create(folder, encode(experiment), seed=0, command=sys.argv)
    league = new_league(experiment)
    with closing(run.ledger()) as ledger:
        ledger.append(history(league, Evaluator(EVALUATION, league), num_players, num_results))
    for number in range(1, num_players + 1):
        weights = {"w": np.zeros(1, np.float32)}
        run.models.publish(ModelId("main", 0, number), weights, parent=None, facts={"decisions": number})
    return run


def describe(rules: LeagueRules) -> Experiment:
    return replace(leduc.experiment(), league=rules, evaluation=EVALUATION)


def read(run: RunFolder, rules: LeagueRules) -> League:
    league = new_league(describe(rules))
    with closing(run.ledger(read_only=True)) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    return league


def milliseconds(taken: list[float]) -> list[str]:
    return [f"{1000 * float(np.quantile(taken, share)):.3f}" for share in (0.5, 0.99)]


def choosing(name: str, run: RunFolder, rules: LeagueRules) -> list[list[str]]:
    """Time to choose a match after each result, as a run does; and what the ladder takes for one choice."""
    league = read(run, rules)
    evaluator = Evaluator(EVALUATION, league)
    evaluator.next_sides()  # lists what is missing, once per snapshot
    planted, taken = Planted(), []
    for _ in range(CHOICES):
        match_id = league.matches.last_id + 1
        began = time.perf_counter()
        sides = evaluator.next_sides()
        if sides is None:
            match = league.next_match(match_id, tables=1, episodes_per_table=EPISODES)
        else:
            match = league.evaluation_match(match_id, sides, tables=1, episodes_per_table=EPISODES)
        taken.append(time.perf_counter() - began)
        league.apply(MatchIssued(match))
        league.apply(MatchFinished(planted.result(match)))
    rows = [[f"{name}: match", *milliseconds(taken)]]
    if name == "pfsp":
        ladder = []
        for number in range(20):
            league.apply(PlayerAdded(player=f"extra.{number}", role="frozen", model="main:0:1"))
            while (sides := evaluator.next_sides()) is not None:
                match = league.evaluation_match(
                    league.matches.last_id + 1, sides, tables=1, episodes_per_table=EPISODES
                )
                league.apply(MatchIssued(match))
                league.apply(MatchFinished(planted.result(match)))
                began = time.perf_counter()
                evaluator.next_sides()
                ladder.append(time.perf_counter() - began)
        rows.append(["evaluation after an evaluation, the ladder's among them", *milliseconds(ladder)])
    return rows


def recording(folder: Path, rules: LeagueRules, num_players: int, num_results: int) -> list[float]:
    run = make_run(folder, rules, num_players, num_results)
    league = read(run, rules)
    planted, taken = Planted(), []
    with closing(run.ledger()) as ledger:
        controller = Controller(
            league=league,
            ledger=ledger,
            models=run.models,
            learner=NoLearner(),
            evaluator=Evaluator(EVALUATION, league),
            evaluations=EvaluationBook(run),
            episodes_per_table=EPISODES,
        )
        for _ in range(RECORDS):
            result = planted.result(controller.next_match(1))
            began = time.perf_counter()
            controller.report(result)
            taken.append(time.perf_counter() - began)
    return taken


def resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(num_players: int, num_results: int) -> list[list[str]]:
    """What a league takes after a tenth of its results and after all of them."""
    rows = []
    for results in (max(num_players * 6, num_results // 10), num_results):
        before = resident()
        experiment = describe(presets.pfsp())
        league = new_league(experiment)
        for _ in history(league, Evaluator(EVALUATION, league), num_players, results):
            pass
        rows.append([f"{league.matches.finished:,} results", f"{resident() - before:.1f}"])
    return rows


def showing(run: RunFolder, *options: str) -> list[str]:
    """Seconds of the first call, which folds the whole ledger and saves the fold, and of the best of three others."""
    (run.path / FOLD_FILE).unlink(missing_ok=True)
    taken = []
    for _ in range(4):
        began = time.monotonic()
        program = [sys.executable, "-m", "ludus.cli.main", "league", str(run.path), *options]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.monotonic() - began)
    return [f"{taken[0]:.2f}", f"{min(taken[1:]):.2f}"]


def opening(run: Path, source: Path, *options: str) -> tuple[float, float]:
    """CPU seconds (user) of `ludus league` of a source tree: without a saved fold, and the least of five with one."""
    (run / FOLD_FILE).unlink(missing_ok=True)
    taken = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        program = [sys.executable, "-m", "ludus.cli.main", "league", str(run), *options]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env=environment)
        taken.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return taken[0], min(taken[1:])


def write_openings(run: Path, before: Path | None, results: int) -> None:
    here = Path(ludus.__file__).parents[1]
    rows = []
    for options in (("--json",), ()):
        new = opening(run, here, *options)
        old = (float("nan"),) * 2 if before is None else opening(run, before.resolve(), *options)
        for what, mine, other in zip(("the first time", "again, with the saved fold"), new, old, strict=True):
            rows.append(
                [" ".join(("ludus league", *options)), what, f"{other:.2f}", f"{mine:.2f}", f"{other / mine:.1f}"]
            )
    write(
        "league_opening",
        f"Opening a league of {results:,} results",
        [("CPU seconds of the whole command, imports included", ["command", "when", "before", "now", "ratio"], rows)],
        facts={"command": f"`python benchmarks/league_size.py --opening --results {results} --before ../old/src`"},
        keep=results == 100_000 and before is not None,
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--opening", action="store_true", help="Measure `ludus league` alone.")
    options.add_argument("--before", type=Path, help="With --opening: src of another tree, measured beside this one.")
    options.add_argument("--run", type=Path, help="With --opening: a league planted before, to save the time.")
    options.add_argument("--players", type=int, default=200)
    options.add_argument("--results", type=int, default=20_000)
    chosen = options.parse_args()
    if chosen.opening:
        with tempfile.TemporaryDirectory() as name:
            run = chosen.run or make_run(Path(name) / "run", presets.pfsp(), chosen.players, chosen.results).path
            write_openings(run, chosen.before, chosen.results)
        return
    memory_rows = memory(chosen.players, chosen.results)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as fast:
        choice_rows = []
        shown = {}
        for preset, rules in PRESETS.items():
            run = make_run(Path(name) / preset, rules(), chosen.players, chosen.results)
            choice_rows += choosing(preset, run, rules())
            shown[preset] = [*showing(run), *showing(run, "--json")]
        records = [
            [place, *milliseconds(recording(Path(folder) / "record", presets.pfsp(), chosen.players, 2_000))]
            for place, folder in (("on disk, with fsync", name), ("in memory, without", fast))
        ]
    write(
        "league_size",
        f"A league of {chosen.players} frozen players",
        [
            ("Choosing a match", ["what", "median, ms", "99 %, ms"], choice_rows),
            ("Recording a result", ["ledger", "median, ms", "99 %, ms"], records),
            ("Memory of the league", ["after", "MiB more"], memory_rows),
            (
                "`ludus league`: the first time, and again (best of 3)",
                ["preset", "table, s", "again, s", "--json, s", "again, s"],
                [[preset, *seconds] for preset, seconds in shown.items()],
            ),
        ],
        facts={"results": f"{chosen.results:,}", "players": str(chosen.players)},
        keep=(chosen.players, chosen.results) == (200, 20_000),
    )


if __name__ == "__main__":
    main()
