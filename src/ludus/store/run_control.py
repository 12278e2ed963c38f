"""How other processes reach the process that trains a run: requests, the lock and the status, all files. A request is a
file in the folder `requests`. The trainer renames it, obeys it and writes an answer beside it. Of a command that
withdraws its request and a trainer that takes it, exactly one succeeds. The command locks the file as long as it waits,
so that what a dead command asked for is not done later; clocks are not compared, because they may differ. The lock of
the run names the process that trains it, and `status.json` describes the run for `ludus status` and the dashboard."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ludus.data.records import AnyEdit, Order
from ludus.store.files import UNREADABLE, StoreError, atomic_write, make_folder, open_file, read_file

LOOK_EVERY_S = 0.3
_KEEP_ANSWERS_S = 600.0
_MAX_BYTES = 1_000_000
_UNSEEN, _ASKED, _TAKEN, _ANSWER = ".unseen", ".request", ".taken", ".answer"


class EditRequest(msgspec.Struct, frozen=True, kw_only=True):
    edit: AnyEdit | Order


class EditAnswer(msgspec.Struct, frozen=True, kw_only=True):
    done: str = ""  # what was done, in a sentence
    refused: str | None = None  # why nothing was done
    failed: str | None = None  # the error during the edit, which may have been made or not


class Asked:
    """The command's side of one request."""

    def __init__(self, folder: Path, edit: AnyEdit | Order) -> None:
        make_folder(folder)
        # The trainer takes requests in the order of their names.
        self._path = folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_ASKED}"
        unseen = self._path.with_suffix(_UNSEEN)
        descriptor = os.open(unseen, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._stop_waiting = weakref.finalize(self, os.close, descriptor)
        os.write(descriptor, msgspec.json.encode(EditRequest(edit=edit)))
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        unseen.rename(self._path)

    def answer(self) -> EditAnswer | None:
        """The answer, which is then removed; None while there is none."""
        path = self._path.with_suffix(_ANSWER)
        try:
            answer = msgspec.json.decode(read_file(path), type=EditAnswer)
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        self._stop_waiting()
        return answer

    def withdraw(self) -> bool:
        """Remove the request; False if the trainer has already taken it."""
        with suppress(FileNotFoundError):
            self._path.unlink()
            self._stop_waiting()
            return True
        return False


class TakenRequest:
    """The trainer's side of one request; it must be answered."""

    def __init__(self, path: Path, edit: AnyEdit | Order | None, problem: str = "") -> None:
        self._path = path
        self.edit = edit
        """None if it cannot be read."""
        self.problem = problem

    def answer(self, answer: EditAnswer) -> None:
        atomic_write(self._path.with_suffix(_ANSWER), msgspec.json.encode(answer))
        self._path.unlink(missing_ok=True)


class RequestFolder:
    """The trainer's side, for the process that holds the lock of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked = -LOOK_EVERY_S
        self._clean()

    def take(self) -> Iterator[TakenRequest]:
        """New requests, oldest first, at most every `LOOK_EVERY_S`; the next call has those that were not consumed."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        for asked in sorted(self._folder.glob(f"*{_ASKED}")):
            taken = asked.with_suffix(_TAKEN)
            try:
                asked.rename(taken)
            except FileNotFoundError:
                continue  # withdrawn
            try:
                if taken.stat().st_size > _MAX_BYTES:
                    raise ValueError(f"it has more than {_MAX_BYTES} bytes")
                request = msgspec.json.decode(read_file(taken), type=EditRequest)
            except (*UNREADABLE, ValueError, OSError) as error:
                yield TakenRequest(taken, None, f"the request does not read: {error}")
                continue
            if not _is_waited_for(taken):
                taken.unlink(missing_ok=True)
                continue
            yield TakenRequest(taken, request.edit)

    def _clean(self) -> None:
        """Remove the files of trainers and commands that died."""
        old = time.time() - _KEEP_ANSWERS_S
        for path in self._folder.glob(f"*{_TAKEN}"):
            path.unlink(missing_ok=True)
        for left in (_ANSWER, _UNSEEN):
            for path in self._folder.glob(f"*{left}"):
                if path.stat().st_mtime < old:
                    path.unlink(missing_ok=True)


def _is_waited_for(request: Path) -> bool:
    """Whether the command that has written a request still holds its lock."""
    with open_file(request) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # it does, or the file system has no locks
            return True
    return False


_open_locks: set[int] = set()
"""Descriptors of locks. A forked child closes its copies, or it would hold the lock after its parent has died."""


class RunLocked(StoreError):  # noqa: N818
    """Another process is training this run."""


class Holder(msgspec.Struct, frozen=True):
    """A process. The start time distinguishes it from later ones with the same pid."""

    pid: int
    host: str
    started: str
    folder: int = 0
    """Number (inode) of the folder that it holds: a copy of the folder is not held. 0: not known."""

    @classmethod
    def current(cls, folder: int) -> Holder:
        return cls(os.getpid(), socket.gethostname(), _start_of(os.getpid()), folder)

    @property
    def is_elsewhere(self) -> bool:
        """On another host, where it cannot be seen whether it lives."""
        return self.host != socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Seen running on this host."""
        return not self.is_elsewhere and self.started == _start_of(self.pid) != ""


@contextmanager
def run_lock(path: Path) -> Iterator[Holder]:
    """Hold the lock in file `path`, and that of its folder, which stays when the file is removed. Raises `RunLocked`
    with the holder if either is taken."""
    with _open_lock(path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
        own = Holder.current(os.fstat(folder).st_ino)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunLocked(_refusal(path, read_holder(path))) from None
        except OSError:  # NFS locks no folders; the file is locked all the same
            pass
        with _open_lock(path, os.O_RDWR | os.O_CREAT) as descriptor:
            _take(descriptor, path, own)
            try:
                yield own
            finally:
                if descriptor in _open_locks:
                    os.ftruncate(descriptor, 0)


@contextmanager
def _open_lock(path: Path, flags: int) -> Iterator[int]:
    """A descriptor whose copies are closed in forked children."""
    descriptor = os.open(path, flags, 0o666)
    _open_locks.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _open_locks:
            _open_locks.remove(descriptor)
            os.close(descriptor)


def read_holder(path: Path) -> Holder | None:
    """The process that the lock file names, dead or alive; None in a copy of the folder that it holds."""
    try:
        named = msgspec.json.decode(read_file(path), type=Holder)
        return named if named.folder in (0, path.parent.stat().st_ino) else None
    except (FileNotFoundError, *UNREADABLE):
        return None  # released, or the holder has not written its name yet


def _take(descriptor: int, path: Path, own: Holder) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunLocked(_refusal(path, read_holder(path))) from None
    named = read_holder(path)
    if named is not None and named != own and named.is_alive:
        raise RunLocked(_refusal(path, named))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(own), 0)


def _refusal(path: Path, holder: Holder | None) -> str:
    who = f"process {holder.pid} on host {holder.host}" if holder else "another process"
    return f"run {path.parent} is being trained by {who}; stop that one first, or choose another folder"


def _start_of(pid: int) -> str:
    """Start time of a process in ticks of this boot; empty if it has ended, reaped or not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = state.rpartition(")")[2].split()  # the command before it may itself hold spaces and brackets
    return "" if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def _close_copies() -> None:
    for descriptor in _open_locks:
        os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_copies)


PUBLISH_EVERY_S = 2.0
SILENT_AFTER_S = 20.0  # seconds without a new status after which the training process is reported as silent


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a run."""

    name: str
    state: str  # working, starting, leaving or quarantined; of a service also waiting (for resources) and ended
    pid: int | None
    node: str
    started: float  # Unix time
    restarts: int = 0
    shares: dict[str, float] = {}  # shares of its recent time, by activity
    address: str = ""  # of a service
    cores: float | None = None  # cores in use; None on a node that cannot be observed from here
    memory: int | None = None  # bytes of its own and of shared memory that it has touched
    gpu_memory: int | None = None  # bytes on all GPUs of its node


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the run that the others wait for."""

    what: str  # game, inference, buffer, learner
    why: str
    advice: str  # a setting to try


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run at `time`."""

    time: float
    state: str  # training, paused, finished, stopped, "time limit reached", failed
    experiment: str
    trial: str | None
    runtime: str
    node: str
    pid: int
    started: float  # Unix time at which the training process started
    time_limit_h: float
    decisions: int
    budget: int
    decisions_per_s: float  # recent speed
    lag: dict[str, float]  # by player: mean number of updates between acting and learning
    episodes: int
    matches: int
    restarts: int
    workers: tuple[WorkerStatus, ...] = ()
    bottleneck: Bottleneck | None = None  # None until enough was measured
    cpu_s: float | None = None  # CPU time of all processes, if it is known


def write_status(path: Path, status: RunStatus) -> None:
    """Replace the status file. A full disk is ignored: a run does not end because it cannot be observed."""
    with suppress(OSError):
        atomic_write(path, msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n", sync=False)


def read_status(path: Path) -> RunStatus | None:
    """None if there is no status yet, or one of another version."""
    try:
        return msgspec.json.decode(read_file(path), type=RunStatus)
    except (FileNotFoundError, *UNREADABLE):
        return None
