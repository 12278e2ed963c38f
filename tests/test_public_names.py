"""The public names: adding or removing one is a decision, so it is made here as well."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ludus

PUBLIC = [
    "Experiment",
    "Game",
    "GameBatch",
    "GameSource",
    "GameSpec",
    "Turn",
    "check_game",
    "load_experiment",
]


def test_the_public_names_are_these() -> None:
    assert sorted(ludus.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(ludus, name) is not None
    assert name in dir(ludus)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="Experimnt"):
        _ = ludus.Experimnt  # type: ignore[attr-defined]


def test_importing_ludus_loads_nothing_heavy() -> None:
    code = "import sys, ludus; print(*{'torch', 'scipy', 'ray', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("module", ["ludus.games.game", "ludus.games.check", "ludus.config", "ludus.league.league"])
def test_the_core_works_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
