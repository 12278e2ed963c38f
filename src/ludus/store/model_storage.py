"""Models outside of the run folder: a mirror in Redis, and a cache for machines that fetch them."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ludus.data.checks import did_you_mean
from ludus.data.records import ModelId
from ludus.store.checkpoints import Arrays
from ludus.store.files import UNREADABLE, StoreError, atomic_write, exclusive, make_folder
from ludus.store.model_pool import (
    LATEST,
    DamagedModel,
    ModelEntry,
    ModelPool,
    ModelPoolError,
    UnknownModel,
    Variant,
    checked_weights,
    lineage_in,
)
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command

REDIS = ("redis://", "rediss://", "unix://")  # prefixes of addresses
FILES = "files"
MOST_BYTES = 2 * 2**30
_PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStorage:
    """Where models are stored besides the run folder, for machines that cannot read it."""

    backend: str = FILES
    """files, or redis://HOST:PORT/NUMBER to mirror models there (needs the extra `redis`)."""

    def __post_init__(self) -> None:
        if self.backend != FILES and not self.backend.startswith(REDIS):
            kinds = " or ".join(f"{kind}HOST:PORT/NUMBER" for kind in REDIS)
            raise ValueError(f"backend must be {FILES!r} or {kinds}, got {self.backend!r}")
        if "#" in self.backend:
            raise ValueError(f"backend {self.backend!r}: leave out #..., every run has a name of its own")

    def open(self, folder: RunFolder) -> ModelPool:
        """The pool that publishers write to."""
        if self.backend == FILES:
            return folder.models
        return MirroredPool(folder.models.folder, RedisModels(self.address(folder)))

    def address(self, folder: RunFolder) -> str:
        """The address of this run's models for other machines."""
        if self.backend == FILES:
            raise ValueError("models.backend is 'files': other machines reach them by a service, or not at all")
        # The name alone is not enough: two machines may have a run of that name.
        facts = f"{folder.path.resolve()} {folder.facts.created} {folder.facts.seed}"
        return f"{self.backend}#{folder.path.name}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"


class MirroredPool(ModelPool):
    """A pool of files, mirrored in Redis. If Redis is unreachable it warns, and the next publication catches up."""

    def __init__(self, folder: str | Path, mirror: RedisModels) -> None:
        super().__init__(folder)
        self.mirror = mirror

    def _published(self, entry: ModelEntry) -> None:
        try:
            self.bring_up_to_date()
        except ModelPoolError as error:
            print(f"{entry.model} is in {self.folder} only: {error}", file=sys.stderr, flush=True)

    def bring_up_to_date(self) -> None:
        """Copy models that Redis lacks, and all tags."""
        there = self.mirror.known()
        for entry in self.entries():
            if _name(entry.model, entry.variant) not in there:
                self.mirror.put(entry, self.content(entry.model, entry.variant))
        for model, names in self.tags().items():
            for name in names:
                if name != LATEST:
                    self.mirror.set_tag(name, model)

    def _remove(self, model: ModelId) -> None:
        variants = self._variants(model)
        super()._remove(model)
        for variant in variants:
            try:
                self.mirror.remove(model, variant)
            except ModelPoolError as error:
                print(f"{model} stays in Redis: {error}", file=sys.stderr, flush=True)


class RedisModels:
    """A `ModelSource` at `redis://HOST:PORT/NUMBER#RUN`. The keys `ludus:RUN:...` hold a hash of entries, a hash of
    tags, and the weights of each model as a safetensors file."""

    def __init__(self, address: str) -> None:
        url, _, run = address.partition("#")
        if not url.startswith(REDIS) or not run:
            raise StoreError(f"{address!r} is no place for models in Redis: redis://HOST:PORT/NUMBER#RUN")
        self._prefix = f"ludus:{run}"
        scheme, _, rest = url.partition("://")
        self._shown = f"Redis ({scheme}://{rest.rpartition('@')[2]}, run {run})"  # without a password
        try:
            import redis
        except ModuleNotFoundError as error:
            raise StoreError(f"models in Redis need its library: {install_command('redis')}") from error
        self._error: type[Exception] = redis.RedisError
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S)

    def put(self, entry: ModelEntry, content: bytes) -> None:
        """Store the weights first, so that every entry has its weights."""
        name = _name(entry.model, entry.variant)
        self._do("set", f"{self._prefix}:weights:{name}", content)
        self._do("hset", f"{self._prefix}:entries", name, msgspec.json.encode(entry))

    def remove(self, model: ModelId, variant: Variant) -> None:
        """Remove the weights. The entry stays, for lineages."""
        self._do("delete", f"{self._prefix}:weights:{_name(model, variant)}")

    def set_tag(self, name: str, model: ModelId) -> None:
        self._do("hset", f"{self._prefix}:tags", f"{model.player}@{name}", str(model))

    def known(self) -> set[str]:
        """`model variant` of all entries."""
        return {name.decode() for name in self._do("hkeys", f"{self._prefix}:entries")}

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        found = self._do("hget", f"{self._prefix}:entries", _name(model, variant))
        if found is None:
            known = [name.partition(" ")[0] for name in self.known()]
            raise UnknownModel(f"no model {model} ({variant}) in {self._shown}{did_you_mean(str(model), known)}")
        return self._decoded(found)

    def content(self, model: ModelId, variant: Variant = "live") -> bytes:
        found = self._do("get", f"{self._prefix}:weights:{_name(model, variant)}")
        if found is None:
            self.entry(model, variant)
            raise UnknownModel(f"{model} ({variant}) is no longer in {self._shown}")
        return bytes(found)

    def resolve(self, text: str) -> ModelId:
        player, at, tag = text.rpartition("@")
        if at and tag != LATEST:
            tagged = self._do("hgetall", f"{self._prefix}:tags")
            tags = {name.decode(): model.decode() for name, model in tagged.items()}
            if text in tags:
                return ModelId.parse(tags[text])
            raise UnknownModel(f"{self._shown} has no {text!r}{did_you_mean(text, tags)}")
        models = {str(entry.model): entry.model for entry in self._entries()}
        if not at and text in models:
            return models[text]
        name = player if at else text
        own = [model for model in models.values() if model.player == name]
        if not own:
            known = {model.player for model in models.values()} | set(models)
            raise UnknownModel(f"no models of player {name!r} in {self._shown}{did_you_mean(name, known)}")
        return max(own)

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]:
        parents = {entry.model: entry.parent for entry in self._entries()}
        if model not in parents:
            self.entry(model)
        return lineage_in(model, parents.get, self._shown)

    def close(self) -> None:
        self._redis.close()

    def _entries(self) -> list[ModelEntry]:
        return [self._decoded(found) for found in self._do("hvals", f"{self._prefix}:entries")]

    def _decoded(self, found: bytes) -> ModelEntry:
        try:
            return msgspec.json.decode(found, type=ModelEntry)
        except UNREADABLE as error:
            raise DamagedModel(f"an entry of {self._shown} does not read: {error}") from error

    def _do(self, command: str, *args: Any) -> Any:
        try:
            return getattr(self._redis, command)(*args)
        except self._error as error:
            raise ModelPoolError(f"{self._shown}: {error}") from error


class ModelSource(Protocol):
    """A source of models: a pool of files, a service, Redis. Its methods are those of `ModelPool`."""

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry: ...
    def content(self, model: ModelId, variant: Variant = "live") -> bytes: ...
    def resolve(self, text: str) -> ModelId: ...
    def lineage(self, model: ModelId) -> tuple[ModelId, ...]: ...


class ModelCache:
    """Caches models in a folder of at most `most_bytes`; the least recently used are evicted first. Files are named by
    the digest of their content and checked whenever they are read; a damaged file is fetched again. Processes may share
    the folder."""

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
        """The weights, checked against their digest."""
        entry = self.source.entry(model, variant)
        path = self.folder / f"{entry.digest}.safetensors"
        try:
            weights = checked_weights(path.read_bytes(), entry, str(path))
            os.utime(path)
            self.hits += 1
            return weights
        except (FileNotFoundError, DamagedModel):
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


def _name(model: ModelId, variant: Variant) -> str:
    return f"{model} {variant}"
