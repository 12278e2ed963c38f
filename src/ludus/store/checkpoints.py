"""Checkpoints: all a learner needs to go on where it was, each in one file that is whole or absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from ludus.store.files import StoreError, atomic_write, clean_temporaries, make_folder, sync_folder
from ludus.store.tensors import (
    Arrays,
    BadTensorFile,
    canonical,
    content_digest,
    encode_tensors,
    read_tensors,
)

_FORMAT = "ludus-checkpoint-1"


class DamagedCheckpoints(StoreError):  # noqa: N818
    """There are checkpoints and none of them opens."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    step: int
    arrays: Arrays
    facts: dict[str, Any]
    damaged: tuple[str, ...] = ()
    """Newer checkpoints, by file name, that did not open."""


class Checkpoints:
    """The last `keep` checkpoints in a folder of one writer. The latest is the one saved last, whatever its
    step: a reset player starts again from step 0."""

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, at least 1 checkpoint has to be kept")
        self.folder = Path(folder)
        self.keep = keep
        self._damaged: set[Path] = set()
        make_folder(self.folder)
        clean_temporaries(self.folder)

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Path:
        """Writes a checkpoint, synced, then removes those beyond `keep`. A failure leaves the older ones."""
        content = canonical(arrays)
        text = json.dumps(
            msgspec.to_builtins(dict(facts))
        )  # json, not msgspec: random states hold integers of any size
        metadata = {"format": _FORMAT, "step": str(step), "facts": text}
        metadata["digest"] = content_digest(content, *metadata.values())
        files = self._files()
        path = self.folder / f"{_serial(files[-1]) + 1 if files else 1:06d}-{step}.safetensors"
        atomic_write(path, encode_tensors(content, metadata))
        self._prune([*files, path])
        return path

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that opens whole, with the names of newer ones that do not; or None."""
        damaged: dict[Path, str] = {}
        for path in reversed(self._files()):
            try:
                step, arrays, facts = _read(path)
            except (BadTensorFile, OSError) as error:
                damaged[path] = str(error)
                continue
            self._damaged.update(damaged)
            return Checkpoint(
                step=step, arrays=arrays, facts=facts, damaged=tuple(path.name for path in damaged)
            )
        if damaged:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
            raise DamagedCheckpoints(
                f"no checkpoint in {self.folder} opens ({reasons}); restore one or remove them all"
            )
        return None

    def _files(self) -> list[Path]:
        files = [path for path in self.folder.glob("*-*.safetensors") if path.name.split("-")[0].isdecimal()]
        return sorted(files, key=_serial)

    def _prune(self, files: list[Path]) -> None:
        """Damaged ones do not count: the older good one goes only when enough good ones follow it."""
        good = [path for path in files if path not in self._damaged]
        for path in {*good[: -self.keep], *self._damaged}:
            path.unlink(missing_ok=True)
        self._damaged.clear()
        sync_folder(self.folder)


def _serial(path: Path) -> int:
    return int(path.name.split("-")[0])


def _read(path: Path) -> tuple[int, Arrays, dict[str, Any]]:
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
            f"it has format {metadata['format']!r}, this ludus reads {_FORMAT!r}: update ludus"
        )
    return int(metadata["step"]), arrays, json.loads(metadata["facts"])
