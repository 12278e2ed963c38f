"""Fixtures of all tests, and what tests want to be told at the end, such as how many processes they have killed."""

from __future__ import annotations

import os
import shutil
from io import StringIO
from pathlib import Path

import pytest
from command_line import TINY, Ludus, Shown, exit_code

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail if a test is skipped: all it needs should be here")
    parser.addoption("--fuzz-seconds", default="0", help="fuzz each reader for so long; 0: a few hundred cases")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    told = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.no_skips and told is not None and told.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Puts the folders of tests into memory where there is room. A run syncs its ledger with every result, and
    a disk takes milliseconds for that: a third of the time of all tests. `--basetemp` chooses another place."""
    if config.option.basetemp is None and not hasattr(config, "workerinput") and _has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers, and tables would fit themselves to it


def _has_room(folder: Path) -> bool:
    """Whether tests can write and execute there; containers often have 64 MiB, and none of it for programs."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC


@pytest.fixture
def ludus(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ludus:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, typed: str = "") -> Shown:
        monkeypatch.setattr("sys.stdin", StringIO(typed))
        code = exit_code(*arguments)
        return Shown(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of Kuhn poker, which tests only read."""
    path = tmp_path_factory.mktemp("trained") / "run"
    assert exit_code("train", "kuhn", "--run", str(path), "--quiet", *TINY) == 0
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.option.no_skips:
        for report in terminalreporter.getreports("skipped"):
            terminalreporter.write_line(f"SKIPPED, which --no-skips forbids: {report.nodeid}: {report.longrepr[-1]}")
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told":
                terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {value}")
