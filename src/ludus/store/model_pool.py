"""The model pool: weights by model id, each with a digest, an architecture and a lineage. A model is two files: weights
and a sidecar that describes them. The sidecar is written last and removed first, so every entry has its weights. A
removed model leaves its sidecar behind as `.gone`, so that lineages stay complete and its id is never reused for other
content."""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args
from urllib.parse import unquote

import msgspec
from numpy.typing import NDArray

from ludus.data.checks import did_you_mean
from ludus.data.records import ModelId
from ludus.store.checkpoints import (
    Arrays,
    BadTensorFile,
    architecture_digest,
    canonical,
    content_digest,
    decode_tensors,
    encode_tensors,
)
from ludus.store.files import (
    UNREADABLE,
    StoreError,
    atomic_write,
    clean_temporaries,
    exclusive,
    make_folder,
    read_file,
    safe_name,
    sync_folder,
)

Variant = Literal["live", "average"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
LATEST = "latest"  # the tag of every player's newest model
BEST = "best"  # the tag of the snapshot with the best evaluation


class ModelPoolError(StoreError):
    """The pool lacks a model or refuses an operation."""


class UnknownModel(ModelPoolError):  # noqa: N818
    """No such model, player or tag."""


class ModelConflict(ModelPoolError):  # noqa: N818
    """An id that already has other content."""


class DamagedModel(ModelPoolError):  # noqa: N818
    """A file of the pool that is damaged."""


class ModelsUnreachable(ModelPoolError):  # noqa: N818
    """The service or the server that has the models is away."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one set of weights."""

    model: ModelId
    variant: Variant
    digest: str
    architecture: str
    parent: ModelId | None
    facts: dict[str, str | int | float]


class ModelPool:
    """A folder of models with one subfolder per player. Processes may share it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def publish(
        self,
        model: ModelId,
        weights: Mapping[str, NDArray[Any]],
        *,
        parent: ModelId | None,
        variant: Variant = "live",
        tags: Iterable[str] = (),
        facts: Mapping[str, str | int | float],
    ) -> ModelEntry:
        """Add weights. Publishing the same content again changes nothing; other content is refused. The files of
        `parent` may be away: a run goes on without snapshots that cannot be read."""
        content = canonical(weights)
        entry = ModelEntry(
            model=model,
            variant=variant,
            digest=content_digest(content),
            architecture=architecture_digest(content),
            parent=parent,
            facts=dict(facts),
        )
        sidecar = self._sidecar(model, variant)
        described = _describe(entry)
        make_folder(sidecar.parent)
        with exclusive(sidecar.parent / ".lock"):
            known = self._read_sidecar(sidecar, model) or self._read_sidecar(_gone(sidecar), model)
            if known is not None and known.digest != entry.digest:
                raise ModelConflict(
                    f"{model} ({variant}) has content {known.digest[:12]} in {sidecar.parent}, refused"
                    f" {entry.digest[:12]}; an id never means two contents, raise the step or the incarnation"
                )
            if known is None or not sidecar.exists():
                atomic_write(sidecar.with_suffix(".safetensors"), encode_tensors(content))
                atomic_write(sidecar, described)
                _gone(sidecar).unlink(missing_ok=True)
                known = entry
            for name in tags:
                self._set_tag(name, model)
        self._published(known)
        return known

    def _published(self, entry: ModelEntry) -> None:
        """Called after every publication, for pools that mirror their models."""

    def fetch(self, model: ModelId, variant: Variant = "live") -> Arrays:
        """The weights, checked against their digest."""
        entry = self.entry(model, variant)
        return checked_weights(self.content(model, variant), entry, str(self._weights(model, variant)))

    def content(self, model: ModelId, variant: Variant = "live") -> bytes:
        """The bytes of the weights file, unchecked."""
        path = self._weights(model, variant)
        try:
            return read_file(path)
        except FileNotFoundError as error:
            self.entry(model, variant)  # raises if it is unknown or was collected
            raise DamagedModel(f"weights of {model} are missing: there is no {path}") from error

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        sidecar = self._sidecar(model, variant)
        entry = self._read_sidecar(sidecar, model)
        if entry is not None:
            return entry
        if _gone(sidecar).exists():
            raise UnknownModel(f"the weights of {model} ({variant}) were deleted from {self.folder}")
        others = {str(known.model): None for known in self.entries() if known.variant == variant}
        raise UnknownModel(f"no model {model} ({variant}) in {self.folder}{did_you_mean(str(model), others)}")

    def entries(self) -> list[ModelEntry]:
        """All models of the pool, sorted by id."""
        return self._entries_in("*")

    def last_incarnation(self, player: str) -> int:
        """The highest of any model of a player that there is or was, by the names of the files; -1 if there is none."""
        names = (path.name.partition("-")[0] for path in self._player_folder(player).glob("*-*.*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]:
        """The model and its ancestors back to the first, including collected ones."""
        return lineage_in(model, self._parent, str(self.folder))

    def tag(self, name: str, model: ModelId) -> None:
        """Let `player@name` mean `model` until the tag is moved."""
        with self._holding(model):
            self._set_tag(name, model)

    def resolve(self, text: str) -> ModelId:
        """The model of `player` (its latest), `player@tag` or `player:incarnation:step`."""
        player, at, tag = text.rpartition("@")
        if not at:
            try:
                model = ModelId.parse(text)
            except ValueError:
                return self._latest(text)
            self._require(model)
            return model
        if tag == LATEST:
            return self._latest(player)
        path = self._player_folder(player) / "tags" / safe_name(tag, "tag")
        try:
            return msgspec.json.decode(read_file(path), type=ModelId)
        except FileNotFoundError:
            self._latest(player)  # an unknown player is the more useful error
            known = sorted(file.name for file in path.parent.glob("[!.]*"))
            raise UnknownModel(f"player {player!r} has no tag {tag!r}{did_you_mean(tag, [*known, LATEST])}") from None
        except UNREADABLE as error:
            raise DamagedModel(f"tag {path} does not read: {error}") from error

    def tags(self, known: Mapping[str, ModelId | None] = MappingProxyType({})) -> dict[ModelId, list[str]]:
        """The tags of every model that has any; `latest` comes last. `known`: tags, as `player@name`, that are known
        from elsewhere (None: there is no such), so that their files do not count."""
        read = {}
        for path in sorted(self.folder.glob("*/tags/[!.]*")):
            text = f"{unquote(path.parent.parent.name)}@{unquote(path.name)}"
            if text not in known:
                read[text] = self.resolve(text)
        found: dict[ModelId, list[str]] = {}
        for text, model in sorted({**read, **known}.items()):
            if model is not None:
                found.setdefault(model, []).append(text.rpartition("@")[2])
        for model in {entry.model.player: entry.model for entry in self.entries()}.values():
            found.setdefault(model, []).append(LATEST)
        return found

    def size(self, model: ModelId, variant: Variant = "live") -> int:
        """Bytes of the weights on disk; 0 if they were deleted."""
        with suppress(FileNotFoundError):
            return self._weights(model, variant).stat().st_size
        return 0

    def pin(self, model: ModelId) -> None:
        """Protect `model` from garbage collection until it is unpinned, across restarts."""
        with self._holding(model):
            make_folder(self._pin(model).parent)
            atomic_write(self._pin(model), b"")

    def unpin(self, model: ModelId) -> None:
        self._pin(model).unlink(missing_ok=True)

    def discard(self, models: Iterable[ModelId]) -> list[ModelId]:
        """Remove these models, and what a removal that died has left of them. Returns those that stay because they are
        tagged or pinned."""
        held = []
        for model in models:
            folder = self._player_folder(model.player)
            files = [self._weights(model, variant) for variant in VARIANTS]
            if not any(path.exists() for path in files):
                continue
            with exclusive(folder / ".lock"):
                if model in self._tagged(folder) or self._pin(model).exists():
                    held.append(model)
                    continue
                self._remove(model)
                for path in files:
                    path.unlink(missing_ok=True)
        return held

    def collect_garbage(self, *, keep_last: int, referenced: Collection[ModelId] = ()) -> list[ModelId]:
        """Remove all models except referenced, tagged and pinned ones and the last `keep_last` of each player."""
        if keep_last < 0:
            raise ValueError(f"keep_last is {keep_last}, which cannot be negative")
        removed = []
        for folder in sorted(path.parent for path in self.folder.glob("*/.lock")):
            with exclusive(folder / ".lock"):
                models = sorted({entry.model for entry in self._entries_in(glob.escape(folder.name))})
                held = {*models[max(0, len(models) - keep_last) :], *referenced, *self._tagged(folder)}
                for model in models:
                    if model not in held and not self._pin(model).exists():
                        self._remove(model)
                        removed.append(model)
                for weights in folder.glob("*.safetensors"):  # of publishers and collectors that died
                    if not weights.with_suffix(".json").exists():
                        weights.unlink()
                clean_temporaries(folder)
        return removed

    def _tagged(self, folder: Path) -> list[ModelId]:
        """The models of a player's tags. Raises `DamagedModel` for a tag that does not read."""
        return [self.resolve(f"{unquote(folder.name)}@{unquote(path.name)}") for path in folder.glob("tags/[!.]*")]

    @contextmanager
    def _holding(self, model: ModelId) -> Iterator[None]:
        """Hold the player's lock, so that the model is not collected meanwhile."""
        self._require(model)
        with exclusive(self._player_folder(model.player) / ".lock"):
            self._require(model)
            yield

    def _set_tag(self, name: str, model: ModelId) -> None:
        if name == LATEST:
            raise ModelPoolError(f"tag {LATEST!r} always means the newest model and cannot be set")
        path = self._player_folder(model.player) / "tags" / safe_name(name, "tag")
        make_folder(path.parent)
        atomic_write(path, msgspec.json.encode(model))

    def _entries_in(self, player_folders: str) -> list[ModelEntry]:
        found = (self._read_sidecar(path, None) for path in self.folder.glob(f"{player_folders}/*.json"))
        entries = [entry for entry in found if entry is not None]
        return sorted(entries, key=lambda entry: (entry.model, entry.variant))

    def _remove(self, model: ModelId) -> None:
        for variant in self._variants(model):
            sidecar = self._sidecar(model, variant)
            sidecar.replace(_gone(sidecar))
            sync_folder(sidecar.parent)
            sidecar.with_suffix(".safetensors").unlink(missing_ok=True)

    def _latest(self, player: str) -> ModelId:
        models = [entry.model for entry in self.entries()]
        own = [model for model in models if model.player == player]
        if not own:
            players = {model.player: None for model in models}
            raise UnknownModel(f"no models of player {player!r} in {self.folder}{did_you_mean(player, players)}")
        return max(own)

    def _require(self, model: ModelId) -> None:
        if not self._variants(model):
            self.entry(model)  # raises an error that says why

    def _variants(self, model: ModelId) -> list[Variant]:
        return [variant for variant in VARIANTS if self._sidecar(model, variant).exists()]

    def _records(self, model: ModelId) -> list[Path]:
        """The files that may describe a model, even a collected one."""
        sidecars = [self._sidecar(model, variant) for variant in VARIANTS]
        return [path for sidecar in sidecars for path in (sidecar, _gone(sidecar))]

    def _parent(self, model: ModelId) -> ModelId | None:
        recorded = filter(None, (self._read_sidecar(path, model) for path in self._records(model)))
        return (next(recorded, None) or self.entry(model)).parent

    def _player_folder(self, player: str) -> Path:
        return self.folder / safe_name(player, "player")

    def _sidecar(self, model: ModelId, variant: Variant) -> Path:
        if variant not in VARIANTS:
            raise ModelPoolError(f"no variant {variant!r} of {model}; there are {', '.join(VARIANTS)}")
        kind = "" if variant == "live" else f".{variant}"
        return self._player_folder(model.player) / f"{_numbers(model)}{kind}.json"

    def _weights(self, model: ModelId, variant: Variant) -> Path:
        return self._sidecar(model, variant).with_suffix(".safetensors")

    def _pin(self, model: ModelId) -> Path:
        return self._player_folder(model.player) / "pins" / _numbers(model)

    def _read_sidecar(self, path: Path, model: ModelId | None) -> ModelEntry | None:
        """The entry in a sidecar, None if there is no such file. If `model` is given, it must be its entry."""
        try:
            entry = msgspec.json.decode(read_file(path), type=ModelEntry)
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise DamagedModel(f"{path} does not read: {error}") from error
        if model is not None and entry.model != model:
            raise DamagedModel(f"{path} describes {entry.model}, not {model}")
        return entry


def _numbers(model: ModelId) -> str:
    if model.incarnation < 0 or model.step < 0:
        raise ModelPoolError(f"model {model} has a negative incarnation or step")
    return f"{model.incarnation}-{model.step}"


def _describe(entry: ModelEntry) -> bytes:
    """Encode a sidecar and decode it again: a NaN among the facts would be written as null."""
    try:
        described = msgspec.json.encode(entry)
        if msgspec.json.decode(described, type=ModelEntry) != entry:
            raise ValueError("as other values")
        return described
    except (*UNREADABLE, TypeError, ValueError, OverflowError) as error:
        raise ModelPoolError(f"facts of {entry.model} do not read back ({error}): {entry.facts}") from error


def _gone(sidecar: Path) -> Path:
    return sidecar.with_suffix(".gone")


def checked_weights(content: bytes, entry: ModelEntry, place: str) -> Arrays:
    """Decode a safetensors file and check it against its entry. `place` goes into errors."""
    try:
        weights, _ = decode_tensors(content)
    except BadTensorFile as error:
        raise DamagedModel(f"weights of {entry.model} in {place} do not open: {error}") from error
    if content_digest(weights) != entry.digest:
        raise DamagedModel(f"weights of {entry.model} in {place} do not match their digest {entry.digest[:12]}")
    return weights


class Pinned(Protocol):
    """A frozen player, or the event that added it."""

    @property
    def weights(self) -> Variant: ...
    @property
    def digest(self) -> str: ...


def require_pinned(models: ModelPool, model: ModelId, pinned: Pinned) -> None:
    """Raise `DamagedModel` if the weights are others than the ledger has named: the pool is of another run."""
    found = models.entry(model, pinned.weights).digest
    if pinned.digest not in ("", found):
        raise DamagedModel(
            f"weights of {model} ({pinned.weights}) in {models.folder} have digest {found[:12]}, and the ledger names "
            f"{pinned.digest[:12]}: they are of another run"
        )


def lineage_in(model: ModelId, parent_of: Callable[[ModelId], ModelId | None], place: str) -> tuple[ModelId, ...]:
    line = [model]
    while (parent := parent_of(line[-1])) is not None:
        if parent in line:
            raise DamagedModel(f"the lineage of {model} in {place} goes in a circle at {parent}")
        line.append(parent)
    return tuple(line)
