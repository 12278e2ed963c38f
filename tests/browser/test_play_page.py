"""The page of `ludus play` in a real browser: a whole game, a round of cards, orders by mouse, the replay."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import LUDUS

from ludus.config import encode
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid
from ludus.experiment import Experiment
from ludus.games.builtin.skirmish import Skirmish
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.recipes import connect_four, kuhn, skirmish
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.ci]
playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[browser]' adds playwright")
expect = playwright.expect
OpenPage = Callable[..., "Page"]
Keep = Callable[["Page", str], None]
MAP = 32


def small(experiment: Experiment) -> Experiment:
    """With a tiny network and two updates."""
    plain = isinstance(experiment.model, ActorCritic)
    return replace(
        experiment,
        runtime="serial",
        budget=128,
        model=replace(experiment.model, hidden=(8,)) if plain else ActorCritic(hidden=(8,)),
        actor=ActorConfig(num_tables=4, matches=2, episodes_per_table=2, unroll_length=8),
        learner=replace(experiment.learner, batch_size=64, minibatch_size=32, buffer_size=256),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0, episodes=1),
    )


def trained(path: Path, experiment: Experiment) -> RunFolder:
    folder = RunFolder.create(path, encode(experiment), seed=experiment.seed, command=())
    with closing(serial_training(experiment, folder)) as training:
        training.run()
    return folder


@contextmanager
def playing(folder: RunFolder, *arguments: str) -> Iterator[str]:
    """`ludus play` as a person starts it, until Ctrl-C; gives its address."""
    command = [*LUDUS, "play", str(folder.path), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://\S+", said)
            assert found is not None, said
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 130


def human_matches(folder: RunFolder) -> list[tuple[MatchIssued, MatchFinished | MatchVoid]]:
    with folder.ledger(read_only=True) as ledger:
        issued = [
            event for _, event in ledger.replay() if isinstance(event, MatchIssued) and event.match.purpose == "human"
        ]
        ends = [ledger.end_of(event.match.id) for event in issued]
    assert all(isinstance(end, MatchFinished | MatchVoid) for end in ends)
    return list(zip(issued, ends, strict=True))  # type: ignore[arg-type]


def test_a_whole_game_of_connect_four(open_page: OpenPage, keep_picture: Keep, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", small(connect_four.experiment()))
    with playing(folder, "main", "--seat", "0", "--as", "ann") as url:
        page = open_page(url)
        expect(page.locator("#status")).to_have_text("Your turn")
        page.get_by_label("show what your opponent thinks").check()
        expect(page.locator(".share")).to_have_count(7)
        made = 0
        while page.locator("#status").inner_text() == "Your turn":
            stones = page.locator(".game-stone")
            before = stones.count()
            if made % 2:
                page.locator("button.game-drop:enabled").first.click()
            else:
                page.keyboard.press(page.locator("button.game-drop:enabled").first.inner_text())
            expect(stones).not_to_have_count(before)
            # One's own stone is drawn at once, before the answer.
            expect(page.locator("button.game-drop:enabled, #status.over").first).to_be_visible()
            if made == 0:  # on the second try the same column is free again
                expect(page.locator("#meter")).to_be_visible()
                expect(page.locator(".game-cell.latest")).to_have_count(1)
                page.get_by_role("button", name="Take back").click()
                expect(stones).to_have_count(before)
                page.locator("button.game-drop:enabled").first.click()
                expect(stones).to_have_count(before + 2)
            made += 1
            if made == 3:
                keep_picture(page, "play-connect-four")
        said = page.locator("#status").inner_text()
        expect(page.locator("#kept")).to_contain_text("recorded as match")
        [(issued, ended)] = human_matches(folder)
        assert isinstance(ended, MatchFinished)
        assert [side.players for side in issued.match.sides] == [("ann",), ("main",)]
        own = ended.result.score_sum[0]
        assert said == {1: "You win (score 1)", 0: "A draw (score 0)", -1: "You lose (score -1)"}[int(own)]
        assert ended.result.decisions[0] == made

        rows = page.locator("#analysis tbody tr")
        expect(rows).to_have_count(made)
        expect(page.locator("#analysis circle")).to_have_count(made + 1)
        page.get_by_role("button", name="Step through the game").click()
        told = page.locator(".replay-said")
        expect(told).to_contain_text(f"step {ended.result.steps} of {ended.result.steps}")
        assert page.locator(".replay .game-stone").count() == ended.result.steps, "it opens at the last position"
        rows.nth(1).get_by_role("button").click()
        assert page.locator(".replay .game-stone").count() == 2, "the person's second turn"
        page.get_by_role("button", name="first").click()
        assert page.locator(".replay .game-stone").count() == 0
        page.get_by_role("button", name="forward").click()
        page.keyboard.press("ArrowRight")
        expect(told).to_contain_text("step 2 of")
        assert page.locator(".replay .game-stone").count() == 2
        page.keyboard.press("ArrowLeft")
        assert page.locator(".replay .game-stone").count() == 1
        page.keyboard.press("End")
        assert page.locator(".replay .game-stone").count() == ended.result.steps
        expect(told).to_contain_text(said)
        page.get_by_role("button", name="first").click()
        page.get_by_role("button", name="play", exact=True).click()
        expect(told).to_contain_text("step 1 of")
        page.get_by_role("button", name="play", exact=True).click()  # now it pauses
        page.get_by_label("step", exact=True).fill("3")
        assert page.locator(".replay .game-stone").count() == 3
        keep_picture(page, "play-replay")

        page.get_by_role("button", name="Rematch, seats swapped").click()
        expect(page.locator("#who")).to_have_text("You are blue, against main (averaged weights).")
        expect(page.locator("#again")).to_be_hidden()

        page.get_by_label("against").select_option("main.1")
        page.get_by_label("you are").select_option("red")
        page.get_by_role("button", name="New game").click()
        expect(page.locator("#who")).to_contain_text("You are red, against main.1 (averaged weights)")
        page.keyboard.press("4")
        expect(page.locator(".game-stone")).to_have_count(2)
    assert len(human_matches(folder)) == 2, "the game that was left is void, and one without a move is none"
    assert isinstance(human_matches(folder)[1][1], MatchVoid)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_page_is_accessible(
    open_page: OpenPage, tmp_path: Path, require_accessible: Callable[[Page, str], None], width: int, scheme: str
) -> None:
    folder = trained(tmp_path / "run", small(connect_four.experiment()))
    with playing(folder, "main", "--seat", "0") as url:
        page = open_page(url, width=width, scheme=scheme)
        expect(page.locator("#status")).to_have_text("Your turn")
        require_accessible(page, "at the start")
        drops = page.locator("button.game-drop:enabled")
        while page.locator("#status").inner_text() == "Your turn":
            stones = page.locator(".game-stone").count()
            drops.first.click()
            expect(page.locator(".game-stone")).not_to_have_count(stones)
            expect(page.locator("button.game-drop:enabled, #status.over").first).to_be_visible()
        expect(page.locator("#analysis circle").first).to_be_visible()
        require_accessible(page, "at the end")
        page.get_by_role("button", name="Step through the game").click()
        require_accessible(page, "in the replay")


def test_a_round_of_kuhn_hides_the_card_until_the_end(open_page: OpenPage, keep_picture: Keep, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", small(kuhn.experiment()))
    with playing(folder, "main", "--seat", "0") as url:
        page = open_page(url, width=390, scheme="dark")
        cards = page.locator(".game-card")
        expect(cards).to_have_count(2)
        assert cards.nth(0).inner_text() in "JQK"
        assert cards.nth(1).inner_text() == "?"
        page.get_by_label("show what your opponent thinks").check()
        expect(page.get_by_role("heading")).to_contain_text(["Kuhn", "In your place it would"])
        keep_picture(page, "play-kuhn-phone")
        assert not goes_sideways(page)
        page.get_by_role("button", name="bet").click()
        expect(page.locator("#kept")).to_contain_text("recorded as match")
        assert cards.nth(1).inner_text() in "JQK"
        assert cards.nth(1).inner_text() != cards.nth(0).inner_text()
        expect(page.get_by_role("heading")).to_contain_text(["Kuhn", "How the game went", "When it last decided"])
    [(_, ended)] = human_matches(folder)
    assert isinstance(ended, MatchFinished)


def test_orders_by_mouse_in_skirmish(open_page: OpenPage, keep_picture: Keep, tmp_path: Path) -> None:
    assert isinstance(skirmish.experiment().game, Skirmish)
    folder = trained(tmp_path / "run", small(skirmish.experiment()))
    with playing(folder, "boom", "--seat", "1") as url:
        page = open_page(url)
        canvas = page.locator("#table canvas")
        expect(canvas).to_be_visible()
        page.get_by_label("ticks a second").select_option("16")
        expect(page.locator("#status")).to_have_text(re.compile("tick 0 of"))
        page.get_by_role("button", name="begin").click()

        def at(x: float, y: float) -> tuple[float, float]:
            """Where a place of the map is on the screen now: a click may have moved the page."""
            where = canvas.bounding_box()
            assert where is not None
            return where["x"] + where["width"] * x / MAP, where["y"] + where["height"] * (1 - y / MAP)

        page.mouse.move(*at(0.5, 0.5))
        page.mouse.down()
        page.mouse.move(*at(12, 12), steps=4)
        page.mouse.up()
        expect(page.locator("#orders")).to_contain_text("4 workers, 100 % health")
        page.get_by_role("button", name="spear (60)").click()
        expect(page.locator("#orders dl")).to_contain_text("spear (")
        below = page.locator("#orders .help").last.bounding_box()
        assert below is not None
        assert below["y"] + below["height"] <= 900, "the orders are on the screen without scrolling"
        page.mouse.click(*at(13, 13), button="right")

        def farthest() -> float:
            """How far up and right the person's workers are, as the page was last told."""
            asked = page.request.get(f"{url}state?session={session[0]}").json()
            return float(max(min(unit[3:5]) for unit in asked["view"]["units"] if unit[1] == 1))

        session: list[str] = []
        page.on("request", lambda sent: session.append(sent.post_data_json["session"]) if not session else None)
        expect(page.locator("#status")).to_have_text(re.compile(r"tick [3-9]\d"))
        assert farthest() > 11.0, "they have gone where they were sent"

        page.get_by_role("button", name="pause").click()
        page.wait_for_timeout(300)
        stands = page.locator("#status").inner_text()
        page.wait_for_timeout(500)
        assert page.locator("#status").inner_text() == stands
        keep_picture(page, "play-skirmish")
        page.get_by_role("button", name="go on").click()
        expect(page.locator("#status")).not_to_have_text(stands)
        page.close()
        phone = open_page(url, width=390, scheme="dark")
        expect(phone.locator("#status")).to_have_text(re.compile("tick 0 of"))
        assert not goes_sideways(phone)
        keep_picture(phone, "play-skirmish-phone")
        phone.close()  # before its server ends, or it would complain that nobody answers


def goes_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
