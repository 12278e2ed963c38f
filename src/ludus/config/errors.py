"""What goes wrong with a setting, said so that it can be put right without looking anything up."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

_WORD = re.compile(r"\w+")


class ConfigError(ValueError):
    """A setting that does not exist, does not fit its type, or that its owner refuses."""


class UnknownPathError(ConfigError):
    """There is no setting at `path`."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class MismatchError(ConfigError):
    """A value that does not fit this type; another member of a union may still take it."""


def join(path: str, step: object) -> str:
    """The path of one part of what is at `path`."""
    return f"{path}.{step}" if path else str(step)


def nearest(wrong: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the wrong one, whatever the case of its letters."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def unknown_field(name: str, known: Iterable[str], owner: type | FunctionType, path: str) -> ConfigError:
    """Names the field, the nearest right one and all that the owner has."""
    names = list(known)
    close = nearest(name, names)
    offer = f"did you mean {close!r}? " if close else ""
    place = f"{path}: " if path else ""
    return ConfigError(f"{place}unknown field {name!r}: {offer}{owner.__name__} has {', '.join(names)}")


def build(factory: Callable[..., Any], arguments: dict[str, Any], *places: str) -> Any:
    """Call a constructor; what its validation says has the path in front: of several, those that it names."""
    try:
        return factory(**arguments)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        message = str(error)
        words = set(_WORD.findall(message))
        path = ", ".join([place for place in places if place.rpartition(".")[2] in words] or places)
        prefix = "" if not path or message.startswith(path) else f"{path}: "
        raise ConfigError(f"{prefix}{message}") from error
