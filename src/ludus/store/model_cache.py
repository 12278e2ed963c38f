"""Models for a machine that does not see the run folder: asked for once, then kept on its own disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ludus.data.records import ModelId
from ludus.store.files import atomic_write, exclusive, make_folder
from ludus.store.model_pool import DamagedModel, ModelEntry, Variant, checked_weights
from ludus.store.tensors import Arrays

MOST_BYTES = 2 * 2**30


class ModelSource(Protocol):
    """Where models come from: a pool of files, a service, Redis."""

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry: ...
    def content(self, model: ModelId, variant: Variant = "live") -> bytes:
        """The weights as a safetensors file, as they were written."""

    def resolve(self, text: str) -> ModelId:
        """The model meant by `player` (its latest), `player@tag` or `player:incarnation:step`."""

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]: ...


class ModelCache:
    """Fetches models through a folder of at most `most_bytes`; what was used longest ago goes first.

    Files are named by the digest of what they hold, and checked against it whenever they are read: one that
    is damaged is fetched again. Processes may share the folder.
    """

    def __init__(self, source: ModelSource, folder: str | Path, most_bytes: int = MOST_BYTES) -> None:
        if most_bytes < 0:
            raise ValueError(f"most_bytes cannot be negative, got {most_bytes}")
        self.source = source
        self.folder = Path(folder)
        self.most_bytes = most_bytes
        self.hits = self.misses = 0
        make_folder(self.folder)

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        return self.source.entry(model, variant)

    def resolve(self, text: str) -> ModelId:
        return self.source.resolve(text)

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]:
        return self.source.lineage(model)

    def fetch(self, model: ModelId, variant: Variant = "live") -> Arrays:
        """The weights, compared with their digest wherever they come from."""
        entry = self.source.entry(model, variant)
        path = self.folder / f"{entry.digest}.safetensors"
        try:
            weights = checked_weights(path.read_bytes(), entry, str(path))
            os.utime(path)
            self.hits += 1
            return weights
        except FileNotFoundError:
            pass
        except DamagedModel:
            path.unlink(missing_ok=True)
        self.misses += 1
        content = self.source.content(model, variant)
        weights = checked_weights(content, entry, "what the source sent")
        if len(content) <= self.most_bytes:
            with exclusive(self.folder / ".lock"):
                self._make_room(len(content))
                atomic_write(path, content)
        return weights

    def _make_room(self, wanted: int) -> None:
        kept = [(file.stat(), file) for file in self.folder.glob("*.safetensors")]
        held = sum(facts.st_size for facts, _ in kept)
        for facts, file in sorted(kept, key=lambda one: one[0].st_mtime_ns):
            if held + wanted <= self.most_bytes:
                return
            file.unlink()
            held -= facts.st_size
