"""GPUs and memory of this machine, and the name of the program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ludus.system.machine import GPUS_VARIABLE, program, usable_memory, visible_gpus


def test_gpus_are_those_of_nvidia_smi_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(GPUS_VARIABLE, raising=False)
    assert visible_gpus() == ("0", "1", "2")
    for allowed, seen in (("2,0", ("2", "0")), ("1,7,0", ("1",)), ("GPU-ab12", ("GPU-ab12",)), ("", ()), ("-1", ())):
        assert visible_gpus({GPUS_VARIABLE: allowed}) == seen
    program.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus() == (), "there is a driver, and it does not work"
    program.unlink()
    assert visible_gpus({GPUS_VARIABLE: "0"}) == (), "whatever the variable says"


def test_memory_is_no_more_than_the_machine_has() -> None:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < usable_memory() <= 1024 * int(fields["MemTotal"].split()[0])


def test_a_hint_names_the_program_as_this_terminal_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = tmp_path / ".venv" / "bin" / "ludus", tmp_path / "elsewhere" / "ludus"
    for path in (mine, other):
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(mine)])
    monkeypatch.setenv("PATH", str(mine.parent))
    assert program() == "ludus"
    monkeypatch.setenv("PATH", str(other.parent))
    assert program() == ".venv/bin/ludus", "the one that the shell finds is another"
    monkeypatch.chdir(other.parent)
    assert program() == str(mine)
    monkeypatch.setattr(sys, "argv", ["/somewhere/ludus/cli/main.py"])
    assert program() == "ludus"
