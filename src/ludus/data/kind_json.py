"""A kind of seat, or a whole game's facts, as plain JSON and back, and in what two kinds differ. Nothing in
it can be executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    GameSpec,
    Head,
    ObservationSpec,
    Part,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)

_PARTS: Mapping[str, type[Part]] = {cls.__name__: cls for cls in (Vector, Planes, Entities)}
_HEADS: Mapping[str, type[Head]] = {cls.__name__: cls for cls in (Choice, Pointer, Point)}


def kind_to_json(kind: SeatKind) -> dict[str, Any]:
    return {
        "name": kind.name,
        "observation": {name: _tagged(part) for name, part in kind.observation.parts.items()},
        "critic": {name: _tagged(part) for name, part in kind.observation.critic.items()},
        "action": {name: _tagged(head) for name, head in kind.action.heads.items()},
        "rewards": list(kind.rewards),
    }


def kind_from_json(data: Mapping[str, Any]) -> SeatKind:
    """Raises ValueError, TypeError or LookupError on what `kind_to_json` has not written."""
    return SeatKind(
        name=data["name"],
        observation=ObservationSpec(
            parts={name: _made(_PARTS, part) for name, part in data["observation"].items()},
            critic={name: _made(_PARTS, part) for name, part in data["critic"].items()},
        ),
        action=ActionSpec(heads={name: _head(head) for name, head in data["action"].items()}),
        rewards=tuple(data["rewards"]),
    )


def spec_to_json(spec: GameSpec) -> dict[str, Any]:
    plain = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return plain | {
        "kinds": [kind_to_json(kind) for kind in spec.kinds],
        "seats": list(spec.seats),
        "teams": list(spec.teams),
    }


def spec_from_json(data: Mapping[str, Any]) -> GameSpec:
    """Raises ValueError, TypeError or LookupError on what `spec_to_json` has not written."""
    kinds = tuple(kind_from_json(kind) for kind in data["kinds"])
    return GameSpec(**{**data, "kinds": kinds, "seats": tuple(data["seats"]), "teams": tuple(data["teams"])})


def differences(one: SeatKind, other: SeatKind) -> dict[str, tuple[Any, Any]]:
    """Path of each fact in which the kinds differ, such as `observation.entities.features`, with both values
    (None: it is not there). What a kind is called does not count; the order of heads does."""
    left, right = (dict(_flat("", kind_to_json(kind))) for kind in (one, other))
    paths = [path for path in dict.fromkeys([*left, *right]) if path != "name"]
    found = {path: (left.get(path), right.get(path)) for path in paths if left.get(path) != right.get(path)}
    orders = tuple(list(kind.action.heads) for kind in (one, other))
    if not found and orders[0] != orders[1]:
        found["action"] = (orders[0], orders[1])
    return found


def _tagged(spec: Part | Head) -> dict[str, Any]:
    facts = asdict(spec)
    if facts.get("when") is not None:
        facts["when"] = {"head": spec.when.head, "values": list(spec.when.values)}  # type: ignore[union-attr]
    return {"type": type(spec).__name__, **facts}


def _made(classes: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    return classes[data["type"]](**{name: value for name, value in data.items() if name != "type"})


def _head(data: Mapping[str, Any]) -> Head:
    when = data["when"]
    found = None if when is None else When(head=when["head"], values=tuple(when["values"]))
    head: Head = _made(_HEADS, {**data, "when": found})
    return head


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{path}.{name}" if path else name, item)
    else:
        yield path, value
