"""The pages of a folder with runs over HTTP: what is opened, and what is not."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from page_requests import ask, served
from planted_runs import plant

from ludus.observe.run_list import RunList
from ludus.observe.view import RunView
from ludus.observe.web import dashboard as dashboard_module, run_list_pages as pages_module
from ludus.observe.web.dashboard import Dashboard
from ludus.observe.web.page_server import PageServer
from ludus.observe.web.run_list_pages import RunListPages
from ludus.store.run_folder import RunFolder


def no_replay(name: str) -> dict[str, object]:
    raise ValueError(f"there is no {name!r}")


opened: list[str] = []


def open_dashboard(folder: RunFolder, view: RunView) -> Dashboard:
    opened.append(folder.path.name)
    return Dashboard(view, no_replay)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plant(tmp_path / "runs" / "a", snapshots=4, matches=80)
    plant(tmp_path / "secret", snapshots=4, matches=80)
    for name in ("b", "c", "with space & more"):
        shutil.copytree(tmp_path / "runs" / "a", tmp_path / "runs" / name)
    opened.clear()
    return tmp_path / "runs"


@pytest.fixture
def server(folder: Path) -> Iterator[PageServer]:
    with closing(RunListPages(RunList(folder), open_dashboard)) as pages, served(pages.app) as found:
        yield found
        pages.close()


def test_each_run_has_its_own_dashboard(server: PageServer) -> None:
    listed = json.loads(ask(server, "/data/runs").text)
    assert {line["key"] for line in listed["runs"]} == {"a", "b", "c", "with space & more"}
    for key in ("a", "with%20space%20%26%20more"):
        page = ask(server, f"/run/{key}/")
        assert (page.status, "main.js" in page.text) == (200, True)
        assert ask(server, f"/run/{key}/main.js").status == 200
        assert len(json.loads(ask(server, f"/run/{key}/data/league").text)["players"]) > 2
        assert ask(server, f"/run/{key}/data/nothing").status == 404
    assert ask(server, "/run/a").headers["location"].endswith("/run/a/")
    assert opened == ["a", "with space & more"]


@pytest.mark.parametrize(
    "path",
    [
        "/run/",
        "/run/nobody/",
        "/run/../secret/",
        "/run/%2e%2e/secret/data/overview",
        "/run/a/../../secret/",
        "/run/a/../b/data/overview",
        "/run/..%2Fsecret/",
        "/run/a%00/",
        "/data/study/../secret",
        "/data/study/nothing",
    ],
)
def test_nothing_else_is_opened(server: PageServer, path: str) -> None:
    assert ask(server, path).status == 404
    assert "secret" not in opened


def test_a_run_that_cannot_be_read_says_so(server: PageServer, folder: Path) -> None:
    (folder / "b" / "run.json").write_text("{")
    deadline = 50
    while (answer := ask(server, "/run/b/")).status == 200 and deadline:
        deadline -= 1
        time.sleep(0.2)
    assert (answer.status, "damaged" in answer.text) == (404, True)
    assert "<" not in answer.text
    shown = ask(server, "/run/b/", accept="text/html")
    assert (shown.status, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert all(part in shown.text for part in ("<html lang=en>", "<title>", "damaged"))
    assert "<b>" not in ask(server, "/run/<b>/", accept="text/html").text


def test_comparisons_are_answered_and_wrong_ones_refused(server: PageServer) -> None:
    found = ask(server, "/data/compare?run=a&run=b&of=rating")
    assert [line["key"] for line in json.loads(found.text)["lines"]] == ["a", "b"]
    for wrong in ("of=everything", "over=miles", "path=/etc", "of=metric&name=%1b[2J&over=%1b"):
        refused = ask(server, f"/data/compare?run=a&{wrong}")
        assert (refused.status, "\x1b" in refused.text) == (400, False)


def test_dashboards_that_nobody_looks_at_make_room(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "MOST_OPEN", 1)
    monkeypatch.setattr(dashboard_module, "IDLE_AFTER_S", -1.0)
    for key in ("a", "b", "a"):
        assert ask(server, f"/run/{key}/data/overview").status == 200
    assert opened == ["a", "b", "a"]
