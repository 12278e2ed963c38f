"""A start that is killed at any moment leaves nothing that counts as a run, or a run that can be resumed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny

from ludus.store.ledger import Ledger
from ludus.training import Plan

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "sqlite3.connect")


def begin(**plan: Any) -> None:
    """Create or open a run, and start its workers; they play nothing."""
    made = Plan.make(settings={}, **{"what": None, **plan})
    with made.open() as (folder, experiment), made.start(folder, experiment):
        pass


def killed_at(moment: int, act: Callable[[], None]) -> bool:
    """Whether a process that does this was killed before its `moment`-th access to the folder `runs`."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == signal.SIGKILL
    left = moment

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and any("runs" in str(arg) for arg in args[:2]):
            count()

    append = Ledger.append

    def appending(self: Ledger, events: Any) -> list[int]:
        rows = append(self, events)
        count()
        return rows

    Ledger.append = appending  # type: ignore[method-assign]
    sys.addaudithook(audit)
    try:
        act()
        os._exit(0)
    except BaseException:
        os._exit(1)


def check_after_a_kill(taken_over: bool) -> None:
    """What is there can be resumed; if nothing is, the next start works, and leaves nothing hidden behind."""
    found = [path.parent for path in Path("runs").glob("*/run.json")]
    for path in found:
        begin(run=path, resume=True)
    if not found:
        begin(what=tiny(runtime="serial"), run="runs/mine" if taken_over else None)
        assert [path.name for path in Path("runs").iterdir()] == ["mine" if taken_over else "tiny-001"]


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("named by itself", 7),
        ("there before", 9),
        pytest.param("named by itself", 1, marks=pytest.mark.slow),
        pytest.param("there before", 1, marks=pytest.mark.slow),
    ],
)
def test_a_start_may_die_at_any_moment(place: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, taken_over = tiny(runtime="serial"), place == "there before"
    for moment in range(1, 1000, step):
        (tmp_path / str(moment)).mkdir()
        monkeypatch.chdir(tmp_path / str(moment))
        if taken_over:
            Path("runs/mine").mkdir(parents=True)
        if not killed_at(moment, lambda: begin(what=experiment, run="runs/mine" if taken_over else None)):
            break
        check_after_a_kill(taken_over)
    assert moment > 2 * step
