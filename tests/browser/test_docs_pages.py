"""The site of the documentation in a real browser, from the disk: search, pictures and the embedded report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from doc_blocks import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(REPOSITORY / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, "-d", str(folder)], check=True, env=environment, capture_output=True)
    return folder


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
@pytest.mark.parametrize("name", ["index", "gallery", "live-report", "figures/index"])
def test_pages_show_their_pictures(
    site: Path,
    open_page: Callable[..., Page],
    keep_picture: Callable[[Page, str], None],
    name: str,
    width: int,
    scheme: str,
) -> None:
    page = open_page((site / f"{name}.html").as_uri(), width=width, scheme=scheme)
    page.wait_for_load_state("load")
    sizes = page.eval_on_selector_all("article img", "pictures => pictures.map(one => one.naturalWidth)")
    assert all(size > 0 for size in sizes)
    assert sizes or name == "live-report"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep_picture(page, f"site_{name.replace('/', '_')}_{width}_{scheme}")


def test_the_search_finds_a_page_from_the_disk(site: Path, open_page: Callable[..., Page]) -> None:
    page = open_page((site / "tutorials" / "first-league.html").as_uri(), width=1440)
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").press_sequentially("exploitability")
    found = page.locator(".md-search-result__link").first
    found.wait_for()
    found.click()
    page.wait_for_url("**/exploitability.html*")


def test_the_report_is_live(site: Path, open_page: Callable[..., Page]) -> None:
    page = open_page((site / "live-report.html").as_uri(), width=1440)
    report = page.frame_locator("iframe.report")
    report.locator("main .panel").first.wait_for()
    report.locator("a[href='#league']").first.click()
    report.get_by_text("alpha_beta_2").first.wait_for()
