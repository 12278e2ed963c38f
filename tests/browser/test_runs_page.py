"""The list of runs, their comparison and the studies in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import LUDUS
from planted_runs import plant, status_of
from planted_studies import plant_study
from watched_runs import league_json, watched

from ludus.store.run_control import write_status
from ludus.store.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Page

    OpenPage = Callable[..., Page]
    KeepPicture = Callable[[Page, str], None]

pytestmark = [pytest.mark.slow, pytest.mark.ci]
HOSTILE = '<img src=x onerror="document.title = 1">'
ROWS = "table:has(caption:text-is('Runs')) tbody tr"
VIEWS = ("runs", "compare", "studies", "studies/magnet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("several") / "runs"
    plant(runs / "good", trial=HOSTILE)
    failed = plant(runs / "failed", snapshots=4, matches=80)
    write_status(failed.status, status_of("failed"))
    shutil.copytree(runs / "good", runs / "torn")
    (runs / "torn" / "run.json").write_text("{")
    (runs / "photos").mkdir()
    plant_study(runs / "magnet")
    return runs


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with watched(folder) as url:
        yield url


def shown(page: Page, view: str) -> Page:
    page.evaluate("view => { location.hash = view }", view)
    page.locator("main .panel").first.wait_for()
    return page


def study_json(study: Path) -> Any:
    told = subprocess.run([*LUDUS, "study", "show", str(study), "--json"], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def test_the_list_tells_what_each_run_is(
    folder: Path, address: str, open_page: OpenPage, keep_picture: KeepPicture
) -> None:
    page = open_page(address, width=1440)
    page.locator("#state", has_text="9 runs").wait_for()
    expected = league_json(folder / "good")
    best = expected["tags"]["main"]["best"]["player"]
    elo = next(one["elo"] for one in expected["players"] if one["id"] == best)
    row = page.locator(ROWS, has=page.get_by_role("link", name="good", exact=True))
    row.locator("td", has_text=best).first.wait_for()  # its verdict was read
    cells = row.locator("th, td").all_inner_texts()
    assert cells[2:4] == ["finished", f"connect_four, trial {HOSTILE}"]
    sign = "+" if elo > 0 else "\N{MINUS SIGN}"
    assert cells[6] == f"{best} {sign}{abs(round(elo))}"
    assert "damaged" in page.locator(ROWS, has_text="torn").inner_text()
    assert "photos: neither a run nor a study" in page.locator("main").inner_text()
    assert page.locator("img").count() == 0
    keep_picture(page, "runs")
    # Filters and order.
    page.get_by_label("state").select_option("failed")
    assert page.locator(ROWS).count() == 1
    page.get_by_label("state").select_option("")
    page.get_by_label("search").fill("magnet seed1")
    assert page.locator(ROWS).count() == 2
    page.get_by_label("search").fill("")
    page.get_by_role("button", name="run", exact=True).click()
    names = page.locator(f"{ROWS} td:nth-child(2) a").all_inner_texts()
    assert names[:2] == ["failed", "good"]
    assert [name.rpartition("-")[2] for name in names[2:]] == 2 * ["seed0", "seed1", "seed2"]


def test_each_opens_its_own_pages_and_leads_back(address: str, open_page: OpenPage) -> None:
    page = open_page(address, width=1440)
    page.get_by_role("link", name="magnet_weight=0.2-seed1", exact=True).click()
    page.locator("#run", has_text="magnet_weight=0.2-seed1").wait_for()
    page.locator(".verdict", has_text="main").wait_for()
    page.get_by_role("link", name="League").click()
    page.locator("table caption", has_text="Players of the league").wait_for(state="attached")
    page.get_by_role("link", name="All runs").click()
    page.locator("#state", has_text="9 runs").wait_for()


def test_chosen_runs_are_compared(folder: Path, address: str, open_page: OpenPage, keep_picture: KeepPicture) -> None:
    page = open_page(address, width=1440)
    for name in ("good", "failed"):
        page.get_by_label(f"compare {name}", exact=True).check()
    page.get_by_role("link", name="compare the 2 chosen runs").click()
    values = page.locator("table:has(caption:text-is('Compared runs')) tbody tr")
    page.locator(".legend li").nth(1).wait_for()
    for name in ("good", "failed"):
        players = {one["id"]: one for one in league_json(folder / name)["players"]}
        snapshots = [one for one in players.values() if one["parent"] == "main" and one["elo_interval"] is not None]
        rated = [one for one in snapshots if one["elo_interval"][1] - one["elo_interval"][0] <= 400]
        newest = max(rated, key=lambda one: one["decisions"])
        told = values.filter(has_text=name).locator("td").first.inner_text().split()
        assert float(told[0].replace("\N{MINUS SIGN}", "-")) == pytest.approx(newest["elo"], rel=0.006, abs=0.6)
    keep_picture(page, "compare")
    page.get_by_role("button", name="metric", exact=True).click()
    page.locator("#of-name").select_option("main/entropy")
    page.locator("figcaption", has_text="main/entropy").wait_for()
    page.get_by_role("button", name="without failed").click()
    page.locator(".chips li").nth(1).wait_for(state="detached")
    page.get_by_label("add").select_option("study:magnet")
    page.locator(".legend li", has_text="magnet_weight=0.05").wait_for()
    address_of_it = page.url
    again = open_page(address_of_it, width=1440)
    again.locator(".legend li", has_text="magnet_weight=0.05").wait_for()


def test_a_study_has_the_numbers_of_study_show(
    folder: Path, address: str, open_page: OpenPage, keep_picture: KeepPicture
) -> None:
    expected = study_json(folder / "magnet")
    with watched(folder / "magnet") as alone:
        for url in (address, alone):
            page = shown(open_page(url, width=1440), "studies/magnet")
            page.locator(".legend li").nth(1).wait_for()
            rows = page.locator("table:has(caption:text-is('Settings of the study')) tbody tr")
            for one, row in zip(expected["settings"], rows.all(), strict=True):
                low, high = one["mean_interval"]
                cells = row.locator("th, td").all_inner_texts()
                assert cells[0] == one["setting"]
                assert cells[1] == f"{len(one['values'])} of {one['planned']}"
                assert cells[2] == f"{one['mean']:.4g} ({low:.4g} to {high:.4g})"
            keep_picture(page, "study")
            page.close()


def test_what_happens_is_seen_without_asking_again(tmp_path: Path, open_page: OpenPage) -> None:
    run: RunFolder = plant(tmp_path / "runs" / "one")
    write_status(run.status, status_of("training", decisions=30_000))
    with run.lock(), watched(tmp_path / "runs") as url:
        page = open_page(url, width=1440)
        row = page.locator(ROWS).first
        row.locator("text=30 % of 100k").wait_for()
        row.locator("td", has_text="main.").first.wait_for()  # its verdict was read
        box = page.get_by_label("compare one", exact=True)
        box.focus()
        write_status(run.status, status_of("training", decisions=50_000))
        row.locator("text=50 % of 100k").wait_for()
        assert box.evaluate("one => one === document.activeElement")  # who works by keyboard stays there
        plant(tmp_path / "runs" / "two", snapshots=2, matches=20)
        page.locator("#state", has_text="2 runs, 1 of them live").wait_for()
        page.close()  # before the server, whose end it would complain about


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scroll(
    address: str, open_page: OpenPage, keep_picture: KeepPicture, scheme: str
) -> None:
    page = open_page(address, width=390, scheme=scheme)
    page.locator("#state", has_text="9 runs").wait_for()
    for view in VIEWS:
        shown(page, view)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        keep_picture(page, f"phone-{scheme}-{view.replace('/', '_')}")
