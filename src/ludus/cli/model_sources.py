"""From the address of a model to its weights, wherever they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ludus.store.downloads import DownloadRules, download, file_digest
from ludus.store.files import StoreError
from ludus.store.model_addresses import LocalFile, RunModel, WebFile, find_address
from ludus.store.tensors import Arrays
from ludus.workers.foreign_weights import read_foreign

INDEX_VARIABLE = "LUDUS_MODEL_INDEX"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Which weights are wanted, and what is known about them."""

    address: str
    place: str | None = None
    """Where in a checkpoint they are, and where their average is."""
    average: str | None = None
    sha256: str | None = None
    index: str | None = None
    rules: DownloadRules = field(default_factory=DownloadRules)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Weights from elsewhere, by the names that they have there."""

    label: str
    weights: Arrays
    average: Arrays | None = None
    place: str = ""
    facts: Mapping[str, str | int | float]
    """What a pool keeps about them."""
    checked: str
    """What their digest was compared with, in words."""
    name: str
    """A player's id that suggests itself."""
    networks: Any = None
    """What the run that they come from says about its networks, as plain values."""
    downloaded: Path | None = None

    def discard(self) -> None:
        """They are in a pool: a download is no longer needed."""
        if self.downloaded is not None:
            self.downloaded.unlink(missing_ok=True)


def fetch_source(wish: Wish) -> Source:
    """The weights at an address; writes nothing but the cache of downloads."""
    match find_address(wish.address, index=wish.index or os.environ.get(INDEX_VARIABLE) or None):
        case RunModel() as there:
            return _from_run(there, wish)
        case LocalFile(path=path, sha256=sha256):
            return _from_file(path, wish.sha256 or sha256, wish)
        case WebFile(url=url, sha256=sha256):
            return _from_web(url, wish.sha256 or sha256, wish)


def _from_run(there: RunModel, wish: Wish) -> Source:
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
        networks=experiment.get("model") if isinstance(experiment, dict) else None,
    )


def _from_file(path: Path, sha256: str | None, wish: Wish) -> Source:
    found = file_digest(path)
    _require_digest(str(path), found, sha256)
    checked = f"sha256:{found}" + (", as expected" if sha256 else "")
    return _read(path, wish, label=str(path), digest=found, checked=checked)


def _from_web(url: str, sha256: str | None, wish: Wish) -> Source:
    with _progress() as advance:
        fetched = download(url, sha256=sha256, rules=wish.rules, report=_say, advance=advance)
    against = fetched.checked_by
    checked = f"sha256:{fetched.sha256}, " + (
        f"as {against} says" if against else f"compared with nothing: no --digest, and no file {url}.sha256"
    )
    return _read(
        fetched.path, wish, label=url, digest=fetched.sha256, checked=checked, downloaded=fetched.path
    )


def _read(
    path: Path, wish: Wish, *, label: str, digest: str, checked: str, downloaded: Path | None = None
) -> Source:
    foreign = read_foreign(path)
    place = wish.place or foreign.find_place()
    is_name = wish.address.partition("#")[0] != label  # of an index
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
    click.echo(text, err=True)


@contextmanager
def _progress() -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal; elsewhere nothing."""
    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
