"""The lock of a run folder: one process trains a run at a time, and a dead one never keeps it.

The kernel's lock on the file decides, and falls with its holder however that dies. The text inside says who
holds it, and speaks for a holder whom the kernel cannot see, as on file systems that do not share locks.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ludus.store.files import UNREADABLE, StoreError

_open_locks: set[int] = set()
"""Descriptors of this process. A forked child closes its copies, or it would outlive us as the holder."""


class RunLocked(StoreError):  # noqa: N818
    """Another process is training this run."""


class Holder(msgspec.Struct, frozen=True):
    """A process, told apart from later ones with the same number by when it started."""

    pid: int
    host: str
    started: str

    @classmethod
    def current(cls) -> Holder:
        return cls(os.getpid(), socket.gethostname(), _start_of(os.getpid()))

    @property
    def is_elsewhere(self) -> bool:
        """On another host, where nobody here can see whether it lives."""
        return self.host != socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Seen running on this host."""
        return not self.is_elsewhere and self.started == _start_of(self.pid) != ""


@contextmanager
def run_lock(path: Path) -> Iterator[Holder]:
    """Holds the lock in file `path`; raises `RunLocked` at once, naming the holder, when it is taken."""
    own = Holder.current()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _open_locks.add(descriptor)
    try:
        _take(descriptor, path, own)
        try:
            yield own
        finally:
            if descriptor in _open_locks:
                os.ftruncate(descriptor, 0)
    finally:
        if descriptor in _open_locks:
            _open_locks.remove(descriptor)
            os.close(descriptor)


def read_holder(path: Path) -> Holder | None:
    """Whom the lock file names, dead or alive; None for nobody."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
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
    """When a process started, in ticks of this boot; empty if it has ended, reaped or not."""
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
