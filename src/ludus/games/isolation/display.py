"""A screen for games that insist on one: Xvfb, which shows its picture to nobody."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from ludus.games.seat_rows import GameError

_SCREEN = "1280x1024x24"
_PATIENCE_S = 15.0


@contextmanager
def display() -> Iterator[None]:
    """The screen that DISPLAY names, or for as long as this lasts a new one."""
    if os.environ.get("DISPLAY"):
        yield
        return
    program = shutil.which("Xvfb")
    if program is None:
        raise GameError(
            "the game needs a display: DISPLAY is not set and Xvfb is not installed (apt-get install xvfb)"
        )
    chosen, choosing = os.pipe()
    command = [program, "-displayfd", str(choosing), "-screen", "0", _SCREEN, "-nolisten", "tcp", "-noreset"]
    with open(chosen, "rb", buffering=0) as answer:
        server = subprocess.Popen(command, pass_fds=(choosing,), stdin=subprocess.DEVNULL)
        os.close(choosing)
        try:
            ready, _, _ = select.select([answer], [], [], _PATIENCE_S)
            number = answer.read(16).split(b"\n")[0].decode() if ready else ""
            if not number:
                raise GameError("the game needs a display, but Xvfb did not start")
            os.environ["DISPLAY"] = f":{number}"
            yield
        finally:
            os.environ.pop("DISPLAY", None)
            server.terminate()  # in good order: a killed one leaves its lock behind
            try:
                server.wait(2.0)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
