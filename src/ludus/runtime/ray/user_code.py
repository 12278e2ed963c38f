"""Transfer of the user's own code to the nodes: files and packages that an experiment names and that are not
installed. All nodes must have the same code of Ludus, which its digest shows."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import socket
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import ray

from ludus.config import ConfigError
from ludus.runtime.ray.connection import TemporaryHome, node_name
from ludus.store.files import safe_name
from ludus.store.run_folder import RunFacts, RunFolder
from ludus.workers.messages import CODE

MOST_BYTES = 64 * 2**20
_INSTALLED = tuple(sysconfig.get_path(place) for place in ("stdlib", "purelib", "platlib"))
_LUDUS = Path(__file__).parents[2]
_SKIPPED = {"__pycache__", ".git", ".venv", "node_modules"}


class CodeArchive(msgspec.Struct, frozen=True):
    """A folder of user code: its path on the controller's node and its files, zipped."""

    folder: str
    content: bytes


@cache
def ludus_digest() -> str:
    """The digest of the source of this installation of Ludus."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(_LUDUS.rglob("*.py")):
        digest.update(file.relative_to(_LUDUS).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def pack_code(experiment: Any) -> list[CodeArchive]:
    """Pack the code that an experiment (as JSON values) names: a file with the Python files and packages beside it,
    and whole packages that are not installed."""
    files = {Path(place).parent for place in _named(experiment) if place.endswith(".py")}
    packages = {_package(place) for place in _named(experiment) if not place.endswith(".py")}
    found = {folder: list(_beside(folder)) for folder in files if folder.is_dir()}
    for package in packages - {None}:
        assert package is not None
        found.setdefault(package.parent, []).extend(_inside(package))
    return [CodeArchive(str(folder), _zip(folder, sorted(set(paths)))) for folder, paths in found.items()]


def unpack_code(code: list[CodeArchive], place: Path) -> dict[str, str]:
    """Unpack the folders below `place`. Returns the new path of each."""
    places = {}
    for number, one in enumerate(code):
        target = place / str(number)
        target.mkdir(parents=True)
        with zipfile.ZipFile(io.BytesIO(one.content)) as packed:
            packed.extractall(target)
        places[one.folder] = str(target)
    return places


def moved(experiment: Any, places: dict[str, str]) -> Any:
    """The experiment with paths of packed folders replaced by those of this node."""
    if isinstance(experiment, dict):
        return {key: moved(value, places) for key, value in experiment.items()}
    if isinstance(experiment, list):
        return [moved(value, places) for value in experiment]
    if isinstance(experiment, str):
        for folder in sorted(places, key=len, reverse=True):
            if experiment.startswith(f"{folder}/"):
                return places[folder] + experiment[len(folder) :]
    return experiment


def _named(value: Any) -> Iterator[str]:
    """Files and modules of all addresses."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _named(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner)
    elif isinstance(value, str):
        place, colon, name = value.rpartition(":")
        if colon and name.replace(".", "_").isidentifier() and place:
            is_file = place.endswith(".py") and Path(place).is_absolute() and Path(place).is_file()
            if is_file or place.replace(".", "_").isidentifier():
                yield place


def _package(module: str) -> Path | None:
    """The folder, or the file, of a package that is not installed; None for all others."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or spec.origin in ("built-in", "frozen"):
        return None
    origin = Path(spec.origin)
    if origin.is_relative_to(_LUDUS) or str(origin).startswith(_INSTALLED):
        return None
    return origin.parent if spec.submodule_search_locations else origin


def _beside(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.py")
    for inner in folder.iterdir():
        if (inner / "__init__.py").is_file():
            yield from _inside(inner)


def _inside(package: Path) -> Iterator[Path]:
    if package.is_file():
        yield package
        return
    for file in package.rglob("*"):
        if file.is_file() and not _SKIPPED & set(file.relative_to(package).parts):
            yield file


def _zip(folder: Path, files: list[Path]) -> bytes:
    size = sum(file.stat().st_size for file in files)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the code in {folder} has {size / 2**20:.0f} MiB, more than the {MOST_BYTES >> 20} MiB that are "
            "sent to the nodes; move the experiment's file into a folder of its own"
        )
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for file in files:
            packed.write(file, file.relative_to(folder))
    return written.getvalue()


_SHARED = ("models", "checkpoints", "metrics", "logs")


def sees(run: str, facts: bytes) -> bool:
    """Whether this node sees the run folder itself, and not another one of that name."""
    try:
        return (Path(run) / "run.json").read_bytes() == facts
    except OSError:
        return False


class Mirror:
    """The run folder that the workers of a node use. If the node sees the real one, models, checkpoints and logs are
    links to it; otherwise `models` is the cache of the workers."""

    def __init__(self, run: str, facts: bytes, code: list[CodeArchive], *, shared: bool) -> None:
        self._home = TemporaryHome(f"ludus-site-{safe_name(Path(run).name, 'run')}-")
        self.path = self._home.path
        for part in _SHARED:
            if shared:
                (self.path / part).symlink_to(Path(run).absolute() / part)
            else:
                (self.path / part).mkdir()
        places = unpack_code(code, self.path / "code")
        written = msgspec.json.decode(facts, type=RunFacts)
        here = moved(msgspec.json.decode(written.experiment), places)
        written = msgspec.structs.replace(written, experiment=msgspec.Raw(msgspec.json.encode(here)))
        (self.path / "run.json").write_bytes(msgspec.json.encode(written))
        # Worker processes find packages by the environment, this process by its own path.
        found = [*places.values(), *filter(None, [os.environ.get("PYTHONPATH")])]
        if found:
            os.environ["PYTHONPATH"] = os.pathsep.join(found)
        sys.path[:0] = places.values()
        self.folder = RunFolder.open(self.path, trusted=True)  # the trainer has decided

    def close(self) -> None:
        self._home.close()


class NodeFacts(msgspec.Struct, frozen=True):
    """Facts of a node, before anything is started on it."""

    node_id: str
    host: str
    code: str
    digest: str
    sees_run: bool

    @classmethod
    def here(cls, run: str, facts: bytes) -> NodeFacts:
        node_id = ray.get_runtime_context().get_node_id()
        return cls(node_id, socket.gethostname(), CODE, ludus_digest(), sees(run, facts))

    @property
    def other_code(self) -> str | None:
        """Why the node cannot take part, if it has other code than this process."""
        ours = (CODE, ludus_digest())
        if (self.code, self.digest) == ours:
            return None
        return (
            f"node {node_name(self.host, self.node_id)} has {self.code} (digest {self.digest}), the controller has "
            f"{ours[0]} (digest {ours[1]}): install the same version on it"
        )
