"""Whether one machine has what services ask for, and which of its GPUs each process gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ludus.runtime.cores import usable_cores
from ludus.runtime.machine import usable_memory, visible_gpus
from ludus.services.errors import ServiceError
from ludus.services.resources import Resources
from ludus.services.user_services import UserService, instance_name

_SLACK = 1e-6
"""Shares of a GPU are fractions: three times a third is one."""


class NotEnough(ServiceError, ValueError):  # noqa: N818
    """A service asks for more than there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What there is for services."""

    cores: float
    memory_mb: float
    gpus: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES takes them."""

    @classmethod
    def here(cls, services: Mapping[str, UserService]) -> Machine:
        """GPUs are looked for only if one of the services asks for some: that takes a moment."""
        wanted = any(one.resources is not None and one.resources.gpus for one in services.values())
        return cls(
            cores=usable_cores(), memory_mb=usable_memory() / 1e6, gpus=visible_gpus() if wanted else ()
        )


def allot(services: Mapping[str, UserService], machine: Machine | None = None) -> dict[str, tuple[str, ...]]:
    """The GPUs of each process that has asked for some, by its name. Raises `NotEnough`, which names the
    service and what is missing. `machine`: this one.

    From the last GPU on: what uses GPUs without saying so, such as the learner, begins with the first.
    """
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
    """Whole GPUs that nobody has, or a share of the one that has the least left but enough."""
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
    """`over`: what would be left, which is less than nothing, or no whole GPU."""
    assert described.resources is not None
    each = getattr(described.resources, what)
    asked = f"{each:g}" if described.count == 1 else f"{described.count} x {each:g}"
    others = there - over - described.count * each
    by_others = f", of which services before it take {others:g}" if others > _SLACK else ""
    has = f"{there:g}" if there else "none"
    return NotEnough(f"services.{name} asks for {asked} {what}, but this machine has {has}{by_others}")
