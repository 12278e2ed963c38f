"""`ludus.train`: finds an experiment, creates or opens its run folder, and trains. `ludus train` on the command line
makes the same `Plan` and starts it the same way; it shows more."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from ludus.config import ConfigError, apply_overrides, diff, encode, override
from ludus.data.addresses import files_being_loaded, forget_changed_files
from ludus.data.records import ChangeSettings
from ludus.evaluation.game_recorder import GameRecorder
from ludus.experiment import Experiment
from ludus.games.game import GameSource
from ludus.league.league import League
from ludus.lookup import explained_experiment, find_experiment, fix_bots, open_run
from ludus.models.policy import find_gpu
from ludus.observe.progress import ProgressLines
from ludus.replays.cloning_plan import is_cloned
from ludus.run import Run
from ludus.runtime import assemble, recovery, start as starting
from ludus.runtime.coordinator import Training
from ludus.runtime.device import require_on_device
from ludus.runtime.placement import SCALED, is_given, place
from ludus.runtime.rounds import INTERRUPTED, received_signals
from ludus.runtime.services import fix_services
from ludus.runtime.settings import checked_settings, effective, is_live, require_trainable
from ludus.store.run_folder import NewRun, RunFolder, trusting

Trainable = Experiment | Callable[[], Experiment] | GameSource | str | PathLike[str]
"""A recipe's name, a game or its address, an experiment or a function that returns one, FILE.py:NAME or FILE.yaml."""
DEFAULT = "connect_four"
"""The recipe that is trained if none is named."""


def train(
    what: Trainable | None = None,
    *,
    budget: float | None = None,
    run: str | PathLike[str] | None = None,
    resume: bool = False,
    accept_loss: bool = False,
    runtime: str | None = None,
    quiet: bool = False,
    actors: int | None = None,
    address: str | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Run:
    """Train a league until its budget is spent, and return its run.

        run = ludus.train("connect_four", budget=2e6)
        run = ludus.train("openspiel:hex", runtime="serial", **{"learner.learning_rate": 3e-4})
        run = ludus.train(run="runs/connect_four-001", resume=True, budget=4e6)

    Prints a line of progress every few seconds, in a notebook as well. Ctrl-C (in a notebook: interrupt)
    saves the state, then raises KeyboardInterrupt, so that a script stops; `resume=True` goes on from there.
    A second Ctrl-C stops at once, without saving. `train` may run in a thread: `Run.stop` ends it there.

    Args:
        what: a recipe's name, a game's address, an `Experiment` or a function that returns one, FILE.py:NAME
            or FILE.yaml. None with `resume`.
        budget: decisions that the learning players train on, all together.
        run: the run folder; default: a new one under `runs/`. With `resume`: the newest.
        resume: go on with an existing run. Overrides then change its settings.
        accept_loss: resume although the ledger or the checkpoint is lost, with what is left.
        runtime: "serial", "local", "ray", "device" or "auto": "device" on a GPU that the experiment fits, else
            "local".
        quiet: print nothing.
        actors: actor processes.
        address: of a Ray cluster.
        trust: with `resume`, import code even if it lies inside of the run folder.
        overrides: settings by path, checked with their types.

    Raises:
        ConfigError: a setting that does not exist or does not fit; the message offers the nearest name.
        KeyboardInterrupt: after the state was saved.
    """
    forget_changed_files()
    named = {"budget": budget, "runtime": runtime, "actors": actors}
    settings = {**overrides, **{name: value for name, value in named.items() if value is not None}}
    with trusting(trust):
        plan = Plan.make(
            what, run=run, resume=resume, accept_loss=accept_loss, settings=settings, actors=actors, address=address
        )
    say: Callable[[str], None] = (lambda line: None) if quiet else partial(print, flush=True)
    with plan.open([f"ludus.train({what!r})"]) as (folder, experiment):
        path = folder.path
        say(f"run folder: {path}")
        for line in plan.told:
            say(line)
        with plan.start(folder, experiment) as training:
            for notice in training.notices:
                say(notice)
            with ProgressLines(training, quiet=quiet) as watch:
                reason = training.run(watch)
            say(f"{reason} after {int(training.numbers()['decisions']):,} decisions: {path}")
    if reason == INTERRUPTED and signal.SIGINT in received_signals():
        say(f"saved; ludus.train(run={str(path)!r}, resume=True) goes on")
        raise KeyboardInterrupt
    return Run(path, trust=folder.trusted)


def load_experiment(what: Trainable | Run, **overrides: Any) -> Experiment:
    """The experiment of a recipe, a file or a run folder, with other settings by path. Imports what it names."""
    if isinstance(what, str | PathLike) and (Path(what) / "run.json").is_file():
        what = Run(what)
    if isinstance(what, Run):
        return apply_overrides(what.experiment(), overrides) if overrides else what.experiment()
    return find_experiment(what, overrides)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training that was checked and has not begun: nothing is written yet."""

    initial: starting.InitialModels
    """The experiment, and the models that it begins with."""
    actors: int | None
    """Number of actor processes that was requested, now or before."""
    folder: RunFolder | None = None
    """The folder of the run to resume; None: a new run."""
    path: Path | None = None
    """The folder of a new run; None: the next free one under `runs/`."""
    live: Mapping[str, str] = field(default_factory=dict)
    """Settings that are changed in the ledger of the run."""
    accept_loss: bool = False
    """Resume although a part of the run is lost."""
    address: str | None = None
    told: tuple[str, ...] = ()
    """What was chosen for the user, with reasons: defaults of a game that is trained by its address, the runtime."""

    @staticmethod
    def make(
        what: Trainable | None,
        *,
        run: str | PathLike[str] | None = None,
        resume: bool = False,
        accept_loss: bool = False,
        settings: Mapping[str, Any],
        actors: int | None = None,
        address: str | None = None,
    ) -> Plan:
        """Find and check everything that can be checked before a run exists."""
        if loading := files_being_loaded():
            raise ConfigError(
                f"{loading[-1]} trains when it is imported, and workers import it: call ludus.train below "
                '`if __name__ == "__main__":`'
            )
        if resume:
            if what is not None:
                raise ConfigError(f"resume takes the experiment from the run folder; leave out {what!r}")
            plan = _resumed(open_run(run), settings, accept_loss)
        else:
            if accept_loss:
                raise ConfigError(f"{recovery.ACCEPT} is for a run that is resumed; a new one has lost nothing")
            plan = _new(DEFAULT if what is None else what, run, settings)
        experiment = plan.initial.experiment
        starting.require_cluster_for(address, experiment.runtime)
        starting.require_ray_for(experiment.runtime)
        starting.require_room(experiment, address)
        _require_processes(experiment, actors)
        return replace(plan, actors=actors or plan.actors, address=address)

    @contextmanager
    def open(self, command: list[str] | None = None) -> Iterator[tuple[RunFolder, Experiment]]:
        """Create or open the run, and lock it until the end of the block."""
        experiment = self.initial.experiment
        if self.folder is None:
            new = NewRun(self.path, experiment.run_name)
            with new.build() as path:
                experiment = self.initial.put_into(RunFolder.models_in(path))
                assemble.create_run(path, experiment, command or sys.argv)
            try:
                with new.folder.lock():
                    yield new.folder, experiment
            except ConfigError:
                new.remove_unstarted()
                raise
            return
        with self.folder.lock():
            recovery.require_ledger(self.folder, accept_loss=self.accept_loss)
            written = assemble.load_experiment(self.folder)
            recovery.require_whole(self.folder, written, accept_loss=self.accept_loss)
            if self.live:
                answer = starting.edit_stopped(self.folder, ChangeSettings(settings=dict(self.live)))
                if answer.refused is not None:
                    raise ConfigError(answer.refused)
            folder, experiment = self.folder, self.initial.put_into(self.folder.models)
            if encode(experiment) != encode(written):
                folder = folder.with_experiment(encode(experiment))  # before worker processes read it
            yield folder, experiment

    @contextmanager
    def start(self, folder: RunFolder, experiment: Experiment) -> Iterator[Training]:
        """Start the workers of an open run; they end with the block. Games of its evaluations are recorded."""
        with (
            starting.training_of(experiment, folder, num_actors=self.actors, address=self.address) as training,
            GameRecorder(training),
        ):
            yield training


def _new(what: Trainable, run: str | PathLike[str] | None, settings: Mapping[str, Any]) -> Plan:
    given = {path: value for path, value in settings.items() if path != "runtime"}
    found, defaults = explained_experiment(what, given)
    asked = settings.get("runtime")
    placed = place(
        found if asked is None else override(found, "runtime", asked),
        written_for=found.runtime,
        gpu=find_gpu(found.learner.device),
        given=given,
        budget=_budget_without(what, given, found),
    )
    told = [*([] if defaults is None else [f"defaults:   {defaults}"]), *placed.told]
    experiment = _checked(placed.experiment)
    path, pool = None if run is None else Path(run), None
    if path is not None:
        if (path / "run.json").exists():
            raise ConfigError(f"{path} already holds a run; resume it (--resume, resume=True), or name another folder")
        RunFolder.require_free(path)
        pool = RunFolder.models_in(path)
    initial = starting.find_initial_models(experiment, pool)
    return Plan(initial=initial, path=path, actors=experiment.actors, told=tuple(told))


def _budget_without(what: Trainable, given: Mapping[str, Any], found: Experiment) -> int:
    """The budget that an experiment has without the user's own."""
    if "budget" not in given:
        return found.budget
    return explained_experiment(what, {path: value for path, value in given.items() if path != "budget"})[0].budget


def _resumed(folder: RunFolder, settings: Mapping[str, Any], accept_loss: bool) -> Plan:
    if is_cloned(folder):
        raise ConfigError(
            f"{folder.path} is a cloned player, not a league: go on with `ludus clone --run {folder.path} "
            "--resume`, or let a new league begin with it (league.roles.main.start)"
        )
    if not accept_loss:
        recovery.require_ledger(folder, accept_loss=False)
    before = assemble.load_experiment(folder)
    league = _replayed(folder, before)
    now = None if league is None else effective(before, league)
    changes = {path: value for path, value in settings.items() if now is not None and is_live(now, path)}
    live = {path: value if isinstance(value, str) else json.dumps(value) for path, value in changes.items()}
    if now is not None:
        checked_settings(now, live)
    changed = apply_overrides(before, {path: value for path, value in settings.items() if path not in live})
    experiment = _checked(changed)
    _require_same_players(before, experiment)
    named_before = [model for _, model, _, _ in starting.models_named(before)]
    initial = starting.find_initial_models(experiment, folder.models, known=named_before)
    if now is not None and experiment != before:
        _require_replay(folder, initial.planned)
    actors = (now or experiment).actors
    return Plan(initial=initial, folder=folder, live=live, actors=actors, accept_loss=accept_loss)


PLACES = ("runtime", "actors", "actor.inference", "actor.inference_device", "learner.device")
"""Settings that say where a run computes. They may differ from one start of a job to the next."""


def require_same_experiment(folder: RunFolder, what: Trainable, settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run in the name of another experiment, or of the same one with other settings.

    A setting that `ludus set` has changed since may be named with its first or with its present value.
    """
    written = assemble.load_experiment(folder)
    league = _replayed(folder, written)
    now = written if league is None else effective(written, league)
    asked = fix_services(fix_bots(explained_experiment(what, settings)[0]))
    changed_since = {path for path, _, _ in diff(now, asked)}
    found = [
        f"  {path}: {old} in the run, {new} asked for"
        for path, old, new in diff(written, asked)
        if path in changed_since
        and path not in PLACES
        and not path.startswith("cluster.")
        and not (written.runtime == "device" and is_given(path, SCALED) and not is_given(path, settings))
        and not re.fullmatch(r"league\.roles\.[^.]+\.start", path)  # the run names the model that was found there
    ]
    if found:
        raise ConfigError(
            f"{folder.path} holds a run with other settings:\n" + "\n".join(found) + "\n"
            "Name another folder (--run) or trial (--trial), or resume the run with its own settings: "
            f"ludus train --run {folder.path} --resume"
        )


def _checked(experiment: Experiment) -> Experiment:
    """With addresses that hold in any folder; refuses what this machine cannot do."""
    fixed = fix_services(fix_bots(experiment))
    assemble.require_devices(fixed)
    assemble.require_interface(fixed)
    assemble.require_metrics(fixed)
    assemble.require_value_parameters(fixed)
    if fixed.runtime == "device":
        require_on_device(fixed)
    return fixed


def _require_processes(experiment: Experiment, actors: int | None) -> None:
    """The serial runtime is one process: refuse what only processes can do."""
    if experiment.runtime != "serial":
        return
    asked = {
        "actors": actors is not None,
        "actor.inference=worker": experiment.actor.inference == "worker",
        f"learner.ranks={experiment.learner.ranks}": experiment.learner.ranks > 1,
    }
    for setting, is_asked in asked.items():
        if is_asked:
            raise ConfigError(f"{setting} is for runtime local: the serial runtime is one process")


def _replayed(folder: RunFolder, written: Experiment) -> League | None:
    """The league of a run; None for one that has never started."""
    if not folder.ledger_path.exists():
        return None
    league = assemble.load_league(folder, written)
    return league if league.num_events else None


def _require_replay(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse an experiment that the changes made in the run so far do not fit."""
    try:
        league = _replayed(folder, experiment)
        if league is not None:
            effective(experiment, league)
            require_trainable(experiment, league)
    except (ValueError, LookupError) as error:
        raise ConfigError(f"this does not go with what the run has changed since it began: {error}") from error


def _require_same_players(before: Experiment, after: Experiment) -> None:
    """Refuse changes of the game, networks and players: the run's weights fit only its own."""
    for path, old, new in diff(before, after):
        match path.split("."):
            case ["game" | "policies" | "model", *_] | ["league", "roles", _] | [_, "roles", _, "count" | "start"]:
                raise ConfigError(f"{path} is {old} in this run and stays so; for {new} start another run")
