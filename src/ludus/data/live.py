"""The mark of settings that may change while a run trains."""

from __future__ import annotations

from typing import Annotated, TypeVar

LIVE = "live"

_T = TypeVar("_T")
LiveField = Annotated[_T, LIVE]
"""The type of a setting, said to be live: it and all that is inside it may change while a run trains."""
