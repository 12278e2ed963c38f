"""Folders that end with their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ludus.runtime.ray.connection import YOUNG_S, TemporaryHome

MAKE = "import sys, time; from ludus.runtime.ray.connection import TemporaryHome\n"


def age(folder: Path) -> None:
    then = folder.stat().st_mtime - 2 * YOUNG_S
    os.utime(folder, (then, then))


def test_it_is_private_and_goes_with_its_owner(tmp_path: Path) -> None:
    home = TemporaryHome("one-", str(tmp_path))
    assert home.path.stat().st_mode & 0o777 == 0o700
    (home.path / "file").write_text("something")
    home.close()
    assert not list(tmp_path.iterdir())
    home.close()  # once more does no harm


def test_what_the_dead_have_left_is_removed_and_the_living_stay(tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"{MAKE}home = TemporaryHome('one-', sys.argv[1])\n"]
    program[2] += "print(home.path, flush=True); time.sleep(600)"
    with subprocess.Popen([*program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        age(theirs)
        TemporaryHome("one-", str(tmp_path)).close()
        assert theirs.exists(), "its process lives"
        other.send_signal(signal.SIGKILL)
    TemporaryHome("another-", str(tmp_path)).close()
    assert theirs.exists(), "of another kind"
    TemporaryHome("one-", str(tmp_path)).close()
    assert not theirs.exists()


def test_one_that_is_just_being_made_stays(tmp_path: Path) -> None:
    (tmp_path / "one-new").mkdir()
    TemporaryHome("one-", str(tmp_path)).close()
    assert (tmp_path / "one-new").exists()
