"""A game server that dies while a league plays at it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from invariants import check_run
from tiny_runs import learned, local, once, tiny

from ludus.data.records import MatchVoid
from ludus.games.remote.source import Remote
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder


def serve(port: int) -> subprocess.Popen[str]:
    command = ["serve", "kuhn", "--workers", "0", "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "ludus.cli.main", *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "remote://" in process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_training_goes_on_when_its_game_server_is_killed_and_started_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = int(found.getsockname()[1])
    path = tmp_path / "run"
    with ExitStack() as running:
        first = serve(port)
        running.callback(end, first)

        def restart(_: object) -> None:
            first.send_signal(signal.SIGKILL)
            first.wait()
            running.callback(end, serve(port))

        game = Remote(server=f"127.0.0.1:{port}", game="kuhn")
        with local(path, tiny(game)) as training:
            watch = once(learned(4_000), restart)
            assert training.run(watch) == FINISHED
            assert watch.done
            assert training.restarts == 0, "no process of the training was lost"
            check_run(path, live=training.league)
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        voids = [event for _, event in ledger.replay() if isinstance(event, MatchVoid)]
    assert any(f"127.0.0.1:{port}" in void.reason for void in voids), voids
