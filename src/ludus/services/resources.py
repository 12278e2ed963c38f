"""Declarations of services and of the resources that their processes need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ludus.data.checks import require_in
from ludus.services.endpoints import ServiceError
from ludus.system.machine import usable_cores, usable_memory, visible_gpus

RAYS_OWN = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_mb"}
"""Ray's own names, and the fields here that stand for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """The needs of one process of a service."""

    cpus: float = 0.0
    """Cores that are reserved for it, and threads of its numpy and torch; 0: none are reserved."""
    gpus: float = 0.0
    """GPUs that it sees and no other service does; below 1: a share of one; 0: it sees all of them."""
    memory_mb: float = 0.0
    """Memory that is reserved for it, in millions of bytes."""
    custom: Mapping[str, float] = field(default_factory=dict)
    """Resources by which nodes of a Ray cluster are told apart, by name; a single machine has all of them."""

    def __post_init__(self) -> None:
        require_in(self, "[0, inf)", cpus=self.cpus, gpus=self.gpus, memory_mb=self.memory_mb)
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"resources.gpus must be a whole number above 1, got {self.gpus:g}")
        for name, amount in self.custom.items():
            if name in RAYS_OWN:
                raise ValueError(f"resources.custom: {name!r} is {RAYS_OWN[name]} here")
            if not name or not 0 < amount < math.inf:
                raise ValueError(f"resources.custom: {name!r} must be above 0 and finite, got {amount:g}")

    def __str__(self) -> str:
        """Such as `2 cpus, 1 gpus, 500 memory_mb`."""
        amounts = {"cpus": self.cpus, "gpus": self.gpus, "memory_mb": self.memory_mb, **self.custom}
        return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount) or "nothing"


Option = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UserService:
    """A class whose methods are marked with `@service`, in processes of its own."""

    address: str
    """FILE.py:CLASS or PACKAGE.MODULE:CLASS."""
    count: int = 1
    """Processes, each with an object of its own."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Keyword arguments of the class."""
    resources: Resources | None = None
    """The needs of each process; None: nothing in particular. On a Ray cluster, processes with needs go to a node that
    fulfils them, the others run beside `ludus train`."""
    restart: bool = True
    """Whether a process that has ended is started again, after a pause that doubles."""
    hung_after_s: float = 120.0
    """A process that is busy with one call for this long is ended. Waiting calls of `async def` do not count."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", count=self.count)
        require_in(self, "(0, inf)", hung_after_s=self.hung_after_s)
        module, colon, name = self.address.rpartition(":")
        if not (module and colon and name):
            raise ValueError(f"address must be FILE.py:CLASS or PACKAGE.MODULE:CLASS, got {self.address!r}")


def instance_name(service: str, number: int) -> str:
    return f"{service}-{number}"


def cpus_of(services: Mapping[str, UserService]) -> float:
    """Cores that all processes together ask for."""
    return sum(one.count * one.resources.cpus for one in services.values() if one.resources is not None)


def custom_of(services: Mapping[str, UserService]) -> dict[str, float]:
    """Custom resources that all processes together ask for."""
    found: dict[str, float] = {}
    for one in services.values():
        for name, amount in one.resources.custom.items() if one.resources is not None else ():
            found[name] = found.get(name, 0.0) + one.count * amount
    return found


def bytes_of(services: Mapping[str, UserService]) -> int:
    """Memory that all processes together ask for."""
    asked = [(one.count, one.resources) for one in services.values()]
    return sum(count * math.ceil(1e6 * each.memory_mb) for count, each in asked if each is not None)


def with_fixed_addresses(services: Mapping[str, UserService]) -> dict[str, UserService]:
    """The services with absolute paths. Raises ValueError if a file does not exist."""
    fixed = {}
    for name, one in services.items():
        file, _, cls = one.address.rpartition(":")
        if file.endswith(".py"):
            if not Path(file).is_file():
                raise ValueError(f"services.{name}: there is no file {file!r}")
            one = replace(one, address=f"{Path(file).resolve()}:{cls}")
        fixed[name] = one
    return fixed


_SLACK = 1e-6  # shares of a GPU are fractions: three times a third is one


class NotEnough(ServiceError, ValueError):  # noqa: N818
    """A service asks for more than the machine has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Resources that services can have."""

    cores: float
    memory_mb: float
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES takes them

    @classmethod
    def here(cls, services: Mapping[str, UserService]) -> Machine:
        """GPUs are looked for only if a service asks for some, because that takes a moment."""
        wanted = any(one.resources is not None and one.resources.gpus for one in services.values())
        return cls(cores=usable_cores(), memory_mb=usable_memory() / 1e6, gpus=visible_gpus() if wanted else ())


def allot(services: Mapping[str, UserService], machine: Machine | None = None) -> dict[str, tuple[str, ...]]:
    """The GPUs of each process that has asked for some, by name. Raises `NotEnough` with the service and the missing
    resource. `machine`: by default this one. GPUs are given out from the last on, because the learner begins with the
    first."""
    machine = machine or Machine.here(services)
    left = dict.fromkeys(reversed(machine.gpus), 1.0)
    cores, memory = machine.cores, machine.memory_mb
    allotted = {}
    for name, described in services.items():
        needed = described.resources or Resources()
        cores -= described.count * needed.cpus
        memory -= described.count * needed.memory_mb
        if cores < -_SLACK:
            raise _missing(name, described, "cpus", machine.cores, cores)
        if memory < -_SLACK:
            raise _missing(name, described, "memory_mb", machine.memory_mb, memory)
        for number in range(described.count if needed.gpus else 0):
            found = _take(needed.gpus, left)
            if found is None:
                left_over = sum(left.values()) - (described.count - number) * needed.gpus
                raise _missing(name, described, "gpus", len(machine.gpus), left_over)
            allotted[instance_name(name, number)] = found
    return allotted


def _take(gpus: float, left: dict[str, float]) -> tuple[str, ...] | None:
    """Whole free GPUs, or a share of the fullest GPU that has enough left."""
    if gpus >= 1:
        free = [gpu for gpu, share in left.items() if share == 1][: int(gpus)]
        if len(free) < gpus:
            return None
        left.update(dict.fromkeys(free, 0.0))
        return tuple(free)
    enough = [gpu for gpu, share in left.items() if share >= gpus - _SLACK]
    if not enough:
        return None
    chosen = min(enough, key=lambda gpu: left[gpu])
    left[chosen] -= gpus
    return (chosen,)


def _missing(name: str, described: UserService, what: str, there: float, over: float) -> NotEnough:
    """`over`: the rest, which is negative, or no whole GPU."""
    assert described.resources is not None
    each = getattr(described.resources, what)
    asked = f"{each:g}" if described.count == 1 else f"{described.count} x {each:g}"
    others = there - over - described.count * each
    by_others = f", of which services before it take {others:g}" if others > _SLACK else ""
    has = f"{there:g}" if there else "none"
    return NotEnough(f"services.{name} asks for {asked} {what}, but this machine has {has}{by_others}")
