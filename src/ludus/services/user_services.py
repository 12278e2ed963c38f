"""Services that an experiment lists; `ludus train` starts them and keeps them running."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ludus.services.registry import check_service_name
from ludus.services.resources import Resources

Option = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UserService:
    """A class whose methods are marked with `@service`, in processes of its own."""

    address: str
    """FILE.py:CLASS or PACKAGE.MODULE:CLASS."""
    count: int = 1
    """Processes, each with an object of its own."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """What the class is made with, by name."""
    resources: Resources | None = None
    """What each process needs; None: nothing in particular. On a Ray cluster, processes that say what they
    need go to a node that has it, the others run beside `ludus train`."""
    restart: bool = True
    """Whether a process that has ended is started again, after a pause that doubles."""
    hung_after_s: float = 120.0
    """A process that does nothing but one call for so long is ended. Calls of `async def` that wait do not
    count."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if not 0 < self.hung_after_s < math.inf:
            raise ValueError(f"hung_after_s must be above 0 and finite, got {self.hung_after_s}")
        place, colon, name = self.address.rpartition(":")
        if not (place and colon and name):
            raise ValueError(f"address must be FILE.py:CLASS or PACKAGE.MODULE:CLASS, got {self.address!r}")


def instance_name(service: str, number: int) -> str:
    return f"{service}-{number}"


def cpus_of(services: Mapping[str, UserService]) -> float:
    """Cores that all processes together ask for."""
    return sum(one.count * one.resources.cpus for one in services.values() if one.resources is not None)


def custom_of(services: Mapping[str, UserService]) -> dict[str, float]:
    """The same of resources that have names of their own."""
    found: dict[str, float] = {}
    for one in services.values():
        for name, amount in one.resources.custom.items() if one.resources is not None else ():
            found[name] = found.get(name, 0.0) + one.count * amount
    return found


def bytes_of(services: Mapping[str, UserService]) -> int:
    """The same of memory."""
    asked = [(one.count, one.resources) for one in services.values()]
    return sum(count * math.ceil(1e6 * each.memory_mb) for count, each in asked if each is not None)


def check_services(services: Mapping[str, UserService]) -> None:
    for name in services:
        check_service_name(name)


def with_fixed_addresses(services: Mapping[str, UserService]) -> dict[str, UserService]:
    """The same by addresses that hold in any folder. Raises ValueError if a file is not there."""
    fixed = {}
    for name, one in services.items():
        place, _, cls = one.address.rpartition(":")
        if place.endswith(".py"):
            if not Path(place).is_file():
                raise ValueError(f"services.{name}: there is no file {place!r}")
            one = replace(one, address=f"{Path(place).resolve()}:{cls}")
        fixed[name] = one
    return fixed
