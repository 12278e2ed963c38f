"""Every page by the rules of axe-core, wide and narrow, dark and light: of a finished run, one that begins, one that
lost players, and an empty folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted_runs import BOTTLENECK, WORKERS, plant, status_of
from planted_studies import plant_study
from watched_runs import watched

from ludus.data.records import PlayerAbsent
from ludus.evaluation.play.replays import replay_reader
from ludus.observe.report import write_report
from ludus.store.run_control import write_status
from ludus.store.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    RequireAccessible = Callable[[Page, str], None]

pytestmark = [pytest.mark.slow, pytest.mark.ci]
OF_A_RUN = ("overview", "league", "player", "player/main", "player/main.3", "top", "matches", "games", "training")
OF_A_FOLDER = ("runs", "compare", "studies")
RUNS = ("finished", "begins", "lost", "empty")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("runs")
    plant(folder / "finished")
    begins = plant(folder / "begins", snapshots=1, matches=0)
    (begins.metrics / "train.jsonl").unlink()
    status = status_of("training", workers=WORKERS, bottleneck=BOTTLENECK, decisions=0, started=time.time())
    write_status(begins.status, status)
    with closing(plant(folder / "lost").ledger()) as ledger:
        ledger.append([PlayerAbsent(f"main.{number}", "cut short") for number in (2, 3, 4)])
    (folder / "empty").mkdir()
    shutil.copy(folder / "finished" / "run.json", folder / "empty" / "run.json")
    plant_study(folder / "magnet")
    with ExitStack() as stack:
        stack.enter_context(begins.lock())
        yield stack.enter_context(watched(folder))


def opened(browser: Browser, url: str, width: int, scheme: str) -> Page:
    height = 900 if width > 800 else 844
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}).new_page()
    page.goto(url)
    return page


def look_at(page: Page, views: tuple[str, ...], what: str, require_accessible: RequireAccessible) -> None:
    for view in views:
        page.evaluate("view => { location.hash = view }", view)
        page.locator("main .panel:visible, main .problem:visible").first.wait_for()
        page.wait_for_timeout(150)  # what is drawn after the first document
        require_accessible(page, f"{what}, {view}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{what}, {view}"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (390, "light")])
def test_the_pages_of_runs(
    address: str, browser: Browser, width: int, scheme: str, require_accessible: RequireAccessible
) -> None:
    page = opened(browser, address, width, scheme)
    look_at(page, OF_A_FOLDER, f"list at {width}, {scheme}", require_accessible)
    for run in RUNS:
        page.goto(f"{address}run/{run}/")
        look_at(page, OF_A_RUN, f"{run} at {width}, {scheme}", require_accessible)
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_report(
    browser: Browser, width: int, scheme: str, tmp_path: Path, require_accessible: RequireAccessible
) -> None:
    folder: RunFolder = plant(tmp_path / "planted")
    path = folder.path / "report.html"
    write_report(folder, path, replay_reader(folder, trusted=False))
    page = opened(browser, path.as_uri(), width, scheme)
    look_at(page, OF_A_RUN, f"report at {width}, {scheme}", require_accessible)
    page.context.close()
