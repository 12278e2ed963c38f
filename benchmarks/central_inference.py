"""When one policy worker pays: the same actors with inference of their own, and with one worker for all of
them, on AlphaStar's mini network and the game skirmish. Acting is measured alone: the learner takes the
trajectories and learns nothing from them.

python benchmarks/central_inference.py                          about five minutes on two cores
python benchmarks/central_inference.py --training skirmish      on a machine with a GPU: a whole training too
python benchmarks/central_inference.py --tables 4 --seconds 3   to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from _report import Table, parser, write

from ludus.algorithms.algorithm import Algorithm, Loss
from ludus.config import encode
from ludus.data.batch import Batch
from ludus.experiment import Experiment
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import Never
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.lookup import find_experiment
from ludus.models.policy import Policy
from ludus.observe.run_state import gpus
from ludus.recipes import skirmish
from ludus.runtime.coordinator import Coordinator, Training
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

TABLES = (2, 8, 32)
SECONDS = 12.0
WARM_UP_S = 8.0
"""From the first update on: actors begin one after the other."""
Mode = Literal["inline", "worker"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Nothing(Algorithm):
    """Learns nothing, so that the learner's share of the cores is small."""

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        return batch

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        weight = next(iter(policy.parameters()))
        return Loss(total=(weight * 0.0).sum())


def acting() -> Experiment:
    """Skirmish against itself, all tables of all actors with the same weights."""
    recipe = skirmish.experiment()
    return replace(
        recipe,
        budget=10**12,
        algorithm=Nothing(),
        actor=ActorConfig(num_tables=64, matches=1, episodes_per_table=4, unroll_length=16),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=2_048, epochs=1, buffer_size=16_384, schedule="async"),
        league=LeagueRules(roles={"main": Role(matchmaking=SelfPlay(), promotion=Never())}),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
    )


@dataclass(frozen=True, slots=True)
class Moment:
    second: float
    decisions: float
    cpu: dict[str, float]
    """CPU seconds until now, by kind of worker."""


@dataclass(frozen=True, slots=True)
class Measured:
    first: Moment
    last: Moment
    gpu: tuple[float, float]
    """Share of the time that it computes, and GiB in use; means over the window."""
    numbers: Mapping[str, float]

    @property
    def decisions(self) -> float:
        return self.last.decisions - self.first.decisions

    @property
    def per_second(self) -> float:
        return self.decisions / (self.last.second - self.first.second)

    def cores(self, *kinds: str) -> float:
        """That workers of these kinds used."""
        spent = sum(self.last.cpu[kind] - self.first.cpu[kind] for kind in kinds)
        return spent / (self.last.second - self.first.second)

    @property
    def per_core_second(self) -> float:
        """Of actors and policy worker."""
        return self.per_second / self.cores("actors", "policy")


def measure(experiment: Experiment, num_actors: int, seconds: float) -> Measured:
    """Trains until the window is over. It begins and ends where the count of decisions changes."""
    moments: list[Moment] = []
    gpu: list[tuple[float, float]] = []
    began: float | None = None

    def watch(training: Training) -> None:
        nonlocal began
        assert isinstance(training.workers, ProcessWorkers)
        now, decisions = time.monotonic(), training.numbers()["decisions"]
        if began is None:
            began = now if decisions else None
        elif now - began >= WARM_UP_S and (not moments or moments[-1].decisions != decisions):
            moments.append(Moment(now, decisions, _cpu(training)))
            if experiment.actor.inference_device != "cpu":
                gpu.extend((one.utilisation, one.memory / 2**30) for one in gpus())
        if moments and now - moments[0].second >= seconds and len(moments) > 1:
            os.kill(os.getpid(), signal.SIGTERM)  # asks for an end in good order

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(folder, encode(experiment), seed=0)
        training = local_training(experiment, run, num_actors=num_actors)
        try:
            training.run(watch)
            numbers = training.numbers()
        finally:
            training.close()
    used = [sum(column) / len(column) for column in zip(*gpu, strict=True)] or [0.0, 0.0]
    return Measured(moments[0], moments[-1], (used[0], used[1]), numbers)


def _cpu(training: Coordinator[ProcessWorkers]) -> dict[str, float]:
    policy = training.workers.policy_worker_pid
    return {
        "actors": _seconds(training.workers.actor_pids),
        "policy": _seconds([] if policy is None else [policy]),
        "learner": _seconds([training.workers.learner_pid]),
    }


def _seconds(processes: Iterable[int]) -> float:
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def curve(tables: Iterable[int], num_actors: int, seconds: float, modes: Mapping[str, tuple[Mode, str]]) -> Table:
    """A row for each number of tables, with what one way gives beside the other."""
    rows = []
    for count in tables:
        found = {}
        for name, (mode, device) in modes.items():
            experiment = find_experiment(f"{__file__}:acting", [f"actor.num_tables={count}"])
            actor = replace(experiment.actor, inference=mode, inference_device=device)
            found[name] = measure(replace(experiment, actor=actor), num_actors, seconds)
            print(f"{count} tables, {name}: {_short(found[name])}", flush=True)
        inline, *others = found.values()
        ratios = [f"{one.per_core_second / inline.per_core_second:.2f}" for one in others]
        rates = [f"{one.per_core_second:,.0f}" for one in found.values()]
        walls = [f"{one.per_second:,.0f}" for one in found.values()]
        batches = [f"{one.numbers.get('inference/rows_per_batch', 0):.0f}" for one in others]
        rows.append([str(count), str(count * num_actors), *rates, *ratios, *walls, *batches])
    names, central = list(modes), list(modes)[1:]
    columns = (
        "tables an actor", "tables",
        *(f"{name}: decisions a core-second" for name in names),
        *(f"{name} / {names[0]}" for name in central),
        *(f"{name}: decisions a second" for name in names),
        *(f"{name}: rows a call" for name in central),
    )  # fmt: skip
    return (f"Acting: {num_actors} actors; core-seconds of actors and policy worker", columns, rows)


def _short(found: Measured) -> str:
    return f"{found.per_core_second:,.0f} a core-second, {found.per_second:,.0f} a second"


def whole_training(recipe: str, settings: list[str], num_actors: int, seconds: float) -> list[str]:
    """Learner and policy worker on the GPU, actors on the cores."""
    experiment = find_experiment(recipe, [*settings, "actor.inference=worker"])
    found = measure(replace(experiment, budget=10**12), num_actors, seconds)
    busy, memory = found.gpu
    lag = next((value for name, value in found.numbers.items() if name.endswith("/lag")), 0.0)
    cores = [f"{found.cores(kind):.1f}" for kind in ("actors", "policy", "learner")]
    return [
        " ".join([recipe, *settings]), str(num_actors), f"{found.per_second:,.0f}", f"{busy:.0%}",
        f"{memory:.1f} GiB", *cores, f"{lag:.1f}",
    ]  # fmt: skip


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tables", type=int, action="append", help=f"of an actor; default {TABLES}")
    arguments.add_argument("--actors", type=int, default=8)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument("--training", action="append", default=[], help="a recipe, and settings after it")
    arguments.add_argument("--no-curve", action="store_true", help="whole trainings alone")
    chosen = arguments.parse_args()
    modes: dict[str, tuple[Mode, str]] = {"inline": ("inline", "cpu"), "worker": ("worker", "cpu")}
    if torch.cuda.is_available():
        modes["worker on the GPU"] = ("worker", "cuda:0")
    tables: list[Table] = []
    if not chosen.no_curve:
        tables.append(curve(chosen.tables or TABLES, chosen.actors, chosen.seconds, modes))
    if chosen.training:
        columns = ("training", "actors", "decisions a second", "GPU busy", "GPU memory", "cores: actors",
                   "policy worker", "learner", "lag")  # fmt: skip
        rows = []
        for text in chosen.training:
            recipe, *settings = text.split()
            rows.append(whole_training(recipe, settings, chosen.actors, chosen.seconds))
            print(rows[-1], flush=True)
        tables.append(("Whole trainings, learner and policy worker on the GPU", columns, rows))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    write(
        "central_inference" + ("-cuda" if torch.cuda.is_available() else ""),
        "Inference by every actor, or by one worker",
        tables,
        facts={"GPU": gpu, "windows": f"{chosen.seconds:.0f} s after {WARM_UP_S:.0f} s of warm-up"},
        keep=chosen.seconds >= SECONDS,
    )


if __name__ == "__main__":
    main()
