"""Addresses: files load once, names come back, errors offer the nearest right name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ludus.data.addresses import FILE_ATTRIBUTE, address_of, forget_changed_files, load_address, load_file

SOURCE = """
from dataclasses import dataclass
from neighbour_of_duel import LIVES


@dataclass(frozen=True)
class Duel:
    lives: int = LIVES

    class Inner:
        pass


def experiment():
    return Duel()
"""


@pytest.fixture
def duel_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_duel.py").write_text("LIVES = 3\n")
    file = tmp_path / "duel.py"
    file.write_text(SOURCE)
    return file


def test_a_file_is_loaded_once_per_absolute_path(duel_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_file(duel_file)
    monkeypatch.chdir(duel_file.parent)
    assert load_file("duel.py") is module
    assert getattr(module, FILE_ATTRIBUTE) == str(duel_file.resolve())
    assert sys.modules[module.__name__] is module
    assert module.__name__.startswith("ludus_file_")
    assert module.Duel().lives == 3


def test_a_file_that_has_changed_is_loaded_again_once_it_is_forgotten(duel_file: Path) -> None:
    module = load_file(duel_file)
    forget_changed_files()
    assert load_file(duel_file) is module, "unchanged"
    duel_file.write_text(SOURCE.replace("class Duel", "class Battle"))
    assert load_file(duel_file) is module, "not in the middle of a run"
    forget_changed_files()
    assert hasattr(load_file(duel_file), "Battle")


def test_a_file_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        load_file(file)
    assert not {name for name in set(sys.modules) - before if name.startswith("ludus_file_")}
    file.write_text("fixed = True\n")
    assert load_file(file).fixed


@pytest.mark.parametrize("name", ["Duel", "experiment", "Duel.Inner"])
def test_address_of_is_the_inverse_for_files(duel_file: Path, name: str) -> None:
    obj = load_address(f"{duel_file}:{name}")
    assert address_of(obj) == f"{duel_file.resolve()}:{name}"
    assert load_address(address_of(obj)) is obj


@pytest.mark.parametrize("obj", [Path, load_address, subprocess.Popen.communicate])
def test_address_of_is_the_inverse_for_modules(obj: Any) -> None:
    assert load_address(address_of(obj)) is obj


def test_a_script_and_its_address_are_the_same_module(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from ludus.data.addresses import address_of, load_address\n"
        "class Mine: pass\n"
        "assert load_address(address_of(Mine)) is Mine\n"
        "print(address_of(Mine))\n"
    )
    shown = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"{script.resolve()}:Mine"


def test_errors_name_the_nearest(duel_file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no Python file .*deul\.py.*did you mean .*duel\.py"):
        load_file(tmp_path / "deul.py")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_file(tmp_path / "nowhere" / "duel.py")
    with pytest.raises(AttributeError, match="no 'Duell'; did you mean 'Duel'"):
        load_address(f"{duel_file}:Duell")
    with pytest.raises(ModuleNotFoundError, match="no module 'ludus_no_such' for 'ludus_no_such:X'"):
        load_address("ludus_no_such:X")
    with pytest.raises(ValueError, match="'connect_four' is not an address"):
        load_address("connect_four")


def test_a_missing_import_inside_a_module_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text("import ludus_library_not_installed\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'ludus_library_not_installed'"):
        load_address(f"{tmp_path / 'needs.py'}:X")


def test_what_has_no_address_says_so() -> None:
    with pytest.raises(TypeError, match="3 has no address"):
        address_of(3)
    with pytest.raises(ValueError, match="move it to the top level"):
        address_of(lambda: None)
