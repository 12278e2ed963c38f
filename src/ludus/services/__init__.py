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

_MODULES = {
    "endpoints": ("ServiceError", "service"),
    "resources": ("Resources", "UserService"),
    "solver": ("Solver",),
    "topics": ("Publisher", "Subscriber"),
}
"""Loaded when first asked for: every worker imports this package, few call a service."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"ludus.services.{module}"), name)
    raise AttributeError(f"module 'ludus.services' has no attribute {name!r}; it has {', '.join(__all__)}")
