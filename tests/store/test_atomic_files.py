"""Atomic writes, cleaning after dead writers, and names that cannot leave their folder."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ludus.store.files import BadName, atomic_write, clean_temporaries, exclusive, make_folder, safe_name

HOSTILE_NAMES = ["../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "'; DROP TABLE rows", "%2e%2e", "~", "C:"]
REFUSED_NAMES = ["", "a\0b", "a\nb", "x" * 10_000, "\u202egnp.exe", "\u200fmain", "\ud800"]


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    atomic_write(path, b"old")
    atomic_write(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert os.listdir(tmp_path) == ["facts.json"]


def test_a_write_that_fails_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match=r"cannot write: .*file/facts\.json"):
        atomic_write(tmp_path / "file" / "facts.json", b"x")


def test_a_full_disk_keeps_the_old_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(b"old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from ludus.store.files import atomic_write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "try: atomic_write(Path(sys.argv[1]), b'n' * 100_000)\n"
        "except OSError as error: print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "cannot write: File too large" in shown.stdout
    assert str(path) in shown.stdout
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["facts.json"]


def test_killed_writers_leave_whole_files_and_their_temporaries_are_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "facts"
    code = (
        "import sys; from pathlib import Path; from ludus.store.files import atomic_write\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for letter in b'ab': atomic_write(Path(sys.argv[1]), bytes([letter]) * 3_000_000)\n"
    )
    for delay_s in (0.02, 0.05, 0.09):
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            while not path.exists():
                time.sleep(0.001)
            time.sleep(delay_s)
            writer.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert len(content) == 3_000_000
        assert len(set(content)) == 1
    clean_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["facts"]


def test_only_temporaries_of_dead_writers_are_cleaned(tmp_path: Path) -> None:
    make_folder(tmp_path / "deep" / "er")
    dead = tmp_path / "deep" / "er" / f".{'0' * 16}.tmp"
    living = tmp_path / f".{'1' * 16}.tmp"
    foreign = tmp_path / ".notes.tmp"
    for path in (dead, living, foreign):
        path.write_bytes(b"half")
    with living.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert clean_temporaries(tmp_path) == [dead]
    assert living.exists()
    assert foreign.exists()
    assert clean_temporaries(tmp_path) == [living]


def test_exclusive_keeps_another_process_out(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys\n"
        "try: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('taken')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with exclusive(tmp_path / ".lock"):
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "taken\n"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "main", "main exploiter 3", "שלום", "a.b", "%41"])
def test_names_become_one_component_inside_the_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / safe_name(name, "player")
    assert path.resolve().parent == tmp_path.resolve()
    assert not path.name.startswith(".")
    path.mkdir()


def test_different_names_stay_different() -> None:
    names = [*HOSTILE_NAMES, "main", "Main", "A", "%41", "%2E", "%2E.", "a b", "a+b", "a%20b"]
    assert len({safe_name(name, "player") for name in names}) == len(names)


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_names_that_deceive_or_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(BadName, match="player") as caught:
        safe_name(name, "player")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
