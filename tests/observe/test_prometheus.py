"""The endpoint as Prometheus reads it, and the dashboard and its settings that ship for it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ludus.observe.metric_names import METRICS, series_name
from ludus.observe.sinks import Prometheus, PrometheusSink
from ludus.store.run_folder import RunFolder

GRAFANA = Path(__file__).parent.parent.parent / "deploy" / "grafana"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"name": "made up"}, seed=0, command=())


def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_players_and_heads_are_labels(folder: RunFolder) -> None:
    with closing(PrometheusSink(folder, 0)) as sink:
        assert (folder.metrics / "prometheus.url").read_text() == f"{sink.url}\n"
        sink.write(({"decisions": 10, "main/entropy": 0.5, "time": 1.0}, {"decisions": 20, "x/entropy": None}))
        sink.write([{"main/entropy.unit": 0.25, "cluster/nodes": 3, 'a"b\nc/own': 7.0, "own": 8.0}])
        found = samples(sink.url)
    run = ("run", "run")
    assert found == {
        ("ludus_decisions_total", (run,)): 20,
        ("ludus_time", (run,)): 1.0,
        ("ludus_entropy", (("player", "main"), run)): 0.5,
        ("ludus_entropy_by_head", (("head", "unit"), ("player", "main"), run)): 0.25,
        ("ludus_cluster_nodes", (run,)): 3,
        ("ludus_own", (("player", 'a"b\nc'), run)): 7.0,
        ("ludus_own", (run,)): 8.0,
    }
    assert not (folder.metrics / "prometheus.url").exists()


def test_nobody_elsewhere_is_answered(folder: RunFolder) -> None:
    with closing(PrometheusSink(folder, 0)) as sink:
        port = int(sink.url.split(":")[2].partition("/")[0])
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def test_half_requests_hold_no_thread_for_long(folder: RunFolder) -> None:
    before = threading.active_count()
    with closing(PrometheusSink(folder, 0)) as sink, ExitStack() as ending:
        port = int(sink.url.split(":")[2].partition("/")[0])
        for _ in range(60):
            half = ending.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            half.sendall(b"GET /metrics HTT")
        sink.write([{"decisions": 10}])
        assert len(samples(sink.url)) == 1
        until = time.monotonic() + 5.0  # half of what a silent connection may take
        while threading.active_count() > before + 20 and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before + 20


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("evil.example", 403)])
def test_a_name_that_is_made_to_point_here_gets_no_answer(folder: RunFolder, host: str, status: int) -> None:
    with closing(PrometheusSink(folder, 0)) as sink:
        port = int(sink.url.split(":")[2].partition("/")[0])
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        asking.request("GET", "/metrics", headers={"Host": f"{host}:{port}"})
        assert asking.getresponse().status == status
        asking.close()


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="port must be from 0 to 65535, got 70000"):
        Prometheus(port=70_000)


def queries(dashboard: Mapping[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["query"]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((GRAFANA / "ludus.json").read_text(encoding="utf-8"))
    asked = {name for query in queries(dashboard) for name in re.findall(r"\bludus_\w+", query)}
    assert asked <= {series_name(metric) for metric in METRICS}
    assert {"ludus_decisions_total", "ludus_entropy", "ludus_episode_reward", "ludus_lag"} <= asked
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_settings_that_ship_name_the_default_port() -> None:
    settings = yaml.safe_load((GRAFANA / "prometheus.yml").read_text(encoding="utf-8"))
    [job] = settings["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"127.0.0.1:{Prometheus().port}"]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """The real one, with the settings that ship but for the port and the pace; gives its address."""
    settings = (GRAFANA / "prometheus.yml").read_text(encoding="utf-8")
    settings = settings.replace("9464", str(target)).replace("15s", "1s")
    (folder / "prometheus.yml").write_text(settings)
    port = free_port()
    program = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def ask(server: str, query: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{server}/api/v1/query?query={urllib.parse.quote(query)}", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except OSError:  # it has not started yet
        return []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus")
def test_a_real_prometheus_scrapes_a_real_training(tmp_path: Path) -> None:
    run, port = tmp_path / "kuhn", free_port()
    train = [sys.executable, "-m", "ludus.cli.main", "train", "kuhn", "--run", str(run), "--quiet"]
    settings = ["--set", "budget=100000000", "--set", f"metrics=[{{type: Prometheus, port: {port}}}]"]
    dashboard = json.loads((GRAFANA / "ludus.json").read_text(encoding="utf-8"))
    with (
        subprocess.Popen([*train, *settings], stdout=subprocess.DEVNULL) as training,
        prometheus(tmp_path, port) as server,
    ):
        try:
            deadline = time.monotonic() + 120
            growing = "rate(ludus_decisions_total[10s]) > 0"
            while not (ask(server, growing) and ask(server, "ludus_episode_reward")):
                assert time.monotonic() < deadline, (tmp_path / "prometheus.log").read_text()
                assert training.poll() is None
                time.sleep(0.5)
            [entropy] = ask(server, "ludus_entropy")
            assert entropy["metric"]["player"] == "main"
            assert entropy["metric"]["run"] == "kuhn"
            for query in queries(dashboard):
                if not query.startswith("label_values"):
                    filled = query.replace("$run", "kuhn").replace("$player", ".*")
                    filled = filled.replace("$__rate_interval", "10s")
                    with urllib.request.urlopen(
                        f"{server}/api/v1/query?query={urllib.parse.quote(filled)}", timeout=10
                    ) as answer:
                        assert json.load(answer)["status"] == "success"
        finally:
            training.terminate()
            training.wait(60)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
