"""Games that need programs of the user's own say what is missing, before anything is played."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.main import main
from ludus.games.adapters.fightingice import FightingICE
from ludus.games.adapters.gamecore import Gamecore
from ludus.games.catalog import list_games
from ludus.games.game import NeedsMore


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def python_that_says(folder: Path, words: str, code: int) -> str:
    program = folder / "python3.9"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return str(program)


def test_gamecore_needs_a_server_and_a_python_with_hok(
    tmp_path: Path, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    python = python_that_says(tmp_path, "pyenv: python3.9: command not found\nand more", 127)
    settings = ("--set", f"python={python}", "--set", f"server=127.0.0.1:{free_port}")
    with pytest.raises(SystemExit) as end:
        main(("check", "gamecore:1v1", *settings))
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, library, server = shown.err.splitlines()
    assert first == "error: gamecore:1v1 cannot be played here:"
    assert f"no Python with the library hok: {python!r} (pyenv: python3.9: command not found); set" in library
    assert f"no gamecore server at 127.0.0.1:{free_port}" in server
    assert "GAMECORE_SERVER_ADDR=HOST:PORT" in server


def test_gamecore_lacks_nothing_where_both_are(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    game: Any = Gamecore(mode="1v1", python=sys.executable, server=f"127.0.0.1:{listener.getsockname()[1]}")
    assert isinstance(game, NeedsMore)
    (tmp_path / "hok.py").write_text("raise ImportError('is not to be loaded for this')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert game.missing(4) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"python": sys.executable}, "(it has no module hok)"),
        ({"python": "no_such_python"}, "'no_such_python' (there is none of that name)"),
        ({"bridge": "no_such_bridge --fast"}, "no program 'no_such_bridge'"),
    ],
)
def test_gamecore_names_what_is_wrong_with_the_bridge(listener: socket.socket, options: Any, message: str) -> None:
    game = Gamecore(mode="1v1", server=f"127.0.0.1:{listener.getsockname()[1]}", **options)
    (missing,) = game.missing(1)
    assert message in missing


def test_fightingice_needs_a_running_game_for_each_table(listener: socket.socket, free_port: int) -> None:
    there = listener.getsockname()[1]
    game: Any = FightingICE(ports=(there, free_port))
    assert isinstance(game, NeedsMore)
    assert game.missing(1) == []
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(2) == b"\x00"  # without a byte the server of the game would end
    more, gone = game.missing(3)
    assert more.startswith("3 tables, but ports names 2 running games")
    assert gone.startswith(f"no FightingICE at 127.0.0.1:{free_port}")
    assert f"start it with --pyftg-mode --port {free_port}" in gone


def test_the_list_of_games_tells_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    needs = {entry.address: entry.needs for entry in list_games()}
    assert needs["gamecore:1v1"] == "a gamecore server of yours, or server=stand_in"
    assert needs["kuhn"] is None
    with pytest.raises(SystemExit):
        main(("games",))
    row = capsys.readouterr().out.partition("\ngamecore:1v1 ")[2].partition("\npysc2:")[0]
    assert " ".join(row.split()).endswith(f"Here: needs {needs['gamecore:1v1']}")
