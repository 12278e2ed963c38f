"""What workers print: marked, bounded, and not lost with the process that writes it down."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.system.log_keeper import KEPT, LONGEST_LINE, MOST_BYTES, LogKeeper

MARK = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z run-001 (\S+): (.*)$")


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[LogKeeper]:
    made = LogKeeper(tmp_path, "run-001")
    yield made
    made.close()


def say(keeper: LogKeeper, worker: str, text: str) -> None:
    with keeper.output(worker) as output:
        subprocess.run(["cat"], input=text.encode(), stdout=output, check=True)


def lines_of(path: Path) -> list[tuple[str, str]]:
    """(worker, text) of every line."""
    found = [MARK.match(line) for line in path.read_text().splitlines()]
    assert all(found), path.read_text()
    return [match.groups() for match in found if match]  # type: ignore[misc]


def test_each_line_has_its_time_run_and_worker(keeper: LogKeeper, tmp_path: Path) -> None:
    say(keeper, "actor-0", "one\ntwo\n")
    say(keeper, "learner", "three, and no end")
    say(keeper, "actor-0", "four\n")
    keeper.close()
    texts = [("actor-0", "one"), ("actor-0", "two"), ("actor-0", "four")]
    assert sorted(lines_of(tmp_path / "actor-0.log")) == sorted(texts)
    assert lines_of(tmp_path / "learner.log") == [("learner", "three, and no end")]


def test_files_are_bounded_and_the_newest_lines_are_kept(keeper: LogKeeper, tmp_path: Path) -> None:
    line = "x" * 1_000 + "\n"
    many = (KEPT + 2) * MOST_BYTES // len(line)
    say(keeper, "actor-0", line * many + "the last\n")
    keeper.close()
    files = sorted(tmp_path.glob("actor-0.log*"))
    assert [file.name for file in files] == ["actor-0.log", *(f"actor-0.log.{n}" for n in range(1, KEPT + 1))]
    assert all(file.stat().st_size <= MOST_BYTES for file in files)
    assert lines_of(files[0])[-1] == ("actor-0", "the last")


def test_a_line_without_an_end_is_cut(keeper: LogKeeper, tmp_path: Path) -> None:
    say(keeper, "actor-0", "y" * (3 * LONGEST_LINE))
    keeper.close()
    texts = [text for _, text in lines_of(tmp_path / "actor-0.log")]
    assert "".join(texts) == "y" * (3 * LONGEST_LINE)
    assert max(map(len, texts)) == LONGEST_LINE


def test_nothing_is_lost_when_it_is_killed(keeper: LogKeeper, tmp_path: Path) -> None:
    program = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with keeper.output("actor-0") as output:
        worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=output)
    assert worker.stdin is not None
    os.kill(keeper.pid, signal.SIGKILL)
    while Path(f"/proc/{keeper.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    worker.stdin.write(b"while nobody listens\n")
    worker.stdin.flush()
    keeper.look()
    worker.stdin.write(b"afterwards\n")
    worker.stdin.close()
    assert worker.wait(10) == 0, "it must not notice"
    keeper.close()
    assert [text for _, text in lines_of(tmp_path / "actor-0.log")] == ["while nobody listens", "afterwards"]


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom ludus.system.log_keeper import LogKeeper\n"
        "keeper = LogKeeper(Path(sys.argv[1]), 'run-001')\nprint(keeper.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "an orphan"
        time.sleep(0.02)
