"""A game in an engine: it plays as any other, and what goes wrong in the engine is told and costs its tables only."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import ctrl_c

import ludus
from ludus.config import decode, encode
from ludus.games.check import check_game
from ludus.games.game import GameBatch, allocate_actions, lost_tables
from ludus.games.remote import tables as remote_tables
from ludus.games.remote.engine import Engine
from ludus.games.seat_rows import GameError

PROGRAM = Path(__file__).with_name("bare_engine.py")


def nim(*fault: str, **settings: Any) -> Engine:
    return Engine(command=(sys.executable, str(PROGRAM), *fault), **settings)


def patience(fault: str) -> float:
    """Short where the test waits for its end, else long enough for a busy machine."""
    return 2.0 if fault.startswith("hang") else 20.0


def begin(batch: GameBatch) -> None:
    batch.reset(np.arange(batch.num_tables), np.arange(batch.num_tables, dtype=np.uint64))


def test_it_keeps_the_promises_of_a_game() -> None:
    report = check_game(nim())
    assert report.ok, str(report)
    assert [*nim().bots()] == ["random", "perfect"]


def test_it_can_be_trained_and_written_down(tmp_path: Path) -> None:
    game = nim()
    assert decode(encode(game)) == game
    run = ludus.train(game, budget=500, run=tmp_path / "run", runtime="serial", quiet=True)
    assert "perfect" in {one.id for one in run.league().players}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crash start", r"engine python\S* has ended with exit code \d+; its last words: about to crash"),
        ("hang start", "did not connect to the address in LUDUS_ENGINE within 3 s; its last words: about to hang"),
        ("key", "exit code 0; a connection without the key in LUDUS_ENGINE_KEY was refused"),
        ("error hello", "says: the level cannot be loaded"),
        ("wrong hello", "does not speak protocol 1"),
        ("hang hello", "gave no answer within 2 s; its last words: about to hang"),
        ("leave hello", "has closed the connection; its last words: about to leave"),
        ("nonsense hello", "answered nonsense"),
    ],
)
def test_an_engine_that_does_not_start_is_told(fault: str, said: str) -> None:
    with pytest.raises(GameError, match=said):
        _ = nim(*fault.split(), start_seconds=3.0 if fault == "hang start" else 30.0, step_seconds=patience(fault)).spec


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": ("godot3-serverr",)}, "cannot be started: program 'godot3-serverr' is not installed"),
        ({"command": ("./missing",)}, r"program './missing' is not installed, or cannot be run"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(GameError, match=said):
        _ = Engine(**{"command": (sys.executable,), **change}).spec


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": ()}, "command is a program and its arguments"),
        ({"command": "godot3-server --path x"}, "command is a program and its arguments"),
        ({"step_seconds": 0.0}, "step_seconds must be above 0"),
        ({"start_seconds": float("inf")}, "start_seconds must be above 0 and finite"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Engine(**{"command": ("engine",), **change})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crash", r"has ended with exit code \d+; its last words: about to crash"),
        ("hang", "gave no answer within 2 s; its last words: about to hang"),
        ("leave", "has closed the connection"),
        ("nonsense", "answered nonsense: no frame"),
        ("long", "answered nonsense: received message larger than max"),
        ("error", "says: the level cannot be loaded"),
        ("wrong", "answered nonsense: actions to step"),
    ],
)
def test_an_engine_that_fails_loses_its_tables_until_a_reset(
    fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tables, "MOST_LOSSES", 2)
    batch = nim(fault, "step", step_seconds=patience(fault)).tables(3)
    for _ in range(2):
        begin(batch)
        assert lost_tables(batch) == {}
        batch.step(allocate_actions(batch.spec, 3))
        assert [*lost_tables(batch)] == [0, 1, 2]
        assert not batch.view.to_act.any()
    assert re.search(said, lost_tables(batch)[0])
    with pytest.raises(GameError, match=r"nim on the engine python\S* was lost 2 times without finishing an episode"):
        begin(batch)
    batch.close()


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    batch = nim("slow", "step").tables(2)
    begin(batch)
    with ctrl_c(0.3):
        batch.step(allocate_actions(batch.spec, 2))
    assert re.search(r"a request to the engine python\S* was interrupted", lost_tables(batch)[0])
    begin(batch)
    assert lost_tables(batch) == {}
    batch.close()


def test_an_engine_that_answers_twice_does_not_stay_an_answer_behind() -> None:
    batch = nim("twice", "step").tables(2)
    begin(batch)
    batch.step(allocate_actions(batch.spec, 2))
    assert lost_tables(batch) == {}
    time.sleep(0.5)  # until the second answer is there
    batch.step(allocate_actions(batch.spec, 2))
    assert re.search(r"python\S* answered nonsense: it answered twice", lost_tables(batch)[0])
    begin(batch)
    assert lost_tables(batch) == {}
    batch.close()


def test_the_engine_ends_with_its_tables() -> None:
    batch = nim().tables(1)
    guard = batch._stream._process.pid  # type: ignore[attr-defined]
    batch.close()
    until = time.monotonic() + 10.0
    while Path(f"/proc/{guard}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(guard, 0)


def test_what_it_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    batch = nim("hang", "step", step_seconds=2.0).tables(1)
    begin(batch)
    batch.step(allocate_actions(batch.spec, 1))
    batch.close()
    assert "about to hang" in capfd.readouterr().err


def test_its_patience_is_shorter_than_the_supervisors() -> None:
    with pytest.raises(ValueError, match=r"game.step_seconds \(40\) and game.start_seconds"):
        ludus.Experiment(name="nim", game=nim(step_seconds=40.0), runtime="local", budget=1)
