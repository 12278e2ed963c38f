"""`ludus train` as people see it: in terminals of all sizes, in pipes and in the logs of CI jobs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import LUDUS, TINY
from terminals import Terminal, running

from ludus.observe.progress import Pace
from ludus.observe.terminal import can_redraw

CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that a log should not have; a terminal itself adds the carriage returns."""
COLOUR = re.compile(rb"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|38;[25];[0-9;]+)m")
ENDLESS = ("train", "kuhn", "--run", "mine", "--runtime", "serial", "--set", "actor.num_tables=64")
LINE = re.compile(r" *[\d.]+%  +[\d,]+ decisions +[\d,]+/s +[\d,]+ matches .* left")


def settings(**chosen: object) -> list[str]:
    """Written with __ for a dot."""
    return [part for path, value in chosen.items() for part in ("--set", f"{path.replace('__', '.')}={value}")]


def is_whole(line: str, width: int) -> bool:
    """Whether this is the line of the progress bar, drawn for this width."""
    return len(line) == width and re.search(r"━ +\d+\.\d%  (\?|\d+[hm] \d\d[ms]) left$", line) is not None


def is_drawn(lines: list[str], width: int) -> bool:
    """Whether the whole view is on the screen. Output arrives in pieces, so the bar may be there before the rest."""
    parts = ["kuhn on kuhn", r"[\d.]+[kM]? of [\d.]+M decisions  [\d.]+k?/s", "main  entropy=", "player ", "random  "]
    if width < 80:
        parts.append(r".*Too\s+narrow\s+here\s+for:")
    shown = "\n".join(lines)
    return any(is_whole(line, width) for line in lines) and all(re.search(f"^{p}", shown, re.MULTILINE) for p in parts)


def test_the_live_view_fits_terminals_of_all_widths(tmp_path: Path) -> None:
    terminal = Terminal(columns=80, rows=24)
    with running(terminal, tmp_path, *ENDLESS) as training:
        terminal.until(lambda: any("entropy=" in line for line in terminal.lines))
        for width in (40, 60, 200, 80):
            terminal.resize(width, 24)
            terminal.screen.reset()
            terminal.until(lambda width=width: is_drawn(terminal.lines, width))
            assert width < 80 or "Too narrow" not in "\n".join(terminal.lines)
        training.send_signal(signal.SIGINT)
        terminal.until(lambda: any(line.startswith("measure:  ludus eval mine") for line in terminal.lines))
        assert not any("━" in line for line in terminal.lines), "the progress bar makes room for the end"
        assert training.wait(timeout=60) == 130
    assert COLOUR.search(terminal.raw)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [10, 50])
def test_the_live_view_keeps_within_the_height_and_does_without_colours(rows: int, tmp_path: Path) -> None:
    terminal = Terminal(columns=80, rows=rows)
    often = settings(league__roles__main__promotion__every=5000, evaluation__past=0, evaluation__ladder=0)
    with running(terminal, tmp_path, *ENDLESS, *often, environment={"NO_COLOR": "1"}):
        terminal.until(lambda: any(re.match(r"\d\d\dk of ", line) for line in terminal.lines))
        assert "..." not in [line.strip() for line in terminal.lines], "cut off by rich"
        players = [line.split()[0] for line in terminal.lines if re.match(r"(main|random)\S*( \(\w+\))? +[\ds]", line)]
        assert "main" in players
        assert any(player.startswith("main.") for player in players)
        assert ("main.8" in players) == ("random" in players) == (rows == 50)
    assert not COLOUR.search(terminal.raw)


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    with subprocess.Popen(
        [*LUDUS, *ENDLESS], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as training:
        assert training.stdout is not None
        begun = [training.stdout.readline() for _ in range(3)]
        training.send_signal(signal.SIGINT)
        rest = training.stdout.read()
    written = b"".join(begun) + rest
    assert begun[0].startswith(b"run folder: mine")
    assert LINE.match(begun[2].decode()), begun
    assert not CONTROL.search(written), written
    assert b"measure:  ludus eval mine" in written


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true", "NO_COLOR": "1"}])
def test_a_terminal_that_keeps_all_gets_plain_lines_too(environment: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal(columns=120, rows=30)
    with running(terminal, tmp_path, *ENDLESS, environment=environment) as training:
        terminal.until(lambda: any(LINE.match(line) for line in terminal.lines))
        training.send_signal(signal.SIGINT)
        terminal.until(lambda: any(line.startswith("measure:") for line in terminal.lines))
    assert not CONTROL.search(terminal.raw.replace(b"\r\n", b"\n")), terminal.raw


@pytest.mark.parametrize(
    ("environment", "redrawn"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "CI": "1"}, False)],
)
def test_only_a_terminal_that_forgets_is_drawn_over(
    environment: dict[str, str], redrawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(80, 24)
    with open(os.dup(terminal.program), "w") as stream:
        assert can_redraw(stream) == redrawn
    terminal.close()
    with open(tmp_path / "log", "w") as stream:
        assert not can_redraw(stream)


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = Pace(0.0, 0)
    assert pace(0.0, 0) == 0
    for second in range(1, 101):
        steady = pace(float(second), 10 * second)
    assert steady == pytest.approx(10)
    for second in range(101, 201):
        faster = pace(float(second), 1000 + 50 * (second - 100))
    assert faster == pytest.approx(50)
    assert pace(260.0, 6000) < 26, "it falls while nothing happens"


def test_the_pace_of_rare_steps_is_taken_over_several() -> None:
    pace = Pace(0.0, 0)
    seen = [pace(float(second), 1000 * (second // 100)) for second in range(1, 1000)]
    assert seen[-1] == pytest.approx(10, rel=0.4)


def test_settings_of_a_recipe_begin_lines_of_their_own(tmp_path: Path) -> None:
    terminal = Terminal(columns=80, rows=400)
    with running(terminal, tmp_path, "recipes", "kuhn") as listing:
        terminal.until(lambda: "repeats a run exactly" in " ".join(line.strip() for line in terminal.lines))  # the end
        assert listing.wait(timeout=60) == 0
    begun = [line for line in terminal.lines if line and not line.startswith(("    ", "ludus recipes is loading"))]
    assert [line for line in begun if "=" not in line.partition(" ")[0]] == []
    assert all(len(line) <= 80 for line in terminal.lines)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_program_that_was_given_no_streams_works(tmp_path: Path, closed: str) -> None:
    """As daemons and some schedulers start programs. No file of the run may get the number of a standard stream."""
    train = [*LUDUS, "train", "kuhn", "--run", "mine", *TINY]
    subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *train], cwd=tmp_path, check=True, timeout=120)
    assert '"state": "finished"' in (tmp_path / "mine" / "status.json").read_text()


def test_an_output_that_cannot_be_written_is_named() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*LUDUS, "recipes"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == "error: <stdout>: No space left on device\n"
