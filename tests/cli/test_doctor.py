"""`ludus doctor`: what it says is so, and what is wrong is named with what to do."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import exit_code

from ludus.cli import doctor as machine
from ludus.cli.doctor import EXTRAS, Finding, look_around
from ludus.system.machine import install_command

REPOSITORY = Path(__file__).parent.parent.parent


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert exit_code("doctor", *options) == 0
    return capsys.readouterr().out


def found(what: str) -> Finding:
    (finding,) = (one for one in look_around() if one.what == what)
    return finding


def test_every_extra_is_explained_by_a_package_that_it_brings() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = project["optional-dependencies"]
    assert set(EXTRAS) == set(asked)
    assert not [extra for extra in asked if "_" in extra], "pip before 23.3 does not find them"
    brought_along = {"multi-atari": "pettingzoo"}  # multi-agent-ale-py is its own extra's
    for extra, (package, _) in EXTRAS.items():
        names = {re.split(r"[\[<>=~]", requirement)[0] for requirement in asked[extra]}
        assert brought_along.get(extra, package) in names


def test_it_explains_the_machine_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = doctor(capsys)
    for what in ("cores", "memory", "shared memory", "disk", "open files", "GPU", "torch"):
        assert re.search(rf"\b{what}\b", text), text
    assert "games that insist on a screen: apt install xvfb" in text
    for extra, (package, _) in EXTRAS.items():
        missing = install_command(extra) in " ".join(text.split())  # long lines are wrapped
        assert missing != bool(re.search(rf"^{extra} +{package} \d", text, re.MULTILINE)), text


def test_the_same_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    facts: dict[str, Any] = json.loads(doctor(capsys, "--json"))
    assert facts["machine"][0]["what"] == "cores"
    assert [one["what"] for one in facts["extras"]] == list(EXTRAS)
    for one in facts["machine"]:
        assert (one["level"] != "fine") == bool(one["advice"])


def test_threads_disk_and_files_that_are_in_the_way_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(machine, "LITTLE_DISK", 2**70)
    few = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 512));"
    code = f"{few} from ludus.cli.main import main; main(['doctor'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "256 (you may raise it to 512)" in out
    assert "- open files: ulimit -n 512" in out
    assert "- OMP_NUM_THREADS: unset" in out
    assert "- disk: runs are written here" in doctor(capsys)


def test_limits_of_a_container_are_those_that_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.system.machine.CONTROL_GROUP", tmp_path)
    assert "container" not in found("memory").here
    (tmp_path / "memory.max").write_text("max\n")
    assert "container" not in found("memory").here
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    memory = found("memory")
    assert memory.here == "0.5 of 1.0 GiB free, container limited to 1.0 GiB"
    assert memory.level == "could"
    assert "--actors 1" in memory.advice


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity, as Linux has it")
def test_one_core_is_few() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        cores = found("cores")
    finally:
        os.sched_setaffinity(0, before)
    assert cores.here.startswith("1 usable")
    assert "--runtime serial" in cores.advice
    if (os.cpu_count() or 1) > 1:
        assert "affinity" in cores.here


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o500)
    assert found("disk").level == "must"


def test_the_number_of_open_files_is_that_of_the_process() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"{soft:,}" in found("open files").here
