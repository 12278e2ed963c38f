"""The dashboard in a real browser: every view, its numbers, phones, keyboards, and hostile names."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import LUDUS
from planted_runs import BOTTLENECK, WORKERS, plant, status_of
from watched_runs import league_json, watched

from ludus.data.records import MatchVoid
from ludus.observe.lost_matches import NO_FAULT
from ludus.store.run_control import write_status
from ludus.store.run_folder import RunFolder
from ludus.system.network import make_token_file

if TYPE_CHECKING:
    from playwright.sync_api import Page

    OpenPage = Callable[..., Page]
    KeepPicture = Callable[[Page, str], None]

pytestmark = [pytest.mark.slow, pytest.mark.ci]
HOSTILE = '<img src=x onerror="document.title = 1">'
VIEWS = ("overview", "league", "player", "player/main", "player/main.3", "top", "matches")
SETTLED = "document.querySelectorAll('.view > p').length === 0"
"""Nothing is loading."""
FOCUSED = """(() => {
  const at = document.activeElement;
  return `${at.tagName} ${at.getAttribute("href") ?? at.textContent}`;
})()"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return plant(tmp_path_factory.mktemp("planted") / "run", trial=HOSTILE)


@pytest.fixture(scope="module")
def address(run: RunFolder) -> Iterator[str]:
    with watched(run.path) as url:
        yield url


def shown(page: Page, view: str) -> Page:
    page.evaluate("view => { location.hash = view }", view)
    wait_until(page, SETTLED)
    return page


def wait_until(page: Page, condition: str) -> None:
    """Playwright's own way would have the page evaluate text, which the page rightly refuses."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def table(page: Page, caption: str) -> list[list[str]]:
    """Cells of the rows."""
    rows = page.locator("table", has=page.locator("caption", has_text=caption)).locator("tbody tr")
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def elo(text: str) -> int:
    return int(text.replace("\N{MINUS SIGN}", "-"))


def test_the_league_shows_the_numbers_of_ludus_league(
    run: RunFolder, address: str, open_page: OpenPage, keep_picture: KeepPicture
) -> None:
    expected = league_json(run.path)
    page = shown(open_page(address), "league")
    page.locator("table", has=page.locator("caption", has_text="Players of the league")).locator(
        "tbody tr"
    ).first.wait_for()
    rows = {cells[0].split()[0]: cells for cells in table(page, "Players of the league")}
    assert set(rows) == {one["id"] for one in expected["players"]}
    place = {one["id"]: at for at, one in enumerate(expected["players"])}
    scripted = [one for one in expected["players"] if one["role"] == "scripted"]
    bots = [one["id"] for one in sorted(scripted, key=lambda one: -one["elo"])]
    for one in expected["players"]:
        cells = rows[one["id"]]
        assert cells[1] == one["role"]
        assert one["weights"] is None or one["weights"] in cells[0].split()
        assert elo(cells[2]) == pytest.approx(one["elo"], abs=0.51)
        for column, bot in enumerate(bots, start=4):  # as in the terminal, against each scripted player
            rate = None if bot == one["id"] else expected["win_rates"][place[one["id"]]][place[bot]]
            assert (
                cells[column] == "" if rate is None else int(cells[column][:-2]) == pytest.approx(100 * rate, abs=0.6)
            )
        low, high = one["elo_interval"]
        if high - low > 1:
            assert int(cells[3].strip().removeprefix("±")) == pytest.approx((high - low) / 2, abs=0.51)
        if one["equilibrium"] > 0:
            assert float(cells[5 + len(bots)].removesuffix(" %")) == pytest.approx(100 * one["equilibrium"], abs=0.06)
    said = page.locator(".panel", has_text="Players").first.inner_text()
    assert f"{expected['matches']['finished']} matches finished" in said
    assert f"{expected['matches']['void']} void" in said
    averaged = any(one["weights"] == "average" for one in expected["players"])
    for falls in (True, False):  # players with live weights are ranked apart from averaged ones
        ranked: dict[bool, list[float]] = {}
        for cells in table(page, "Players of the league"):
            ranked.setdefault(averaged and "live" not in cells[0].split(), []).append(elo(cells[2]))
        assert list(ranked) == ([False, True] if averaged else [False])
        assert [sorted(group, reverse=falls) for group in ranked.values()] == list(ranked.values())
        page.get_by_role("button", name="Elo", exact=True).click()

    # The heat map by its cursor: every pair tells the win rate of the league.
    names = [one["id"] for one in sorted(expected["players"], key=lambda one: -one["elo"])]
    label = {(one := row["id"]): f"{one} ({kind})" if (kind := row["weights"]) else one for row in expected["players"]}
    heat = page.locator(".heat canvas")
    heat.focus()
    page.keyboard.press("ArrowDown")
    told = page.locator(".told")
    for column in range(1, len(names)):
        page.keyboard.press("ArrowRight")
        row, other = place[names[0]], place[names[column]]
        games, rate = expected["games"][row][other], expected["win_rates"][row][other]
        text = told.inner_text()
        assert text.startswith(f"{label[names[0]]} against {label[names[column]]}: ")
        if games < 10:
            assert text.endswith("have met too seldom")
        else:
            assert int(re.search(r"wins (\d+) %", text)[1]) == pytest.approx(100 * rate, abs=0.6)
    with page.expect_response("**/data/top"):
        page.get_by_role("button", name="cluster", exact=True).click()
    layer_of = {
        player: number for number, layer in enumerate(expected["measures"]["layers"]) for player in layer["players"]
    }
    clustered = sorted(names, key=lambda name: layer_of.get(name, len(layer_of)))
    assert clustered != names
    page.wait_for_timeout(200)
    heat.focus()
    for _ in names[1:]:
        page.keyboard.press("ArrowLeft")
    for other in clustered[1:]:
        page.keyboard.press("ArrowRight")
        assert told.inner_text().startswith(f"{label[clustered[0]]} against {label[other]}: ")
    for order in ("joined", "rating"):
        page.get_by_role("button", name=order, exact=True).click()
    assert page.locator(".lineage a").count() > len(names)
    assert page.locator(".opponents li").count() > 0
    page.locator("figure .uplot canvas").first.wait_for()
    keep_picture(page, "league")


def test_the_overview_of_a_run_that_trains(tmp_path: Path, open_page: OpenPage, keep_picture: KeepPicture) -> None:
    folder = plant(tmp_path / "run")
    write_status(folder.status, status_of("training", workers=WORKERS, bottleneck=BOTTLENECK, restarts=3))
    with folder.lock(), watched(folder.path) as url:
        page = open_page(url)
        page.locator("#state", has_text="training, 6 %").wait_for()
        names, values = (page.locator(f".tiles {part}").all_inner_texts() for part in ("dt", "dt + dd"))
        tiles = dict(zip(names, values, strict=True))
        assert tiles["decisions/s"] == "500"
        assert tiles["restarts"] == "3"
        assert tiles["time left"].startswith("3m ")
        warnings = page.locator(".warnings li")
        assert "3 restarts of workers" in warnings.first.inner_text()
        assert "Try: ludus logs" in warnings.first.inner_text()
        assert "actors spend their time in it" in page.locator("main").inner_text()
        page.locator(".verdict", has_text="main.").wait_for()
        told = league_json(folder.path)
        assert told["tags"]["main"]["best"]["player"] in page.locator(".verdict").inner_text()
        bots = [one["id"] for one in told["players"] if one["role"] == "scripted"]
        legend = page.locator("figure", has_text="Rating of the snapshots").locator(".legend").inner_text()
        assert all(f"{bot} (scripted)" in legend for bot in bots)
        keep_picture(page, "overview")
        shown(page, "training")
        page.locator("figcaption", has_text="Entropy of the policy").wait_for()
        workers = table(page, "Workers")
        assert [cells[0] for cells in workers] == ["controller", "actor-0", "learner"]
        assert workers[1][2:4] == ["0.90 cores", "256 MiB"]
        keep_picture(page, "training")
        shown(page, "overview")
        # What happens is seen without asking again.
        write_status(folder.status, status_of("training", decisions=50_000))
        page.locator("#state", has_text="training, 50 %").wait_for()
        write_status(folder.status, status_of("finished", decisions=100_000))
        page.locator("#state", has_text="finished").wait_for()


def test_a_new_result_reaches_the_page(tmp_path: Path, open_page: OpenPage) -> None:
    folder = plant(tmp_path / "run")
    with watched(folder.path) as url:
        page = shown(open_page(url), "matches")
        first = page.locator("tbody tr").first
        first.locator("text=being played").wait_for()
        with closing(folder.ledger()) as ledger:
            ledger.append([MatchVoid(121, f"stopped: {HOSTILE}")])
        first.locator("text=void").wait_for()
        assert HOSTILE in first.inner_text()


def test_a_player_and_its_opponents(
    run: RunFolder, address: str, open_page: OpenPage, keep_picture: KeepPicture
) -> None:
    expected = league_json(run.path)
    page = shown(open_page(address), "player")
    page.get_by_role("link", name="main.3", exact=True).click()
    wait_until(page, "document.querySelector('h2')?.textContent === 'main.3'")
    opponents = page.locator("table", has=page.locator("caption", has_text="Opponents of main.3"))
    opponents.locator("tbody tr").first.wait_for()
    place = {one["id"]: at for at, one in enumerate(expected["players"])}
    rows = table(page, "Opponents of main.3")
    assert rows
    for cells in rows:
        rate = expected["win_rates"][place["main.3"]][place[cells[0].split()[0]]]
        assert rate is None or int(cells[1].split()[-2]) == pytest.approx(100 * rate, abs=0.6)
    assert any(expected["win_rates"][place["main.3"]][place[cells[0].split()[0]]] for cells in rows)
    shown(page, "player/main")
    page.locator("figcaption", has_text="Entropy").wait_for()
    text = page.locator("main").inner_text()
    assert "algorithm.clip = 0.1" in text
    assert re.search(r"algorithm\.clip\s+0\.1", text)
    assert "from fresh weights (a test)" in text
    keep_picture(page, "player")


def test_the_spinning_top(run: RunFolder, address: str, open_page: OpenPage, keep_picture: KeepPicture) -> None:
    layers = league_json(run.path)["measures"]["layers"]
    page = shown(open_page(address), "top")
    page.locator(".layers li").first.wait_for()
    listed = page.locator(".layers li").all_inner_texts()
    assert [text.rpartition(": ")[2].split(", ") for text in listed] == [layer["players"] for layer in layers]
    assert all(len(layer["players"]) == 1 for layer in layers)
    assert "Strength is a line here" in page.locator("main").inner_text()
    assert page.locator(".spinning svg").count() == 0

    def in_circles(route: Any) -> None:
        """The same league, whose two best layers beat each other in circles."""
        top = json.loads(route.fetch().text())
        first, second, *rest = top["measures"]["layers"]
        first["players"] += second["players"]
        top["measures"]["layers"] = [first, *rest]
        route.fulfill(json=top)

    page.route("**/data/top", in_circles)
    page.reload()
    page.locator(".spinning svg").wait_for()
    assert page.locator(".spinning .dot").count() == sum(len(layer["players"]) for layer in layers)
    keep_picture(page, "top")


def test_matches_are_filtered_and_paged(
    run: RunFolder, address: str, open_page: OpenPage, keep_picture: KeepPicture
) -> None:
    page = shown(open_page(address), "matches")
    page.locator("tbody tr").first.wait_for()
    with closing(run.ledger(read_only=True)) as ledger:
        voids = {event.match_id: event.reason for _, event in ledger.replay() if isinstance(event, MatchVoid)}
    left_open = {number for number, reason in voids.items() if reason in NO_FAULT and number > 21}
    newest = [str(number) for number in range(121, 21, -1) if number not in left_open]
    assert left_open
    assert [cells[0] for cells in table(page, "Matches")] == newest
    assert f"{len(newest)} shown ({len(left_open)} that a stop" in page.locator("main").inner_text()
    page.get_by_role("button", name="older ones").click()
    wait_until(page, f"document.querySelectorAll('tbody tr').length > {len(newest)}")
    page.get_by_label("state").select_option("void")
    page.locator("text=env_crash").first.wait_for()
    wait_until(page, "document.querySelectorAll('tbody tr').length < 20")
    assert all("void" in cells[3] for cells in table(page, "Matches"))
    page.get_by_label("state").select_option("")
    page.get_by_label("player").select_option("main.2")
    wait_until(page, "[...document.querySelectorAll('tbody tr')].every(row => row.innerText.includes('main.2'))")
    keep_picture(page, "matches")


def test_a_recorded_game_is_stepped_through(tmp_path: Path, open_page: OpenPage, keep_picture: KeepPicture) -> None:
    folder = plant(tmp_path / "run")
    replays = folder.path / "replays"
    command = [*LUDUS, "record", "connect_four", "random", "alpha_beta_2", "-n", "2", "--out", str(replays), "--quiet"]
    subprocess.run(command, check=True)
    first, second = sorted(replays.glob("*.replay"))
    first.rename(replays / "human-random-000117.replay")
    with watched(folder.path) as url:
        page = shown(open_page(url), "matches")
        row = page.locator("tbody tr", has=page.locator("th", has_text="117"))
        row.get_by_role("button", name="step through").click()
        page.locator(".stage .game-board").first.wait_for()
        slider = page.get_by_role("slider")
        assert slider.input_value() == "0"
        page.get_by_role("button", name="forward").click()
        assert slider.input_value() == "1"
        page.get_by_role("button", name="last").click()
        assert slider.input_value() == slider.get_attribute("max")
        page.locator(".stage .replay").focus()
        page.keyboard.press("ArrowLeft")
        assert int(slider.input_value()) == int(slider.get_attribute("max") or 0) - 1
        page.get_by_role("button", name=second.name).click()
        page.locator("text=" + second.name).nth(1).wait_for()
        assert slider.input_value() == "0"
        keep_picture(page, "replay")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scroll(
    address: str, open_page: OpenPage, keep_picture: KeepPicture, scheme: str
) -> None:
    page = open_page(address, width=390, scheme=scheme)
    for view in VIEWS:
        shown(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        keep_picture(page, f"phone-{scheme}-{view.replace('/', '_')}")


def test_everything_can_be_reached_by_keyboard(address: str, open_page: OpenPage) -> None:
    page = shown(open_page(address), "league")
    page.locator(".lineage a").first.wait_for()
    reached = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    for wanted in ("A #matches", "A #player/main", "BUTTON Elo", "BUTTON cluster", "CANVAS ", "BUTTON main"):
        assert any(one.startswith(wanted) for one in reached), wanted


def test_hostile_names_are_text(run: RunFolder, address: str, open_page: OpenPage) -> None:
    """No league lets such a player in; a folder from elsewhere may say anything."""
    page = open_page(address)

    def spoil(route: Any) -> None:
        answer = route.fetch()
        told = answer.text()
        for name in ("main.2", "random"):
            told = told.replace(json.dumps(name), json.dumps(f"{name}{HOSTILE}"))
        route.fulfill(response=answer, body=told)

    page.route("**/data/**", spoil)
    page.reload()
    page.locator("#experiment", has_text=HOSTILE).wait_for()
    for view in VIEWS:
        shown(page, view)
    shown(page, "league")
    page.get_by_role("link", name=f"main.2{HOSTILE}", exact=True).first.wait_for()
    assert page.locator("img").count() == 0
    assert page.title() != "1"


def test_what_is_not_there_is_said(address: str, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()  # the browser itself complains about the 404
    page.goto(f"{address}#player/nobody")
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "there is no document 'player/nobody'"
    context.close()


def test_a_token_is_asked_for_once(run: RunFolder, tmp_path: Path, browser: Any) -> None:
    token_file = make_token_file(tmp_path / "token")
    with watched(run.path, "--token-file", str(token_file)) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Show the page").click()
        page.locator("text=That is not it.").wait_for()
        page.get_by_label("Token").fill(token_file.read_text().strip())
        page.get_by_role("button", name="Show the page").click()
        page.locator("#state", has_text="finished").wait_for()
        assert token_file.read_text().strip() not in str(context.cookies())
        context.close()
