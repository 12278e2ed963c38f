"""Studies: one experiment under several settings and seeds, each as a run of its own, and what they say together.

A study is a folder: `study.json`, a run folder for each setting and seed under `runs/`, what they print under `logs/`
and what was measured of each under `results/`. Runs are ordinary: `ludus train --resume-or-start` trains them, and
`ludus eval`, `exploit` or `tournament` measures them. A study that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import msgspec
import numpy as np

from ludus.config import ConfigError, encode
from ludus.config.conversion import build_from, read_yaml
from ludus.data.checks import require_in, require_one_of, unknown
from ludus.games.outside_bots import named_address
from ludus.league.population import SearchSpace, Uniform, suggest
from ludus.lookup import find_experiment
from ludus.observe.study_results import StudyResults, read_result
from ludus.store.files import StoreError, atomic_write, make_folder, seal
from ludus.store.inspection import continues_exactly
from ludus.store.run_control import run_lock
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command, usable_cores
from ludus.system.process import ChildProcess

Objective = Literal["score", "win_rate", "rating", "nash_conv", "exploiter_score"]
LOWER_IS_BETTER = ("nash_conv", "exploiter_score")
FIRST_DRAWS = 10
"""Settings that are drawn at random before an optimiser has something to go by."""
OUT_OF_TIME = 75
"""Exit code of a training that has reached its time limit: it is saved, and goes on with the next start."""
POLL_S = 0.1
SAVE_WITHIN_S = 120.0
"""Seconds that runs have to save when a study is interrupted."""
LONGEST_NAME = 80
MOST_ON_NODES = 1_000
"""Runs that wait for room in a cluster, unless told otherwise."""
_LEFT = ".left-"
"""Prefix of run folders that are being removed."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment under every combination of settings and seeds.

    study = ludus.Study(experiment="kuhn", seeds=5, grid={"learner.learning_rate": (1e-3, 3e-3)}, objective="nash_conv")
    print(study.run("studies/rates"))
    """

    experiment: str
    """What to train, as `ludus train` takes it: a recipe, a game's address, FILE.py:NAME or FILE.yaml."""
    seeds: int | tuple[int, ...] = 3
    """Number of seeds, from 0 on, or the seeds themselves."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all runs, by path."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Path -> values. Every combination of them is tried."""
    search: tuple[SearchSpace, ...] = ()
    """Settings to draw at random: `Uniform`, `LogUniform` or `OneOf`."""
    draws: int = 0
    """How many settings are drawn from `search`; each is tried with every combination of `grid`."""
    optimiser: Literal["random", "tpe"] = "random"
    """Who draws them: chance, or after 10 random settings Optuna's tree-structured Parzen estimator, from the results
    so far."""
    draws_at_once: int = 4
    """Settings that the optimiser draws before it waits for their results."""
    objective: Objective = "score"
    """What is measured of every run: the mean score, the mean win rate or the Elo rating of its player against
    `opponents`, its exact exploitability (NashConv), or the mean score of a best response that trains against it."""
    opponents: tuple[str, ...] = ()
    """Bots that the player meets; none: those of `evaluation.opponents`. A rating is relative to the first."""
    player: str = "main"
    """The player that is measured, with averaged weights: as the run ends, or `main@best`."""
    episodes: int = 2_000
    """Fewest episodes per opponent."""
    exploiter_budget: int = 100_000
    """Decisions on which the best response of `exploiter_score` trains."""
    runtime: Literal["serial", "local", "ray", "device"] = "serial"
    """Where each run trains. `serial` takes one core a run and repeats it exactly, also after a kill."""
    seed: int = 0
    """Of the random settings and of the games that measure."""

    def __post_init__(self) -> None:
        require_one_of(self, get_args(Objective), objective=self.objective)
        require_one_of(self, ("random", "tpe"), optimiser=self.optimiser)
        counts = {"episodes": self.episodes, "exploiter_budget": self.exploiter_budget}
        require_in(self, "[1, inf]", **counts, draws_at_once=self.draws_at_once)
        require_in(self, "[0, inf]", draws=self.draws, seed=self.seed)
        if not self.all_seeds or len(set(self.all_seeds)) < len(self.all_seeds):
            raise ValueError(f"seeds must be one or more, all different, got {self.seeds}")
        if bool(self.search) != bool(self.draws):
            raise ValueError("search and draws go together: what is drawn at random, and how often")
        if self.optimiser != "random" and (self.grid or not self.search):
            raise ValueError(
                f"optimiser {self.optimiser!r} chooses from search alone: put values of grid there as OneOf"
            )
        for path, values in self.grid.items():
            if not values:
                raise ValueError(f"grid: {path} has no values")
        changed = [*self.settings, *self.grid, *(space.path for space in self.search)]
        if twice := {path for path in changed if changed.count(path) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))}: named more than once in settings, grid and search")
        for path in ("seed", "runtime"):
            if path in changed:
                raise ValueError(f"{path} is a field of the study itself, not one of its settings")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def lower_is_better(self) -> bool:
        return self.objective in LOWER_IS_BETTER

    @staticmethod
    def load(path: str | PathLike[str]) -> Study:
        """A study file: YAML with the fields of a study. An experiment in a file may be named relative to it."""
        file = Path(path)
        try:
            content = read_yaml(file.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not a text file in UTF-8") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: a study file is a mapping: `experiment: kuhn`, `seeds: 5`, ...")
        study = build_from(Study, content, str(path))
        assert isinstance(study, Study)
        place, colon, name = study.experiment.partition(":")
        beside = file.parent / place
        is_file = place.endswith((".py", ".yaml", ".yml")) and beside.is_file()
        return replace(study, experiment=f"{beside}{colon}{name}") if is_file else study

    def planned(self, results: Sequence[float | None] = ()) -> list[PlannedRun]:
        """All runs, seed by seed, so that every setting has a result early. An optimiser plans those that follow from
        `results`: by draw, the mean objective of its runs; None if they have all failed."""
        drawn = self._all_drawn(results) or [{}]
        tried = [
            {**dict(zip(self.grid, values, strict=True)), **own}
            for own in drawn
            for values in itertools.product(*self.grid.values())
        ]
        labels = [_label(one) for one in tried]
        if self.optimiser != "random":  # which may come back to a setting
            tried = [one for place, one in enumerate(tried) if labels.index(labels[place]) == place]
            labels = [*dict.fromkeys(labels)]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ConfigError(f"two settings of the study are the same: {sorted(twice)[0]}")
        return [
            PlannedRun(name=_name(label, seed), setting=label, seed=seed, settings=one)
            for seed in self.all_seeds
            for label, one in zip(labels, tried, strict=True)
        ]

    def check(self) -> tuple[str, ...]:
        """Build the experiment of every setting, so that a wrong one is refused before anything trains. Returns the
        opponents."""
        if self.optimiser != "random" and find_spec("optuna") is None:
            raise ConfigError(f"optimiser {self.optimiser!r} needs: {install_command('optuna')}")
        bots: tuple[str, ...] = ()
        for one in self.planned():
            made = find_experiment(self.experiment, _as_texts(self.of_run(one)))
            bots = self.opponents or tuple(made.evaluation.opponents)
            if made.game.spec.num_teams == 1:
                if self.objective != "score":
                    raise ConfigError(f"objective {self.objective!r}: {made.game.spec.name} has one team: use 'score'")
                bots = ()
            elif self.objective not in ("nash_conv", "exploiter_score"):
                if not bots:
                    raise ConfigError(f"objective {self.objective!r} needs opponents: bots of {made.game.spec.name}")
                known = made.grouped_game.bots()
                for bot in bots:
                    if bot not in known and named_address(bot) is None:
                        raise ConfigError(f"opponents: {unknown('bot', bot, known)}")
            if self.objective == "nash_conv" and made.game.tree() is None:
                raise ConfigError(f"objective 'nash_conv': the game tree of {made.game.spec.name} cannot be walked")
        return bots

    def of_run(self, run: PlannedRun) -> dict[str, Any]:
        """All settings of one of the runs."""
        return {**self.settings, **run.settings, "seed": run.seed, "runtime": self.runtime}

    def run(
        self,
        into: str | PathLike[str],
        *,
        parallel: int | None = None,
        address: str | None = None,
        quiet: bool = False,
        trust: bool = False,
    ) -> StudyResults:
        """Train and measure every run that is not done yet, side by side, and return the results.

        Args:
            into: folder of the study. One that exists goes on; it may have got more seeds or settings.
            parallel: runs at the same time; None: as many as the cores allow.
            address: of a Ray cluster, whose nodes train the runs; None: this machine does.
            quiet: print nothing.
            trust: import code that lies inside of the folder.

        Raises:
            KeyboardInterrupt: after all runs were saved.
        """
        bots = self.check()
        folder = Path(into)
        for name in ("runs", "logs", "results"):
            make_folder(folder / name)
        document = {
            "format": 1,
            "objective": self.objective,
            "lower_is_better": self.lower_is_better,
            "player": self.player,
            "study": encode(self),
        }
        say: Callable[[str], None] = (lambda line: None) if quiet else partial(print, flush=True)
        with ExitStack() as stack:
            stack.enter_context(run_lock(folder / "lock"))
            on_nodes = address is not None and self.runtime != "ray"
            at_once = parallel or (MOST_ON_NODES if on_nodes else self._room())
            runner = StudyRunner(self, folder, bots, at_once, say, trust=trust, address=address)
            if address is not None and on_nodes:
                runner.launch = self._on_nodes(address, folder / "study.json", stack)
            known: list[float | None] = []
            while True:
                planned = self.planned(known)
                content = msgspec.json.encode(seal({**document, "runs": runner.described(planned)}))
                atomic_write(folder / "study.json", msgspec.json.format(content, indent=2) + b"\n")
                runner.run(planned)
                results = StudyResults(folder)
                means = {one.setting: None if one.mean is None else one.mean.value for one in results.settings}
                known = [means[_label(one)] for one in self._all_drawn(known)] if self.optimiser != "random" else []
                if self.optimiser == "random" or len(known) == self.draws:
                    return results

    @staticmethod
    def results(folder: str | PathLike[str]) -> StudyResults:
        """The results of a study so far. Executes nothing that its runs name."""
        return StudyResults(folder)

    def _on_nodes(self, address: str, shared: Path, stack: ExitStack) -> Launch:
        """Runs commands on the nodes of a cluster, until the stack is left."""
        from ludus.runtime.ray.connection import join  # Ray is imported once its environment is set

        actors = self.settings.get("actors")
        cores = 1
        if self.runtime == "local" and actors is not None:
            cores = int(actors) + 1
        elif self.runtime == "local":
            raise ConfigError(
                "how many cores does a run take on a node? settings: {actors: N} says it, for runtime local"
            )
        stack.callback(join(address, None))
        from ludus.runtime.ray.commands import CommandOrder, NodeCommand, Room
        from ludus.runtime.ray.user_code import ludus_digest

        room = Room(cpus=cores, gpus=int(self.runtime == "device"))
        room.require_node()

        def launch(words: list[str], log: Path, output: Path | None, after: Command | None) -> Command:
            order = CommandOrder(
                words=words,
                folder=os.getcwd(),
                log=str(log.absolute()),
                output=None if output is None else str(output.absolute()),
                shared=str(shared.absolute()),
                content=shared.read_bytes(),
                digest=ludus_digest(),
            )
            return NodeCommand(order, room, after=after if isinstance(after, NodeCommand) else None)

        return launch

    def _all_drawn(self, results: Sequence[float | None]) -> list[dict[str, Any]]:
        """The settings of all draws; with an optimiser, of those that follow from the results of earlier ones."""
        if self.optimiser == "random":
            return [self._drawn(number) for number in range(self.draws)]
        drawn = [self._drawn(number) for number in range(min(self.draws, FIRST_DRAWS))]
        while len(drawn) <= len(results) and len(drawn) < self.draws:
            suggested = suggest(
                self.search,
                [*zip(drawn, results[: len(drawn)], strict=True)],
                min(self.draws_at_once, self.draws - len(drawn)),
                lower_is_better=self.lower_is_better,
                seed=self.seed + len(drawn),
            )
            drawn += [self._rounded(one) for one in suggested]
        return drawn

    def _drawn(self, number: int) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, number])
        return self._rounded({space.path: space.draw(rng) for space in self.search})

    def _rounded(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Four digits of a random number are enough, and can be read. Options stay as they were written."""
        return {
            space.path: min(max(float(f"{drawn[space.path]:.4g}"), space.low), space.high)
            if isinstance(space, Uniform)
            else drawn[space.path]
            for space in self.search
        }

    def _room(self) -> int:
        """Runs that the cores of this machine have room for."""
        needed = 1
        if self.runtime != "serial":
            actors = self.settings.get("actors")
            needed = int(usable_cores()) if actors is None else int(actors) + 1
        return max(1, int(usable_cores()) // max(1, needed))


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a study."""

    name: str  # of its folder
    setting: str  # in words
    seed: int
    settings: dict[str, Any]  # those in which it differs from others


class Command(Protocol):
    """A command of `ludus` that has been started, here or on a node of a cluster."""

    @property
    def exit_code(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...
    def wait_end(self, most_s: float) -> int | None: ...
    def kill(self) -> None: ...


Launch = Callable[[list[str], Path, Path | None, Command | None], Command]
"""Starts a command: its words, its log, the file of its standard output (None: the log), and the command before it,
which has ended."""


def _launch_here(words: list[str], log: Path, output: Path | None, after: Command | None) -> Command:
    if after is not None:
        after.kill()  # all that it has started
    with log.open("ab", buffering=0) as messages, (output or log).open("ab") as printed:
        return ChildProcess(
            [sys.executable, "-m", "ludus.cli.main", *words],
            stdout=printed,
            stderr=messages,
            environment={"OMP_NUM_THREADS": "1", **os.environ},
            with_parent=True,
        )


@dataclass
class _Job:
    """A run that is under way."""

    run: PlannedRun
    stage: Literal["train", "measure"] = "train"
    process: Command | None = None
    began: float = 0.0


class StudyRunner:
    """Trains and measures the runs of a study as child processes."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        opponents: tuple[str, ...],
        parallel: int,
        say: Callable[[str], None],
        *,
        trust: bool,
        address: str | None = None,
    ) -> None:
        """`address`: of the cluster on which runs of the Ray runtime have their workers."""
        self._study, self._folder, self._opponents, self._say = study, folder, opponents, say
        self._parallel = parallel
        self._trust = ("--trust",) if trust else ()
        self._address = () if address is None or study.runtime != "ray" else ("--address", address)
        self.launch: Launch = _launch_here
        self._done = 0
        self._failed: set[str] = set()
        """Runs that only the next command tries again: an optimiser calls `run` once for every round of draws."""

    def described(self, planned: Sequence[PlannedRun]) -> list[dict[str, Any]]:
        """Runs, with the commands that their results come from."""
        return [{**msgspec.to_builtins(run), "measured_by": self._stamp(run)} for run in planned]

    def run(self, planned: Sequence[PlannedRun]) -> None:
        for left in (self._folder / "runs").glob(f"{_LEFT}*"):
            shutil.rmtree(left)
        waiting = deque(_Job(run) for run in planned if run.name not in self._failed and not self._is_done(run))
        self._total, self._done = len(planned), len(planned) - len(waiting)
        at_once = f", {min(self._parallel, len(waiting))} at a time" if waiting else ""
        self._say(f"{self._folder}: {self._total} run{'s' * (self._total > 1)}, {self._done} of them done{at_once}")
        running: list[_Job] = []
        try:
            while waiting or running:
                while waiting and len(running) < self._parallel:
                    running.append(waiting.popleft())
                    self._start(running[-1])
                running = [job for job in running if not self._is_over(job)]
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            self._say("saving; the same command goes on")
            self._stop(running, signal.SIGTERM)
            raise
        finally:
            self._stop(running, signal.SIGKILL)

    def _stop(self, running: list[_Job], number: int) -> None:
        """End all processes; with SIGTERM they save first."""
        processes = [job.process for job in running if job.process is not None and job.process.exit_code is None]
        for process in processes:
            process.send_signal(number)
        for process in processes:
            process.wait_end(SAVE_WITHIN_S)
            process.kill()

    def _start(self, job: _Job) -> None:
        run_folder = self._folder / "runs" / job.run.name
        if job.stage == "train":
            self._remove_inexact(job.run, run_folder)
            command = [*self._training(job.run, run_folder), *self._address]
        else:
            command = self._measuring(run_folder)
        log, output = self._log(job.run), self._output(job.run)
        try:
            with log.open("ab", buffering=0) as messages:
                messages.write(f"$ ludus {' '.join(command)}\n".encode())
        except OSError as error:
            raise OSError(error.errno, f"cannot write: {error.strerror}", str(log)) from error
        output.unlink(missing_ok=True)
        to = None if job.stage == "train" else output
        job.process = self.launch([*command, *self._trust], log, to, job.process)
        job.began = job.began or time.monotonic()

    def _training(self, run: PlannedRun, folder: Path) -> list[str]:
        settings = _as_texts(self._study.of_run(run))
        changed = itertools.chain.from_iterable(("--set", f"{path}={value}") for path, value in settings.items())
        return ["train", self._study.experiment, "--run", str(folder), "--resume-or-start", "--quiet", *changed]

    def _measuring(self, folder: Path) -> list[str]:
        study = self._study
        weights, games = ["--weights", "average"], ["--episodes", str(study.episodes), "--seed", str(study.seed)]
        match study.objective:
            case "nash_conv":
                return ["exploit", str(folder), study.player, "--exact", "--json", *weights]
            case "exploiter_score":
                training = ["--train", "--runtime", "serial", "--budget", str(study.exploiter_budget), "--discard"]
                measuring = ["--episodes", str(study.episodes), "--json"]
                return ["exploit", str(folder), study.player, *weights, *training, *measuring]
            case "rating":
                bots = [f"bot:{name}" for name in self._opponents]
                return ["tournament", f"{folder}#{study.player}", *bots, "--json", *weights, *games]
            case _:
                return ["eval", str(folder), study.player, *self._opponents, "--json", *weights, *games]

    def _remove_inexact(self, run: PlannedRun, folder: Path) -> None:
        """Remove a serial run that was killed before it could save: only from its start can it be repeated exactly."""
        if self._study.runtime != "serial" or not (folder / "run.json").exists():
            return
        found = RunFolder.open(folder)
        if found.holder() is None and not continues_exactly(found):
            self._say(f"{run.name} was killed before it could save: it begins again, to end with the same numbers")
            gone = folder.with_name(f"{_LEFT}{folder.name}")
            folder.rename(gone)
            shutil.rmtree(gone)

    def _is_over(self, job: _Job) -> bool:
        """Look at a job; start its next stage if one has ended."""
        assert job.process is not None
        code = job.process.exit_code
        if code is None:
            return False
        if code == 0 and job.stage == "train":
            job.stage = "measure"
            self._start(job)
            return False
        if code == OUT_OF_TIME:
            self._start(job)
            return False
        job.process.kill()  # all that it has started
        self._done += 1
        result = self._measured(job) if code == 0 else {"failed": self._failure(job, code)}
        document = {**result, "measured_by": self._stamp(job.run)}
        atomic_write(self._result(job.run), msgspec.json.encode(seal(document)) + b"\n")
        self._output(job.run).unlink(missing_ok=True)
        seconds = time.monotonic() - job.began
        value = result.get("value")
        if value is None:
            self._failed.add(job.run.name)
        told = f"failed: {result['failed']}" if value is None else f"{self._study.objective} {value:.4g}"
        name = f"{job.run.setting}, seed {job.run.seed}"
        self._say(f"[{self._done}/{self._total}] {name}: {told} ({seconds:.0f} s)")
        return True

    def _measured(self, job: _Job) -> dict[str, Any]:
        """By opponent, or with one entry where nobody else counts; `value` is their mean."""
        rows = [json.loads(line) for line in self._output(job.run).read_text().splitlines() if line.startswith("{")]
        match self._study.objective:
            case "nash_conv":
                values = {"nash_conv": rows[-1]["exact"]["nash_conv"]}
            case "exploiter_score":
                measured = rows[-1]["trained"]["measured"]
                # Where roles differ, its score is compared with what the player itself gets.
                values = {"exploiter": measured["score"] if measured.get("gain") is None else measured["gain"]}
            case "rating":
                values = {"rating": rows[-1]["players"][0]["elo"]}
            case objective:
                values = {row["players"][1] if len(row["players"]) > 1 else "alone": row[objective] for row in rows}
        return {"value": float(np.mean([*values.values()])), "values": values}

    def _failure(self, job: _Job, code: int) -> str:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        lines = self._log(job.run).read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines[-40:] if line.startswith("error: ")]
        said = (errors or lines or ["nothing was printed"])[-1].removeprefix("error: ")
        return f"{job.stage} ended with {how}: {said[:300]} (see {self._log(job.run)})"

    def _is_done(self, run: PlannedRun) -> bool:
        """It has a result of the same objective, and of the same settings."""
        try:
            result = read_result(self._result(run), self._stamp(run))
        except StoreError as error:
            self._say(f"{run.name} is measured again: {error}")
            return False
        return result is not None and result.value is not None

    def _stamp(self, run: PlannedRun) -> list[str]:
        """The commands that a result comes from."""
        place = Path("RUN")
        return [*self._training(run, place), *self._measuring(place)]

    def _log(self, run: PlannedRun) -> Path:
        return self._folder / "logs" / f"{run.name}.log"

    def _output(self, run: PlannedRun) -> Path:
        return self._folder / "results" / f"{run.name}.out"

    def _result(self, run: PlannedRun) -> Path:
        return self._folder / "results" / f"{run.name}.json"


def _as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Values as `--set` takes them."""
    return {path: value if isinstance(value, str) else json.dumps(value) for path, value in settings.items()}


def _label(settings: Mapping[str, Any]) -> str:
    """Settings in words: the last part of each path, the whole path where that is ambiguous."""
    last = [path.rpartition(".")[2] for path in settings]
    named = [path if last.count(short) > 1 else short for path, short in zip(settings, last, strict=True)]
    texts = [f"{name}={value}" for name, value in zip(named, _as_texts(settings).values(), strict=True)]
    return ", ".join(texts) or "as it is"


def _name(label: str, seed: int) -> str:
    """A name for a folder. Long settings are cut and end with a digest."""
    plain = re.sub(r"[^\w.=+-]+", "_", label, flags=re.ASCII)
    if len(plain) > LONGEST_NAME:
        plain = f"{plain[: LONGEST_NAME - 9]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return f"{plain}-seed{seed}"
