"""`ludus watch` as a process: what it prints, whom it lets in, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from command_line import LUDUS, Ludus

from ludus.store.run_folder import RunFolder
from ludus.system.network import make_token_file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One that has not started."""
    return RunFolder.create(tmp_path / "run", {"name": "kuhn", "budget": 1000}, seed=0).path


@contextmanager
def watched(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The process, its port, and its first line."""
    command = [*LUDUS, "watch", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            yield process, int(first.partition("http://")[2].partition("/")[0].rpartition(":")[2]), first
        finally:
            process.kill()


def ask(port: int, path: str, **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as asking:
        asking.request("GET", path, headers=headers)
        answer = asking.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_shows_a_run_and_ends_when_told_to(run: Path, number: signal.Signals, code: int) -> None:
    with watched(str(run)) as (process, port, said):
        assert said == f"{run} at http://127.0.0.1:{port}/ (Ctrl-C ends)\n"
        status, overview = ask(port, "/data/overview")
        assert status == 200
        told = json.loads(overview)
        assert (told["run"], told["experiment"], told["state"]) == ("run", "kuhn", "never started")
        assert ask(port, "/data/league")[0] == 404
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as following:
            following.request("GET", "/events")
            following.getresponse().readline()
            process.send_signal(number)  # a viewer that stays does not keep it alive
            assert process.wait(20) == code


def test_a_token_from_a_file_is_asked_for(run: Path, tmp_path: Path) -> None:
    token_file = make_token_file(tmp_path / "token")
    token = token_file.read_text().strip()
    with watched(str(run), "--host", "0.0.0.0", "--token-file", str(token_file)) as (_, port, said):
        assert token not in said
        assert ask(port, "/data/overview")[0] == 401
        assert ask(port, "/data/overview", Authorization=f"Bearer {token}")[0] == 200
        assert ask(port, "/data/overview", Authorization=f"Bearer {token}", Host="evil.example")[0] == 421


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "--host 0.0.0.0 can be reached from other machines: give --token-file"),
        (("--host", "::"), "--host :: can be reached"),
        (("--token-file", "none"), "token file none: No such file"),
        (("--port", "99999"), "99999 is not in the range"),
    ],
)
def test_what_is_not_safe_is_refused_by_name(ludus: Ludus, run: Path, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = ludus("watch", str(run), *arguments)
    assert code == 2
    assert message in err


def test_a_token_that_others_can_read_is_refused(ludus: Ludus, run: Path, tmp_path: Path) -> None:
    token_file = make_token_file(tmp_path / "token")
    token_file.chmod(0o644)
    err = ludus("watch", str(run), "--host", "0.0.0.0", "--token-file", str(token_file)).err
    assert "can be read by others" in err


def test_a_folder_that_is_no_run_is_named(ludus: Ludus, tmp_path: Path) -> None:
    code, _, err = ludus("watch", str(tmp_path))
    assert code == 1
    assert f"{tmp_path} is not a run folder" in err
