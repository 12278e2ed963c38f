"""A real Chromium for the tests of pages: Debian's, driven by playwright. What a page complains about fails
its test.

LUDUS_SCREENSHOTS=DIR keeps what was seen.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium here: apt install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[browser]' adds playwright")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """open_page(url, width=1280, scheme="light") -> a page of its own, without cookies of the others."""
    contexts, complaints = [], []

    def open_one(url: str, *, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        for page in context.pages:  # a handler that is still at work would fail in the next test
            page.unroute_all(behavior="wait")
        context.close()
    assert complaints == []


def is_complaint(said: ConsoleMessage) -> bool:
    """Whether something is wrong. A page that outlives its server looks for it in vain, on a slow machine before it is
    closed."""
    return said.type in ("error", "warning") and "ERR_CONNECTION_REFUSED" not in said.text


@pytest.fixture
def keep_picture() -> Callable[[Page, str], None]:
    def keep(page: Page, name: str) -> None:
        if folder := os.environ.get("LUDUS_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return keep


@pytest.fixture
def require_accessible() -> Callable[[Page, str], None]:
    """Fails the test if axe-core finds anything wrong on a page, by all of its rules."""
    axe = pytest.importorskip("axe_playwright_python", reason="pip install -e '.[browser]' adds axe-core")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def look(page: Page, what: str) -> None:
        page.evaluate(script)
        found = page.evaluate("axe.run()")
        assert len(found["passes"]) > 10, f"{what}: axe has hardly found anything to look at"
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == [], what

    return look
