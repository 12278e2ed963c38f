"""A program that a game needs beside it, such as a client under wine: started, watched, started again."""

from __future__ import annotations

import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ludus.games import program_guard

_ENDING_S = 5.0
_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """What is written in the file of `ludus serve --program`."""

    command: tuple[str, ...]
    """The program and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside what the server itself has."""
    folder: str = "."
    """Where it runs; other paths are looked for from here."""
    files: tuple[str, ...] = ()
    """What must be there before it is started: a licence, a game's data."""
    ready_port: int | None = None
    """It is ready when somebody listens at this port of this machine."""
    ready_line: str | None = None
    """It is ready when it has printed a line with this text. With neither, it is ready at once."""
    ready_seconds: float = 60.0
    """If it is not ready by then, it is started again."""
    restart_seconds: float = 1.0
    """Pause before it is started again; twice as long each time that it fails soon."""
    restart_seconds_most: float = 60.0
    log: str = "program.log"
    """What it prints."""
    log_mb: float = 10.0
    """A longer log becomes LOG.1, and that LOG.2, which is the oldest that is kept."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command names no program")
        for name in ("ready_seconds", "restart_seconds", "restart_seconds_most", "log_mb"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if self.ready_port is not None and not 0 < self.ready_port < 2**16:
            raise ValueError(f"ready_port must be 1 to 65535, got {self.ready_port}")

    def require_files(self) -> None:
        """Raises FileNotFoundError for the first thing that is not there."""
        folder = Path(self.folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"folder {self.folder!r} does not exist")
        for name in self.files:
            if not (folder / name).exists():
                raise FileNotFoundError(f"{str(folder / name)!r} does not exist, which the program needs")
        program = self.command[0]
        found = (
            os.access(folder / program, os.X_OK)
            if "/" in program
            else shutil.which(program, path=self.environment.get("PATH"))
        )
        if not found:
            raise FileNotFoundError(f"program {program!r} is not installed, or cannot be run")


class OutsideProgram:
    """Runs from `start` to `close`; whatever it has started ends with it, and all of it with this process."""

    def __init__(self, config: ProgramConfig, tell: Callable[[str], None] = lambda line: None) -> None:
        """`tell` hears what happens to it, a line each. Raises FileNotFoundError."""
        config.require_files()
        self._config = config
        self._tell = tell
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._state = "not started"
        self._process: subprocess.Popen[bytes] | None = None
        self._life = -1
        self._thread = threading.Thread(target=self._keep_running, name="outside program", daemon=True)

    @property
    def state(self) -> str:
        return self._state

    @property
    def pid(self) -> int | None:
        """Of the guard that watches it."""
        return None if self._process is None else self._process.pid

    def why_not_ready(self) -> str | None:
        return None if self._ready.is_set() else f"the game's program is not ready: {self._state}"

    def start(self) -> None:
        self._thread.start()

    def wait_ready(self, most_s: float) -> bool:
        return self._ready.wait(most_s)

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _keep_running(self) -> None:
        config, pause, starts = self._config, self._config.restart_seconds, 0
        while not self._closing.is_set():
            began = time.monotonic()
            starts += 1
            reason = self._run(f"start {starts}")
            self._ready.clear()
            if self._closing.is_set():
                break
            if time.monotonic() - began > config.restart_seconds_most:
                pause = config.restart_seconds  # it has run for a while: this is a new trouble
            self._say(f"{reason}; next start in {pause:g} s")
            self._closing.wait(pause)
            pause = min(2 * pause, config.restart_seconds_most)
        self._state = "ended with the server"

    def _run(self, which: str) -> str:
        """Once, until it ends or must be ended; why it did."""
        try:
            self._config.require_files()
            process = self._launch()
        except OSError as error:
            return f"cannot be started: {error}"
        log = _Log(self._config, process, self._ready)
        self._say(f"{which}, starting")
        began, told = time.monotonic(), False
        try:
            while not self._closing.wait(_LOOK_S):
                code = process.poll()
                if code is not None:
                    log.join()
                    return f"ended with exit code {code}" + (f" ({log.last})" if log.last else "")
                if not self._ready.is_set():
                    self._look_for_ready()
                if self._ready.is_set():
                    if not told:
                        told = True
                        self._say(f"{which}, ready")
                elif time.monotonic() - began > self._config.ready_seconds:
                    return f"was not ready within {self._config.ready_seconds:g} s"
            return "the server ends"
        finally:
            self._end(process)
            log.join()

    def _look_for_ready(self) -> None:
        port = self._config.ready_port
        if port is not None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_LOOK_S):
                self._ready.set()
        elif self._config.ready_line is None:
            self._ready.set()

    def _launch(self) -> subprocess.Popen[bytes]:
        guarded, self._life = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", program_guard.__file__, str(guarded), *self._config.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._config.folder,
                env={**os.environ, **self._config.environment},
                pass_fds=(guarded,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(guarded)
        return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        os.close(self._life)  # the guard ends the program and all that it has started
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _say(self, what: str) -> None:
        self._state = what
        self._tell(f"program {self._config.command[0]}: {what}")


class _Log:
    """Writes what a program prints into a file that does not grow without end."""

    def __init__(self, config: ProgramConfig, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        self._file = Path(config.folder) / config.log
        self._most = int(config.log_mb * 2**20)
        self._awaited = None if config.ready_line is None else config.ready_line.encode()
        self._process, self._ready = process, ready
        self.last = ""
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(_ENDING_S)

    def _write(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            while line := lines.readline(2**16):
                self.last = line.decode(errors="replace").strip()[:200] or self.last
                if self._awaited is not None and self._awaited in line:
                    self._ready.set()
                with suppress(OSError):  # a full disk must not stop the program
                    self._keep(line)

    def _keep(self, line: bytes) -> None:
        with self._file.open("ab") as log:
            log.write(line)
            full = log.tell() > self._most
        if full:
            old, older = Path(f"{self._file}.1"), Path(f"{self._file}.2")
            if old.exists():
                old.replace(older)
            self._file.replace(old)
