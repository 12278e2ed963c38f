from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from command_line import Ludus

from ludus.games.catalog import resolve
from ludus.games.remote.client import GameClient
from ludus.games.remote.source import Remote, from_address
from ludus.games.seat_rows import GameError

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from ludus.cli.main import main
main(sys.argv[1:])
"""


@contextmanager
def served(*arguments: str, missing: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A `ludus serve` at any free port: the process, and HOST:PORT."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT.format(missing=repr(missing)), "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "LUDUS_GAME_SERVER": "127.0.0.1:9"},  # of no concern to a server
    )
    try:
        assert process.stdout is not None
        first = ""
        while "remote://" not in first:
            line = process.stdout.readline()
            assert line, f"ended: {first}"
            first += line
        yield process, first.partition("remote://")[2].partition("/")[0]
    finally:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    found = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]


def end_soon(pids: list[int]) -> bool:
    """Whether none of them is left after a moment: some are ended by others."""
    until = time.monotonic() + 10.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_needs_no_torch_and_ends_with_all_its_processes(number: signal.Signals, code: int) -> None:
    missing = ("torch", "scipy", "openskill", "gymnasium")
    with served("connect_four", "--workers", "2", missing=missing) as (process, server):
        batch = Remote(server=server, game="connect_four").tables(4)
        batch.reset(np.arange(4), np.arange(4, dtype=np.uint64))
        assert batch.view.to_act.any(axis=1).all()
        below = children(process.pid)
        assert len(below) >= 4  # two hosts, each with its guard
        process.send_signal(number)
        assert process.wait(30.0) == code
        assert end_soon(below)
        batch.close()


def test_clients_may_set_harmless_options_only(tmp_path: Path) -> None:
    with served("skirmish", "--workers", "0") as (_, server):
        assert from_address(f"remote://{server}/skirmish?mode=3v3").spec == resolve("skirmish", mode="3v3").spec
        for value, said in (("os:system", "plain words"), ("../../etc", "plain words"), ("2v2", "1v1")):
            with pytest.raises(GameError, match=said):
                _ = Remote(server=server, options={"mode": value}).spec
        with pytest.raises(GameError, match=r"mod.*did you mean 'mode'"):
            _ = Remote(server=server, options={"mod": "3v3"}).spec
        with pytest.raises(GameError, match="plain words"):
            _ = Remote(server=server, options={"mode": {"$ref": "os:system"}}).spec


SLOW_GAME = """
from dataclasses import dataclass
from ludus.games.builtin.kuhn import Kuhn

@dataclass(frozen=True, kw_only=True)
class Slow(Kuhn):
    size: int = 0
    def __post_init__(self):
        held = bytearray(self.size * 2**20)
        if self.size:
            pow(3, 10**9)  # no other thread of its process runs meanwhile
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_options_that_make_a_game_endless_cost_the_server_nothing(tmp_path: Path, workers: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW_GAME)
    options = ["--memory-mb", "120"] if workers == "1" else []
    with served(f"{tmp_path}/slow.py:Slow", "--workers", workers, *options) as (process, server), ExitStack() as ending:
        if workers == "0":  # it is ended after 30 s; meanwhile others are served
            waiting = ThreadPoolExecutor(1)
            ending.callback(waiting.shutdown, wait=False, cancel_futures=True)
            waiting.submit(lambda: Remote(server=server, options={"size": 1}, timeout_s=5.0).spec)
        else:
            with pytest.raises(GameError, match="more than memory_mb=120"):
                _ = Remote(server=server, options={"size": 300}).spec
        assert Remote(server=server, timeout_s=20.0).spec.name == "kuhn"
        assert process.poll() is None


def test_other_machines_are_let_in_with_a_token_only(ludus: Ludus) -> None:
    for host in ("0.0.0.0", "::", "games.example"):
        code, _, err = ludus("serve", "kuhn", "--host", host)
        assert code == 2
        assert "--token-file" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("khun",), 2, "did you mean 'kuhn'?"),
        (("kuhn", "--token-file", "none"), 2, "token file none: No such file"),
        (("kuhn", "--token-file", "readable"), 2, "readable can be read by others (mode 644)"),
        (("kuhn", "--token-file", "short"), 2, "the token has 1 characters, fewer than 16"),
        (("kuhn", "--tls-cert", "some.pem"), 2, "go together"),
        (("kuhn", "--tls-cert", "words", "--tls-key", "words"), 2, "no certificate with its private key"),
        (("kuhn", "--program", "none.yaml"), 1, "none.yaml"),
        (("skirmish", "--set", "mode=2v2"), 2, "1v1"),
    ],
)
def test_what_is_wrong_is_said(ludus: Ludus, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "words").write_text("no PEM")
    for name, mode in (("readable", 0o644), ("short", 0o600)):
        (tmp_path / name).write_text("x" if name == "short" else 32 * "x")
        (tmp_path / name).chmod(mode)
    found, _, err = ludus("serve", *arguments)
    assert found == code
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("command: [wine, game.exe]\nfiles: [licence.dat]", "licence.dat' does not exist"),
        ("comand: [true]", "did you mean 'command'?"),
        ("- true", "write `command: [...]`"),
    ],
)
def test_a_program_that_cannot_run_is_said_before_it_is_served(
    ludus: Ludus, tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "game.yaml"
    file.write_text(content)
    code, _, err = ludus("serve", "kuhn", "--workers", "0", "--program", str(file))
    assert code == 2
    assert said in err


def test_a_program_runs_beside_the_server(tmp_path: Path) -> None:
    (tmp_path / "game.yaml").write_text("command: [sh, -c, 'echo up; sleep 1000']\nready_line: up\n")
    with served("kuhn", "--workers", "0", "--program", str(tmp_path / "game.yaml")) as (process, server):
        until = time.monotonic() + 20.0
        with GameClient(server) as client:
            while client.describe().program != "start 1, ready":
                assert time.monotonic() < until
        Remote(server=server).tables(1).close()
        below = children(process.pid)
        assert below
        process.send_signal(signal.SIGINT)
        assert process.wait(30.0) == 130
        assert end_soon(below)
    assert (tmp_path / "program.log").read_text() == "up\n"
