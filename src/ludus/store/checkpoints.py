"""Tensor files (safetensors) and checkpoints. A checkpoint is one tensor file with the arrays and facts that a learner
resumes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from ludus.store.files import StoreError, atomic_write, clean_temporaries, make_folder, read_file, sync_folder

Arrays = dict[str, NDArray[Any]]

_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8"])
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


class BadTensorFile(StoreError, ValueError):  # noqa: N818
    """A file that is not safetensors, is truncated, or contradicts its header."""


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(default_factory=dict, name=_METADATA)


def canonical(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays as little-endian and contiguous ones: safetensors writes their memory unchanged."""
    result = {}
    for name, given in arrays.items():
        array = np.asarray(given)
        array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        if array.dtype.newbyteorder("<").str not in _DTYPES:
            kinds = ", ".join(np.dtype(kind).name for kind in sorted(_DTYPES))
            raise TypeError(f"array {name!r} is of {array.dtype}, which weights cannot be; use one of {kinds}")
        if name == _METADATA:
            raise ValueError(f"an array cannot be called {name!r}")
        result[name] = array
    return result


def architecture_digest(arrays: Arrays) -> str:
    """Digest of names, dtypes and shapes: equal for weights of the same network."""
    return hashlib.sha256(_outline(arrays)).hexdigest()


def content_digest(arrays: Arrays, *more: str) -> str:
    """Digest of every name, dtype, shape and value, and of further texts."""
    digest = hashlib.sha256()
    for part in (_outline(arrays), *(text.encode() for text in more)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def encode_tensors(arrays: Arrays, metadata: Mapping[str, str] | None = None) -> bytes:
    content: bytes = safetensors.numpy.save(arrays, dict(metadata) if metadata else None)
    return content


def read_tensors(path: Path) -> tuple[Arrays, dict[str, str]]:
    """The arrays and metadata of a file. Never allocates more than the size of the file."""
    return decode_tensors(read_file(path))


def decode_tensors(content: bytes) -> tuple[Arrays, dict[str, str]]:
    """The arrays and metadata of a file's content. safetensors checks the header before it allocates anything."""
    try:
        arrays: Arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:  # KeyError: a type that numpy does not have
        if content[:1] == b"\x80" or content[:4] == b"PK\x03\x04":
            reason = "it is a pickle or an archive, which can execute; convert it to safetensors where it comes from"
        else:
            reason = f"it is empty, cut short or not a safetensors file ({len(content):,} bytes): {error}"
        raise BadTensorFile(reason) from error
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    return arrays, msgspec.json.decode(content[_LENGTH_BYTES : _LENGTH_BYTES + length], type=_Header).metadata


def _outline(arrays: Arrays) -> bytes:
    return json.dumps([(name, arrays[name].dtype.str, arrays[name].shape) for name in sorted(arrays)]).encode()


_FORMAT = "ludus-checkpoint-2"


class DamagedCheckpoints(StoreError):  # noqa: N818
    """No checkpoint can be read."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    step: int
    arrays: Arrays
    facts: dict[str, Any]
    damaged: tuple[str, ...] = ()  # file names of newer checkpoints that could not be read
    name: str = ""  # of its file


class Checkpoints:
    """The last `keep` checkpoints of one writer. The latest is the one saved last: a reset player starts at step 0."""

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, at least 1 checkpoint has to be kept")
        self.folder = Path(folder)
        self.keep = keep
        self._damaged: set[Path] = set()
        make_folder(self.folder)
        clean_temporaries(self.folder)

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Path:
        """Write and sync a checkpoint, then remove all but the last `keep`. A failure leaves the older ones."""
        content = canonical(arrays)
        text = json.dumps(msgspec.to_builtins(dict(facts)))  # msgspec lacks the large integers of random states
        metadata = {"format": _FORMAT, "step": str(step), "facts": text}
        metadata["digest"] = content_digest(content, *metadata.values())
        if self.folder.parent.parent.is_dir():  # a person may have removed the checkpoints of a run
            make_folder(self.folder)
        files = self._files()
        path = self.folder / f"{serial(files[-1].name) + 1 if files else 1:06d}-{step}.safetensors"
        atomic_write(path, encode_tensors(content, metadata))
        self._prune([*files, path])
        return path

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read, with the names of damaged newer ones; None without any."""
        damaged: dict[Path, str] = {}
        for path in reversed(self._files()):
            try:
                step, arrays, facts = read_checkpoint(path)
            except (BadTensorFile, OSError) as error:
                damaged[path] = str(error)
                continue
            self._damaged.update(damaged)
            return Checkpoint(
                step=step, arrays=arrays, facts=facts, damaged=tuple(path.name for path in damaged), name=path.name
            )
        if damaged:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
            raise DamagedCheckpoints(
                f"no checkpoint in {self.folder} opens ({reasons}); restore one or remove them all"
            )
        return None

    @property
    def newest(self) -> str | None:
        """The name of the newest file, whether it can be read or not; None without any."""
        files = self._files()
        return files[-1].name if files else None

    def _files(self) -> list[Path]:
        files = [path for path in self.folder.glob("*-*.safetensors") if path.name.split("-")[0].isdecimal()]
        return sorted(files, key=lambda path: serial(path.name))

    def _prune(self, files: list[Path]) -> None:
        """Damaged checkpoints do not count: an older good one is kept until enough good ones follow it."""
        good = [path for path in files if path not in self._damaged]
        for path in {*good[: -self.keep], *self._damaged}:
            path.unlink(missing_ok=True)
        self._damaged.clear()
        sync_folder(self.folder)


def serial(name: str) -> int:
    """How many checkpoints were written before, and with, the one of this name."""
    return int(name.split("-")[0])


def read_checkpoint(path: Path) -> tuple[int, Arrays, dict[str, Any]]:
    """The step, arrays and facts of a checkpoint's file, compared with its digest."""
    arrays, metadata = read_tensors(path)
    digest = metadata.pop("digest", None)
    try:
        covered = [metadata[key] for key in ("format", "step", "facts")]
    except KeyError as error:
        raise BadTensorFile(f"it lacks {error} and is not a checkpoint") from None
    if digest != content_digest(arrays, *covered):
        raise BadTensorFile("its content does not match its digest")
    if metadata["format"] != _FORMAT:
        raise BadTensorFile(
            f"it has format {metadata['format']!r}, this ludus reads {_FORMAT!r}: train the run again, or use"
            " the ludus that wrote it"
        )
    return int(metadata["step"]), arrays, json.loads(metadata["facts"])
