"""The run folder: every file of one training, its metrics files, and the facts about how it was started."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
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
    is_in_stage,
    is_temporary,
    make_folder,
    new_stage,
    open_file,
    read_file,
    remove_stages,
    safe_name,
)
from ludus.store.ledger import Ledger, MissingLedger
from ludus.store.model_pool import ModelPool
from ludus.store.run_control import Holder, read_holder, run_lock
from ludus.system.machine import installed_version
from ludus.system.text import without_logins

FORMAT = 2  # format 2 names classes by their public names and holds the facts of the game
GIT_S = 5.0  # time limit of a git command
RUN_FILE = "run.json"
_LEDGER_FILE = "ledger.db"
_LOCK_FILE = "lock.json"
_SUBFOLDERS = ("models", "checkpoints", "metrics", "logs")
_MOST_NAMED = 4
_COMMAND = "program:"  # begins the address of a bot that is another program
_INLINE = re.compile(r"-[A-Za-z]*[ce]|--(eval|exec|command)(=.*)?", re.DOTALL)  # sh -c, python -c, node -e, ...
_CODE_SIGN = re.compile(r"[\s()`;$|&]")  # python -c"import os", awk 'BEGIN {system("sh")}', ...
_PATH_END = re.compile(r"""[\s:=,;|&<>()'"`#@]""")  # what may end a path, or come before it
_MOST_ENDS = 40
_MODULE = re.compile(r"([A-Za-z_]\w*)(\.\w+)*")


class RunFolderError(StoreError):
    """A folder that is not a run, or a run that cannot be used."""


class UntrustedCode(RunFolderError):  # noqa: N818
    """A run names code or a program that lies inside a run folder: it came with the folder."""


trusts_runs: ContextVar[bool] = ContextVar("trusts_runs", default=False)
"""Whether runs are opened as trusted. The command line sets it by --trust."""


@contextmanager
def trusting(trusts: bool) -> Iterator[None]:
    """Runs that are opened during the block are trusted if `trusts`, or if they would be anyway."""
    before = trusts_runs.set(trusts or trusts_runs.get())
    try:
        yield
    finally:
        trusts_runs.reset(before)


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
    trusted: bool = field(default=False, compare=False)
    """Whether code and programs inside of run folders may be used."""

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
        """Create a run in a new or empty folder, or where a creation died. `run.json` is written last, so that every
        run is complete: a run without a ledger has lost it."""
        path = Path(path)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed {seed} is not between 0 and 2**64 - 1")
        facts = RunFacts(
            format=FORMAT,
            ludus=installed_version(),
            python=platform.python_version(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=seed,
            command=tuple(map(without_logins, sys.argv if command is None else command)),
            experiment=msgspec.Raw(_as_json(experiment)),
            game=game,
            torch=package_version("torch"),
            commit=source_commit(),
            machine=describe_machine(),
        )
        cls.require_free(path)
        for folder in (path, *(path / name for name in _SUBFOLDERS)):
            make_folder(folder)
        Ledger(path / _LEDGER_FILE).close()
        _write_facts(path / RUN_FILE, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        return cls.open(path, trusted=True)

    @classmethod
    def open(cls, path: str | Path, *, trusted: bool | None = None) -> RunFolder:
        """`trusted`: code inside of run folders may be used; None: as `trusts_runs` says."""
        path = Path(path)
        if not path.is_dir():
            raise RunFolderError(f"no run folder {path}{_nearest_runs(path.parent)}")
        try:
            content = read_file(path / RUN_FILE)
        except FileNotFoundError:
            raise RunFolderError(f"{path} is not a run folder, it has no {RUN_FILE}{_nearest_runs(path)}") from None
        try:
            stamp = msgspec.json.decode(content, type=_Stamp)
            if stamp.format != FORMAT:
                newer = stamp.format > FORMAT
                advice = "update ludus" if newer else f"train it again, or use ludus {stamp.ludus}"
                raise RunFolderError(
                    f"run {path} has format {stamp.format} (ludus {stamp.ludus}), this ludus {installed_version()} "
                    f"reads format {FORMAT}: {advice}"
                )
            facts = msgspec.json.decode(content, type=RunFacts)
            if not isinstance(msgspec.json.decode(facts.experiment), dict):  # what is raw was not checked yet
                raise RunFolderError(f"{path / RUN_FILE} is damaged: its experiment is no mapping")
            return cls(path, facts, trusts_runs.get() if trusted is None else trusted)
        except UNREADABLE as error:
            raise RunFolderError(f"{path / RUN_FILE} is damaged: {error}") from error

    def with_experiment(self, experiment: bytes | object) -> RunFolder:
        """Replace the experiment of the run. The old `run.json` is kept as `run.NUMBER.json`."""
        kept = sum(1 for _ in self.path.glob("run.*.json"))
        _write_facts(self.path / f"run.{kept + 1}.json", read_file(self.path / RUN_FILE))
        facts = msgspec.structs.replace(self.facts, experiment=msgspec.Raw(_as_json(experiment)))
        _write_facts(self.path / RUN_FILE, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        return RunFolder(self.path, facts, self.trusted)

    def require_own_code(self) -> None:
        """Raises `UntrustedCode` if the run names code, a program or a folder that lies inside of a run folder. A
        folder that somebody has sent would otherwise bring what it executes along."""
        if not self.trusted:
            for text, where in self._named_texts():
                self._require_outside(text, where)

    def require_own_code_in(self, content: object, where: str) -> None:
        """The same for the content of another file of the folder."""
        if not self.trusted:
            for text in _texts(content):
                self._require_outside(text, where)

    def _require_outside(self, text: str, where: str) -> None:
        if (found := _inside_run(text, self.path)) is not None:
            raise UntrustedCode(
                f"{self.path} names {text[:200]!r} in {where}, and {found} lies inside a run folder: it would be "
                "executed. If you trust whoever made the folder, add --trust "
                "(in Python: trust=True)"
            )

    def _named_texts(self) -> Iterator[tuple[str, str]]:
        """All texts of the experiment, of later changes in the ledger, and of changes that wait, with their place."""
        yield from ((text, RUN_FILE) for text in _texts(msgspec.json.decode(self.facts.experiment)))
        if self.ledger_path.exists():
            with self.ledger(read_only=True) as ledger:
                for settings in ledger.settings():
                    yield from ((text, self.ledger_path.name) for text in _texts(settings))
        for request in sorted(self.requests.glob("*.*")):
            with suppress(OSError, *UNREADABLE):
                asked = msgspec.json.decode(read_file(request))
                yield from ((text, f"{self.requests.name}/{request.name}") for text in _texts(asked))

    @staticmethod
    def require_free(path: str | Path) -> None:
        """Raises `RunFolderError` if no run can be created at `path`."""
        path = Path(path)
        if (path / RUN_FILE).exists():
            raise RunFolderError(f"{path} is a run already; resume it, or choose another folder")
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file, a run needs a folder")
        # A creation that died may have left our own subfolders, temporary files, and a ledger without rows.
        ledger = path / _LEDGER_FILE
        own = {*_SUBFOLDERS, *(f"{_LEDGER_FILE}{end}" for end in ("", "-wal", "-shm", "-journal"))}
        foreign = [entry.name for entry in path.glob("*") if not (entry.name in own or is_temporary(entry))]
        if not foreign and ledger.exists():
            with Ledger(ledger) as left:
                foreign = [_LEDGER_FILE] if left.position[0] else []
        if foreign:
            raise RunFolderError(f"{path} holds other things ({', '.join(sorted(foreign)[:4])}); choose a new folder")
        clean_temporaries(path)

    @staticmethod
    def models_in(path: str | Path) -> ModelPool:
        """The model pool of a run, which need not exist yet."""
        return ModelPool(Path(path) / "models")

    @property
    def ledger_path(self) -> Path:
        return self.path / _LEDGER_FILE

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
        if not self.ledger_path.exists():  # it is created with the run
            raise MissingLedger(f"no ledger at {self.ledger_path}: it was removed, or the folder was not copied whole")
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


class NewRun:
    """A run that is being created. It appears at its place when it is complete: `build` in `path`, then `place`."""

    def __init__(self, path: str | Path | None, name: str, *, root: str | Path = "runs") -> None:
        """`path`: where the run shall be; None: the first free of `root/name-001`, `root/name-002` and so on."""
        self._name = safe_name(name, "recipe")
        self._target = None if path is None else Path(path)
        self._root = Path(root) if self._target is None else self._target.parent
        self._existed = False
        self.path = Path()

    @contextmanager
    def build(self) -> Iterator[Path]:
        """The folder to create the run in. After the block the run is at its place; after an error nothing is left."""
        if self._target is not None:
            RunFolder.require_free(self._target)
            if self._target.exists():  # it may be a mount, or hold models: `run.json` comes last there as well
                self.path, self._existed = self._target, True
                yield self.path
                return
        make_folder(self._root)
        remove_stages(self._root)
        try:
            with new_stage(self._root) as stage:
                yield stage
                self.path = self._place(stage)
        except OSError as error:
            if is_in_stage(str(error.filename)):  # which nobody has heard of
                place = self._target or self._root / self._name
                raise OSError(error.errno, error.strerror, str(place)) from error
            raise

    @property
    def folder(self) -> RunFolder:
        return RunFolder.open(self.path, trusted=True)

    def remove_unstarted(self) -> None:
        """Remove the run again if its training was refused before its first event. A folder that was there before
        stays."""
        with self.folder.ledger(read_only=True) as ledger:
            started = ledger.position[0] > 0
        if not started and not self._existed:
            shutil.rmtree(self.path, ignore_errors=True)

    def _place(self, stage: Path) -> Path:
        if self._target is not None:
            stage.rename(self._target)
            return self._target
        number = 0
        while True:
            number += 1
            path = self._root / f"{self._name}-{number:03d}"
            try:
                stage.rename(path)  # replaces an empty folder, and nothing else
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return path


def _texts(data: Any) -> Iterator[str]:
    """All texts of plain values, keys of mappings included; a command with its environment as a program."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
            if isinstance(command := value.get("command"), list):  # of an `Engine`
                yield _COMMAND + shlex.join(map(str, command))
                if isinstance(added := value.get("environment"), dict):  # PATH and the like name folders
                    yield from (f"{text}/".replace(":", "/:") for text in map(str, added.values()))
        elif isinstance(value, list):
            waiting += value


def _inside_run(text: str, run: Path) -> Path | None:
    """The file or folder inside of a run folder that a text names: as a path, the address of code, or a command. A
    command that holds a program in itself lies in `run.json`."""
    if text in (*_SUBFOLDERS, "requests"):  # words of settings, which are folders as well where a command runs in RUN
        return None
    words = _words(text.removeprefix(_COMMAND))
    if text.startswith(_COMMAND) and (not words or any(map(_is_program, words[1:]))):
        return run / RUN_FILE
    for part in dict.fromkeys((text, *words)):
        for path in _possible_paths(part, is_address=":" in text):
            if os.path.lexists(path) and _lies_in_run(Path(path), run):
                return Path(path)
    return None


def _words(command: str) -> list[str]:
    """As a program would get them; none if it is no command."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _is_program(argument: str) -> bool:
    """Whether an argument of a command is, or is followed by, what an interpreter executes."""
    return _INLINE.fullmatch(argument) is not None or (
        _CODE_SIGN.search(argument) is not None and not os.path.lexists(argument)
    )


def _possible_paths(part: str, *, is_address: bool) -> Iterator[str]:
    """All paths that a part of a text may name. Names of files may hold what ends a path elsewhere, so that it may end
    at several places. A folder counts as a module only in an address: settings have the names of folders, too."""
    ends = [*(found.start() for found in _PATH_END.finditer(part)), len(part)]
    starts = [0, *(end + 1 for end in ends[:-1])]
    starts += [start + 2 for start in starts if part[start : start + 1] == "-"]  # -Ifolder, -mmodule
    for start in starts:
        later = ends[bisect_left(ends, start) :][:_MOST_ENDS]
        # Up to a slash it is a folder. What follows in a run folder need not be found to lie in it.
        folders = (found.start() for found in islice(re.finditer("/", part[start:]), _MOST_ENDS))
        named = [*(part[start:end] for end in later), *(f"{part[start : start + end]}/{RUN_FILE}" for end in folders)]
        yield from (os.path.expanduser(name) for name in named if name and "\0" not in name)
        if later and (module := _MODULE.fullmatch(part[start : later[0]])):
            yield f"{module[1]}.py"  # a program may find it in the folder that it runs in
            with suppress(ValueError, ImportError):
                found = importlib.util.find_spec(module[1])  # without importing it
                if found is not None and found.origin is not None:
                    yield found.origin
                if found is not None and is_address:
                    yield from found.submodule_search_locations or ()


def _lies_in_run(path: Path, run: Path) -> bool:
    """Whether a path, or what it is a link to, lies in this run folder, in another one or in the folder of a study, or
    leads to this one."""
    own = {Path(os.path.abspath(run)), run.resolve()}
    with suppress(OSError, RuntimeError):  # a link to itself
        places = (Path(os.path.abspath(path)), path.resolve())
        return (len(path.parts) > 1 and not own.isdisjoint(places)) or any(
            parent in own
            or ((parent / RUN_FILE).is_file() and (parent / "models").is_dir())
            or ((parent / "study.json").is_file() and (parent / "runs").is_dir())
            for place in places
            for parent in place.parents
        )
    return False


def _write_facts(path: Path, content: bytes) -> None:
    """For its owner alone if it holds a password, such as that of `models.backend`."""
    text = content.decode()
    atomic_write(path, content, mode=0o666 if without_logins(text) == text else 0o600)


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
    found = [str(file.parent) for file in sorted(place.glob(f"*/{RUN_FILE}"))]
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
            end = self._file.tell()
            if end == os.fstat(self._file.fileno()).st_size:  # nobody else has written since
                self._file.truncate(end - (written or 0))  # what fitted would stay as a damaged line
            raise OSError(errno.ENOSPC, f"cannot write: {os.strerror(errno.ENOSPC)}", str(self.path))

    def restore(self) -> bool:
        """If the file was removed while it is open here, write it again with all its rows; says whether it was. A file
        that lies in its place by now gets the rows from now on."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
                return False
        self.path.parent.mkdir(exist_ok=True)
        removed, self._file = self._file, self.path.open("ab+", buffering=0)
        with removed:
            if self._file.tell() == 0:
                removed.seek(0)
                shutil.copyfileobj(removed, self._file)
        return True

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
    with open_file(Path(path)) as file:
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
