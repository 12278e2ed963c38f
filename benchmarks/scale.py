"""What 1, 10 and 100 nodes would ask of the parts that there is one of: the controller with its ledger, the
learner, and the network into its node. An estimate from unit costs that are measured here, not a measurement.

python benchmarks/scale.py                     about two minutes
python benchmarks/scale.py --seconds 1         to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from _report import Table, parser, write
from league_size import EPISODES, EVALUATION, NoLearner, Planted, make_run, read

from ludus.config import encode
from ludus.data.records import Match
from ludus.data.trajectory import SlotPool
from ludus.league import presets
from ludus.lookup import find_experiment
from ludus.runtime.assemble import new_pools
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.controller import Controller
from ludus.workers.evaluator import EvaluationBook, Evaluator
from ludus.workers.messages import Done, MatchFound, NextMatch, ReportResult
from ludus.workers.worker import Progress, StopTraining, Worker

QUOTED_SECONDS = 15.0
RECIPES = ("kuhn", "connect_four", "beacon", "skirmish")
NODES = (1, 10, 100)
ACTORS_PER_NODE = 32
MIN_BATCHES = 2
FROZEN = 100
SLOW_US = 10_000.0
"""Of an actor for a decision, in a game that is worth a cluster: a large program with a large network."""
BUSY = 0.5
"""Share of its time that the controller should be busy at most: then nobody waits long for a match."""
LINK_BYTES = 1.25e9
"""A second, into the learner's node: 10 Gbit/s."""
CONTROL_CALLS = 2
"""For each match: the next one, and its result. Models are looked up once and then kept."""
LEDGER_ROWS = 3
"""For each match: issued, leased, finished; in two commits."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """What one decision of a recipe takes, and how many go into a match and a version."""

    recipe: str
    actor_us: float
    """Processor time of an actor: game, policies, trajectories."""
    learner_us: float
    """And of the learner."""
    trajectory_bytes: float
    weights_bytes: int
    decisions_per_match: float
    decisions_per_version: float

    def row(self) -> list[str]:
        return [
            self.recipe,
            f"{self.actor_us:,.1f}",
            f"{self.learner_us:,.1f}",
            f"{self.trajectory_bytes:,.0f}",
            f"{self.weights_bytes / 1e6:,.2f}",
            f"{self.decisions_per_match:,.0f}",
            f"{self.decisions_per_version:,.0f}",
        ]

    def at(self, nodes: int, controller: ControllerCost) -> list[str]:
        """What so many nodes ask for, if nothing holds their actors back."""
        actors = nodes * ACTORS_PER_NODE
        decisions = actors * 1e6 / self.actor_us
        matches = decisions / self.decisions_per_match
        versions = decisions / self.decisions_per_version
        into_learner = decisions * self.trajectory_bytes * (nodes - 1) / nodes
        return [
            self.recipe,
            f"{nodes}",
            f"{decisions / 1e3:,.0f} k",
            f"{CONTROL_CALLS * matches:,.0f}",
            f"{LEDGER_ROWS * matches:,.0f}",
            f"{matches * controller.seconds:.1%}",
            f"{decisions / nodes * self.trajectory_bytes / 1e6:,.1f}",
            f"{versions * self.weights_bytes / 1e6:,.1f}",
            f"{into_learner / 1e6:,.0f}",
            f"{decisions * self.learner_us / 1e6:,.1f}",
        ]

    def limits(self, controller: ControllerCost) -> list[str]:
        """With how many nodes each of the single parts has as much as it should."""
        decisions = ACTORS_PER_NODE * 1e6 / self.actor_us
        matches = decisions / self.decisions_per_match
        longer = NODES[-1] * matches * controller.seconds / BUSY
        return [
            self.recipe,
            f"{BUSY / controller.seconds / matches:,.1f}",
            f"{max(1.0, longer):,.0f} x",
            f"{LINK_BYTES / (decisions * self.trajectory_bytes):,.1f}",
            f"{decisions * self.learner_us / 1e6:,.1f}",
        ]


class Clock:
    """Middleware: processor time of each worker, and an end, after some batches at least."""

    def __init__(self, seconds: float) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._until = time.monotonic() + seconds
        self._batches = 0

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        if time.monotonic() > self._until and self._batches >= MIN_BATCHES:
            raise StopTraining("measured")
        before = time.process_time()
        progress = step()
        self.spent[worker.name] += time.process_time() - before
        self._batches += worker.name == "learner" and progress.count > 0
        return progress


def measure(recipe: str, seconds: float, folder: Path) -> Units:
    """Trains the recipe in one process for a while; what its tables begin with is left out."""
    plain = replace(find_experiment(recipe, ("evaluation.opponents=", "runtime=serial")), budget=10**12)
    run = RunFolder.create(folder, encode(plain), seed=0, command=[])
    warm, timed = Clock(seconds / 3), None
    training = serial_training(replace(plain, middleware=(warm,)), run)
    try:
        training.run()
        before, matches = training.numbers(), training.league.matches.finished
        timed = Clock(seconds)
        training.experiment = replace(plain, middleware=(timed,))
        training.run()
        after = training.numbers()
        decisions = after["decisions"] - before["decisions"]
        played = training.league.matches.finished - matches
        pools = new_pools(plain, [training.league.players[one].role for one in training.learner.players])
        [first, *_] = training.learner.players.values()
        weights = first.weights()
    finally:
        training.close()
    return Units(
        recipe=recipe,
        actor_us=timed.spent["actor"] / decisions * 1e6,
        learner_us=timed.spent["learner"] / decisions * 1e6,
        trajectory_bytes=float(np.mean([slot_bytes(pool) / plain.actor.unroll_length for pool in pools])),
        weights_bytes=sum(array.nbytes for array in weights.values()),
        decisions_per_match=decisions / max(1, played),
        decisions_per_version=decisions / (after["updates"] - before["updates"]),
    )


def slot_bytes(pool: SlotPool) -> float:
    arrays = (*pool.rows.values(), *pool.slots.values())
    return sum(array.nbytes for array in arrays) / len(pool.slots["length"])


@dataclass(frozen=True, kw_only=True)
class ControllerCost:
    """Of one match, from the question for it to its result on disk."""

    seconds: float
    """Wall time: nothing else is done meanwhile."""
    cpu_s: float
    message_bytes: int

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "a match: two calls, two commits that are on disk", f"{self.seconds * 1e6:,.0f} us"
        yield "of that processor time", f"{self.cpu_s * 1e6:,.0f} us"
        yield "so one controller keeps up with", f"{1 / self.seconds:,.0f} matches/s"
        yield "ledger rows then", f"{LEDGER_ROWS / self.seconds:,.0f} rows/s"
        yield "bytes of the four messages of a match", f"{self.message_bytes:,}"


def controller_cost(seconds: float, folder: Path) -> ControllerCost:
    """The real controller, league and ledger, asked by actors that play no games. As many as there are: a
    question takes what it takes, whoever asks."""
    rules = presets.pfsp()
    run = make_run(folder, rules, FROZEN, 20 * FROZEN)
    league = read(run, rules)
    planted = Planted()
    sizes = 0
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
        count, spent, cpu = 0, 0.0, 0.0
        while spent < seconds:
            asked = msgspec.msgpack.encode(NextMatch(1))
            began, before = time.perf_counter(), time.process_time()
            msgspec.msgpack.decode(asked, type=NextMatch)
            match: Match = controller.next_match(1, "actor-0")
            answer = msgspec.msgpack.encode(MatchFound(match, 1))
            middle, after = time.perf_counter(), time.process_time()
            told = msgspec.msgpack.encode(ReportResult(planted.result(match)))
            again, resumed = time.perf_counter(), time.process_time()
            controller.report(msgspec.msgpack.decode(told, type=ReportResult).result)
            done = msgspec.msgpack.encode(Done())
            spent += middle - began + time.perf_counter() - again
            cpu += after - before + time.process_time() - resumed
            count += 1
            sizes += sum(map(len, (asked, answer, told, done)))
    return ControllerCost(seconds=spent / count, cpu_s=cpu / count, message_bytes=sizes // count)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=QUOTED_SECONDS, help="for each recipe")
    options.add_argument("--recipes", default=",".join(RECIPES))
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        controller = controller_cost(arguments.seconds, Path(folder) / "controller")
        units = [measure(recipe, arguments.seconds, Path(folder) / recipe) for recipe in arguments.recipes.split(",")]
    large = max(units, key=lambda one: one.actor_us)
    name = f"{large.recipe}, if a decision took {SLOW_US / 1e3:g} ms"
    units.append(replace(large, recipe=name, actor_us=SLOW_US))
    tables: list[Table] = [
        (f"The controller, {FROZEN} frozen players", ["what", "figure"], [list(row) for row in controller.rows()]),
        (
            "Units of a recipe, one core",
            [
                *("recipe", "actor, us a decision", "learner, us a decision", "trajectory, bytes a decision"),
                *("weights, MB a version", "decisions a match", "decisions a version"),
            ],
            [one.row() for one in units],
        ),
        (
            f"What nodes of {ACTORS_PER_NODE} actors would ask for, if nothing held them back",
            [
                *("recipe", "nodes", "decisions/s", "control calls/s", "ledger rows/s", "controller busy"),
                *("out of a node, MB/s", "weights into a node, MB/s", "into the learner's node, MB/s"),
                "learner, cores of this kind",
            ],
            [one.at(nodes, controller) for one in units for nodes in NODES],
        ),
        (
            "What gives out first",
            [
                *("recipe", f"nodes that keep the controller {BUSY:.0%} busy", "longer matches for 100 nodes"),
                *("nodes that fill 10 Gbit/s", "cores of a learner for each node"),
            ],
            [one.limits(controller) for one in units],
        ),
    ]
    write(
        "scale",
        "An estimate for 1, 10 and 100 nodes",
        tables,
        notes=[
            "Unit costs are measured on one core of this machine; the last table is arithmetic on them. "
            "Trajectories are counted uncompressed and travel only from other nodes; every node takes every "
            "version. Where the learner needs more cores than there are, it holds the actors back "
            "(`learner.max_lag`), and all other columns shrink with it."
        ],
        keep=arguments.seconds >= QUOTED_SECONDS,
    )


if __name__ == "__main__":
    main()
