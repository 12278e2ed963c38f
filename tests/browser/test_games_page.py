"""Recorded games in a real browser: the list, the stage, the small board of the front page, games on request, and the
report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import TINY, exit_code
from planted_runs import plant
from watched_runs import watched

from ludus.evaluation.game_recorder import TeamPlayer, game_line, play_game
from ludus.evaluation.play.replays import replay_reader
from ludus.games.builtin.skirmish import Skirmish
from ludus.observe.recorded_games import GameFolder, GameLine, encode_game
from ludus.observe.report import write_report
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import SeatedPlayer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    OpenPage = Callable[..., Page]
    KeepPicture = Callable[[Page, str], None]

pytestmark = [pytest.mark.slow, pytest.mark.ci]
SIZES = [(1440, "light"), (390, "dark")]
GAMES = ("connect_four", "tic_tac_toe", "kuhn", "blotto", "skirmish")
WITH_PLAYERS = pytest.mark.parametrize("run", GAMES[:-1], indirect=True, scope="module")
"""Skirmish has only a recording."""


@pytest.fixture(scope="module", params=GAMES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "run"
    if request.param == "skirmish":
        plant(path)
        record_skirmish(path)
    else:
        assert exit_code("train", request.param, "--run", str(path), "--quiet", *TINY) == 0
    return path


def record_skirmish(run: Path) -> None:
    """A game of two bots: a network takes too long to train."""
    bots = Skirmish().bots()
    entrants = [TeamPlayer(name=name, seated=SeatedPlayer(bot=bots[name])) for name in ("random", "random")]
    content = encode_game(record := play_game(Skirmish(), entrants, seed=1, seconds=60.0))
    folder = GameFolder(run)
    line = game_line(record, "000001", ("main.1", "random"), 0, len(content), 1, 0)
    folder.add(folder.open(), line, content, most=1)


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with watched(run) as url:
        yield url


def listed(run: Path) -> list[GameLine]:
    games = GameFolder(run).listed().games
    assert games
    return games


def step_of(page: Page) -> int:
    found = re.search(r"step (\d+) of", page.locator(".replay-said").inner_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_recorded_game_is_stepped_through(
    run: Path, address: str, open_page: OpenPage, keep_picture: KeepPicture, width: int, scheme: str
) -> None:
    chosen = listed(run)[-1]
    record = GameFolder(run).read(chosen.name)
    page = open_page(f"{address}#games/{chosen.name}", width=width, scheme=scheme)
    page.wait_for_selector(".replay")
    assert page.locator("tbody tr button[aria-current]").count() == 1
    last = len(record.steps) - 1
    for step in range(1, last + 1):
        page.locator(".replay").press("ArrowRight")
        if 30 < step < last - 3:
            continue  # of a long game the beginning and the end
        assert step_of(page) == step
        shown = page.locator(".thoughts > div")
        moves = record.steps[step].done[-4:]
        assert shown.count() == len(moves)
        for at, move in enumerate(moves):
            text = shown.nth(at).inner_text()
            assert f"{record.players[move.seat].name}: {move.name}" in text
            for name, p in move.options:
                assert re.search(rf"^{re.escape(name)}( ✓)?\s+{100 * p:.1f} %$", text, re.MULTILINE), (text, name, p)
    assert record.outcome in page.locator(".replay-said").inner_text()
    values = [move.value for step in record.steps for move in step.done if move.value is not None]
    assert page.locator("svg.values").is_visible() == bool(values)
    drawn = record.steps[0].view is not None
    assert page.locator(".game-board, .game-hands, .game-map").count() == drawn
    assert (page.locator(".moves tbody tr").count() == record.decisions) == (not drawn)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep_picture(page, f"games_{run.parent.name}_{width}_{scheme}")


def test_the_list_has_every_game(run: Path, address: str, open_page: OpenPage) -> None:
    page = open_page(f"{address}#games")
    page.wait_for_selector(".replay")
    games = listed(run)
    rows = page.locator("table", has=page.locator("caption", has_text="Recorded games")).locator("tbody tr")
    told = [row.locator("th, td").all_inner_texts() for row in rows.all()]
    result = {1.0: "won", 0.5: "draw", 0.0: "lost", None: ""}
    assert [(row[0], row[2], row[4]) for row in told] == [
        (one.players[0], result[one.won], str(one.decisions)) for one in games
    ]
    page.select_option("#games-of", games[0].players[1])
    assert rows.count() == sum(games[0].players[1] in one.players for one in games)
    rows.nth(0).locator("button").click()
    page.wait_for_selector("tbody button[aria-current]")
    assert re.search(r"#games/\d+$", page.url)


@WITH_PLAYERS
def test_two_players_are_watched(run: Path, address: str, open_page: OpenPage) -> None:
    page = open_page(f"{address}#games")
    page.wait_for_selector("#team-0")
    first, other = listed(run)[0].players[:2]
    for team in range(page.locator("[id^=team-]").count()):
        page.select_option(f"#team-{team}", other if team else first)
    page.get_by_role("button", name="play a game").click()
    page.locator("p", has_text=re.compile(r"after \d+ decisions$")).wait_for(timeout=60_000)
    assert page.locator(".game-stage > p").inner_text().startswith("played now")
    assert f"{first}: " in page.locator(".game-stage .replay-who").inner_text()


@WITH_PLAYERS
def test_a_refusal_is_told(run: Path, address: str, browser: Browser) -> None:
    page = browser.new_context().new_page()  # whose console may name the refused request
    page.goto(f"{address}#games")
    page.wait_for_selector("#team-0")
    page.evaluate("document.querySelector('#team-0 option').value = 'nobody at all'")
    page.evaluate("document.getElementById('team-0').selectedIndex = 0")
    with page.expect_response("**/watch") as answer:
        page.get_by_role("button", name="play a game").click()
    assert answer.value.status == 400
    page.locator("[role=status]", has_text=answer.value.text()).wait_for()
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_the_front_page_plays_the_newest_game(
    run: Path, address: str, open_page: OpenPage, keep_picture: KeepPicture, width: int, scheme: str
) -> None:
    page = open_page(address, width=width, scheme=scheme)
    panel = page.locator(".panel", has=page.get_by_role("heading", name="Newest game"))
    panel.wait_for()
    said = panel.locator(".small-bar p")
    before = said.inner_text()
    page.wait_for_timeout(2500)
    assert said.inner_text() != before
    panel.get_by_role("button", name="pause").click()
    stopped = said.inner_text()
    page.wait_for_timeout(1500)
    assert said.inner_text() == stopped
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep_picture(page, f"front_{run.parent.name}_{width}_{scheme}")
    newest = max(one.trained for one in listed(run))
    link = panel.get_by_role("link").first
    name = (link.get_attribute("href") or "").removeprefix("#games/")
    assert next(one for one in listed(run) if one.name == name).trained == newest
    link.click()
    page.wait_for_selector(".replay")


def test_a_reader_who_wants_no_motion_sees_the_end(run: Path, address: str, browser: Browser) -> None:
    page = browser.new_context(reduced_motion="reduce").new_page()
    page.goto(address)
    said = page.locator(".small-bar p")
    said.wait_for()
    steps, last = re.findall(r"\d+", said.inner_text())[:2]
    assert steps == last
    page.wait_for_timeout(1500)
    assert re.findall(r"\d+", said.inner_text())[0] == steps
    page.context.close()


def test_the_report_has_games(run: Path, open_page: OpenPage) -> None:
    path = run / "report.html"
    folder = RunFolder.open(run)
    write_report(folder, path, replay_reader(folder, trusted=False))
    page = open_page("about:blank")
    page.context.set_offline(True)
    page.goto(path.as_uri())
    page.locator(".small-bar p").wait_for()
    page.evaluate("location.hash = 'games'")
    page.wait_for_selector(".replay")
    assert page.locator("text=play a game").is_visible() is False
    rows = page.locator("table", has=page.locator("caption", has_text="Recorded games")).locator("tbody tr")
    assert rows.count() == len(listed(run))
    rows.last.locator("button").click()
    page.locator(".replay").press("End")
    assert listed(run)[-1].outcome in page.locator(".replay-said").inner_text()


@pytest.mark.parametrize("run", ["connect_four"], indirect=True, scope="module")
def test_a_card_leads_to_a_game_against_the_player(
    run: Path, address: str, open_page: OpenPage, keep_picture: KeepPicture
) -> None:
    with RunFolder.open(run).ledger(read_only=True) as ledger:
        before = ledger.position
    page = open_page(f"{address}#player", width=1440)
    cards = page.locator(".cards li")
    cards.first.wait_for()
    keep_picture(page, "cards")
    page.get_by_role("button", name="name", exact=True).click()
    names = cards.locator("h3 a").all_inner_texts()
    assert names == sorted(names)
    page.get_by_role("link", name="play against main.1").click()
    page.locator("#who", has_text="against main.1").wait_for(timeout=60_000)
    moves = page.locator("#table button:not([disabled])")
    moves.first.wait_for()
    moves.first.click()
    page.locator("#table .game-stone").first.wait_for(state="attached")
    page.get_by_role("link", name="back to the run").click()
    page.locator("#run", has_text="run").wait_for()
    page.close()
    with RunFolder.open(run).ledger(read_only=True) as ledger:
        assert ledger.position == before  # looking at a run changes nothing
