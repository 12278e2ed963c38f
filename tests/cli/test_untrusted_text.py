"""Text that comes from games, bots, servers and files, as commands and pages show it."""

from __future__ import annotations

import io
import stat
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from command_line import Ludus
from planted_runs import plant

from ludus.data.records import MatchVoid
from ludus.observe.terminal import SafeConsole
from ludus.observe.view import OVERVIEW, RunView
from ludus.store.run_folder import RunFolder
from ludus.system.text import printable, without_logins

CLEARS = "\x1b[2J\x1b]0;mine\x07\x9b31m\r\x08 a reason \u202e"
"""Clears a screen, names its window, and overwrites what stands before."""
PASSWORD = "correct-horse"
ADDRESS = f"redis://me:{PASSWORD}@127.0.0.1/0"


def test_characters_that_control_a_terminal_are_replaced() -> None:
    assert printable("a\tb\nc é 漢 ✓") == "a\tb\nc é 漢 ✓"
    shown = printable(CLEARS)
    assert shown.isprintable()
    assert " a reason " in shown
    written = io.StringIO()
    SafeConsole(file=written, force_terminal=True, color_system="standard").print(f"[bold]{CLEARS}", style="red")
    assert written.getvalue().startswith("\x1b[1;31m")  # its own codes stay
    assert not set(CLEARS) & set(written.getvalue()) - set(" a[;]0mreson2J31in\x1b")
    assert "\x1b[2J" not in written.getvalue()
    assert "\x1b]" not in written.getvalue()


@pytest.mark.parametrize("command", [("league",), ("status",), ("status", "--json"), ("logs",)])
def test_reasons_and_logs_cannot_control_the_terminal(ludus: Ludus, tmp_path: Path, command: tuple[str, ...]) -> None:
    folder = plant(tmp_path / "run", matches=20)
    with closing(folder.ledger()) as ledger:
        last = ledger.next_match_id() - 1
        ledger.append([MatchVoid(last, f"env_crash: {CLEARS}")])
    (folder.logs / "actor-0.log").write_text(f"2026-01-01 {CLEARS}\n")
    code, out, err = ludus(command[0], str(folder.path), *command[1:])
    assert code == 0
    assert "a reason" in out
    assert not set("\x1b\x07\x9b\r\x08\u202e") & set(out + err)


def test_errors_cannot_control_the_terminal(ludus: Ludus) -> None:
    code, _, err = ludus("league", f"runs/{CLEARS}")
    assert code == 1
    assert "a reason" in err
    assert not set("\x1b\x07\x9b\r\x08\u202e") & set(err)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (ADDRESS, "redis://***@127.0.0.1/0"),
        ("rediss://:p@ss@host:1/0", "rediss://***@host:1/0"),
        (f"unix:///tmp/s?db=1&password={PASSWORD}&x=2", "unix:///tmp/s?db=1&password=***&x=2"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
    ],
)
def test_logins_are_left_out_of_addresses(address: str, shown: str) -> None:
    assert without_logins(f'"{address}"') == f'"{shown}"'


def test_a_password_is_for_the_owner_of_a_run_alone(tmp_path: Path) -> None:
    """It was in `/data/overview`, and in a file that everybody could read."""
    folder = plant(tmp_path / "run", matches=4, models={"backend": ADDRESS})
    changed = folder.with_experiment(bytes(folder.facts.experiment))
    for file in ("run.json", "run.1.json"):
        assert PASSWORD in (folder.path / file).read_text()
        assert stat.S_IMODE((folder.path / file).stat().st_mode) == 0o600
    # As runs have it that began before commands were kept without passwords.
    facts = msgspec.structs.replace(changed.facts, command=("ludus", "train", "--set", f"models.backend={ADDRESS}"))
    view = RunView(RunFolder(changed.path, facts))
    view.look()
    content, _ = view.encoded(OVERVIEW)
    assert b"redis://***@127.0.0.1/0" in content
    assert PASSWORD.encode() not in content
    other = plant(tmp_path / "other", matches=4)
    assert (other.path / "run.json").stat().st_mode & stat.S_IRUSR


def test_the_command_of_a_run_is_kept_without_its_password(tmp_path: Path) -> None:
    command = ("ludus", "train", "--set", f"models.backend={ADDRESS}")
    folder = RunFolder.create(tmp_path / "run", {"name": "made up"}, seed=0, command=command)
    assert folder.facts.command[-1] == "models.backend=redis://***@127.0.0.1/0"
