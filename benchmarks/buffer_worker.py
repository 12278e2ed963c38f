"""What recomputing costs the learner, what a buffer worker takes off it, and whether reused trajectories
teach as well.

python benchmarks/buffer_worker.py                       about six minutes on two cores
python benchmarks/buffer_worker.py --networks 1 --updates 2 --seconds 5 --decisions 40000 --no-report
python benchmarks/buffer_worker.py --parts learning      one part of it
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from _report import Table, parser, write
from stacked_training import CASES, Case, played

from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import Recomputed, recomputed_columns
from ludus.config import encode
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.league.rules import EvaluationConfig
from ludus.models.policy import use_threads
from ludus.models.tensors import to_host
from ludus.recipes import connect_four, kuhn
from ludus.runtime.assemble import load_players, new_league
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import local_training
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.config import LearnerConfig
from ludus.workers.exploitability import ExactGame
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import StopTraining

EPOCHS = 2
NOBODY = EvaluationConfig(opponents=(), past=0, ladder=0)
SEEDS = (0, 1, 2)
SLOW_TABLES = 32
"""So few that the learner waits for its actor: that is when it takes a trajectory again."""
BY_LEARNER: dict[str, Any] = {"recompute": ("advantages",)}
BY_WORKER: dict[str, Any] = {**BY_LEARNER, "buffer_worker": True}
REUSED: dict[str, Any] = {"max_lag": 3, "reuse": 2}


def update_row(case: Case, updates: int) -> list[str]:
    """CPU time of the learner for an update: as it is, recomputing itself, and with what a buffer worker has
    recomputed; and that of the buffer worker."""
    found = []
    for what, is_here in (((), False), (("advantages",), False), (("advantages",), True)):
        config = LearnerConfig(
            batch_size=case.batch, minibatch_size=case.minibatch, epochs=EPOCHS, device="cpu", recompute=what
        )
        player = TrainedPlayer("main", (case.model.build(case.kind, 0),), PPO(), config, seed=0)
        batch = played(case, 0)[0]
        began = time.process_time()
        columns = recompute(("advantages",), player, batch)
        worker = time.process_time() - began
        if is_here:
            batch = batch.with_extra(**columns)
        player.update({0: batch}, 0.0)
        began = time.process_time()
        for _ in range(updates):
            player.update({0: batch}, 0.0)
        found.append((time.process_time() - began) / updates)
    plain, alone, helped = found
    return [
        f"{case.name}, batch {case.batch}",
        *(f"{1000 * one:.0f}" for one in found),
        f"{1000 * worker:.0f}",
        f"{1 - helped / alone:.0%}",
        f"{alone / plain - 1:+.0%}",
    ]


def recompute(what: tuple[Recomputed, ...], player: TrainedPlayer, batch: Any) -> Any:
    return to_host(recomputed_columns(what, player.policies[0], None, batch.map(torch.from_numpy)))


def run_for(described: Experiment, folder: Path, seconds: float | None) -> tuple[RunFolder, float]:
    """Train with one actor, to the end or for so long after the second update; decisions a second."""
    seen: list[tuple[float, float]] = []

    def watch(run: Training) -> None:
        numbers = run.numbers()
        if numbers["updates"] >= 2:
            seen.append((time.monotonic(), numbers["decisions"]))
            if seconds is not None and seen[-1][0] - seen[0][0] > seconds:
                raise StopTraining("measured")

    run = RunFolder.create(folder, encode(described), seed=described.seed, command=())
    with run.lock(), closing(local_training(described, run, 1)) as trained:
        trained.run(watch)
    (first, before), (last, after) = seen[0], seen[-1]
    return run, (after - before) / max(last - first, 1e-9)


def training_row(name: str, learner: dict[str, Any], seconds: float) -> list[str]:
    """A whole run of connect_four from its second update on."""
    recipe = connect_four.experiment()
    described = replace(
        recipe, budget=10**9, evaluation=NOBODY, learner=replace(recipe.learner, device="cpu", **learner)
    )
    with tempfile.TemporaryDirectory() as folder:
        run, speed = run_for(described, Path(folder) / "run", seconds)
        rows = list(read_metrics(run.metrics / "train.jsonl")[0])[2:]
    shown = ("queue_wait", "main/lag", "main/recompute_lag", "main/reused")
    waits, lag, recompute_lag, reused = (fmean(row.get(key, 0.0) for row in rows) for key in shown)
    return [name, f"{speed:,.0f}", f"{waits:.2f}", f"{lag:.2f}", f"{recompute_lag:.2f}", f"{reused:.0%}"]


def learning_row(name: str, learner: dict[str, Any], decisions: int) -> list[str]:
    """NashConv of kuhn's averaged weights after so many decisions trained on, with several seeds."""
    recipe = kuhn.experiment()
    root = recipe.game.tree()
    assert root is not None
    exact = ExactGame(root)
    found, played_games, reused = [], [], []
    for seed in SEEDS:
        described = replace(
            recipe,
            seed=seed,
            budget=decisions,
            evaluation=NOBODY,
            actor=replace(recipe.actor, num_tables=SLOW_TABLES),
            learner=replace(recipe.learner, device="cpu", schedule="async", **learner),
        )
        with tempfile.TemporaryDirectory() as folder:
            run, _ = run_for(described, Path(folder) / "run", None)
            league = trained_league(described, run)
            [policy] = load_players(described, run, league, ["main"], weights="average")["main"].policies
            rows = list(read_metrics(run.metrics / "train.jsonl")[0])
        found.append(exact.nash_conv(exact.probabilities(policy)))
        played_games.append(rows[-1]["episodes"])
        reused.append(fmean(row.get("main/reused", 0.0) for row in rows))
    return [
        name,
        f"{fmean(found):.3f}",
        ", ".join(f"{one:.3f}" for one in sorted(found)),
        f"{fmean(played_games):,.0f}",
        f"{fmean(reused):.0%}",
    ]


def trained_league(described: Experiment, run: RunFolder) -> League:
    league = new_league(described)
    with run.ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            league.apply(event)
    return league


def tables(chosen: Any) -> list[Table]:
    found: list[Table] = []
    if "updates" in chosen.parts:
        columns = ["network", "plain", "recomputing", "recomputed before", "worker", "saved", "cost"]
        rows = [update_row(case, chosen.updates) for case in CASES[: chosen.networks]]
        heading = f"One update of the learner, CPU milliseconds ({EPOCHS} epochs, one core)"
        found.append((heading, columns, rows))
    if "training" in chosen.parts:
        columns = ["connect_four, one actor", "decisions/s", "learner waits, s", "lag", "recompute lag", "reused"]
        settings = {
            "plain": {},
            "recomputed by the learner": BY_LEARNER,
            "recomputed by a buffer worker": BY_WORKER,
            "reuse 2": REUSED,
            "reuse 2, by the learner": {**REUSED, **BY_LEARNER},
            "reuse 2, by a buffer worker": {**REUSED, **BY_WORKER},
        }
        rows = [training_row(name, learner, chosen.seconds) for name, learner in settings.items()]
        found.append(("Whole trainings on these cores", columns, rows))
    if "learning" in chosen.parts:
        columns = ["kuhn", "NashConv, mean", f"of {len(SEEDS)} seeds", "games played", "reused"]
        settings = {
            "reuse 1": {"max_lag": 3},
            "reuse 2": REUSED,
            "reuse 2, recomputed by the learner": {**REUSED, **BY_LEARNER},
            "reuse 2, recomputed by a buffer worker": {**REUSED, **BY_WORKER},
        }
        rows = [learning_row(name, learner, chosen.decisions) for name, learner in settings.items()]
        found.append((f"Learning, after {chosen.decisions:,} decisions trained on", columns, rows))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--updates", type=int, default=5, help="on ready-made batches")
    options.add_argument("--networks", type=int, default=len(CASES), help="measure the first so many")
    options.add_argument("--seconds", type=float, default=20.0, help="of each whole training")
    options.add_argument("--decisions", type=int, default=400_000, help="of each learning run")
    options.add_argument("--parts", nargs="+", default=["updates", "training", "learning"])
    options.add_argument("--no-report", action="store_true")
    chosen = options.parse_args(arguments)
    use_threads(1)
    write(
        "buffer_worker",
        "Recomputing, and the buffer worker",
        tables(chosen),
        notes=[
            "Recomputed are advantages: a forward pass for values and probabilities, then V-trace. `saved`: "
            "of the learner's time, by a buffer worker on a core of its own. Learning is measured by exact "
            "NashConv; 0 is unbeatable."
        ],
        keep=not chosen.no_report,
    )


if __name__ == "__main__":
    main()
