"""`ludus eval --render`: pictures of a run's players in a file and on a page, and what is refused."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import exit_code
from PIL import Image

from ludus.cli import evaluate as rendering
from ludus.system.machine import install_command

SETTINGS = (
    "runtime=serial", "budget=300", "actor.num_tables=16", "actor.matches=2", "learner.batch_size=100",
    "learner.minibatch_size=50", "evaluation.episodes=2", "model.hidden=8",
)  # fmt: skip


def train(run: Path, recipe: str) -> str:
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    assert exit_code("train", recipe, "--run", str(run), "--quiet", *chosen) == 0
    return str(run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a game with pictures."""
    return train(tmp_path_factory.mktemp("runs") / "four", "connect_four")


def test_an_evaluation_is_followed_by_pictures_of_every_pair(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "play.gif"
    arguments = ["eval", run, "main", "random", "rules", "-n", "2", "--json"]
    assert exit_code(*arguments, "--render", str(file), "--fps", "20", "--render-size", "224") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2, "the results, as without pictures"
    with Image.open(file) as image:
        frames = getattr(image, "n_frames", 1)
        times = []
        for number in range(frames):
            image.seek(number)
            times.append(image.info["duration"])
        assert image.width == 224
    assert f"{file} ({frames} frames" in shown.err
    assert sorted(set(times)) == [50, 1500]
    assert times.count(1500) == 2, "one end for each pair"


def test_pictures_without_an_evaluation(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Path(run) / "metrics" / "evaluations.jsonl"
    before = kept.read_text()
    file = tmp_path / "play.gif"
    arguments = ["eval", run, "random", "rules", "-n", "0", "--render", str(file), "--render-episodes", "3"]
    assert exit_code(*arguments, "--seat", "1") == 0
    assert capsys.readouterr().out == ""
    assert kept.read_text() == before
    assert file.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0"], "nothing to do"),
        (["--fps", "5"], "--fps is for pictures: add --render FILE.gif or --render live"),
        (["--render", "play.mp4"], "'play.mp4' is neither a name that ends in .gif nor 'live'"),
        (["--render", "nowhere/play.gif"], "there is no folder 'nowhere'"),
        (["--render", "play.gif", "--port", "8000"], "--port is for --render live"),
        (["--render", "live", "--render-size", "100"], "--render-size is for a file"),
        (["--render", "play.gif", "--seat", "2"], "2: connect_four has seats 0 to 1"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_played(
    run: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("eval", run, "main", "random", *arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_a_game_without_pictures_names_those_that_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rps = train(tmp_path / "rps", "rps")
    assert exit_code("eval", rps, "--render", str(tmp_path / "play.gif")) == 2
    error = capsys.readouterr().err
    assert "rock_paper_scissors has no pictures" in error
    for game in ("beacon", "skirmish", "connect_four", "tic_tac_toe"):
        assert game in error


def test_a_missing_library_is_named_with_its_extra(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "find_spec", lambda name: None if name == "starlette" else name)
    assert exit_code("eval", run, "main", "random", "--render", "live") == 1
    assert f"--render needs starlette: {install_command('web')}" in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def watched(port: int) -> Iterator[str]:
    """The lines of the stream, as soon as there is a page."""
    for _ in range(600):
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            asking.request("GET", "/events")
        except ConnectionRefusedError:
            time.sleep(0.05)
            continue
        with asking.getresponse() as answer:
            yield from (line.decode() for line in answer)
        asking.close()
        return


def test_a_live_page_ends_with_play(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    lines: list[str] = []
    watching = threading.Thread(target=lambda: lines.extend(watched(port)), daemon=True)
    watching.start()
    arguments = ["-n", "0", "--render", "live", "--port", str(port), "--render-episodes", "1", "--fps", "50"]
    assert exit_code("eval", run, "random", "rules", *arguments) == 0
    watching.join(20)
    text = "".join(lines)
    assert text.count("event: moment") >= 1
    assert text.endswith('event: ended\ndata: {"reason": "all episodes have been played"}\n\n')
    assert f"open http://127.0.0.1:{port}/" in capsys.readouterr().err


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts something in the background makes it ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_live_page_says_so_and_the_command_ends_with_130(run: str) -> None:
    port = free_port()
    lines: list[str] = []

    def watch() -> None:
        for line in watched(port):
            lines.append(line)
            if line == "event: moment\n" and lines.count(line) == 1:
                os.kill(os.getpid(), signal.SIGINT)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    assert (
        exit_code("eval", run, "random", "rules", "-n", "0", "--render", "live", "--port", str(port), "--fps", "1")
        == 130
    )
    watching.join(20)
    assert "".join(lines).endswith('data: {"reason": "the command has stopped"}\n\n')
