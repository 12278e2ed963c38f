"""Overriding a tree by values that were written down as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from ludus.config.changes import apply_overrides
from ludus.config.encoding import decode

T = TypeVar("T")


def apply_encoded(obj: T, settings: Mapping[str, Any]) -> T:
    """Like `apply_overrides`, for values as `encode` gives them. Imports the code that they name."""
    return apply_overrides(obj, {path: _as_override(value) for path, value in settings.items()})


def _as_override(value: Any) -> Any:
    """A mapping as text: given as such it would be taken for changes of its parts."""
    decoded = decode(value)
    return json.dumps(value) if isinstance(decoded, Mapping) else decoded
