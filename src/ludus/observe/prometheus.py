"""Metrics for Prometheus: an endpoint that it scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, ClassVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ludus.observe.metric_names import find_metric
from ludus.observe.metrics import Row, require_library
from ludus.store.files import atomic_write
from ludus.store.run_folder import RunFolder

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

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


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is not worth a line."""


def known_hosts_only(app: WSGIApplication) -> WSGIApplication:
    """A page of somebody else's, whose name is made to point to this machine, gets no answer."""

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
                LOOPBACK, port, known_hosts_only(make_wsgi_app(registry)), _Server, _QuietHandler
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
            if found.series not in families:
                unit = f" ({found.metric.unit})" if found.metric.unit else ""
                families[found.series] = Metric(
                    found.series.removesuffix("_total"),  # which the library adds to what counts
                    found.metric.meaning + unit,
                    "counter" if found.metric.counts else "gauge",
                )
            families[found.series].add_sample(found.series, {"run": self._run, **found.labels}, value)
        yield from families.values()
