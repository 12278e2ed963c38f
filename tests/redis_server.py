"""A Redis server of a test's own, on a unix socket that nobody else sees."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest


class RedisServer:
    """Keeps nothing on disk: after `stop` and `start` it is empty."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("redis")
        self._folder = folder
        self.url = f"unix://{folder / 's'}"
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", "0", "--unixsocket", str(self._folder / "s"), "--save", ""]
        try:
            self._process = subprocess.Popen([*command, "--dir", str(self._folder)], stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            pytest.skip("there is no redis-server: apt-get install redis-server")
        until = time.monotonic() + 20
        while not (self._folder / "s").exists():
            assert time.monotonic() < until
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
