"""Files that are complete or absent, whatever process dies, and names that stay inside their folder."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding bytes that are not valid JSON, whether damaged or malicious."""

_ASIDE_PATTERN = "." + "[0-9a-f]" * 16 + ".tmp"
_STAGE_PATTERN = "." + "[0-9a-f]" * 16 + ".new"
_LONGEST_NAME_BYTES = 200  # leaves room for suffixes: file systems allow 255 bytes


class StoreError(Exception):
    """Something on disk is missing, damaged, taken or refused. The message says what to do."""


class BadName(StoreError, ValueError):  # noqa: N818
    """A name that no file can have."""


def atomic_write(path: Path, content: bytes, *, sync: bool = True, mode: int = 0o666) -> None:
    """Replace a file: readers, and with `sync` a power cut, leave either the old file or the new one. `mode`: who may
    use the file, less what the umask takes away."""
    try:
        descriptor, aside = _open_aside(path.parent, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
                os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read. A pipe, socket or device in a folder that somebody has sent would keep the reader
    waiting for ever; it raises an `OSError` that names the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path) -> bytes:
    """The content of a regular file."""
    with open_file(path) as file:
        return file.read()


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with a digest of them, so that a reader notices a bit that has changed on the disk."""
    return {**document, "digest": _digest(document)}


def unseal(content: bytes) -> dict[str, Any]:
    """A sealed document from its JSON, without the digest. Raises StoreError if it is not as it was written."""
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except UNREADABLE as error:
        raise StoreError(f"damaged: {error}") from error
    if document.pop("digest", None) != _digest(document):
        raise StoreError("damaged: it does not have its digest")
    return document


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()[:16]


def make_folder(folder: Path) -> None:
    """Create `folder` and its missing parents so that they survive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clean_temporaries(folder: Path) -> list[Path]:
    """Remove temporary files of dead writers under `folder`. A living writer holds the lock of its file."""
    removed = []
    for aside in folder.rglob(_ASIDE_PATTERN):
        try:
            descriptor = os.open(aside, os.O_RDWR)
        except FileNotFoundError:
            continue  # its writer has just renamed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside.unlink(missing_ok=True)
            removed.append(aside)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
    return removed


def is_temporary(path: Path) -> bool:
    """Whether it has the name of a temporary file."""
    return fnmatch(path.name, _ASIDE_PATTERN)


@contextmanager
def new_stage(folder: Path) -> Iterator[Path]:
    """A hidden folder to build something in. The caller renames it in the block, else it is removed after it."""
    while True:
        stage = folder / f".{secrets.token_hex(8)}.new"
        stage.mkdir()
        descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if stage.is_dir():
            break
        os.close(descriptor)  # removed before it was locked: it looked like a dead process's
    try:
        yield stage
        sync_folder(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(descriptor)


def is_in_stage(path: str) -> bool:
    return any(fnmatch(part, _STAGE_PATTERN) for part in Path(path).parts)


def remove_stages(folder: Path) -> None:
    """Remove the stages of dead processes in `folder`."""
    for stage in folder.glob(_STAGE_PATTERN):
        with suppress(StoreError, OSError), locked(stage):
            shutil.rmtree(stage)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for the lock of the file `path` and hold it. The system releases it when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` itself; raises `StoreError` at once if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder} is being written by another process") from None
        yield
    finally:
        os.close(descriptor)


def safe_name(name: str, what: str) -> str:
    """`name` as one path component, different for different names. `what` it names goes into errors. Names come from
    configuration files and remote callers. Characters that could leave the folder are escaped; those that could deceive
    a reader (control and direction characters) are refused."""
    if not name:
        raise BadName(f"{what} is empty")
    shown = ascii(name if len(name) <= 40 else name[:40] + "...")
    for character in name:
        if unicodedata.category(character).startswith("C"):
            called = unicodedata.name(character, "a control character")
            raise BadName(f"{what} {shown} contains U+{ord(character):04X}, {called}; use printable characters")
    escaped = quote(name, safe=" ")
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    if len(escaped) > _LONGEST_NAME_BYTES:
        raise BadName(f"{what} {shown} is too long: {len(escaped)} bytes when escaped, at most {_LONGEST_NAME_BYTES}")
    return escaped


def _open_aside(folder: Path, mode: int) -> tuple[int, Path]:
    """Open a new file in `folder`, locked so that `clean_temporaries` knows that its writer is alive."""
    while True:
        aside = folder / f".{secrets.token_hex(8)}.tmp"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, aside
        os.close(descriptor)  # removed between the open and the lock: it looked like a dead writer's
