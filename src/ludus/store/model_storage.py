"""Models outside of the run folder: a mirror in Redis, and a cache for machines that fetch them from there or from the
pool service of the run."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ludus.data.checks import did_you_mean, require_in
from ludus.data.records import ModelId
from ludus.store.checkpoints import Arrays
from ludus.store.files import UNREADABLE, StoreError, atomic_write, exclusive, make_folder, read_file
from ludus.store.model_pool import (
    LATEST,
    DamagedModel,
    ModelEntry,
    ModelPool,
    ModelPoolError,
    ModelsUnreachable,
    UnknownModel,
    Variant,
    checked_weights,
    lineage_in,
)
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command
from ludus.system.text import without_logins

REDIS = ("redis://", "rediss://", "unix://")  # prefixes of addresses
FILES = "files"
SERVICE = "models"  # the service of a run that reads its pool for others
SERVICE_ADDRESS = f"service:{SERVICE}"
MOST_BYTES = 2 * 2**30
_PATIENCE_S = 5.0
_RETRY_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStorage:
    """Where nodes that do not see the run folder read models, and how long they try."""

    backend: str = FILES
    """files: a service of the run reads the folder for them; redis://HOST:PORT/NUMBER: the learner also writes models
    there, and nodes read them from there (needs the extra `redis`)."""
    patience_s: float = 60.0
    """Seconds that a worker tries to read a model which service or Redis does not give; then the match is void."""

    def __post_init__(self) -> None:
        if self.backend != FILES and not self.backend.startswith(REDIS):
            kinds = " or ".join(f"{kind}HOST:PORT/NUMBER" for kind in REDIS)
            raise ValueError(f"backend must be {FILES!r} or {kinds}, got {without_logins(self.backend)!r}")
        if "#" in self.backend:
            raise ValueError(
                f"backend {without_logins(self.backend)!r}: leave out #..., every run has a name of its own"
            )
        require_in(self, "[0, inf)", patience_s=self.patience_s)

    def open(self, folder: RunFolder) -> ModelPool:
        """The pool that publishers write to."""
        if self.backend == FILES:
            return folder.models
        pool = MirroredPool(folder.models.folder, RedisModels(self.address(folder)))
        pool.mirror_all("models that were there before")
        return pool

    def address(self, folder: RunFolder) -> str:
        """The address of this run's models for nodes that do not see its folder."""
        if self.backend == FILES:
            return SERVICE_ADDRESS
        # The name alone is not enough: two machines may have a run of that name. A node of a cluster has a folder of
        # its own, whose models are a link to those of the run.
        path = folder.models.folder.resolve().parent
        facts = f"{path} {folder.facts.created} {folder.facts.seed}"
        return f"{self.backend}#{path.name}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"


class MirroredPool(ModelPool):
    """A pool of files, mirrored in Redis. If Redis is unreachable it warns, and the next publication catches up."""

    def __init__(self, folder: str | Path, mirror: RedisModels) -> None:
        super().__init__(folder)
        self.mirror = mirror

    def _published(self, entry: ModelEntry) -> None:
        self.mirror_all(str(entry.model))

    def mirror_all(self, what: str) -> None:
        """Copy models that Redis lacks, and all tags. `what` goes into the warning if Redis is away."""
        try:
            self._bring_up_to_date()
        except ModelPoolError as error:
            print(f"only {self.folder} has {what}: {error}", file=sys.stderr, flush=True)

    def _bring_up_to_date(self) -> None:
        for entry in self.mirror.lacks(self.entries()):
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
            raise StoreError(
                f"{without_logins(address)!r} is no place for models in Redis: redis://HOST:PORT/NUMBER#RUN"
            )
        self._prefix = f"ludus:{run}"
        self._shown = f"Redis ({without_logins(url)}, run {run})"
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

    def lacks(self, entries: Sequence[ModelEntry]) -> list[ModelEntry]:
        """Those whose weights are not there: not yet, or Redis has lost or evicted them."""
        names = [_name(entry.model, entry.variant) for entry in entries]
        asked = self._redis.pipeline(transaction=False)
        for name in names:
            asked.exists(f"{self._prefix}:weights:{name}")
        there, known = self._call(asked.execute), self.known()
        return [one for one, name, has in zip(entries, names, there, strict=True) if not has or name not in known]

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
        return self._call(lambda: getattr(self._redis, command)(*args))

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._error as error:
            raise ModelsUnreachable(f"{self._shown}: {error}") from error


class ModelSource(Protocol):
    """A source of models: a pool of files, a service, Redis. Its methods are those of `ModelPool`."""

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry: ...
    def content(self, model: ModelId, variant: Variant = "live") -> bytes: ...
    def resolve(self, text: str) -> ModelId: ...
    def lineage(self, model: ModelId) -> tuple[ModelId, ...]: ...


class ModelCache:
    """Caches models in a folder of at most `most_bytes` and `most_models`; the least recently used are evicted first.
    Files are named by the digest of their content and checked whenever they are read; a damaged file is fetched again.
    A model that is in the cache needs no source. Processes may share the folder."""

    def __init__(
        self,
        source: ModelSource,
        folder: str | Path,
        most_bytes: int = MOST_BYTES,
        *,
        most_models: float = math.inf,
        patience_s: float = 0.0,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """`patience_s`: how long `fetch` tries again if the source is away or does not have the model (yet), or sends
        it damaged; `waiting` is called between two tries."""
        if most_bytes < 0:
            raise ValueError(f"most_bytes cannot be negative, got {most_bytes}")
        self.source = source
        self.folder = Path(folder)
        self.most_bytes = most_bytes
        self.most_models = most_models
        self.hits = self.misses = 0
        self._patience_s = patience_s
        self._waiting = waiting
        self._entries: dict[tuple[ModelId, Variant], ModelEntry] = {}
        make_folder(self.folder)

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        """As the source has told it once: an id never means two contents."""
        known = self._entries.get((model, variant))
        if known is None:
            known = self._entries[model, variant] = self.source.entry(model, variant)
        return known

    def resolve(self, text: str) -> ModelId:
        return self.source.resolve(text)

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]:
        return self.source.lineage(model)

    def fetch(self, model: ModelId, variant: Variant = "live") -> Arrays:
        """The weights, checked against their digest."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return self._fetch(model, variant)
            except ModelPoolError:
                if time.monotonic() >= until:
                    raise
            self._waiting()
            time.sleep(_RETRY_S)

    def has(self, model: ModelId, variant: Variant) -> bool:
        """Whether the model is in the cache, as far as this process knows."""
        known = self._entries.get((model, variant))
        return known is not None and self._path(known).exists()

    def _path(self, entry: ModelEntry) -> Path:
        return self.folder / f"{entry.digest}.safetensors"

    def _fetch(self, model: ModelId, variant: Variant) -> Arrays:
        entry = self.entry(model, variant)
        path = self._path(entry)
        try:
            weights = checked_weights(read_file(path), entry, str(path))
            os.utime(path)
            self.hits += 1
            return weights
        except FileNotFoundError:
            pass
        except (DamagedModel, OSError):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self.misses += 1
        content = self.source.content(model, variant)
        weights = checked_weights(content, entry, "what the source sent")
        if len(content) <= self.most_bytes:
            try:
                with exclusive(self.folder / ".lock"):
                    self._make_room(len(content))
                    atomic_write(path, content)
            except (OSError, StoreError) as error:  # a full disk is no reason not to play
                print(f"{model} ({variant}) cannot be kept in {self.folder}: {error}", file=sys.stderr, flush=True)
        return weights

    def _make_room(self, wanted: int) -> None:
        kept = [(file.stat(), file) for file in self.folder.glob("*.safetensors")]
        held = sum(facts.st_size for facts, _ in kept)
        count = len(kept)
        for facts, file in sorted(kept, key=lambda one: one[0].st_mtime_ns):
            if held + wanted <= self.most_bytes and count < self.most_models:
                return
            file.unlink()
            held -= facts.st_size
            count -= 1


def _name(model: ModelId, variant: Variant) -> str:
    return f"{model} {variant}"
