"""Models from elsewhere: their addresses, and the map from their weights to those of our networks.

RUN#PLAYER, RUN#PLAYER@TAG, RUN#PLAYER:INCARNATION:STEP   a model of another run; /live or /average behind it
FILE or FILE#sha256=DIGITS                                a file of weights
URL or URL#sha256=DIGITS                                  a file of weights on the web
NAME                                                      an entry of an index of models

`find_address` reads an address; `match_weights` finds each of our weights in a file of other names and layouts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import did_you_mean, nearest
from ludus.data.records import ModelId, PlayerAdded
from ludus.store.checkpoints import Arrays
from ludus.store.downloads import fetch_text, is_url, parse_digest
from ludus.store.files import UNREADABLE, StoreError
from ludus.store.model_pool import VARIANTS, UnknownModel, Variant
from ludus.store.run_folder import RunFolder

_DIGEST = "sha256="
_WILD = "*"
_FILE_ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl")


class BadAddress(StoreError):  # noqa: N818
    """An address that leads to no model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunModel:
    """One set of weights of another run."""

    run: RunFolder
    model: ModelId
    variant: Variant


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalFile:
    path: Path
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WebFile:
    url: str
    sha256: str | None = None


Address = RunModel | LocalFile | WebFile


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of an index."""

    url: str  # relative to the index, or absolute
    sha256: str
    description: str = ""


def find_address(
    text: str, *, index: str | None = None, resolve: Callable[[RunFolder, str], ModelId] | None = None
) -> Address:
    """Find the model of an address. Reads the disk, and the index for a name, but fetches no weights. `resolve` gives
    the model that a name means in a run; by default its pool is asked."""
    if is_url(text):
        url, fragment = urldefrag(text)
        return WebFile(url=url, sha256=_fragment_digest(text, fragment))
    if Path(text).is_file():
        return LocalFile(path=Path(text))
    place, hash_sign, rest = text.rpartition("#")
    if hash_sign and rest.startswith(_DIGEST):
        return LocalFile(path=_existing(place), sha256=_fragment_digest(text, rest))
    if hash_sign:
        return _find_in_run(RunFolder.open(place), rest, resolve or (lambda run, name: run.models.resolve(name)))
    if Path(text).is_dir():
        players = {entry.model.player: None for entry in RunFolder.open(text).models.entries()}
        known = ", ".join([*players][:8]) or "none yet"
        raise BadAddress(f"{text} is a run: which model? write {text}#PLAYER; there are {known}")
    if "/" in text or text.endswith(_FILE_ENDINGS):
        return LocalFile(path=_existing(text))
    return _find_in_index(text, index)


def added_players(run: RunFolder) -> dict[str, PlayerAdded]:
    """Every player that ever joined the league of a run, by its ledger."""
    if not run.ledger_path.exists():
        return {}
    with run.ledger(read_only=True) as ledger:
        added = [event for _, event in ledger.replay() if isinstance(event, PlayerAdded)]
    return {event.player: event for event in added}


def _find_in_index(name: str, index: str | None) -> Address:
    if index is None:
        raise BadAddress(
            f"{name!r} is no file, URL or RUN#PLAYER; for a name, say in which index: --index or LUDUS_MODEL_INDEX"
        )
    content = fetch_text(index).encode() if is_url(index) else Path(index).read_bytes()
    try:
        entries = msgspec.json.decode(content, type=dict[str, IndexEntry])
    except UNREADABLE as error:
        raise BadAddress(f"index {index} does not read: {error}") from error
    if name not in entries:
        raise BadAddress(f"no model {name!r} in index {index}{did_you_mean(name, entries)}")
    entry = entries[name]
    digest = parse_digest(entry.sha256)
    if is_url(entry.url) or is_url(index):
        return WebFile(url=urljoin(index, entry.url), sha256=digest)
    return LocalFile(path=_existing(str(Path(index).parent / entry.url)), sha256=digest)


def _find_in_run(run: RunFolder, text: str, resolve: Callable[[RunFolder, str], ModelId]) -> RunModel:
    """Find a model by its name in the pool, or by the name of a frozen player. Without /live or /average, take
    the weights that the frozen player plays with, else the live ones."""
    name, slash, variant = text.rpartition("/")
    if not slash:
        name, variant = text, ""
    elif variant not in VARIANTS:
        raise BadAddress(f"{run.path}#{text}: no weights {variant!r}; there are {', '.join(VARIANTS)}")
    frozen = {player: one for player, one in added_players(run).items() if one.role == "frozen"}
    named = frozen.get(name)
    model = _resolve(run, name, resolve) if named is None or named.model is None else ModelId.parse(named.model)
    pinned = [named] if named is not None else [one for one in frozen.values() if one.model == str(model)]
    weights = variant or (pinned[-1].weights if pinned else "live")
    chosen: Variant = "average" if weights == "average" else "live"
    run.models.entry(model, chosen)
    return RunModel(run=run, model=model, variant=chosen)


def _resolve(run: RunFolder, name: str, resolve: Callable[[RunFolder, str], ModelId]) -> ModelId:
    try:
        return resolve(run, name)
    except UnknownModel as error:
        added = [player for player, one in added_players(run).items() if one.role != "scripted"]
        known = dict.fromkeys([*added, *(entry.model.player for entry in run.models.entries())])
        if ":" in name or "@" in name or not known:
            raise
        raise BadAddress(f"no player {name!r} in run {run.path}{did_you_mean(name, known)}") from error


def _fragment_digest(text: str, fragment: str) -> str | None:
    if not fragment:
        return None
    if not fragment.startswith(_DIGEST):
        raise BadAddress(f"{text}: what stands after # must be sha256=DIGITS")
    return parse_digest(fragment.removeprefix(_DIGEST))


def _existing(place: str) -> Path:
    path = Path(place)
    if path.is_file():
        return path
    beside = [file.name for file in path.parent.glob("*") if file.is_file()] if path.parent.is_dir() else []
    close = nearest(path.name, beside)
    offer = f"; did you mean {path.parent / close}?" if close else ""
    raise BadAddress(f"no file {place}{offer}")


class BadWeightMap(StoreError):  # noqa: N818
    """A map of names that contradicts itself or the weights."""


class WeightSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"name": "from"}):
    """The array of a file that one of our weights is read from."""

    name: str
    transpose: bool = False  # the file has this matrix transposed


class WeightMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maps our names to those of a file. Weights that it does not name keep their names. Our names are KIND/PARAMETER,
    or PARAMETER for all kinds of seat. A `*` stands for any text; the nth `*` of the file's name is replaced by the
    text of our nth `*`. A full name takes precedence over patterns, and the first pattern that fits over later ones."""

    place: str | None = None  # key of the weights in the checkpoint, such as `model_state_dict`; None: the only one
    average: str | None = None  # key of their average, if the checkpoint has one
    weights: dict[str, str | WeightSource] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrongShape:
    ours: str
    theirs: str
    needed: str
    given: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """Our weights and those of a file, by name."""

    sources: Mapping[str, str]  # our names to the file's, where both exist and fit
    arrays: Arrays  # our names with the file's values
    missing: Mapping[str, str]  # our weights that the file lacks, with the name that was looked for
    wrong: tuple[WrongShape, ...]
    left_over: tuple[str, ...]  # arrays of the file that are not used
    guesses: Mapping[str, WeightSource]  # for missing and wrong weights: unused arrays that fit, by name and order
    nearest: Mapping[str, str]  # for missing weights without a guess: the most similar unused name

    @property
    def is_complete(self) -> bool:
        return not self.missing and not self.wrong


def parse_map(content: Any, what: str) -> WeightMap:
    """Read a map from plain values, such as those of a YAML file."""
    try:
        parsed = msgspec.convert({} if content is None else content, WeightMap)
    except msgspec.ValidationError as error:
        raise BadWeightMap(f"{what}: {error}; a map has place, average and weights") from error
    for ours, taken in parsed.weights.items():
        theirs = _taken(taken).name
        if theirs.count(_WILD) not in (0, ours.count(_WILD)):
            raise BadWeightMap(f"{what}: {ours!r} and {theirs!r} need as many * as each other")
    return parsed


def require_used(names: WeightMap, ours: Arrays) -> None:
    """Raises `BadWeightMap` for a line of the map that fits none of our weights."""
    for line in names.weights:
        known = [written for name in ours for written in _written(name)]
        if line not in known and not any(_pattern(line).fullmatch(name) for name in known):
            offer = did_you_mean(line, known, f"ours are {', '.join([*ours][:4])}, ...")
            raise BadWeightMap(f"the map names {line!r}, which is none of our weights{offer}")


def match_weights(ours: Arrays, theirs: Arrays, names: WeightMap, *, prefix: str = "") -> Matching:
    """Find each of our weights in a file: by the map, else by our name, else by our name without `prefix`."""
    arrays: Arrays = {}
    sources: dict[str, str] = {}
    missing: dict[str, str] = {}
    wrong: list[WrongShape] = []
    for name, needed in ours.items():
        taken = _find(name, names) or WeightSource(name=name if name in theirs else name.removeprefix(prefix))
        if taken.name not in theirs:
            missing[name] = taken.name
            continue
        given = theirs[taken.name].T if taken.transpose else theirs[taken.name]
        if given.shape != needed.shape:
            hint = "transpose: true would make it fit" if given.shape[::-1] == needed.shape else ""
            wrong.append(WrongShape(name, taken.name, str(needed.shape), str(given.shape), hint))
        elif not np.can_cast(given.dtype, needed.dtype, "same_kind"):
            wrong.append(WrongShape(name, taken.name, str(needed.dtype), str(given.dtype)))
        else:
            arrays[name], sources[name] = _converted(given, needed, name), taken.name
    used = {*sources.values(), *(one.theirs for one in wrong)}
    left_over = tuple(name for name in theirs if name not in used)
    unmatched = [*missing, *(one.ours for one in wrong)]
    guesses = _guess(unmatched, [*left_over, *(one.theirs for one in wrong)], ours, theirs)
    similar = {
        name: near for name, asked in missing.items() if name not in guesses and (near := nearest(asked, left_over))
    }
    return Matching(
        sources=sources,
        arrays=arrays,
        missing=missing,
        wrong=tuple(wrong),
        left_over=left_over,
        guesses=guesses,
        nearest=similar,
    )


def _guess(wanted: Sequence[str], free: Sequence[str], ours: Arrays, theirs: Arrays) -> dict[str, WeightSource]:
    """Pair weights of the same shape. Layers of one shape are distinguished by their names and their order."""
    ranked = []
    for place, name in enumerate(wanted):
        for other_place, other in enumerate(free):
            straight = theirs[other].shape == ours[name].shape
            if straight or theirs[other].shape == ours[name].shape[::-1]:
                likeness = difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
                distance = abs(place / len(wanted) - other_place / len(free))
                ranked.append((straight, likeness - distance, name, other))
    guessed: dict[str, WeightSource] = {}
    used: set[str] = set()
    for straight, _, name, other in sorted(ranked, key=lambda row: row[:2], reverse=True):
        if name not in guessed and other not in used:
            guessed[name] = WeightSource(name=other, transpose=not straight)
            used.add(other)
    return guessed


def _find(name: str, names: WeightMap) -> WeightSource | None:
    for written in _written(name):
        if written in names.weights:
            return _taken(names.weights[written])
    for ours, taken in names.weights.items():
        for written in _written(name):
            captured = _pattern(ours).fullmatch(written) if _WILD in ours else None
            if captured:
                found = _taken(taken)
                first, *others = found.name.split(_WILD)
                filled = "".join(text + part for text, part in zip(captured.groups(), others, strict=False))
                return WeightSource(name=first + filled, transpose=found.transpose)
    return None


def _written(name: str) -> tuple[str, str]:
    """The names that a map may use for one of our weights: with and without its kind."""
    return name, name.partition("/")[2]


def _taken(given: str | WeightSource) -> WeightSource:
    return WeightSource(name=given) if isinstance(given, str) else given


def _pattern(ours: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, ours.split(_WILD))))


def _converted(given: NDArray[Any], needed: NDArray[Any], name: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        array = np.array(given, dtype=needed.dtype, order="C")
    if not np.isfinite(array).all():
        raise BadWeightMap(f"weight {name!r} has values that are not finite as {needed.dtype}")
    return array
