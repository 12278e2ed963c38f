"""Metrics for Weights & Biases: sent there, or kept in the run folder for `wandb sync`."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from ludus.observe.metrics import Row, require_library
from ludus.observe.secrets import without_logins
from ludus.store.run_folder import RunFolder

Mode = Literal["online", "offline"]
CONNECT_S = 3.0
"""A host that does not answer within this is out of reach."""
INIT_S = 15.0
PROJECT = "ludus"


@dataclass(frozen=True, kw_only=True, slots=True)
class WandB:
    """A run of Weights & Biases per run folder, that a resumed run goes on with.

    What is left out here is taken from the environment (WANDB_PROJECT, WANDB_MODE, ...), where also the key
    comes from. Without a key, or a host that answers, the run is kept offline.
    """

    project: str | None = None
    """None: WANDB_PROJECT, else "ludus"."""
    entity: str | None = None
    group: str | None = None
    """None: WANDB_RUN_GROUP, else the name of the experiment."""
    name: str | None = None
    """None: WANDB_NAME, else the name of the run folder."""
    tags: tuple[str, ...] = ()
    mode: Mode | None = None
    """None: WANDB_MODE, else online."""
    from_start: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> WandBSink:
        run, problem = begin_run(self, folder)
        if problem is not None:
            tell(f"WandB is offline ({problem}); `wandb sync {run.settings.sync_dir}` sends it later")
        return WandBSink(run)

    def require(self) -> None:
        require_library("WandB", "wandb", "wandb")

    def where(self, folder: RunFolder) -> str:
        mode = self.mode or os.environ.get("WANDB_MODE", "online")
        return f"Weights & Biases: {mode}, project {_project(self)}; files in {_files(folder)}"


class WandBSink:
    """Rows are logged in order, with `decisions` as the x-axis."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._run.define_metric("*", step_metric="decisions")

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log({name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        self._run.finish()


def begin_run(output: WandB, folder: RunFolder) -> tuple[Any, str | None]:
    """The library's run, and why it is offline though nobody asked for that."""
    import wandb

    experiment = msgspec.json.decode(folder.facts.experiment)
    mode = output.mode or os.environ.get("WANDB_MODE") or "online"
    problem = why_offline() if mode == "online" else None

    def begin(mode: Any) -> Any:
        return wandb.init(
            project=_project(output),
            entity=output.entity,
            group=output.group or os.environ.get("WANDB_RUN_GROUP") or experiment.get("name"),
            name=output.name or os.environ.get("WANDB_NAME") or folder.path.resolve().name,
            tags=output.tags or None,
            id=os.environ.get("WANDB_RUN_ID") or run_id(folder),
            resume="allow",
            mode=mode,
            dir=_files(folder),
            config=dict(settings(experiment)),
            settings=wandb.Settings(console="off", silent=True, init_timeout=INIT_S, save_code=False),
        )

    if mode == "online" and problem is None:
        try:
            return begin(mode), None
        except Exception as error:  # the key is refused, the host answers nothing sensible, ...
            problem = f"{type(error).__name__}: {error}"
            wandb.teardown()
    return begin("offline" if mode == "online" else mode), problem


def why_offline() -> str | None:
    """None if there is a key and a host that can be reached."""
    import wandb

    found = wandb.setup().settings
    if not (os.environ.get("WANDB_API_KEY") or found.api_key or _stored_key(found.base_url)):
        return "no key: set WANDB_API_KEY, or run `wandb login`"
    host = urlsplit(found.base_url)
    name, port = host.hostname or "", host.port or (80 if host.scheme == "http" else 443)
    proxy = getproxies().get(host.scheme)
    if proxy and not proxy_bypass(name):
        through = urlsplit(proxy)
        name, port = through.hostname or "", through.port or 80
    try:
        socket.create_connection((name, port), CONNECT_S).close()
    except OSError as error:
        return f"{name}:{port} cannot be reached ({error.strerror or error})"
    return None


def _stored_key(base_url: str) -> bool:
    """Whether `wandb login` has left a key for this host."""
    file = os.environ.get("NETRC") or Path.home() / ".netrc"
    try:
        return netrc(str(file)).authenticators(urlsplit(base_url).hostname or "") is not None
    except (OSError, NetrcParseError):
        return False


def run_id(folder: RunFolder) -> str:
    """The same whenever this run goes on, whatever was changed in its experiment."""
    facts = (folder.path.resolve().name, folder.facts.created, folder.facts.seed, *folder.facts.command)
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:16]


def settings(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of every setting of an experiment. Names and passwords in addresses are left out."""
    if isinstance(tree, Mapping) and tree:
        for name, value in tree.items():
            yield from settings(value, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list | tuple) and tree:
        for number, value in enumerate(tree):
            yield from settings(value, f"{path}.{number}")
    elif isinstance(tree, str):
        yield path, without_logins(tree)
    else:
        yield path, tree


def _project(output: WandB) -> str:
    return output.project or os.environ.get("WANDB_PROJECT") or PROJECT


def _files(folder: RunFolder) -> str:
    """The library makes a folder `wandb` in it."""
    return os.environ.get("WANDB_DIR") or str(folder.metrics)
