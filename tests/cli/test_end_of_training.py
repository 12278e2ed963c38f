"""Matches that were lost and a budget that was passed: what `ludus train`, `league` and `status` say."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command_line import TINY, Ludus, settings

from ludus.data.records import Match, MatchIssued, MatchVoid, Side
from ludus.store.run_folder import RunFolder
from ludus.training import Plan

REASON = "bot 'old' has ended with exit code 1; its last words: [/no] licence"  # no markup of rich


@pytest.mark.slow
def test_a_bot_that_is_dead_shows_everywhere(ludus: Ludus) -> None:
    Path("bad.py").write_text("import sys\nsys.exit('[/no] licence')\n")
    with_bot = (
        *("--set", "bots={old: 'program:bad.py'}", "--set", "league.bots=random,old"),
        *("--set", "evaluation.opponents=random,old", "--actors", "1"),
    )
    code, out, _ = ludus("train", "kuhn", "--run", "mine", *settings(runtime="local"), *with_bot)
    assert code == 0
    shown = {"train": out, "league": ludus("league", "mine")[1], "status": ludus("status", "mine")[1]}
    for command, text in shown.items():
        assert "matches are void because something failed:" in text, command
        assert f"  {REASON}\n" in text, command
        assert f"old has never finished a match: {REASON}\n" in text, command
    for command in ("league", "status"):
        found = json.loads(ludus(command, "mine", "--json")[1])["lost_matches"]
        assert found["never_finished"] == {"old": REASON}
        assert found["reasons"] == {REASON: found["void"]}


def test_only_what_failed_is_told(ludus: Ludus) -> None:
    code, out, _ = ludus("train", "kuhn", "--run", "mine", *TINY)
    assert code == 0
    for text in (out, ludus("league", "mine")[1], ludus("status", "mine")[1]):
        assert "because something failed" not in text
        assert "never finished" not in text
    for command in ("league", "status"):
        found = json.loads(ludus(command, "mine", "--json")[1])["lost_matches"]
        assert (found["void"], found["reasons"], found["never_finished"]) == (0, {}, {})

    with RunFolder.open("mine").ledger() as ledger:
        number = ledger.next_match_id()
        match = Match(number, "evaluation", (Side(("main.1",)), Side(("equilibrium",))), 1, 2)
        ledger.append([MatchIssued(match), MatchVoid(number, "game: it rained")])
    out = ludus("train", "--run", "mine", "--resume")[1]
    for text in (out, ludus("league", "mine")[1], ludus("status", "mine")[1]):
        assert "matches are void because something failed:\n  1  it rained\n" in text
        assert "never finished" not in text
    ended = json.loads(ludus("train", "--run", "mine", "--resume", "--json")[1].splitlines()[-1])
    assert ended["lost_matches"]["reasons"] == {"it rained": 1}


def test_a_budget_below_an_update_is_told_once_and_spent_to_the_full(ludus: Ludus) -> None:
    small = settings(budget="300")
    told = "budget:     300 decisions, but a single update "
    code, out, _ = ludus("train", "kuhn", "--run", "mine", *small)
    assert (code, out.count(told)) == (0, 1)
    assert f"{told}takes a batch of 1,000 (learner.batch_size)" in out
    out = ludus("status", "mine")[1]
    assert " of 300 decisions (100.0%) " in out

    out = ludus("train", "kuhn", "--run", "quiet", "--quiet", *small)[1]
    assert out.count(told) == 1
    assert f"{told}took " in out
    assert told not in ludus("train", "kuhn", "--run", "large", *settings(budget="2500"))[1]


def test_sigterm_during_the_start_ends_it_as_ctrl_c_does(ludus: Ludus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a run that could save anything."""
    monkeypatch.setattr(Plan, "make", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert ludus("train", "kuhn").code == 130
    assert signal.getsignal(signal.SIGTERM) is before
