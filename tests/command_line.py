"""The command line in tests: in this process where that is enough, else as a program of its own."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple, Protocol

import pytest

from ludus.cli.main import main

LUDUS = (sys.executable, "-m", "ludus.cli.main")
"""The program, for tests in which its process matters: signals, terminals, pipes, imports."""

SMALL = {
    "runtime": "serial",
    "budget": "6000",
    "actor.num_tables": "32",
    "actor.matches": "2",
    "actor.episodes_per_table": "4",
    "learner.batch_size": "1000",
    "checkpoint_every": "2000",
    "evaluation.episodes": "32",
}


def settings(**more: str) -> list[str]:
    """The options of a training of about a second; `more` is written with __ for a dot."""
    chosen = SMALL | {path.replace("__", "."): value for path, value in more.items()}
    return [part for path, value in chosen.items() for part in ("--set", f"{path}={value}")]


TINY = settings(league__roles__main__promotion__every="2000", model__hidden="16")


class Shown(NamedTuple):
    code: int
    out: str
    err: str


class Ludus(Protocol):
    """The fixture `ludus`: runs a command in this process, with `typed` as its standard input."""

    def __call__(self, *arguments: str, typed: str = "") -> Shown: ...


def exit_code(*arguments: str) -> int:
    """Runs a command in this process, for fixtures that outlive a test and so cannot ask for `ludus`."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert isinstance(end.value.code, int)
    return end.value.code


def rows(text: str) -> list[dict[str, Any]]:
    """The lines of JSON that a command has shown."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
