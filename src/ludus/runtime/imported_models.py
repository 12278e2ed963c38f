"""Import of weights that other programs wrote: torch checkpoints and safetensors. Nothing in them is executed."""

from __future__ import annotations

import difflib
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from torch import Tensor

from ludus.config import encode
from ludus.data.checks import unknown
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.models.policy import join_kinds, weights_of
from ludus.observe.league_fold import resolve_in
from ludus.observe.terminal import SafeConsole
from ludus.runtime.networks import build_policies, with_each_model
from ludus.store.checkpoints import Arrays, architecture_digest, canonical
from ludus.store.downloads import DownloadRules, download, file_digest
from ludus.store.files import StoreError
from ludus.store.model_addresses import (
    LocalFile,
    Matching,
    RunModel,
    WebFile,
    WeightMap,
    find_address,
    match_weights,
    require_used,
)
from ludus.store.model_pool import ModelConflict, ModelPool

WHOLE_FILE = "(top)"
"""The place of weights at the top of a checkpoint."""

_ZIP_START, _PICKLE_START = b"PK\x03\x04", b"\x80"
_DEEPEST, _MOST_NAMES = 100, 100_000
"""Names that are followed in a checkpoint: a group that contains itself, or another one twice, leads to too many."""
_MOST_SHARED = 4
"""Weights may be stored once and named several times, but all of them together take no more than this many files."""
_NEEDED = re.compile(r"(?:GLOBAL|class|function) (\w+(?:\.\w+)+)")


class BadCheckpoint(StoreError):  # noqa: N818
    """The file holds no weights, or opening it would execute code."""


class ForeignWeights:
    """The tensors of a file, by place: the names that lead to a group of tensors, joined by slashes."""

    def __init__(self, path: Path, tree: Mapping[str, Any]) -> None:
        self.path = path
        self._tensors = _named_tensors(tree, path)
        groups: dict[str, list[Tensor]] = {}
        for names, tensor in self._tensors:
            groups.setdefault(_place(names[:-1]), []).append(tensor)
        self.places = {place: len(group) for place, group in groups.items() if any(one.ndim for one in group)}
        """The number of tensors at each place. Lone numbers, such as a step, make no place."""

    def find_place(self) -> str:
        """The only place of a model. Raises an error that lists the places if there are several."""
        if len(self.places) == 1:
            return next(iter(self.places))
        if not self.places:
            raise BadCheckpoint(f"{self.path} holds no tensors by name")
        listed = ", ".join(f"{place} ({count} tensors)" for place, count in self.places.items())
        raise BadCheckpoint(f"{self.path} holds weights in several places; say which by --place: {listed}")

    def tensors(self, place: str) -> dict[str, Tensor]:
        """All tensors below a place, with their names joined by dots."""
        found = {
            ".".join(names[depth:]): tensor
            for names, tensor in self._tensors
            for depth in range(len(names))
            if _place(names[:depth]) == place
        }
        if not found:
            near = difflib.get_close_matches(place, self.places, n=1)
            offer = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.places)}"
            raise BadCheckpoint(f"{self.path} has no weights at {place!r}; {offer}")
        return found

    def arrays(self, place: str) -> Arrays:
        """The same as arrays. Types that numpy does not have, such as bfloat16, become float32."""
        limit = self.path.stat().st_size
        arrays: Arrays = {}
        left = _MOST_SHARED * limit
        for name, tensor in self.tensors(place).items():
            arrays[name] = _array(name, tensor, limit)
            left -= arrays[name].nbytes
            if left < 0:
                raise BadCheckpoint(f"tensor {name!r} and those before it claim more than {self.path} holds")
        return arrays


def read_foreign(path: Path) -> ForeignWeights:
    """Open a torch checkpoint or a safetensors file. Their first bytes tell them apart."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(_ZIP_START):
        _require_stored(path)
    if start.startswith((_ZIP_START, _PICKLE_START)):
        return ForeignWeights(path, _read_checkpoint(path))
    try:
        return ForeignWeights(path, safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise BadCheckpoint(f"{path} is neither a torch checkpoint nor a safetensors file: {error}") from error


def _require_stored(path: Path) -> None:
    """Raises `BadCheckpoint` for an archive that unpacks to more than it takes. torch.save compresses nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries, comment = archive.infolist(), archive.comment
    except OSError:
        raise
    except Exception as error:  # damaged or hostile bytes may raise anything
        raise BadCheckpoint(f"{path} is a damaged archive: {error}") from None
    if comment:  # torch might find another list of contents behind it than this one
        raise BadCheckpoint(f"{path} is an archive with a comment, which no torch checkpoint has: refused")
    size = path.stat().st_size
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise BadCheckpoint(
                f"{path} holds {entry.filename!r} compressed, {entry.file_size:,} bytes in {entry.compress_size:,}; "
                "torch.save compresses nothing: refused unread"
            )
    if (claimed := sum(entry.file_size for entry in entries)) > size:
        raise BadCheckpoint(f"{path} claims to hold {claimed:,} bytes, but has {size:,}: refused unread")


def _read_checkpoint(path: Path) -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats, which load all the same
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = _NEEDED.search(str(error))
        needs = f"needs {named[1]} to open" if named else "needs more than weights to open"
        raise BadCheckpoint(
            f"{path} {needs}, which could execute anything: refused, nothing of it was run. Where it comes "
            "from, save the weights alone: torch.save(model.state_dict(), FILE)"
        ) from None
    except OSError:
        raise
    except Exception as error:  # damaged or hostile bytes may raise anything
        if "TorchScript" in str(error):
            raise BadCheckpoint(f"{path} is a TorchScript archive, which is a program: refused") from None
        raise BadCheckpoint(f"{path} is damaged, or a pickle or archive of another kind") from error
    if not isinstance(content, Mapping):
        raise BadCheckpoint(f"{path} holds a {type(content).__name__}, not weights by name")
    return content


def _named_tensors(tree: Mapping[Any, Any], path: Path) -> list[tuple[tuple[str, ...], Tensor]]:
    """Tensors that are reached by names alone. An optimiser's state is numbered, so it is left out."""
    found: list[tuple[tuple[str, ...], Tensor]] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    followed = 0
    while waiting:
        names, value = waiting.pop()
        followed += 1
        if len(names) > _DEEPEST or followed > _MOST_NAMES:
            raise BadCheckpoint(f"{path} holds names inside names without an end: refused")
        if isinstance(value, Tensor):
            found.append((names, value))
        elif isinstance(value, Mapping):
            below = [((*names, key), item) for key, item in value.items() if isinstance(key, str)]
            waiting += reversed(below)
    return found


def _place(names: tuple[str, ...]) -> str:
    return "/".join(names) or WHOLE_FILE


def _array(name: str, tensor: Tensor, limit: int) -> np.ndarray[Any, Any]:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise BadCheckpoint(f"tensor {name!r} is sparse, quantised or empty of values: only plain ones are taken")
    if tensor.numel() * tensor.element_size() > limit:
        raise BadCheckpoint(f"tensor {name!r} claims shape {tuple(tensor.shape)}, more than its file holds")
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    return np.array(tensor.numpy(), order="C")


INDEX_VARIABLE = "LUDUS_MODEL_INDEX"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """A request for weights, with everything that is known about them."""

    address: str
    place: str | None = None
    """The place of the weights in a checkpoint."""
    average: str | None = None
    """The place of their average."""
    sha256: str | None = None
    index: str | None = None
    rules: DownloadRules = field(default_factory=DownloadRules)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Weights from another run, a file or a URL, by the names that they have there."""

    label: str
    weights: Arrays
    average: Arrays | None = None
    place: str = ""
    facts: Mapping[str, str | int | float]
    """Facts that a pool keeps about them."""
    checked: str
    """The result of the digest check, in words."""
    name: str
    """A suggested player id."""
    networks: Any = None
    """The network settings of their run, as plain values."""
    downloaded: Path | None = None

    def discard(self) -> None:
        """Delete the download once the weights are in a pool."""
        if self.downloaded is not None:
            self.downloaded.unlink(missing_ok=True)


def fetch_source(wish: ModelRequest) -> Source:
    """Fetch the weights at an address. Writes only to the cache of downloads."""
    match find_address(wish.address, index=wish.index or os.environ.get(INDEX_VARIABLE) or None, resolve=resolve_in):
        case RunModel() as there:
            return _from_run(there, wish)
        case LocalFile(path=path, sha256=sha256):
            return _from_file(path, wish.sha256 or sha256, wish)
        case WebFile(url=url, sha256=sha256):
            return _from_web(url, wish.sha256 or sha256, wish)


def _from_run(there: RunModel, wish: ModelRequest) -> Source:
    pool = there.run.models
    entry = pool.entry(there.model, there.variant)
    _require_digest(wish.address, entry.digest, wish.sha256)
    experiment = msgspec.json.decode(there.run.facts.experiment)
    facts = {name: value for name, value in entry.facts.items() if name == "decisions"}
    return Source(
        label=f"{there.model} ({there.variant}) of {there.run.path}",
        weights=pool.fetch(there.model, there.variant),
        facts={**facts, "source": f"{wish.address} ({there.model}, {there.variant})"},
        checked=f"sha256:{entry.digest}, as that run says",
        name=there.model.player,
        networks=_model_of(experiment, there.model.player) if isinstance(experiment, dict) else None,
    )


def _model_of(experiment: Mapping[str, Any], player: str) -> Any:
    """The encoded model of a player of an encoded experiment; None: it may be another than the experiment's."""
    own = {name: role.get("model") for name, role in experiment["league"]["roles"].items()}
    role = next((name for name in own if re.fullmatch(rf"{re.escape(name)}(_\d+)?", player)), None)
    if role is None and any(own.values()):
        return None
    return own.get(role) or experiment.get("model")


def _from_file(path: Path, sha256: str | None, wish: ModelRequest) -> Source:
    found = file_digest(path)
    _require_digest(str(path), found, sha256)
    checked = f"sha256:{found}" + (", as expected" if sha256 else "")
    return _read(path, wish, label=str(path), digest=found, checked=checked)


def _from_web(url: str, sha256: str | None, wish: ModelRequest) -> Source:
    with _progress() as advance:
        fetched = download(url, sha256=sha256, rules=wish.rules, report=_say, advance=advance)
    against = fetched.checked_by
    checked = f"sha256:{fetched.sha256}, " + (
        f"as {against} says" if against else f"compared with nothing: no --digest, and no file {url}.sha256"
    )
    return _read(fetched.path, wish, label=url, digest=fetched.sha256, checked=checked, downloaded=fetched.path)


def _read(
    path: Path, wish: ModelRequest, *, label: str, digest: str, checked: str, downloaded: Path | None = None
) -> Source:
    foreign = read_foreign(path)
    place = wish.place or foreign.find_place()
    is_name = wish.address.partition("#")[0] != label  # an index has a name for it
    return Source(
        label=label,
        weights=foreign.arrays(place),
        average=foreign.arrays(wish.average) if wish.average else None,
        place=place,
        facts={"source": label, "file_sha256": digest},
        checked=checked,
        name=wish.address if is_name else Path(urlsplit(label).path).stem,
        downloaded=downloaded,
    )


def _require_digest(what: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise StoreError(f"{what} has digest sha256:{found}, expected sha256:{expected}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@contextmanager
def _progress() -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar, if there is a terminal."""
    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=SafeConsole(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


_MOST_SHOWN = 12


class MisfitError(StoreError):
    """The weights do not fill the networks of an experiment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The weights of a source, matched with those that an experiment needs."""

    ours: Arrays
    """All weights of a player, freshly initialised."""
    asked: Arrays
    """The part of them that the source has to fill."""
    live: Matching
    average: Matching | None

    @property
    def unfilled(self) -> list[str]:
        """Names of our weights that the source lacks."""
        return [
            name
            for name in self.ours
            if name not in self.live.arrays or (self.average is not None and name not in self.average.arrays)
        ]

    def filled(self, matching: Matching, base: Arrays | None = None) -> Arrays:
        """Our weights with the values of the source, else those of `base`, else fresh ones."""
        return self.ours | (base or {}) | matching.arrays


def fresh_weights(experiment: Experiment) -> Arrays:
    """All weights of a player, as KIND/PARAMETER, drawn from the experiment's seed."""
    policies = build_policies(experiment, experiment.seed)
    return canonical(join_kinds(policies, map(weights_of, policies)))


def fit_weights(
    source: Source, experiment: Experiment, names: WeightMap | None = None, *, kind: str | None = None
) -> Fit:
    """Match a source with the networks of an experiment, or with the network of one kind of seat."""
    names = names or WeightMap()
    ours = fresh_weights(experiment)
    kinds = list(dict.fromkeys(name.partition("/")[0] for name in ours))
    if kind is not None and kind not in kinds:
        raise MisfitError(unknown("kind of seat", kind, kinds))
    only = kind or (kinds[0] if len(kinds) == 1 else None)
    require_used(names, ours)
    asked = {name: array for name, array in ours.items() if only is None or name.startswith(f"{only}/")}
    prefix = f"{only}/" if only else ""
    return Fit(
        ours=ours,
        asked=asked,
        live=match_weights(asked, source.weights, names, prefix=prefix),
        average=(None if source.average is None else match_weights(asked, source.average, names, prefix=prefix)),
    )


def best_fit(
    source: Source, experiment: Experiment, names: WeightMap | None = None, *, kind: str | None = None
) -> tuple[Fit, Experiment]:
    """The fit with the network of the experiment that the source fills best, and the experiment with that network."""
    found: list[tuple[Fit, Experiment]] = []
    for view in with_each_model(experiment):
        with suppress(StoreError):
            found.append((fit_weights(source, view, names, kind=kind), view))
    if not found:
        return fit_weights(source, experiment, names, kind=kind), experiment  # says what is wrong
    return min(found, key=lambda one: len(one[0].unfilled) + len(one[0].live.wrong) + len(one[0].live.left_over))


def require_fit(fit: Fit, source: Source, experiment: Experiment) -> None:
    """Refuse weights that do not fit the networks exactly, and name the first differences."""
    for matching in (fit.live, fit.average):
        if matching is not None and (not matching.is_complete or matching.left_over):
            raise MisfitError(
                f"{source.label} does not fit the networks here:\n  "
                + "\n  ".join(differences(matching))
                + "\nother names and parts of a file are for `ludus models import`, with --map and --partial"
            )
    _require_same_settings(source, experiment)


def has_same_networks(pool: ModelPool, model: ModelId, experiment: Experiment) -> bool:
    """Whether a model of the pool fits the network of the experiment."""
    return pool.entry(model).architecture == architecture_digest(fresh_weights(experiment))


def require_same_networks(pool: ModelPool, model: ModelId, experiment: Experiment) -> None:
    """Refuse a model of the pool that does not fit the network of the experiment."""
    ours = fresh_weights(experiment)
    if not has_same_networks(pool, model, experiment):
        found = differences(match_weights(ours, pool.fetch(model), WeightMap()))
        raise MisfitError(f"model {model} does not fit the networks here:\n  " + "\n  ".join(found))


def differences(matching: Matching, most: int | None = _MOST_SHOWN) -> list[str]:
    """The first `most` differences, one per line."""
    lines = []
    for one in matching.wrong:
        hint = f"; {one.hint}" if one.hint else ""
        lines.append(f"other shape: {one.ours} is {one.needed}, {one.theirs} in the file is {one.given}{hint}")
    for ours, theirs in matching.missing.items():
        looked = "" if ours.endswith(theirs) else f" (looked for {theirs})"
        guess, near = matching.guesses.get(ours), matching.nearest.get(ours)
        offer = f"; perhaps {guess.name}" if guess else f"; the nearest name is {near}" if near else ""
        lines.append(f"missing:     {ours}{looked}{offer}")
    lines += [f"left over:   {name} in the file" for name in matching.left_over]
    more = len(lines) - (most or len(lines))
    return [*lines[:most], f"and {more} more"] if more > 0 else lines


def publish_new(
    pool: ModelPool,
    player: str,
    live: Arrays,
    average: Arrays | None,
    facts: Mapping[str, str | int | float],
    parent: ModelId | None = None,
) -> ModelId:
    """Publish and pin weights under the first step that is free or already has this content."""
    for step in count():
        model = ModelId(player, 0, step)
        try:
            pool.publish(model, live, parent=parent, facts=facts)
            if average is not None:
                pool.publish(model, average, parent=parent, variant="average", facts=facts)
        except ModelConflict:
            continue
        break
    pool.pin(model)
    return model


def _require_same_settings(source: Source, experiment: Experiment) -> None:
    """Networks of the same shapes can still differ, for example in their activation."""
    if source.networks is None:
        return
    for path, there, here in _unlike(source.networks, encode(experiment)["model"], "model"):
        raise MisfitError(f"{source.label} was trained with {path}={there}, here it is {here}")


def _unlike(there: Any, here: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name, value in there.items():
            if name in here:  # another version may lack the field
                yield from _unlike(value, here[name], f"{path}.{name}")
    elif there != here:
        yield path, there, here
