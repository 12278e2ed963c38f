"""Files that are whole or absent, whatever dies meanwhile, and names that stay inside their folder."""

from __future__ import annotations

import fcntl
import os
import secrets
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises on bytes that are not it, damaged by chance or made to harm."""

_ASIDE_PATTERN = "." + "[0-9a-f]" * 16 + ".tmp"
_LONGEST_NAME_BYTES = 200
"""Leaves room for suffixes under the 255 bytes that file systems allow."""


class StoreError(Exception):
    """Something on disk is missing, damaged, taken or refused; the message says which and what to do."""


class BadName(StoreError, ValueError):  # noqa: N818
    """A name that cannot be given to a file."""


def atomic_write(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Writes aside, syncs, renames, syncs the folder: at any moment `path` is the old file or the new one.
    Without `sync` that holds for who reads it, but not after a power cut."""
    try:
        descriptor, aside = _open_aside(path.parent)
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


def make_folder(folder: Path) -> None:
    """Makes `folder` and what is missing above it, so that it is still there after a power cut."""
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
    """Removes what dead writers left half written under `folder`; a living writer's file is locked."""
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


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Waits for, then holds, the lock of the file `path`; the system drops it when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def safe_name(name: str, what: str) -> str:
    """`name` as one path component, different for different names; `what` it names goes into errors.

    Names come from configuration files and remote callers. Whatever could leave the folder is escaped, and
    whatever could deceive a reader (control and direction characters) is refused.
    """
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


def _open_aside(folder: Path) -> tuple[int, Path]:
    """A new locked file in `folder`: the lock tells `clean_temporaries` that its writer is alive."""
    while True:
        aside = folder / f".{secrets.token_hex(8)}.tmp"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, aside
        os.close(descriptor)  # removed between the open and the lock: it looked like a dead writer's
