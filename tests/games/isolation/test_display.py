"""A game that needs a screen gets one, and it goes with the game."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from isolated_play import HOSTILE, descendants, wait_until_gone

from ludus.games.isolation.isolated import Isolated
from ludus.games.seat_rows import GameError

OPTIONS = {"act": "raise", "times": 0}


def _screens(pids: set[int]) -> list[str]:
    return [pid for pid in map(str, pids) if Path(f"/proc/{pid}/comm").read_text().strip() == "Xvfb"]


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="Xvfb is not installed: apt-get install xvfb")
def test_every_process_has_a_screen_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    game = Isolated(HOSTILE, {**OPTIONS, "marks": str(tmp_path)}, processes=2, needs_display=True)
    before = descendants()
    batch = game.tables(2)
    try:
        below = descendants() - before
        assert len(_screens(below)) == 2
    finally:
        batch.close()
    wait_until_gone(below)


def test_a_screen_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":77")
    before = descendants()
    batch = Isolated(HOSTILE, {**OPTIONS, "marks": str(tmp_path)}, needs_display=True).tables(1)
    try:
        assert _screens(descendants() - before) == []
    finally:
        batch.close()


def test_without_xvfb_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    game = Isolated(HOSTILE, {**OPTIONS, "marks": str(tmp_path)}, needs_display=True)
    with pytest.raises(GameError, match=r"own: the game needs a display: .*apt-get install xvfb"):
        _ = game.spec
