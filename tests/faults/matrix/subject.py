"""A run that faults are injected into: `ludus train` as a user starts it, seen by its files and processes."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from matrix import check

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "src"
TOKEN = "FAULT_TOKEN"
LUDUS = (sys.executable, "-m", "ludus.cli.main")
START_S, GO_ON_S, VISIBLE_S, END_S = 180.0, 90.0, 30.0, 60.0
"""Limits of one wait. They say that something hangs, not how fast it should be: the machine may be busy. What was
measured is in the report."""
INTERRUPTED = 130
SELF_PLAY = 0.5
BATCH, CHECKPOINT_EVERY = 1_000, 3_000
"""Of experiment.py."""


class Broken(Exception):  # noqa: N818
    """An invariant does not hold."""


class NotHere(Exception):  # noqa: N818
    """This fault cannot be injected here, for the reason that is told."""


PATIENCE = {"local": 1.0, "ray": 3.0, "device": 1.0}
"""By runtime, a factor of these limits: each process of Ray has to start as well."""


class NoStart(NotHere):
    """The machine is too busy for Ray, which gives up by itself; nothing was injected."""


def wait(happened: Callable[[], object], what: str, most_s: float = GO_ON_S) -> float:
    """Seconds until it has happened."""
    start = time.monotonic()
    while not happened():
        if time.monotonic() - start > most_s:
            raise Broken(f"I8: waited {most_s:.0f} s for {what}")
        time.sleep(0.02)
    return time.monotonic() - start


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def compiled_shim(folder: Path) -> Path:
    """The library made of shim.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NotHere("needs a C compiler")
    library = folder / "shim.so"
    if not library.exists():
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "shim.c"], check=True)
    return library


def processes_with(token: str) -> dict[int, str]:
    """Living processes that have inherited this token, with their command lines."""
    found = {}
    mark = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
    return found


def role_of(command: str) -> str:
    for role in ("learner", "actor", "policy", "buffer"):
        if f'"role":"{role}"' in command:
            return role
    if "guard.py groups" in command:
        return "guard"
    if "log_keeper.py" in command:
        return "log keeper"
    if "ludus.cli.main train" in command:
        return "controller"
    return command.split(" ")[0]


_libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def _end_with_harness() -> None:
    """Have the kernel end a run with the harness, however that ends: nothing is to train on for nobody. A shell starts
    what it puts into the background with SIGINT ignored, which children inherit; a run in the foreground hears it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Subject:
    """One run folder, its processes, and what is known of it from one life to the next."""

    def __init__(self, folder: Path, experiment: str = "plain", runtime: str = "local", *settings: str) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.marks = folder / "marks"
        self.marks.mkdir(parents=True, exist_ok=True)
        self.experiment = experiment
        self.runtime = runtime
        self.settings = settings
        self.token = uuid.uuid4().hex
        self.known = check.Known()
        self.rules = check.Rules(lost_decisions=CHECKPOINT_EVERY + 3 * BATCH)
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.injections = 0
        self._patience = PATIENCE.get(runtime, 1.0)

    # --- its life ---

    @property
    def command(self) -> list[str]:
        """The first start and every later one are the same command, as in a batch job."""
        where = ["--run", str(self.run), "--runtime", self.runtime, "--json", "--resume-or-start"]
        chosen = [word for setting in self.settings for word in ("--set", setting)]
        name = f"{self.experiment}_on_device" if self.runtime == "device" else self.experiment
        return [*LUDUS, "train", f"{HERE / 'experiment.py'}:{name}", *where, *chosen]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FAULT_")}
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH", "")]))
        return {**kept, "PYTHONPATH": path, "FAULT_MARKS": str(self.marks), TOKEN: self.token, **more}

    def start(
        self, *, learns: bool = True, before: Sequence[str] = (), shim_for: Mapping[str, str] | None = None
    ) -> Subject:
        """Start or resume it; `before`: words in front of the command; `shim_for`: variables of shim.c."""
        self.lives += 1
        more = {} if shim_for is None else {"LD_PRELOAD": str(compiled_shim(self.folder)), **shim_for}
        with (
            (self.folder / f"out.{self.lives}").open("wb") as out,
            (self.folder / f"err.{self.lives}").open("wb") as err,
        ):
            self.process = subprocess.Popen(
                [*before, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment(**more),
                start_new_session=True,
                preexec_fn=_end_with_harness,
            )
        if learns:
            self.go_on(START_S)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def errors(self) -> str:
        """What it last told on standard error."""
        return (self.folder / f"err.{self.lives}").read_text(errors="replace")

    def go_on(self, most_s: float = GO_ON_S) -> float:
        """Seconds until it has learned something more."""
        size = self.progress()

        def learned() -> bool:
            if not self.is_alive and "no private Ray cluster could be started" in self.errors():
                raise NoStart(self.errors()[-200:])
            require(self.is_alive, f"I8: the run ended: {self.errors()[-600:]}")
            return self.progress() > size

        return wait(learned, "the run to learn again", most_s * self._patience)

    def progress(self) -> int:
        """Grows with everything that is learned: the size of a metrics file."""
        with suppress(FileNotFoundError):
            return (self.run / "metrics" / "train.jsonl").stat().st_size
        return 0

    def wait_end(self, most_s: float = END_S) -> int:
        """Its exit code."""
        assert self.process is not None
        wait(lambda: not self.is_alive, "the run to end", most_s * self._patience)
        return int(self.process.returncode)

    def stop(self) -> None:
        """End it in good order; then everything must hold and nothing may be left."""
        self.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        code = self.wait_end()
        require(code == INTERRUPTED, f"I10: asked to end, it exited with {code}: {self.errors()[-600:]}")
        self.nothing_left()
        self.check(closed=True)

    def end(self) -> None:
        """Whatever state it is in: no process of it is left."""
        while left := processes_with(self.token):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if self.process is not None:
            self.process.wait()

    # --- its processes ---

    def pids(self, role: str) -> list[int]:
        return [pid for pid, command in processes_with(self.token).items() if role_of(command) == role]

    def find(self, role: str, most_s: float = GO_ON_S) -> list[int]:
        found: list[int] = []

        def look() -> bool:
            require(self.is_alive, f"I8: the run ended: {self.errors()[-600:]}")
            found[:] = self.pids(role)
            return bool(found)

        wait(look, f"a process that is the {role}", most_s * self._patience)
        return found

    def kill_everything(self) -> None:
        """As in a power cut."""
        for pid in sorted(processes_with(self.token)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_end()

    def nothing_left(self) -> None:
        """I7: no process is left that the run has started."""
        with suppress(Broken):
            wait(lambda: not self._stray(), "its processes to end", 30.0 * self._patience)
        stray = self._stray()
        require(not stray, f"I7: processes are left: {[command[:120] for command in stray.values()]}")

    def _stray(self) -> dict[int, str]:
        return {pid: command for pid, command in processes_with(self.token).items() if pid != self.pid or self.is_alive}

    # --- its files ---

    def acknowledged(self) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(line) for line in (self.marks / "acknowledged").read_text().split()]
        return []

    def check(self, *, closed: bool = False) -> None:
        acknowledged = self.acknowledged()  # before the ledger is read: it can only have more
        broken = check.check(self.run, self.rules, self.known, closed=closed, acknowledged=acknowledged)
        require(not broken, "; ".join(broken[:4]))

    def check_league(self) -> None:
        """I2: what is told of a run that rests is a fold of its rows."""
        done = self.ludus("league", str(self.run), "--json")
        require(done.returncode == 0, f"I2: ludus league: {done.stderr[-400:]}")
        broken = list(check.check_league(json.loads(done.stdout), check.read_rows(self.run)))
        require(not broken, "; ".join(broken[:4]))

    def ludus(self, *words: str, most_s: float = END_S) -> subprocess.CompletedProcess[str]:
        environment = self.environment()
        return subprocess.run([*LUDUS, *words], capture_output=True, text=True, env=environment, timeout=most_s)

    def faults(self) -> list[dict[str, Any]]:
        return check.read_lines(self.run / "metrics" / "faults.jsonl")

    def rows(self) -> list[check.Row]:
        return check.read_rows(self.run)

    def seen(self, pid: int, since: float) -> float:
        """I10: one row tells of this process, with its class; seconds from the fault to it."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [row for row in self.faults() if row["pid"] == pid]
            return bool(found)

        with suppress(Broken):
            wait(look, "the fault to be told", VISIBLE_S * self._patience)
        require(len(found) == 1, f"I10: {len(found)} rows of faults.jsonl tell of process {pid}")
        require(found[0]["class"] and found[0]["then"], f"I10: a fault without a class: {found[0]}")
        return float(found[0]["time"]) - since

    def order(self, who: str, what: str, most_s: float = GO_ON_S) -> int:
        """Have one process of it do something bad (see experiment.py). Returns the process that has taken the order."""
        (self.marks / f"{who}.new").write_text(what)
        (self.marks / f"{who}.new").rename(self.marks / who)
        wait(lambda: not (self.marks / who).exists(), f"the {who} to take its order", most_s * self._patience)
        [taken] = self.marks.glob(f"{who}.taken.*")
        taken.unlink()
        return int(taken.name.split(".")[2])


class Bench:
    """Lends runs to the rows of the matrix. A run that has outlived its faults is lent again, up to a number of times;
    in the end it is stopped in good order, and everything must hold."""

    REUSED = 12

    def __init__(self, folder: Path, runtime: str = "local", seed: object = 0) -> None:
        self.folder = folder
        self.runtime = runtime
        self.seed = seed
        self.sampled = [0, 0]
        """Self-play matches and all training matches of the runs that are over (I9)."""
        self._runs: dict[tuple[str, ...], Subject] = {}
        self._made = 0

    def new(self, experiment: str = "plain", *settings: str, folder: Path | None = None) -> Subject:
        """A run that does not exist yet; it is ended with the injection unless it is given back."""
        self._made += 1
        subject = Subject((folder or self.folder) / f"{experiment}-{self._made}", experiment, self.runtime, *settings)
        self._mine.append(subject)
        return subject

    def running(self, experiment: str = "plain", *, clock: bool = False) -> Subject:
        """A run that learns; started if there is none. `clock`: its time of day follows the file `clock` in `marks`."""
        subject = self._lend(experiment, "clock" if clock else "running")
        if not subject.is_alive:
            subject.start(shim_for={"FAULT_CLOCK": str(subject.marks / "clock")} if clock else None)
        return subject

    def resting(self, experiment: str = "plain") -> Subject:
        """A run that is not trained now, or not yet; its last life may have ended in any way."""
        subject = self._lend(experiment, "resting")
        assert not subject.is_alive
        return subject

    def _lend(self, experiment: str, state: str) -> Subject:
        subject = self._runs.get((experiment, state))
        if subject is None:
            subject = self._runs[experiment, state] = self.new(experiment)
            self._mine.remove(subject)
        subject.injections += 1
        return subject

    _mine: list[Subject]

    def injected(self, inject: Callable[[], Mapping[str, float] | None]) -> Mapping[str, float]:
        """Carry out one injection; every run of it is checked and, if it was its own, ended."""
        self._mine = []
        try:
            told = inject() or {}
            for subject in self._runs.values():
                if (subject.run / "ledger.db").exists():
                    subject.check()
            for key in [key for key, subject in self._runs.items() if subject.injections >= self.REUSED]:
                self._retire(key)
            return told
        except BaseException:
            self._mine += self._runs.values()
            self._runs = {}
            raise
        finally:
            for subject in self._mine:
                subject.end()
            self.last = list(self._mine)

    def discard(self) -> Iterator[Path]:
        """Folders of the last injection, for whoever removes or keeps them."""
        for subject in self.last:
            self._count(subject)
            yield subject.folder

    def close(self) -> None:
        """Stop the runs that are left."""
        for key in list(self._runs):
            self._retire(key)

    def abandon(self) -> None:
        for subject in self._runs.values():
            subject.end()

    def _retire(self, key: tuple[str, ...]) -> None:
        subject = self._runs.pop(key)
        try:
            if not subject.is_alive:
                subject.start()
            subject.stop()
            subject.check_league()
            self._count(subject)
        except BaseException:
            self._mine.append(subject)
            raise
        finally:
            subject.end()
        shutil.rmtree(subject.folder, ignore_errors=True)

    def _count(self, subject: Subject) -> None:
        if subject.experiment == "plain":
            with suppress(Exception):
                itself, total = check.sampled_opponents(subject.rows())
                self.sampled[0] += itself
                self.sampled[1] += total
