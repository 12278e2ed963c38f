"""The report in a real browser, from a file and without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from planted_runs import plant

from ludus.evaluation.play.replays import replay_reader
from ludus.observe.report import write_report
from ludus.store.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.ci]

HOSTILE = "<img src=x onerror=alert(1)></script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: RunFolder = plant(tmp_path_factory.mktemp("report") / "planted", name=HOSTILE)
    path = folder.path / "report.html"
    write_report(folder, path, replay_reader(folder, trusted=False))
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_view_is_drawn_from_the_file(
    address: str, open_page: Callable[..., Page], keep_picture: Callable[[Page, str], None], width: int, scheme: str
) -> None:
    page = open_page("about:blank", width=width, scheme=scheme)
    page.context.set_offline(True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    for view in ("overview", "league", "player/main", "top", "matches"):
        page.evaluate("view => { location.hash = view }", f"#{view}")
        page.wait_for_selector("main .panel")
        assert page.locator(".problem:visible").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        keep_picture(page, f"report_{view.replace('/', '_')}_{width}_{scheme}")
    assert page.locator("#experiment").text_content() == HOSTILE
    assert page.locator("img").count() == 0
    assert all(url.startswith(("file:", "data:")) for url in asked)


def test_the_appendix_opens(address: str, open_page: Callable[..., Page]) -> None:
    page = open_page(address, width=390)
    page.locator("#appendix summary").first.click()
    assert page.locator("#appendix pre").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_paper_has_all_of_it(
    address: str, open_page: Callable[..., Page], keep_picture: Callable[[Page, str], None]
) -> None:
    page = open_page(address)
    page.locator(".verdict", has_text="main").wait_for()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = page.locator(".printed")
    told = printed.inner_text()
    for title in ("Overview", "League", "Players", "Spinning top", "Matches", "Games", "Training"):
        assert printed.locator("> h2", has_text=title).count() == 1
    for part in ("Who beats whom", "Lineage", "Layers, strongest first", "Value loss", "main.3"):
        assert part in told, part
    assert printed.locator(".plot canvas").count() >= 5
    too_wide = "one => [...one.querySelectorAll('.panel')].filter((part) => part.scrollWidth > part.clientWidth).length"
    assert printed.evaluate(too_wide) == 0
    assert page.locator("#appendix pre").first.is_visible()
    keep_picture(page, "report_paper")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert printed.count() == 0
    assert page.locator("main .verdict").is_visible()
