"""What a table shows at one moment: the part of a view that has a meaning, ready to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, Entities, GameSpec, SeatKind, length_name
from ludus.data.trees import Array, Tree
from ludus.games.game import TableView


def flat_view(view: TableView) -> Tree:
    """Every array of a view by name; all have the table as first axis."""
    arrays: Tree = {}
    for kind, tree in enumerate(view.observation):
        arrays.update({f"observation[{kind}].{name}": array for name, array in tree.items()})
    for kind, tree in enumerate(view.legal):
        arrays.update({f"legal[{kind}].{name}": array for name, array in tree.items()})
    for name in ("to_act", "reward", "over", "truncated", "score", "clock"):
        arrays[name] = getattr(view, name)
    arrays.update({f"rewards[{kind}]": array for kind, array in enumerate(view.rewards)})
    return arrays


def seat_observation(spec: GameSpec, view: TableView, table: int, seat: int) -> Tree:
    """The real part of what a seat is shown: without the padding of entities."""
    kind, column = spec.seats[seat], spec.column_of_seat[seat]
    row = {name: array[table, column, ...] for name, array in view.observation[kind].items()}
    return crop(spec.kinds[kind], row)


def crop(kind: SeatKind, row: Mapping[str, Array]) -> Tree:
    """One observation without the padding of its entities."""
    lengths = {name: int(row[length_name(name)]) for name in entities_of(kind) if length_name(name) in row}
    return {name: array[: max(0, lengths[name])] if name in lengths else array for name, array in row.items()}


def entities_of(kind: SeatKind) -> dict[str, int]:
    """The arrays that hold entities, with their maximum."""
    observation = kind.observation
    named = [*observation.parts.items()]
    named += [(CRITIC_PREFIX + name, part) for name, part in observation.critic.items()]
    return {name: part.maximum for name, part in named if isinstance(part, Entities)}


def seat_legal(spec: GameSpec, view: TableView, table: int, seat: int) -> Tree:
    kind, column = spec.seats[seat], spec.column_of_seat[seat]
    return {name: array[table, column] for name, array in view.legal[kind].items()}


def shown(spec: GameSpec, view: TableView, table: int, acted: NDArray[np.bool_]) -> Tree:
    """Copies of all that counts at a table now; `acted` [seats] has acted in this episode."""
    ended = bool(view.over[table] or view.truncated[table])
    names = ["to_act", "reward", "over", "truncated"]
    names += ["score"] * ended + ["clock"] * spec.timed
    arrays = {name: np.array(getattr(view, name)[table]) for name in names}
    arrays.update({f"rewards[{kind}]": array[table].copy() for kind, array in enumerate(view.rewards)})
    for seat in np.flatnonzero(acted if view.truncated[table] else view.to_act[table]).tolist():
        for name, array in seat_observation(spec, view, table, seat).items():
            arrays[f"observation {name} of seat {seat}"] = array.copy()
    for seat in np.flatnonzero(view.to_act[table]).tolist():
        for name, array in seat_legal(spec, view, table, seat).items():
            arrays[f"legal {name} of seat {seat}"] = array.copy()
    return arrays


def difference(first: Mapping[str, Array], second: Mapping[str, Array]) -> str | None:
    """The first value in which two showings differ, in words; None if there is none."""
    return next(_differences(first, second), None)


def _differences(first: Mapping[str, Array], second: Mapping[str, Array]) -> Iterator[str]:
    for name, one in first.items():
        other = second.get(name)
        if other is None:
            yield f"{name} was {one.tolist()}, then not shown"
        elif one.shape != other.shape:
            yield f"{name} had shape {list(one.shape)}, then {list(other.shape)}"
        elif not np.array_equal(one, other):
            # Equal means equal, NaN included: whether a value is finite is another promise.
            wrong = np.argwhere((one != other) & ~((one != one) & (other != other)))
            if len(wrong):
                index = tuple(wrong[0].tolist())
                place = f"{name}{list(index)}" if index else name
                yield f"{place} was {one[index]}, then {other[index]}"
    for name in second:
        if name not in first:
            yield f"{name} was not shown, then {second[name].tolist()}"
