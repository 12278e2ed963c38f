"""The folder through which a command reaches the process that trains a run.

A request is a file. The trainer renames it, does what it says and puts an answer beside it, so that of a
command that withdraws its request and a trainer that takes it exactly one succeeds.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ludus.data.edits import AnyEdit, Order
from ludus.store.files import UNREADABLE, atomic_write, make_folder

LOOK_EVERY_S = 0.3
_KEEP_ANSWERS_S = 600.0
_MAX_BYTES = 1_000_000
_ASKED, _TAKEN, _ANSWER = ".request", ".taken", ".answer"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    edit: AnyEdit | Order
    until: float
    """Unix time after which nobody waits for the answer any more: then it must not happen either."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    done: str = ""
    """What has happened, in a sentence."""
    refused: str | None = None
    """Why nothing has."""
    failed: str | None = None
    """What went wrong in the run while it was done: nobody knows whether it was."""


class Asked:
    """The command's side of one request."""

    def __init__(self, folder: Path, edit: AnyEdit | Order, patience_s: float) -> None:
        make_folder(folder)
        # The trainer takes requests by name: those that came first go first.
        self._path = folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_ASKED}"
        request = Request(edit=edit, until=time.time() + patience_s)
        atomic_write(self._path, msgspec.json.encode(request))

    def answer(self) -> Answer | None:
        """The answer, once it is there; it is then removed."""
        path = self._path.with_suffix(_ANSWER)
        try:
            answer = msgspec.json.decode(path.read_bytes(), type=Answer)
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        return answer

    def withdraw(self) -> bool:
        """Take it back; False if the trainer has taken it already."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


class TakenRequest:
    """The trainer's side of one request; it must be answered."""

    def __init__(self, path: Path, edit: AnyEdit | Order | None, problem: str = "") -> None:
        self._path = path
        self.edit = edit
        """None if it does not read."""
        self.problem = problem

    def answer(self, answer: Answer) -> None:
        atomic_write(self._path.with_suffix(_ANSWER), msgspec.json.encode(answer))
        self._path.unlink(missing_ok=True)


class RequestFolder:
    """The trainer's side: whoever holds the lock of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked = -LOOK_EVERY_S
        self._clean()

    def take(self) -> Iterator[TakenRequest]:
        """What was asked since the last look, oldest first; looks only now and then. Who stops early leaves
        the rest for the next look."""
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
                request = _read(taken)
            except (*UNREADABLE, ValueError, OSError) as error:
                yield TakenRequest(taken, None, f"the request does not read: {error}")
                continue
            if request.until < time.time():
                taken.unlink(missing_ok=True)
                continue
            yield TakenRequest(taken, request.edit)

    def _clean(self) -> None:
        """What trainers and commands that have died left behind."""
        old = time.time() - _KEEP_ANSWERS_S
        for path in self._folder.glob(f"*{_TAKEN}"):
            path.unlink(missing_ok=True)
        for path in self._folder.glob(f"*{_ANSWER}"):
            if path.stat().st_mtime < old:
                path.unlink(missing_ok=True)


def _read(path: Path) -> Request:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    return msgspec.json.decode(path.read_bytes(), type=Request)
