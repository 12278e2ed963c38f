from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from game_servers import eventually
from processes import is_gone

from ludus.games.remote.outside_program import OutsideProgram, ProgramConfig

Start = Callable[..., OutsideProgram]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def started(tmp_path: Path, told: list[str]) -> Iterator[Start]:
    """Starts programs of Python text; all of them are ended."""
    running: list[OutsideProgram] = []

    def start(text: str, **config: object) -> OutsideProgram:
        (tmp_path / "program.py").write_text(text)
        made = ProgramConfig(
            **{  # type: ignore[arg-type]
                "command": (sys.executable, "program.py"),
                "folder": str(tmp_path),
                "restart_seconds": 0.05,
                **config,
            }
        )
        running.append(OutsideProgram(made, told.append))
        running[-1].start()
        return running[-1]

    yield start
    for program in running:
        program.close()


def test_a_missing_file_is_named_before_anything_starts(tmp_path: Path) -> None:
    for config, said in (
        (ProgramConfig(command=("true",), folder=str(tmp_path), files=("licence.dat",)), "licence.dat"),
        (ProgramConfig(command=("wine-of-nobody",), folder=str(tmp_path)), "wine-of-nobody"),
        (ProgramConfig(command=("./game",), folder=str(tmp_path)), "./game"),
        (ProgramConfig(command=("true",), folder=str(tmp_path / "none")), "none"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            OutsideProgram(config)


def test_it_is_ready_when_it_says_so(started: Start, tmp_path: Path) -> None:
    text = "import time, os; print('loading'); print('listening as', os.environ['ROLE'], flush=True)"
    program = started(text + "; time.sleep(60)", ready_line="listening", environment={"ROLE": "core"})
    assert program.wait_ready(20.0)
    assert eventually(lambda: "ready" in program.state)
    assert program.why_not_ready() is None
    assert eventually(lambda: "listening as core" in (tmp_path / "program.log").read_text())


def test_it_is_ready_when_its_port_is_open(started: Start) -> None:
    text = "import socket; s = socket.create_server(('127.0.0.1', {port})); s.listen(); s.accept(); input()"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    program = started(text.replace("{port}", str(port)), ready_port=port)
    assert program.wait_ready(20.0)


def test_one_that_ends_is_started_again(started: Start, told: list[str], tmp_path: Path) -> None:
    text = "open('starts', 'a').write('x'); raise SystemExit('no licence')"
    program = started(text)
    assert eventually(lambda: (tmp_path / "starts").exists() and len((tmp_path / "starts").read_text()) >= 3)
    assert any("exit code 1 (no licence)" in line for line in told)
    assert [f"next start in {pause:g} s" in " ".join(told) for pause in (0.05, 0.1)] == [True, True]
    assert program.state


def test_one_that_never_gets_ready_is_started_again(started: Start, told: list[str]) -> None:
    program = started("import time; time.sleep(60)", ready_line="x", ready_seconds=0.3)
    assert "not ready" in str(program.why_not_ready())
    assert eventually(lambda: any("was not ready within 0.3 s" in line for line in told))


def test_it_ends_with_all_that_it_has_started(started: Start, tmp_path: Path) -> None:
    text = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['setsid', 'sleep', '1000'])\n"
        "open('new', 'w').write(str(child.pid)); import os; os.rename('new', 'child')\n"
        "time.sleep(1000)"
    )
    program = started(text)
    assert eventually((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    assert not is_gone(child)
    program.close()
    assert is_gone(child)
    assert program.pid is not None
    assert is_gone(program.pid)


def test_its_log_does_not_grow_without_end(started: Start, tmp_path: Path) -> None:
    text = "for n in range(3000): print(n, 'x' * 90)\nprint('done', flush=True); __import__('time').sleep(60)"
    program = started(text, log_mb=0.05, ready_line="done")
    assert program.wait_ready(20.0)
    program.close()
    sizes = {file.name: file.stat().st_size for file in tmp_path.glob("program.log*")}
    assert set(sizes) <= {"program.log", "program.log.1", "program.log.2"}
    assert len(sizes) == 3
    assert max(sizes.values()) < 60_000


@pytest.mark.parametrize(
    ("wrong", "said"), [({"command": ()}, "command"), ({"ready_port": 0}, "ready_port"), ({"log_mb": 0.0}, "log_mb")]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ProgramConfig(**{"command": ("true",), **wrong})  # type: ignore[arg-type]
