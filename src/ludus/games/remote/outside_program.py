"""Outside programs: a program that a game needs, such as a client under wine, is started, watched and restarted."""

from __future__ import annotations

import math
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ludus.system.process import PIPE, GuardedProcess, OutputReader

_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """The file of `ludus serve --program`."""

    command: tuple[str, ...]
    """The program and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the server."""
    folder: str = "."
    """Working directory; other paths are relative to it."""
    files: tuple[str, ...] = ()
    """Files that must exist before it is started, such as a licence or data of the game."""
    ready_port: int | None = None
    """It is ready when this port of this machine accepts connections."""
    ready_line: str | None = None
    """It is ready when it has printed a line with this text. Without either, it is ready at once."""
    ready_seconds: float = 60.0
    """If it takes longer to be ready, it is started again."""
    restart_seconds: float = 1.0
    """Pause before a restart; doubles each time that it fails soon."""
    restart_seconds_most: float = 60.0
    log: str = "program.log"
    """File for its output."""
    log_mb: float = 10.0
    """A longer log is renamed LOG.1, and LOG.1 becomes LOG.2, the oldest that is kept."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command names no program")
        for name in ("ready_seconds", "restart_seconds", "restart_seconds_most", "log_mb"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if self.ready_port is not None and not 0 < self.ready_port < 2**16:
            raise ValueError(f"ready_port must be 1 to 65535, got {self.ready_port}")

    def require_files(self) -> None:
        """Raises FileNotFoundError for the first thing that is missing."""
        folder = Path(self.folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"folder {self.folder!r} does not exist")
        for name in self.files:
            if not (folder / name).exists():
                raise FileNotFoundError(f"{str(folder / name)!r} does not exist, which the program needs")
        require_program(self.command[0], self.folder, self.environment)


def require_program(program: str, folder: str, environment: Mapping[str, str]) -> None:
    """Raises FileNotFoundError if the program, which may be relative to the folder, cannot be run."""
    found = (
        os.access(Path(folder) / program, os.X_OK)
        if "/" in program
        else shutil.which(program, path=environment.get("PATH"))
    )
    if not found:
        raise FileNotFoundError(f"program {program!r} is not installed, or cannot be run")


class OutsideProgram:
    """Runs a program from `start` to `close`. It and everything that it has started end with this process."""

    def __init__(self, config: ProgramConfig, tell: Callable[[str], None] = lambda line: None) -> None:
        """`tell` gets a line for every event. Raises FileNotFoundError."""
        config.require_files()
        self._config = config
        self._tell = tell
        self._closing = threading.Event()
        self._ready = threading.Event()
        self.wait_ready = self._ready.wait
        self.state = "not started"
        self._process: GuardedProcess | None = None
        self._thread = threading.Thread(target=self._keep_running, name="outside program", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process number of its guard."""
        return None if self._process is None else self._process.pid

    def why_not_ready(self) -> str | None:
        return None if self._ready.is_set() else f"the game's program is not ready: {self.state}"

    def start(self) -> None:
        self._thread.start()

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
                pause = config.restart_seconds  # it has run for a while, so this is a new problem
            self._say(f"{reason}; next start in {pause:g} s")
            self._closing.wait(pause)
            pause = min(2 * pause, config.restart_seconds_most)
        self.state = "ended with the server"

    def _run(self, which: str) -> str:
        """Run it once, until it ends or has to be ended. Returns why."""
        try:
            self._config.require_files()
            process = self._process = GuardedProcess(
                self._config.command,
                stdout=PIPE,
                environment={**os.environ, **self._config.environment},
                folder=self._config.folder,
            )
        except OSError as error:
            return f"cannot be started: {error}"
        output = OutputReader(process.stdout, self._take, keep=1)
        self._say(f"{which}, starting")
        began, told = time.monotonic(), False
        try:
            while not self._closing.wait(_LOOK_S):
                code = process.exit_code
                if code is not None:
                    output.join()
                    last = "".join(output.last_words).strip()[:200]
                    return f"ended with exit code {code}" + (f" ({last})" if last else "")
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
            process.end()
            output.join()

    def _look_for_ready(self) -> None:
        port = self._config.ready_port
        if port is not None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_LOOK_S):
                self._ready.set()
        elif self._config.ready_line is None:
            self._ready.set()

    def _say(self, what: str) -> None:
        self.state = what
        self._tell(f"program {self._config.command[0]}: {what}")

    def _take(self, line: bytes) -> None:
        """A line of its output: it may say that the program is ready, and goes into a file of limited size."""
        if self._config.ready_line is not None and self._config.ready_line.encode() in line:
            self._ready.set()
        file = Path(self._config.folder) / self._config.log
        with suppress(OSError):  # a full disk must not stop the program
            with file.open("ab") as log:
                log.write(line)
                full = log.tell() > self._config.log_mb * 2**20
            if full:
                old, older = Path(f"{file}.1"), Path(f"{file}.2")
                if old.exists():
                    old.replace(older)
                file.replace(old)
