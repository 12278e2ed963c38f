"""PySC2 4.0.0, which all other modules import from here: made to work with a current Python; and its processes."""

from __future__ import annotations

import os
import platform
import random
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from absl import flags, logging

from ludus.games.seat_rows import GameError, nearest
from ludus.system.guard import ended_with_this_process

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _shuffle(items: MutableSequence[Any], draw: Callable[[], float] = random.random) -> None:
    """`random.shuffle` as before Python 3.11, with a random function as its second argument."""
    for last in range(len(items) - 1, 0, -1):
        other = int(draw() * (last + 1))
        items[last], items[other] = items[other], items[last]


@contextmanager
def _importable() -> Iterator[None]:
    """PySC2 calls the old `random.shuffle` when it is imported."""
    shuffle: Any = random.shuffle
    chance: Any = random
    chance.shuffle = _shuffle
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        chance.shuffle = shuffle


with _importable():
    from pysc2 import maps, run_configs
    from pysc2.env import mock_sc2_env, sc2_env
    from pysc2.lib import (
        actions,
        buffs,
        features,
        protocol,
        remote_controller,
        sc_process,
        static_data,
        units,
        upgrades,
    )  # fmt: skip
    from pysc2.run_configs import platforms
    from s2clientprotocol import query_pb2 as queries, sc2api_pb2 as messages

# PySC2 reads its settings from the command line, which belongs to another program here.
if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
# Its messages arrive as exceptions as well.
logging.set_verbosity(logging.FATAL)

__all__ = [
    "actions", "buffs", "features", "flags", "messages", "mock_sc2_env", "protocol", "queries", "remote_controller",
    "run_configs", "sc2_env", "sc_process", "static_data", "units", "upgrades",
]  # fmt: skip

OUTPUT = "output.txt"
_LAST_LINES = 5

WHERE_TO_GET_IT = (
    "On Linux, download it from https://github.com/Blizzard/s2client-proto#downloads, unpack it and set "
    "SC2PATH to its folder; on Windows and macOS install it with Battle.net, and start it once"
)


class EndedWithUsProcess(sc_process.StarcraftProcess):  # type: ignore[misc]
    """A game process that the kernel ends with this one. Its output goes into a file."""

    last_words = ""

    def _launch(self, run_config: Any, args: list[str], **_: Any) -> Any:
        _started.processes.append(self)
        with open(Path(self._tmp_dir, OUTPUT), "wb") as output:
            return subprocess.Popen(
                ended_with_this_process(args),
                cwd=run_config.cwd,
                env=run_config.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        with suppress(AttributeError, OSError):  # it may have failed before it had a folder
            text = Path(self._tmp_dir, OUTPUT).read_text(errors="replace")
            self.last_words = "\n".join(text.splitlines()[-_LAST_LINES:])
        super().close()


class LinuxEndedWithUs(platforms.Linux):  # type: ignore[misc]
    """PySC2's way to run the game on Linux with our process class; PySC2 takes the class of highest priority."""

    @classmethod
    def priority(cls) -> int | None:
        return 2 if platform.system() == "Linux" else None

    def start(self, want_rgb: bool = True, **options: Any) -> Any:
        program = Path(self.data_dir, f"Versions/Base{self.version.build_version:05d}", self._exec_name)
        if not program.exists():
            raise GameError(f"there is no StarCraft II program {program}")
        return EndedWithUsProcess(self, exec_path=str(program), version=self.version, **options)


class _Started(threading.local):
    """Processes started by this thread inside `closing_on_error`."""

    def __init__(self) -> None:
        self.processes: list[EndedWithUsProcess] = []


_started = _Started()


@contextmanager
def closing_on_error() -> Iterator[None]:
    """On an error, end the processes started inside and add their last output to the error."""
    _started.processes.clear()
    try:
        yield
    except BaseException as error:
        for process in _started.processes:
            with suppress(Exception):
                process.close()
            if process.last_words:
                error.add_note(f"StarCraft II said last:\n{process.last_words}")
        raise
    finally:
        _started.processes.clear()


def require_installed() -> None:
    folder = _folder()
    if not Path(folder, "Versions").is_dir():
        named = "SC2PATH" if "SC2PATH" in os.environ else "the usual place; set SC2PATH if it is elsewhere"
        raise GameError(f"StarCraft II is not installed at {folder} ({named}). {WHERE_TO_GET_IT}")


def installed_versions() -> dict[str, Any]:
    """PySC2's versions by name, such as `4.10.0`, for which there is a program here."""
    require_installed()
    versions: dict[str, Any] = run_configs.get().get_versions()
    return versions


def find_map(name: str) -> Any:
    known = maps.lib.get_maps()
    if name not in known:
        raise GameError(f"PySC2 knows no map {name!r}{nearest(name, known, cutoff=0.0)}")
    return known[name]()


def _folder() -> str:
    if platform.system() == "Linux":
        return os.path.expanduser(os.environ.get("SC2PATH", "~/StarCraftII"))
    try:
        return str(run_configs.get().data_dir)
    except (OSError, sc_process.SC2LaunchError) as error:
        raise GameError(f"StarCraft II was not found: {error}. {WHERE_TO_GET_IT}") from error
