"""Environments of their own for games: made step by step, found by address."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.cli.main import main
from ludus.games import catalog, environments
from ludus.games.catalog import list_games, resolve
from ludus.games.environments import Environment, InstallError, environment_python, install
from ludus.games.isolation.isolated import Isolated
from ludus.system.machine import install_command

Run = Callable[..., tuple[int, str, str]]

WORKS = "--help"
"""Arguments with which `pip install` does nothing, anywhere."""
FAILS = "--no-such-option"


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Defines the environment `toy`, in a folder of its own."""
    monkeypatch.setenv("LUDUS_GAMES", str(tmp_path / "games"))

    def change(*steps: str, **others: object) -> None:
        toy = Environment(steps=steps, check="kuhn", **others)  # type: ignore[arg-type]
        monkeypatch.setitem(environments.ENVIRONMENTS, "toy", toy)  # type: ignore[arg-type]

    return change


@pytest.fixture
def ludus(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        shown = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, shown.out, shown.err

    return run


@pytest.mark.slow
def test_an_installation_goes_on_where_it_failed(define: Callable[..., None], tmp_path: Path) -> None:
    define(WORKS, FAILS)
    said: list[str] = []
    with pytest.raises(InstallError, match="no-such-option"):
        install("toy", None, said.append)
    assert environment_python("toy") is None, "half an environment must not be used"
    assert [line.split(" ")[0] for line in said] == ["a", "[1/2]", "[2/2]"]

    for expected in (["[2/2]"], ["already"]):
        # The same steps as far as the stamp goes: only what pip makes of the last one has changed.
        stamp = tmp_path / "games" / "toy" / "installed.json"
        define(WORKS, WORKS)
        done = json.loads(stamp.read_text())["done"]
        stamp.write_text(json.dumps({"steps": [[WORKS], [WORKS]], "done": done}))
        said.clear()
        python = install("toy", None, said.append)
        assert [line.split(" ")[0] for line in said] == expected
        assert environment_python("toy") == python

    define(WORKS, WORKS, "--no-deps")
    assert environment_python("toy") is None, "it is now defined otherwise"


@pytest.mark.slow
def test_nothing_is_left_of_a_first_step_that_fails(define: Callable[..., None], tmp_path: Path) -> None:
    define(FAILS)
    with pytest.raises(InstallError, match="failed:"):
        install("toy", None, lambda _: None)
    assert not (tmp_path / "games" / "toy").exists()


def test_missing_programs_are_named_before_anything_is_made(define: Callable[..., None], tmp_path: Path) -> None:
    needs = {"no-such-package": "no-such-program", "no-headers-dev": "/no/such/*.h", "shell": "sh"}
    define(WORKS, system_packages=needs)
    with pytest.raises(InstallError, match=r"apt-get install no-such-package no-headers-dev$"):
        install("toy", None, lambda _: None)
    assert not (tmp_path / "games").exists()


def test_a_folder_with_something_else_is_left_alone(define: Callable[..., None], tmp_path: Path) -> None:
    define(WORKS)
    kept = tmp_path / "games" / "toy" / "thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    with pytest.raises(InstallError, match="--where"):
        install("toy", None, lambda _: None)
    assert kept.read_text() == "years of work"


def test_a_game_is_played_where_its_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = catalog.Adapter(
        source="no.such:Source",
        argument="map_name",
        library="no_such_library",
        install="ludus games --install toy",
        example="toy:small",
        description="A game that is not here.",
    )
    monkeypatch.setitem(catalog.ADAPTERS, "toy", missing)  # type: ignore[arg-type]
    with pytest.raises(ModuleNotFoundError, match="ludus games --install toy adds it"):
        resolve("toy:small")
    assert next(entry for entry in list_games() if entry.address == "toy:small").install is not None

    monkeypatch.setattr(catalog, "environment_python", lambda name: Path("/toys") if name == "toy" else None)
    assert resolve("toy:small", speed=3) == Isolated("toy:small", {"speed": 3}, python="/toys")
    entry = next(entry for entry in list_games() if entry.address == "toy:small")
    assert entry.install is None
    assert entry.python == "/toys"
    with pytest.raises(ValueError, match="name a game after the colon"):
        resolve("toy")


def test_a_broken_environment_does_not_look_for_the_game_in_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the game would start one of its own, and so on."""
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    here = Path(sys.prefix) / "bin" / "python"
    monkeypatch.setattr(catalog, "environment_python", lambda name: here)
    with pytest.raises(ModuleNotFoundError, match="'gym_microrts' is not installed"):
        resolve("microrts:8x8")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--install", "micrort"), "did you mean 'microrts'?"),
        (("--install", "gymnasium"), install_command("games")),
        (("--where", "somewhere"), "--where goes with --install"),
    ],
)
def test_wrong_usage_is_named(ludus: Run, arguments: tuple[str, ...], named: str) -> None:
    code, _, err = ludus("games", *arguments)
    assert code == 2
    assert named in err


@pytest.mark.slow
def test_the_command_installs_and_checks(ludus: Run, define: Callable[..., None], tmp_path: Path) -> None:
    define(WORKS, system_packages={"no-such-package": "no-such-program"})
    code, _, err = ludus("games", "--install", "toy")
    assert (code, "apt-get install no-such-package" in err) == (1, True)

    # Without numpy the game cannot be played there, which the check at the end finds.
    define(WORKS)
    code, out, _ = ludus("games", "--install", "toy", "--where", str(tmp_path / "other"))
    assert (tmp_path / "other" / "toy" / "bin" / "python").exists()
    assert code == 1
    assert "cannot be started" in out
