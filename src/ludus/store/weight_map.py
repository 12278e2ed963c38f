"""Weights with foreign names: which of them are ours, what is missing, left over or of another shape."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.store.files import StoreError
from ludus.store.tensors import Arrays

_WILD = "*"


class BadWeightMap(StoreError):  # noqa: N818
    """A map of names that contradicts itself or the weights."""


class Taken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"name": "from"}):
    """Where one of our weights comes from, if more than a name has to be said."""

    name: str
    transpose: bool = False
    """The file has the two axes of this matrix the other way round."""


class WeightMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Our names to those of a file; whatever is not named keeps its name.

    Ours are KIND/PARAMETER, or PARAMETER for all kinds of seat. A `*` stands for any text; each one of the
    file's name becomes what the same one of ours stood for. A name that is written out goes before patterns,
    and of these the first that fits counts.
    """

    place: str | None = None
    """Where in the checkpoint the weights are, say `model_state_dict`; None: the one place that it has."""
    average: str | None = None
    """Where their average is, if the checkpoint has one."""
    weights: dict[str, str | Taken] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongShape:
    ours: str
    theirs: str
    needed: str
    given: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """Our weights and those of a file, name by name."""

    sources: Mapping[str, str]
    """Ours to theirs, where both are there and fit."""
    arrays: Arrays
    """Our names with the file's values."""
    missing: Mapping[str, str]
    """Ours that the file does not have, with the name that it was looked for by."""
    wrong: tuple[WrongShape, ...]
    left_over: tuple[str, ...]
    """Names of the file that nothing was taken from."""
    guesses: Mapping[str, Taken] = field(default_factory=dict)
    """For what is missing or of another shape, what is left over and would fit, by name and order."""
    nearest: Mapping[str, str] = field(default_factory=dict)
    """For what is missing and has no guess, the most similar name that is left over."""

    @property
    def is_complete(self) -> bool:
        return not self.missing and not self.wrong


def parse_map(content: Any, what: str) -> WeightMap:
    """A map from plain values, as a YAML file gives them."""
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
    """Every line of the map is about something: a name of ours that is misspelt must not pass unseen."""
    for line in names.weights:
        known = [written for name in ours for written in _written(name)]
        if line not in known and not any(_pattern(line).fullmatch(name) for name in known):
            near = _nearest(line, known)
            offer = f"; did you mean {near!r}?" if near else f"; ours are {', '.join([*ours][:4])}, ..."
            raise BadWeightMap(f"the map names {line!r}, which is none of our weights{offer}")


def match_weights(ours: Arrays, theirs: Arrays, names: WeightMap, *, prefix: str = "") -> Matching:
    """Find each of our weights in the file.

    What the map does not name is looked for under its own name, then under the name without `prefix`.
    """
    arrays: Arrays = {}
    sources: dict[str, str] = {}
    missing: dict[str, str] = {}
    wrong: list[WrongShape] = []
    for name, needed in ours.items():
        taken = _find(name, names) or _same_name(name, theirs, prefix)
        if taken.name not in theirs:
            missing[name] = taken.name
            continue
        given = theirs[taken.name].T if taken.transpose else theirs[taken.name]
        problem = _misfit(needed, given)
        if problem is None:
            arrays[name], sources[name] = _converted(given, needed, name), taken.name
        else:
            wrong.append(WrongShape(ours=name, theirs=taken.name, **problem))
    used = {*sources.values(), *(one.theirs for one in wrong)}
    left_over = tuple(name for name in theirs if name not in used)
    unmatched = [*missing, *(one.ours for one in wrong)]
    guesses = _guess(unmatched, [*left_over, *(one.theirs for one in wrong)], ours, theirs)
    nearest = {
        name: near
        for name, asked in missing.items()
        if name not in guesses and (near := _nearest(asked, left_over))
    }
    return Matching(
        sources=sources,
        arrays=arrays,
        missing=missing,
        wrong=tuple(wrong),
        left_over=left_over,
        guesses=guesses,
        nearest=nearest,
    )


def _guess(wanted: Sequence[str], free: Sequence[str], ours: Arrays, theirs: Arrays) -> dict[str, Taken]:
    """Pairs of the same shape. Two layers of one shape are told apart by their names and their order."""
    ranked = []
    for place, name in enumerate(wanted):
        for other_place, other in enumerate(free):
            straight = theirs[other].shape == ours[name].shape
            if straight or theirs[other].shape == ours[name].shape[::-1]:
                likeness = difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()
                distance = abs(place / len(wanted) - other_place / len(free))
                ranked.append((straight, likeness - distance, name, other))
    guessed: dict[str, Taken] = {}
    used: set[str] = set()
    for straight, _, name, other in sorted(ranked, key=lambda row: row[:2], reverse=True):
        if name not in guessed and other not in used:
            guessed[name] = Taken(name=other, transpose=not straight)
            used.add(other)
    return guessed


def _find(name: str, names: WeightMap) -> Taken | None:
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
                return Taken(name=first + filled, transpose=found.transpose)
    return None


def _written(name: str) -> tuple[str, str]:
    """How a map may name one of our weights: with its kind, or without."""
    return name, name.partition("/")[2]


def _same_name(name: str, theirs: Arrays, prefix: str) -> Taken:
    short = name.removeprefix(prefix)
    return Taken(name=name if name in theirs else short)


def _taken(given: str | Taken) -> Taken:
    return Taken(name=given) if isinstance(given, str) else given


def _pattern(ours: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, ours.split(_WILD))))


def _misfit(needed: NDArray[Any], given: NDArray[Any]) -> dict[str, str] | None:
    if given.shape != needed.shape:
        hint = "transpose: true would make it fit" if given.shape[::-1] == needed.shape else ""
        return {"needed": str(needed.shape), "given": str(given.shape), "hint": hint}
    if not np.can_cast(given.dtype, needed.dtype, "same_kind"):
        return {"needed": str(needed.dtype), "given": str(given.dtype), "hint": ""}
    return None


def _converted(given: NDArray[Any], needed: NDArray[Any], name: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        array = np.array(given, dtype=needed.dtype, order="C")
    if not np.isfinite(array).all():
        raise BadWeightMap(f"weight {name!r} has values that are not finite as {needed.dtype}")
    return array


def _nearest(name: str, names: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(names), n=1)
    return close[0] if close else None
