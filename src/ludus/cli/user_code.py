"""Loading what a person wrote: whatever goes wrong becomes one line that says what and where."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ludus.config import ConfigError

_PACKAGE = Path(__file__).parents[1]
_NOT_THEIRS = (str(_PACKAGE), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Names `what` and the line of the person's own file in every error; LUDUS_TRACEBACK=1 shows the rest."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        message = explain(error)
        raise ConfigError(message if what in message else f"{what}: {message}") from error


def explain(error: Exception) -> str:
    """The error in one line. Ours and those about values speak for themselves, others need their type."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    place = _line_of_theirs(error)
    if place is None:
        return str(error)
    plain = isinstance(error, ValueError | ImportError | OSError)
    return f"{error if plain else f'{type(error).__name__}: {error}'} ({place})"


def _line_of_theirs(error: Exception) -> str | None:
    """The innermost line outside of ludus and of what is installed."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_NOT_THEIRS)):
            return f"{frame.filename}, line {frame.lineno}"
    return None
