"""Where a model from elsewhere is: in another run, in a file, on the web, or under a name in an index.

RUN#PLAYER, RUN#PLAYER@TAG, RUN#PLAYER:INCARNATION:STEP   a model of another run; /live or /average behind it
FILE or FILE#sha256=DIGITS                                a file of weights
URL or URL#sha256=DIGITS                                  a file of weights on the web
NAME                                                      an entry of an index of models
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import msgspec

from ludus.data.records import ModelId, PlayerAdded
from ludus.store.downloads import parse_digest
from ludus.store.files import UNREADABLE, StoreError
from ludus.store.model_pool import VARIANTS, ModelPool, UnknownModel, Variant
from ludus.store.run_folder import RunFolder
from ludus.store.web import fetch_text, is_url

_DIGEST = "sha256="
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

    url: str
    """From the index on, if it is relative."""
    sha256: str
    description: str = ""


def find_address(text: str, *, index: str | None = None) -> Address:
    """What an address means. Looks at disk, and at the index for a name; fetches no weights."""
    if is_url(text):
        url, fragment = urldefrag(text)
        return WebFile(url=url, sha256=_fragment_digest(text, fragment))
    if Path(text).is_file():
        return LocalFile(path=Path(text))
    place, hash_sign, rest = text.rpartition("#")
    if hash_sign and rest.startswith(_DIGEST):
        return LocalFile(path=_existing(place), sha256=_fragment_digest(text, rest))
    if hash_sign:
        return _find_in_run(RunFolder.open(place), rest)
    if Path(text).is_dir():
        players = _players(RunFolder.open(text).models)
        raise BadAddress(f"{text} is a run: which model? write {text}#PLAYER; there are {players}")
    if "/" in text or text.endswith(_FILE_ENDINGS):
        return LocalFile(path=_existing(text))
    return _find_in_index(text, index)


def read_index(place: str) -> dict[str, IndexEntry]:
    """The models of an index, a JSON file on disk or on the web: name -> url, sha256, description."""
    content = fetch_text(place).encode() if is_url(place) else Path(place).read_bytes()
    try:
        return msgspec.json.decode(content, type=dict[str, IndexEntry])
    except UNREADABLE as error:
        raise BadAddress(f"index {place} does not read: {error}") from error


def added_players(run: RunFolder) -> dict[str, PlayerAdded]:
    """Every player that the league ever had, as the ledger tells."""
    if not run.ledger_path.exists():
        return {}
    with run.ledger(read_only=True) as ledger:
        added = [event for _, event in ledger.replay() if isinstance(event, PlayerAdded)]
    return {event.player: event for event in added}


def _find_in_index(name: str, index: str | None) -> Address:
    if index is None:
        raise BadAddress(
            f"{name!r} is no file, URL or RUN#PLAYER; for a name, say in which index: --index or"
            " LUDUS_MODEL_INDEX"
        )
    entries = read_index(index)
    if name not in entries:
        raise BadAddress(f"no model {name!r} in index {index}{_nearest(name, entries)}")
    entry = entries[name]
    digest = parse_digest(entry.sha256)
    if is_url(entry.url) or is_url(index):
        return WebFile(url=urljoin(index, entry.url), sha256=digest)
    return LocalFile(path=_existing(str(Path(index).parent / entry.url)), sha256=digest)


def _find_in_run(run: RunFolder, text: str) -> RunModel:
    """A model by the name it has in the pool, or by the name of a frozen player of the league. Of its two
    sets of weights the one that such a player plays with and was measured with, else the live one."""
    name, slash, variant = text.rpartition("/")
    if not slash:
        name, variant = text, ""
    elif variant not in VARIANTS:
        raise BadAddress(f"{run.path}#{text}: no weights {variant!r}; there are {', '.join(VARIANTS)}")
    frozen = {player: one for player, one in added_players(run).items() if one.role == "frozen"}
    named = frozen.get(name)
    model = _resolve(run, name) if named is None or named.model is None else ModelId.parse(named.model)
    pinned = [named] if named is not None else [one for one in frozen.values() if one.model == str(model)]
    weights = variant or (pinned[-1].weights if pinned else "live")
    chosen: Variant = "average" if weights == "average" else "live"
    run.models.entry(model, chosen)
    return RunModel(run=run, model=model, variant=chosen)


def _resolve(run: RunFolder, name: str) -> ModelId:
    try:
        return run.models.resolve(name)
    except UnknownModel as error:
        added = [player for player, one in added_players(run).items() if one.role != "scripted"]
        known = dict.fromkeys([*added, *(entry.model.player for entry in run.models.entries())])
        if ":" in name or "@" in name or not known:
            raise
        raise BadAddress(f"no player {name!r} in run {run.path}{_nearest(name, known)}") from error


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
    close = difflib.get_close_matches(path.name, beside, n=1)
    offer = f"; did you mean {path.parent / close[0]}?" if close else ""
    raise BadAddress(f"no file {place}{offer}")


def _players(pool: ModelPool) -> str:
    names = {entry.model.player: None for entry in pool.entries()}
    return ", ".join([*names][:8]) or "none yet"


def _nearest(wrong: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(wrong, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(names[:8])}" if names else "; it is empty"
