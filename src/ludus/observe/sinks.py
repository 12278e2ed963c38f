"""Outputs of metrics that need a library: Weights & Biases, Prometheus and TensorBoard."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from netrc import NetrcParseError, netrc
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec

from ludus.observe.metric_names import find_metric, series_name
from ludus.observe.metrics import Row, require_library
from ludus.store.files import atomic_write
from ludus.store.run_folder import RunFolder
from ludus.system.network import Strangers
from ludus.system.text import without_logins

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


Mode = Literal["online", "offline"]
CONNECT_S = 3.0
"""A host that does not answer within this is out of reach."""
INIT_S = 15.0
PROJECT = "ludus"


@dataclass(frozen=True, kw_only=True, slots=True)
class WandB:
    """A run of Weights & Biases per run folder, that a resumed run goes on with. The environment (WANDB_PROJECT, ...)
    has the key, and what is left out here. Without a key, or a host that answers, the run is kept offline."""

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
    """The library's run, and the reason if it is offline against the settings."""
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


LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
ADDRESS_FILE = "prometheus.url"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prometheus:
    """The newest value of every metric at http://127.0.0.1:PORT/metrics, for this machine alone."""

    port: int = 9464
    """0: any free one. `metrics/prometheus.url` says where it is."""
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port must be from 0 to 65535, got {self.port}")

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> PrometheusSink:
        return PrometheusSink(folder, self.port)

    def require(self) -> None:
        require_library("Prometheus", "prometheus_client", "prometheus")

    def where(self, folder: RunFolder) -> str:
        if self.port:
            return f"Prometheus: http://{LOOPBACK}:{self.port}/metrics"
        return f"Prometheus: see {folder.metrics / ADDRESS_FILE}"


MOST_SCRAPES = 16
"""Connections at the same time; the oldest makes room for the next."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, but not for any number of them."""

    daemon_threads = True
    request_queue_size = 128  # with 5, the usual, a few half requests would delay the next for seconds

    def __init__(self, *args: Any) -> None:
        self._strangers = Strangers(MOST_SCRAPES)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._strangers.add(request, partial(_hang_up, request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._strangers.remove(request)
        super().shutdown_request(request)


def _hang_up(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)  # its thread closes it


class _QuietHandler(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is not worth a line."""


def known_hosts_only(app: WSGIApplication) -> WSGIApplication:
    """Reject requests under other host names: another site's name may be made to point to this machine."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", "").partition(":")[0] in HOSTS:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [f"this is for {' and '.join(HOSTS)} only\n".encode()]

    return answer


class PrometheusSink:
    """A metric that has not been measured of late keeps its last value. All have the label `run`."""

    def __init__(self, folder: RunFolder, port: int) -> None:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        self._run = folder.path.resolve().name
        self._latest: dict[str, float] = {}
        self._lock = threading.Lock()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server = make_server(
                LOOPBACK, port, known_hosts_only(make_wsgi_app(registry)), _MetricsServer, _QuietHandler
            )
        except OSError as error:
            raise OSError(error.errno, f"port {port} of {LOOPBACK}: {error.strerror}") from error
        self.url = f"http://{LOOPBACK}:{self._server.server_port}/metrics"
        self._address = folder.metrics / ADDRESS_FILE
        atomic_write(self._address, f"{self.url}\n".encode(), sync=False)
        self._thread = threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True)
        self._thread.start()

    def write(self, rows: Sequence[Row]) -> None:
        with self._lock:
            for row in rows:
                self._latest |= {name: value for name, value in row.items() if value is not None}

    def close(self) -> None:
        self._address.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Any]:
        """Called by the library for every scrape."""
        from prometheus_client.core import Metric

        with self._lock:
            latest = dict(self._latest)
        families: dict[str, Any] = {}
        for name, value in latest.items():
            found = find_metric(name)
            series = series_name(found.metric)
            if series not in families:
                unit = f" ({found.metric.unit})" if found.metric.unit else ""
                families[series] = Metric(
                    series.removesuffix("_total"),  # which the library adds to what counts
                    found.metric.meaning + unit,
                    "counter" if found.metric.counts else "gauge",
                )
            families[series].add_sample(series, {"run": self._run, **found.labels}, value)
        yield from families.values()


FOLDER = "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBoard:
    """Event files in `metrics/tensorboard`, with decisions as steps."""

    from_start: ClassVar[bool] = False

    def open(self, folder: RunFolder, tell: Callable[[str], None]) -> TensorBoardSink:
        return TensorBoardSink(folder.metrics / FOLDER)

    def require(self) -> None:
        require_library("TensorBoard", "tensorboardX", "tensorboard")

    def where(self, folder: RunFolder) -> str:
        return f"TensorBoard: tensorboard --logdir {folder.metrics / FOLDER}"


class TensorBoardSink:
    """A run that falls back to a checkpoint begins a new file, which says from which step on earlier rows are void."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._step = -1

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            step = int(row["decisions"] or 0)
            if self._writer is None or step < self._step:
                self._begin(step)
            self._step = step
            for name, value in row.items():
                if value is not None and name not in ("time", "decisions"):
                    self._writer.add_scalar(name, value, step, row.get("time"))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, step: int) -> None:
        from tensorboardX import SummaryWriter  # a second of loading that other outputs do without

        self.close()
        # By itself, its name has seconds only, and a file of the same second would be written over.
        suffix = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(self._folder), purge_step=step, filename_suffix=suffix)
