"""The log keeper: a small process that writes the output of workers into files of limited size.

Workers, and the programs that they start, print into pipes. One process reads them all, marks each line with its time,
run and worker, and begins a new file when one is full. This file runs as a script with `python -I -S`; it receives the
pipes through a socket, which ends with the controller.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_BYTES = 4_000_000
"""The size of one file."""
KEPT = 4
"""Full files that are kept beside the newest: NAME.log.1 is the latest of them."""
LONGEST_LINE = 8_192
"""Longer lines are cut into several."""
LAST_LOOK_S = 0.2
"""How long the process waits for more output once the controller has ended."""
CLOSE_WITHIN_S = 5.0


class LogKeeper:
    """The controller's end. It keeps the pipes open itself: if the process is killed, the output waits for the next
    one, and no worker notices."""

    def __init__(self, folder: Path, run: str) -> None:
        self._folder = folder
        self._run = run
        self._pipes: dict[str, int] = {}
        """By worker, the end of its pipe that is read."""
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextmanager
    def output(self, worker: str) -> Iterator[int]:
        """A descriptor that a process which is being started prints to."""
        self.look()
        if worker in self._pipes:  # of a process that has ended: the keeper reads it to its end without us
            os.close(self._pipes[worker])
        self._pipes[worker], write_fd = os.pipe()
        self._tell(worker)
        try:
            yield write_fd
        finally:
            os.close(write_fd)

    def look(self) -> None:
        """Replace a process that was killed; call it now and then."""
        if self._process.poll() is not None:
            self._socket.close()
            self._start()
            for worker in self._pipes:
                self._tell(worker)

    def close(self) -> None:
        """Returns once all output so far is in the files."""
        self._socket.close()
        try:
            self._process.wait(CLOSE_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for read_fd in self._pipes.values():
            os.close(read_fd)
        self._pipes = {}

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self._folder.absolute()), self._run],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _tell(self, worker: str) -> None:
        with suppress(OSError):  # it was killed just now: the next look tells its successor
            socket.send_fds(self._socket, [json.dumps(worker).encode()], [self._pipes[worker]])


class _LogFile:
    """A file that is rotated when it is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, content: bytes) -> None:
        with suppress(OSError):  # a full disk: these lines are lost, others may not be
            if self._file.tell() and self._file.tell() + len(content) > MOST_BYTES:
                self._turn()
            self._file.write(content)

    def _turn(self) -> None:
        self._file.close()
        for number in range(KEPT, 0, -1):
            before = f".{number - 1}" if number > 1 else ""
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{before}", f"{self._path}.{number}")
        self._file = self._path.open("ab", buffering=0)


class _Pipe:
    """The output of one process."""

    def __init__(self, fd: int, mark: str, file: _LogFile) -> None:
        self.fd = fd
        self._mark = mark
        self._file = file
        self._rest = b""

    def read(self) -> bool:
        """Write what has arrived; False at the end of the pipe."""
        content = os.read(self.fd, 65_536)
        *lines, self._rest = (self._rest + content).split(b"\n")
        while len(self._rest) > LONGEST_LINE or (self._rest and not content):
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        if lines:
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
            mark = f"{stamp} {self._mark}: ".encode()
            self._file.write(b"".join(mark + line + b"\n" for line in lines))
        return bool(content)


def _keep_logs(folder: Path, run: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    controller = socket.socket(fileno=0)
    files: dict[str, _LogFile] = {}
    pipes: dict[int, _Pipe] = {}
    poll = select.poll()
    poll.register(controller, select.POLLIN)
    told_all = False
    while True:
        ready = [fd for fd, _ in poll.poll(LAST_LOOK_S * 1000 if told_all else None)]
        if told_all and not ready:
            return
        for fd in ready:
            if fd != controller.fileno():
                if not pipes[fd].read():
                    poll.unregister(fd)
                    os.close(pipes.pop(fd).fd)
                continue
            message, fds, _, _ = socket.recv_fds(controller, 4_096, 1)
            if not message:
                told_all = True
                poll.unregister(controller)
                continue
            worker = json.loads(message)
            if worker not in files:
                files[worker] = _LogFile(folder / f"{worker}.log")
            pipes[fds[0]] = _Pipe(fds[0], f"{run} {worker}", files[worker])
            poll.register(fds[0], select.POLLIN)


if __name__ == "__main__":
    _keep_logs(Path(sys.argv[1]), sys.argv[2])
