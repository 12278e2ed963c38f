"""Services: methods of a plain class that other processes call by name, in every runtime."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.services.endpoints import ServiceError, service
    from ludus.services.resources import Resources, UserService
    from ludus.services.solver import Solver
    from ludus.services.topics import Publisher, Subscriber

__all__ = ["Publisher", "Resources", "ServiceError", "Solver", "Subscriber", "UserService", "service"]

_HOME = {
    "Publisher": "ludus.services.topics",
    "Resources": "ludus.services.resources",
    "ServiceError": "ludus.services.endpoints",
    "Solver": "ludus.services.solver",
    "Subscriber": "ludus.services.topics",
    "UserService": "ludus.services.resources",
    "service": "ludus.services.endpoints",
}
"""Loaded when first asked for: every worker imports this package, few call a service."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ludus.services' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)
