"""Runs that several files of tests look at: trained once, copied by who changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import TINY, exit_code


@pytest.fixture(scope="session")
def trained_rps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "rps"
    assert exit_code("train", "rps", "--run", str(path), *TINY, "--quiet") == 0
    return path
