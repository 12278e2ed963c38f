"""The run folder: every file of one training, its metrics files, and the facts about how it was started."""

from __future__ import annotations

import errno
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ludus.store.checkpoints import Checkpoints
from ludus.store.files import (
    UNREADABLE,
    StoreError,
    atomic_write,
    clean_temporaries,
    make_folder,
    safe_name,
    sync_folder,
)
from ludus.store.ledger import Ledger
from ludus.store.model_pool import ModelPool
from ludus.store.run_control import Holder, read_holder, run_lock
from ludus.system.machine import installed_version

FORMAT = 2  # format 2 names classes by their public names and holds the facts of the game
GIT_S = 5.0  # time limit of a git command
_RUN_FILE = "run.json"
_LOCK_FILE = "lock.json"
_SUBFOLDERS = ("models", "checkpoints", "metrics", "logs")
_MOST_NAMED = 4


class RunFolderError(StoreError):
    """A folder that is not a run, or a run that cannot be used."""


class GameFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs to know of the game without importing it."""

    name: str
    seats_per_team: tuple[int, ...]
    zero_sum: bool
    bots: tuple[str, ...]
    roles: tuple[str, ...] = ()  # of the teams, where players are compared by role


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `run.json`: how the run was started."""

    format: int
    ludus: str
    python: str
    created: str  # time in UTC, ISO 8601
    seed: int
    command: tuple[str, ...]
    experiment: msgspec.Raw  # the whole experiment as JSON
    game: GameFacts | None = None
    torch: str = ""
    commit: str = ""  # commit of Ludus itself, if it was a checkout; with + if files were changed
    machine: str = ""  # the machine on which the run was started, in words


class _Stamp(msgspec.Struct):
    """The fields that every format of `run.json` has."""

    format: int
    ludus: str


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. Use `create` or `open`."""

    path: Path
    facts: RunFacts

    @classmethod
    def create(
        cls,
        path: str | Path,
        experiment: bytes | object,
        *,
        seed: int,
        command: Sequence[str] | None = None,
        game: GameFacts | None = None,
    ) -> RunFolder:
        """Create a run in a new or empty folder. `run.json` is written last, so that every run is complete."""
        path = Path(path)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed {seed} is not between 0 and 2**64 - 1")
        facts = RunFacts(
            format=FORMAT,
            ludus=installed_version(),
            python=platform.python_version(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=seed,
            command=tuple(sys.argv if command is None else command),
            experiment=msgspec.Raw(_as_json(experiment)),
            game=game,
            torch=package_version("torch"),
            commit=source_commit(),
            machine=describe_machine(),
        )
        cls.require_free(path)
        for folder in (path, *(path / name for name in _SUBFOLDERS)):
            make_folder(folder)
        atomic_write(path / _RUN_FILE, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        path = Path(path)
        if not path.is_dir():
            raise RunFolderError(f"no run folder {path}{_nearest_runs(path.parent)}")
        try:
            content = (path / _RUN_FILE).read_bytes()
        except FileNotFoundError:
            raise RunFolderError(f"{path} is not a run folder, it has no {_RUN_FILE}{_nearest_runs(path)}") from None
        try:
            stamp = msgspec.json.decode(content, type=_Stamp)
            if stamp.format != FORMAT:
                newer = stamp.format > FORMAT
                advice = "update ludus" if newer else f"train it again, or use ludus {stamp.ludus}"
                raise RunFolderError(
                    f"run {path} has format {stamp.format} (ludus {stamp.ludus}), this ludus {installed_version()} "
                    f"reads format {FORMAT}: {advice}"
                )
            return cls(path, msgspec.json.decode(content, type=RunFacts))
        except UNREADABLE as error:
            raise RunFolderError(f"{path / _RUN_FILE} is damaged: {error}") from error

    def with_experiment(self, experiment: bytes | object) -> RunFolder:
        """Replace the experiment of the run. The old `run.json` is kept as `run.NUMBER.json`."""
        kept = sum(1 for _ in self.path.glob("run.*.json"))
        atomic_write(self.path / f"run.{kept + 1}.json", (self.path / _RUN_FILE).read_bytes())
        facts = msgspec.structs.replace(self.facts, experiment=msgspec.Raw(_as_json(experiment)))
        atomic_write(self.path / _RUN_FILE, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        return RunFolder(self.path, facts)

    @staticmethod
    def require_free(path: str | Path) -> None:
        """Raises `RunFolderError` if no run can be created at `path`."""
        path = Path(path)
        if (path / _RUN_FILE).exists():
            raise RunFolderError(f"{path} is a run already; resume it, or choose another folder")
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file, a run needs a folder")
        # Our own empty subfolders may be left of a creation that died.
        foreign = [entry.name for entry in path.glob("*") if entry.name not in _SUBFOLDERS]
        if foreign:
            raise RunFolderError(f"{path} holds other things ({', '.join(sorted(foreign)[:4])}); choose a new folder")

    @staticmethod
    def models_in(path: str | Path) -> ModelPool:
        """The model pool of a run, which need not exist yet."""
        return ModelPool(Path(path) / "models")

    @staticmethod
    def name_new(recipe: str, *, root: str | Path = "runs") -> Path:
        """Create the first free folder of `root/recipe-001`, `root/recipe-002` and so on."""
        name = safe_name(recipe, "recipe")
        root = Path(root)
        make_folder(root)
        for number in itertools.count(1):
            path = root / f"{name}-{number:03d}"
            with suppress(FileExistsError):
                path.mkdir()
                break
        sync_folder(root)
        return path

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.db"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def status(self) -> Path:
        """Written by the process that trains the run."""
        return self.path / "status.json"

    @property
    def requests(self) -> Path:
        """Created by the first request."""
        return self.path / "requests"

    @property
    def models(self) -> ModelPool:
        return self.models_in(self.path)

    def ledger(self, *, read_only: bool = False) -> Ledger:
        return Ledger(self.ledger_path, read_only=read_only)

    def checkpoints(self, player: str, keep: int = 2) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints" / safe_name(player, "player"), keep)

    @contextmanager
    def lock(self) -> Iterator[Holder]:
        """Make this process the one that trains the run, and remove the temporary files of dead ones."""
        with run_lock(self.path / _LOCK_FILE) as holder:
            clean_temporaries(self.path)
            yield holder

    def holder(self) -> Holder | None:
        """The process that trains the run. Whether a process on another host lives is not known here."""
        named = read_holder(self.path / _LOCK_FILE)
        return named if named is not None and (named.is_alive or named.is_elsewhere) else None


def _as_json(experiment: bytes | object) -> bytes:
    """Encode an experiment, or check that bytes are JSON. NaN and infinity are refused."""
    if not isinstance(experiment, bytes):
        return json.dumps(msgspec.to_builtins(experiment), allow_nan=False).encode()
    try:
        msgspec.json.decode(experiment)
    except UNREADABLE as error:
        raise ValueError(f"the experiment is not JSON: {error}") from error
    return experiment


def _nearest_runs(place: Path) -> str:
    """The end of an error message: run folders in `place`."""
    found = [str(file.parent) for file in sorted(place.glob(f"*/{_RUN_FILE}"))]
    if not found:
        return "; start one with `ludus train`"
    more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    return f"; runs there are {', '.join(found[:_MOST_NAMED])}{more}"


class MetricsFile:
    """Appends one line per record, in one write each. NaN and infinities are written as null."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._encoder = msgspec.json.Encoder(enc_hook=_plain_scalar)
        self.path.parent.mkdir(exist_ok=True)
        self._file = self.path.open("ab+", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        line = self._torn_line_end() + self._encoder.encode(dict(record)) + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            raise OSError(error.errno, f"cannot write: {error.strerror}", str(self.path)) from error
        if written != len(line):
            raise OSError(errno.ENOSPC, f"cannot write: {os.strerror(errno.ENOSPC)}", str(self.path))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _torn_line_end(self) -> bytes:
        """End a line that a killed writer or a full disk left unfinished."""
        if self._file.seek(0, os.SEEK_END) == 0:
            return b""
        self._file.seek(-1, os.SEEK_END)
        return b"" if self._file.read(1) == b"\n" else b"\n"


def read_metrics(path: str | Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The records from byte `offset` on, and the offset after the last complete line."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    records = []
    for line in whole.split(b"\n")[:-1]:
        try:
            records.append(msgspec.json.decode(line, type=dict[str, Any]))
        except UNREADABLE:
            continue  # a line that its writer did not finish
    return records, offset + len(whole)


def _plain_scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a metric cannot be a {type(value).__name__}: {value!r}")


def describe_machine() -> str:
    """The machine in words, without its name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    return f"{system}, {cores} cores, {memory:.1f} GiB of memory"


@cache
def source_commit() -> str:
    """The commit of Ludus itself, with + if files were changed; "" if it is not a checkout."""
    package = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, timeout=GIT_S, check=True
        ).stdout.strip()

    try:
        # The folder may lie in the checkout of another project.
        if not git("ls-files", "--", "__init__.py"):
            return ""
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def package_version(package: str) -> str:
    """The version of an installed package, without importing it; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
