"""What more ranks of the learner bring on this machine: updates on ready-made batches, and whole trainings.

python benchmarks/learner_ranks.py                       about five minutes on two cores
python benchmarks/learner_ranks.py --networks 1 --updates 2 --seconds 5 --no-report
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from _report import parser, write
from stacked_training import CASES, Case, played
from torch import Tensor

from ludus.algorithms.ppo import PPO
from ludus.config import encode
from ludus.data.batch import Batch
from ludus.experiment import Experiment
from ludus.league.rules import EvaluationConfig
from ludus.models.policy import use_threads
from ludus.recipes import beacon
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import local_training
from ludus.store.run_folder import RunFolder
from ludus.workers.config import LearnerConfig
from ludus.workers.ranks import ALONE, ConnectedRanks, Rendezvous
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import StopTraining

EPOCHS = 2
SIZES = {"48 KiB": 12_288, "1 MiB": 262_144, "16 MiB": 4_194_304}
"""Of gradients, in numbers."""
REPEATS = 100


class Timed(ConnectedRanks):
    """Knows how long it has waited for sums."""

    spent = 0.0

    def sum(self, tensor: Tensor) -> Tensor:
        began = time.perf_counter()
        super().sum(tensor)
        self.spent += time.perf_counter() - began
        return tensor


class Speed(NamedTuple):
    """Of one rank, all on the same batches."""

    seconds: float
    cpu_seconds: float
    summing: float
    decisions: int
    checksum: float


def rank(case: Case, number: int, count: int, address: str, updates: int) -> Speed:
    """The updates of one rank, with its part of the trajectories."""
    use_threads(1)
    ranks = Timed(address, number, count, patience_s=120.0) if count > 1 else ALONE
    config = LearnerConfig(
        batch_size=case.batch, minibatch_size=case.minibatch, epochs=EPOCHS, device="cpu", ranks=count
    )
    player = TrainedPlayer("main", (case.model.build(case.kind, 0),), PPO(), config, seed=0, ranks=ranks)
    batches: list[dict[int, Batch]] = []
    for seed in range(2):
        whole = played(case, seed)[0]
        own = np.array_split(np.arange(whole.valid.shape[1]), count)[number]
        batches.append({0: whole.columns(own)})
    player.update(batches[0], 0.0)
    if isinstance(ranks, Timed):
        ranks.spent = 0.0
    before, began, cpu = player.decisions, time.perf_counter(), time.process_time()
    for update in range(updates):
        player.update(batches[update % 2], 0.0)
    return Speed(
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
        summing=ranks.spent if isinstance(ranks, Timed) else 0.0,
        decisions=player.decisions - before,
        checksum=float(sum(np.abs(array).sum() for array in player.weights().values())),
    )


def ready_made(case: Case, count: int, updates: int) -> list[Speed]:
    rendezvous = Rendezvous()
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        jobs = [pool.apply_async(rank, (case, number, count, rendezvous.address, updates)) for number in range(count)]
        return [job.get() for job in jobs]


def update_rows(cases: Sequence[Case], updates: int) -> list[list[str]]:
    rows = []
    for case in cases:
        alone = ready_made(case, 1, updates)[0]
        both = ready_made(case, 2, updates)
        assert abs(alone.checksum - both[0].checksum) < 1e-5 * alone.checksum, "not the same learning"
        seconds = max(one.seconds for one in both)
        rows.append(
            [
                f"{case.name}, batch {case.batch}",
                f"{updates / alone.seconds:.2f}",
                f"{updates / seconds:.2f}",
                f"{alone.seconds / seconds:.2f}",
                f"{alone.cpu_seconds / alone.decisions * 1e6:.2f}",
                f"{sum(one.cpu_seconds for one in both) / both[0].decisions * 1e6:.2f}",
                f"{min(one.summing for one in both) / seconds:.0%}",
            ]
        )
    return rows


def reduce(number: int, address: str) -> list[float]:
    """Microseconds of one sum over two ranks, by size."""
    use_threads(1)
    ranks = ConnectedRanks(address, number, 2, patience_s=60.0)
    found = []
    for size in SIZES.values():
        tensor = torch.ones(size)
        ranks.sum(tensor)
        began = time.perf_counter()
        for _ in range(REPEATS):
            ranks.sum(tensor)
        found.append((time.perf_counter() - began) / REPEATS * 1e6)
    return found


def reduce_rows() -> list[list[str]]:
    rendezvous = Rendezvous()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        jobs = [pool.apply_async(reduce, (number, rendezvous.address)) for number in range(2)]
        slowest = np.max([job.get() for job in jobs], axis=0)
    return [[name, f"{time_us:,.0f}"] for name, time_us in zip(SIZES, slowest, strict=True)]


def training(ranks: int, seconds: float) -> list[str]:
    """A whole run of beacon, whose learner is what the others wait for, from its second update on."""
    described: Experiment = replace(
        beacon.experiment(),
        budget=10**9,
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
        learner=replace(beacon.experiment().learner, ranks=ranks, device="cpu"),
    )
    seen: list[tuple[float, float, float, float]] = []

    def watch(run: Training) -> None:
        numbers = run.numbers()
        if numbers["updates"] >= 2:
            seen.append((time.monotonic(), numbers["decisions"], numbers["updates"], numbers["actor_wait"]))
            if seen[-1][0] - seen[0][0] > seconds:
                raise StopTraining("measured")

    before = cpu_of_children()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", encode(described), seed=0, command=())
        with run.lock(), closing(local_training(described, run, ranks)) as trained:
            trained.run(watch)
            decisions = trained.numbers()["decisions"]
    cpu = cpu_of_children() - before
    (first, learned, updates, _), (last, learned_then, updates_then, _) = seen[0], seen[-1]
    waits = [wait for _, _, _, wait in seen]
    return [
        f"{ranks} rank{'s' * (ranks > 1)}, {ranks} actor{'s' * (ranks > 1)}",
        f"{(learned_then - learned) / (last - first):,.0f}",
        f"{(updates_then - updates) / (last - first):.2f}",
        f"{cpu / decisions * 1e6:,.0f}",
        f"{sum(waits) / len(waits):.0%}",
    ]


def cpu_of_children() -> float:
    """Of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=60.0, help="of each whole training")
    options.add_argument("--updates", type=int, default=8, help="on ready-made batches")
    options.add_argument("--networks", type=int, default=len(CASES), help="measure the first so many")
    options.add_argument("--no-report", action="store_true")
    chosen = options.parse_args(arguments)
    write(
        "learner_ranks",
        "Ranks of the learner",
        [
            (
                "Updates on ready-made batches (PPO, 2 epochs), one thread each, by 1 and 2 ranks",
                (
                    "network",
                    "updates/s, 1",
                    "updates/s, 2",
                    "speed-up",
                    "CPU us a decision, 1",
                    "CPU us a decision, 2",
                    "time in sums, 2",
                ),
                update_rows(CASES[: chosen.networks], chosen.updates),
            ),
            ("One sum over 2 ranks (gloo, loopback)", ("gradients", "us"), reduce_rows()),
            (
                "Whole trainings of beacon",
                ("workers", "decisions/s", "updates/s", "CPU us a decision", "actors wait"),
                [training(ranks, chosen.seconds) for ranks in (1, 2)],
            ),
        ],
        notes=(
            "The batch is the same for one rank and for two, which share it; that the weights come out alike "
            "is checked. The CPU time of whole trainings is that of all processes but the controller, from "
            "their start on.",
        ),
        keep=not chosen.no_report,
    )


if __name__ == "__main__":
    main()
