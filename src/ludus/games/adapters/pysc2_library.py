"""PySC2 4.0.0, imported so that it works with a current Python, and quietly.

Everything that needs PySC2 takes it from here.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

from absl import flags, logging

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def _shuffle(items: MutableSequence[Any], draw: Callable[[], float] = random.random) -> None:
    """As `random.shuffle` was before Python 3.11, with a source of chance as its second argument."""
    for last in range(len(items) - 1, 0, -1):
        other = int(draw() * (last + 1))
        items[last], items[other] = items[other], items[last]


@contextmanager
def _importable() -> Iterator[None]:
    """PySC2 shuffles its colours with a function of its own when it is imported."""
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
        features,
        protocol,
        remote_controller,
        sc_process,
        static_data,
    )
    from pysc2.run_configs import platforms
    from s2clientprotocol import sc2api_pb2 as messages

# PySC2 reads its settings from the command line, which is not its own here.
if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
# What it has to say arrives as an exception as well.
logging.set_verbosity(logging.FATAL)

__all__ = [
    "actions",
    "features",
    "flags",
    "maps",
    "messages",
    "mock_sc2_env",
    "platforms",
    "protocol",
    "remote_controller",
    "run_configs",
    "sc2_env",
    "sc_process",
    "static_data",
]
