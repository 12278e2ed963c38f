"""Parts of an experiment that were read without importing the code that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class UnreadError(AttributeError):
    """Something was asked of a part whose code was not imported."""


class Unread:
    """Stands for an object of a class that was not imported: its address and its fields, and no behaviour."""

    __slots__ = ("_fields", "address")

    def __init__(self, address: str, fields: Mapping[str, Any]) -> None:
        self.address = address
        """Of its class, or of the class or function that it is."""
        self._fields = dict(fields)

    @property
    def fields(self) -> Mapping[str, Any]:
        return dict(self._fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise UnreadError(f"{self.address} was not imported, so its {name!r} is not known") from None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._fields.items())
        return f"<{self.address}({shown}), not imported>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unread) and (self.address, self._fields) == (other.address, other._fields)

    def __hash__(self) -> int:
        return hash(self.address)
