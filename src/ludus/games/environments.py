"""Virtual environments for games whose libraries conflict with ours or with one another's.

`ludus games --install NAME` makes one; the game then runs in it under its usual address. Ludus itself is not installed
there: a process of the game needs numpy and msgspec.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_STAMP = "installed.json"
_LOG = "install.log"
_LAST_LINES = 12  # lines of the output of a failed step in the error


class InstallError(RuntimeError):
    """An environment cannot be installed; the message says what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The contents of the environment of a game."""

    steps: tuple[str, ...]
    """Arguments of the calls of `pip install`, as on a command line, with exact versions."""
    check: str
    """The address of a game to check the environment with."""
    system_packages: Mapping[str, str] = field(default_factory=dict)
    """Debian package -> a program or file (`*` allowed) that proves its presence."""


_HOST = "numpy==2.4.6 msgspec==0.22.0"

ENVIRONMENTS: Mapping[str, Environment] = {
    "slimevolley": Environment(
        steps=(_HOST, "gym==0.26.2 gym-notices==0.1.0 cloudpickle==3.1.2 slimevolleygym==0.1.0"), check="slimevolley"
    ),
    "microrts": Environment(
        # Only its jars are used: its Python code needs libraries of 2021.
        steps=(f"{_HOST} JPype1==1.7.1", "--no-deps gym-microrts==0.4.3"),
        check="microrts:8x8",
        system_packages={"default-jre-headless": "java"},
    ),
    "football": Environment(
        # Built from source in about a quarter of an hour.
        steps=(
            f"{_HOST} setuptools==65.5.0 wheel==0.38.4 psutil==7.2.2 six==1.17.0 absl-py==2.5.1 cloudpickle==3.1.2 "
            "opencv-python-headless==4.10.0.84",
            "--no-build-isolation --no-deps gym==0.21.0",
            "--no-build-isolation --no-deps gfootball==2.10.2",
        ),
        check="football:academy_3_vs_1_with_keeper",
        system_packages={
            "cmake": "cmake",
            "g++": "g++",
            "libgl1-mesa-dev": "/usr/include/GL/gl.h",
            "libsdl2-dev": "/usr/include/SDL2/SDL.h",
            "libsdl2-image-dev": "/usr/include/SDL2/SDL_image.h",
            "libsdl2-ttf-dev": "/usr/include/SDL2/SDL_ttf.h",
            "libsdl2-gfx-dev": "/usr/include/SDL2/SDL2_gfxPrimitives.h",
            "libboost-python-dev": "/usr/include/boost/python.hpp",
            "libboost-thread-dev": "/usr/include/boost/thread.hpp",
            "libboost-system-dev": "/usr/include/boost/system/error_code.hpp",
            "libboost-filesystem-dev": "/usr/include/boost/filesystem.hpp",
        },
    ),
}
"""Prefix of the addresses (see `catalog.ADAPTERS`) -> environment."""


def environments_folder() -> Path:
    """`$LUDUS_GAMES`, or a folder of the user's data."""
    named = os.environ.get("LUDUS_GAMES")
    if named:
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "ludus" / "games"


def environment_python(name: str, folder: Path | None = None) -> Path | None:
    """The interpreter of a game's environment; None if it is missing or not as now defined."""
    environment = ENVIRONMENTS.get(name)
    if environment is None:
        return None
    place = (folder or environments_folder()) / name
    python = _python(place)
    return python if python.exists() and _done(place, environment) == len(environment.steps) else None


def missing_packages(environment: Environment) -> list[str]:
    """Debian packages to install first."""
    proofs = environment.system_packages.items()
    return [package for package, proof in proofs if not (glob.glob(proof) if "/" in proof else shutil.which(proof))]


def install(name: str, folder: Path | None, say: Callable[[str], None]) -> Path:
    """Make the environment of a game and return its interpreter; `say` gets a line for each step.

    It continues after the last finished step. If the first step fails, the environment is removed.
    """
    environment = ENVIRONMENTS[name]
    missing = missing_packages(environment)
    if missing:
        raise InstallError(f"{name} needs programs that are not installed: apt-get install {' '.join(missing)}")
    place = (folder or environments_folder()) / name
    python, number = _python(place), len(environment.steps)
    done = _done(place, environment) if python.exists() else 0
    if done == number:
        say(f"already in {place}")
        return python
    if not done:
        say(f"a virtual environment in {place}")
        _make(place)
    for index, step in enumerate(environment.steps[done:], done):
        say(f"[{index + 1}/{number}] pip install {step}")
        try:
            _pip(place, step)
        except InstallError:
            if not index:
                shutil.rmtree(place, ignore_errors=True)
            raise
        fresh = place / f"{_STAMP}.new"
        fresh.write_text(json.dumps({"steps": [step.split() for step in environment.steps], "done": index + 1}))
        fresh.replace(place / _STAMP)
    return python


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _done(place: Path, environment: Environment) -> int:
    """Number of finished steps; 0 if the steps have changed."""
    try:
        stamp = json.loads((place / _STAMP).read_text())
        same = stamp["steps"] == [step.split() for step in environment.steps]
        return int(stamp["done"]) if same else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _make(place: Path) -> None:
    if place.exists() and any(place.iterdir()) and not (place / "pyvenv.cfg").exists():
        raise InstallError(f"{place} has something else in it; name another folder with --where")
    place.parent.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        shutil.rmtree(place, ignore_errors=True)
        words = (made.stdout + made.stderr).strip()
        raise InstallError(f"no virtual environment in {place} (apt-get install python3-venv?):\n{words}")


def _pip(place: Path, step: str) -> None:
    """Run pip; its output goes to a log, and its last lines into the error."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    # As if activated: some libraries call programs of the environment while they are built.
    variables |= {"VIRTUAL_ENV": str(place), "PATH": f"{place / 'bin'}:{os.environ.get('PATH', '')}"}
    command = [str(_python(place)), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *step.split()]
    with (place / _LOG).open("a+") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        begin = log.tell()
        pip = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=variables, check=False)
        log.seek(begin)
        last = deque(log, _LAST_LINES)
    if pip.returncode:
        raise InstallError(f"pip install {step} failed:\n{''.join(last).rstrip()}")
