"""What a decision weighs on its way between nodes, and what it costs to make it lighter.

python benchmarks/cluster_bytes.py                 about two minutes
python benchmarks/cluster_bytes.py --seconds 2     to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from _report import parser, write

from ludus.config import encode
from ludus.data.trees import IntArray
from ludus.experiment import Compression
from ludus.lookup import find_experiment
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.ray.transfer import pack_slots, put_slots
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.runtime.shared_parts import SharedParts
from ludus.store.run_folder import RunFolder
from ludus.workers.worker import Progress, StopTraining, Worker

QUOTED_SECONDS = 20.0
RECIPES = ("kuhn", "connect_four", "beacon", "skirmish")


@dataclass
class Cost:
    """Summed up over all hand-overs."""

    num_bytes: int = 0
    pack_s: float = 0.0
    put_s: float = 0.0


class Scales:
    """Middleware: packs what the actor has handed over whenever the learner is about to train on it."""

    def __init__(self, seconds: float) -> None:
        self.costs: dict[Compression, Cost] = {name: Cost() for name in get_args(Compression)}
        self.decisions = 0
        self.actor_s = 0.0
        self.whole_bytes = 0.0
        self._codes: list[IntArray] = []
        self._until = time.monotonic() + seconds

    def watch(self, training: Coordinator[SerialWorkers]) -> None:
        learner = training.learner
        roles = {player: training.league.players[player].role for player in learner.players}
        self._here, self._there = (SharedParts(training.experiment, roles, 1, np.zeros) for _ in range(2))
        self._here.pools = learner._pools
        put = learner.put

        def noted(player: str, kind: int, slots: IntArray) -> None:
            pool = learner._pools[kind]
            self._codes.append(self._here.code(list(roles).index(player), kind, slots))
            self.decisions += int(pool.num_decisions(slots).sum())
            arrays = (*pool.rows.values(), *pool.slots.values())
            self.whole_bytes += len(slots) * sum(array.nbytes for array in arrays) / pool.num_slots
            put(player, kind, slots)

        learner.put = noted  # type: ignore[method-assign]

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        if time.monotonic() > self._until:
            raise StopTraining("measured")
        if worker.name == "learner" and self._codes:
            self._weigh(np.concatenate(self._codes))
            self._codes.clear()
        before = time.process_time()
        progress = step()
        if worker.name == "actor":
            self.actor_s += time.process_time() - before
        return progress

    def _weigh(self, codes: IntArray) -> None:
        put_slots(self._there, pack_slots(self._here, codes, "none"))  # else the first would get the pages
        for compress, cost in self.costs.items():
            began = time.process_time()
            parcel = pack_slots(self._here, codes, compress)
            packed = time.process_time()
            put_slots(self._there, parcel)
            cost.num_bytes += parcel.body.nbytes
            cost.pack_s += packed - began
            cost.put_s += time.process_time() - packed


def measure(recipe: str, seconds: float, folder: Path) -> Scales:
    plain = replace(find_experiment(recipe, ("evaluation.opponents=", "runtime=serial")), budget=10**12)
    run = RunFolder.create(folder, encode(plain), seed=0, command=[])
    scales = Scales(seconds)
    training = serial_training(replace(plain, middleware=(scales,)), run)
    scales.watch(training)
    try:
        training.run()
    finally:
        training.close()
    return scales


def rows_of(recipe: str, scales: Scales) -> list[list[str]]:
    plain = scales.costs["none"]
    rows = []
    for compress, cost in scales.costs.items():
        per = 1e6 / scales.decisions
        more_s = cost.pack_s + cost.put_s - plain.pack_s - plain.put_s
        saved = plain.num_bytes - cost.num_bytes
        rows.append(
            [
                recipe,
                compress,
                f"{cost.num_bytes / scales.decisions:,.0f}",
                f"{cost.num_bytes / scales.whole_bytes:.1%}",
                f"{cost.pack_s * per:.2f}",
                f"{cost.put_s * per:.2f}",
                f"{cost.pack_s / scales.actor_s:.1%}",
                "" if compress == "none" else f"{saved / max(more_s, 1e-9) / 1e6:,.0f}",
            ]
        )
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=QUOTED_SECONDS, help="for each recipe")
    arguments = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            rows += rows_of(recipe, measure(recipe, arguments.seconds, Path(folder) / recipe))
    columns = (
        "recipe",
        "compress",
        "bytes a decision",
        "of the whole slots",
        "us to pack",
        "us to put",
        "packing, of the actor's time",
        "pays below MB/s",
    )
    write(
        "cluster-bytes",
        "Trajectories between nodes",
        [("By recipe and compression", columns, rows)],
        notes=[
            "Processor time of one core, per decision. The last column: on a network that gives a node less "
            "than this, the time saved in sending is more than the processor time it costs."
        ],
        keep=arguments.seconds >= QUOTED_SECONDS,
    )


if __name__ == "__main__":
    main()
