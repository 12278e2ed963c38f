"""Gymnasium's spaces in our terms: observation spaces as parts, action spaces as heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ludus.data.specs import ActionSpec, Choice, ObservationSpec, Part, Planes, Vector
from ludus.data.trees import Array, Tree

Encode = Callable[[Any], Array]
"""From a value of the space, or a batch of values along leading axes, to the array of a part."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One part of an observation: where its value is found, and how it becomes an array."""

    name: str
    part: Part
    path: tuple[Any, ...]
    encode: Encode

    def read(self, observation: Any) -> Array:
        for key in self.path:
            observation = observation[key]
        return self.encode(observation)


def observation_leaves(space: Space[Any]) -> list[Leaf]:
    return list(_leaves(space, ()))


def observation_spec(leaves: list[Leaf]) -> ObservationSpec:
    return ObservationSpec(parts={leaf.name: leaf.part for leaf in leaves})


def _leaves(space: Space[Any], path: tuple[Any, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, index))
    else:
        part, encode = _part(space)
        name = "_".join(str(key) if isinstance(key, str) else f"part{key}" for key in path)
        yield Leaf(name or "observation", part, path, encode)


def _part(space: Space[Any]) -> tuple[Part, Encode]:
    if isinstance(space, spaces.Box) and len(space.shape) <= 3:
        return _box(space)
    if isinstance(space, spaces.Discrete):
        rows, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return Vector(size=len(rows)), lambda value: rows[np.asarray(value) - start]
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        tables = [np.eye(int(num), dtype=np.float32) for num in space.nvec]
        lowest = np.asarray(space.start)
        return Vector(size=sum(map(len, tables))), lambda value: np.concatenate(
            [rows[(np.asarray(value) - lowest)[..., i]] for i, rows in enumerate(tables)], axis=-1
        )
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return Vector(size=int(space.shape[0])), np.asarray
    raise ValueError(
        f"observation space {space} is not supported: use Box with up to 3 axes, Discrete, "
        "MultiDiscrete or MultiBinary with one, or Dict and Tuple of these"
    )


def _box(space: spaces.Box) -> tuple[Part, Encode]:
    shape = tuple(int(size) for size in space.shape)
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    if len(shape) == 0:
        return Vector(size=1, dtype=dtype), lambda value: np.asarray(value)[..., None]
    if len(shape) == 1:
        return Vector(size=shape[0], dtype=dtype), np.asarray
    if len(shape) == 2:
        planes = Planes(channels=1, height=shape[0], width=shape[1], dtype=dtype)
        return planes, lambda value: np.asarray(value)[..., None, :, :]
    if shape[2] <= min(shape[:2]):  # channels last: there are fewer of them than rows or columns
        planes = Planes(channels=shape[2], height=shape[0], width=shape[1], dtype=dtype)
        return planes, lambda value: np.moveaxis(value, -1, -3)
    return Planes(channels=shape[0], height=shape[1], width=shape[2], dtype=dtype), np.asarray


@dataclass(frozen=True, slots=True)
class ActionCodec:
    """The heads of an action space, and the way from their numbers to actions for all tables."""

    spec: ActionSpec
    start: Array
    """The lowest value of each head, in the environment's count."""
    single: bool
    """The environment takes a number, not an array."""

    @classmethod
    def of(cls, space: Space[Any], env_id: str) -> ActionCodec:
        if isinstance(space, spaces.Discrete):
            heads = {"move": Choice(num=int(space.n), masked=False)}
            return cls(ActionSpec(heads=heads), np.array([space.start]), True)
        if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
            return cls(_several_heads([2] * space.shape[0]), np.zeros(space.shape, np.int64), False)
        if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
            return cls(_several_heads(space.nvec.tolist()), np.asarray(space.start), False)
        if isinstance(space, spaces.Box):
            raise ValueError(
                f"{env_id}: continuous actions are not supported yet (action space {space}); "
                "wrap it so that it takes Discrete or MultiDiscrete actions"
            )
        raise ValueError(
            f"{env_id}: action space {space} is not supported: "
            "use Discrete, or MultiDiscrete or MultiBinary with one axis"
        )

    def decode(self, heads: Tree) -> Array:
        """[tables] (or [tables, heads]) in the environment's count, from head -> [tables, 1]."""
        if self.single:
            moves: Array = heads["move"][:, 0] + self.start[0]
            return moves
        return np.stack([heads[name][:, 0] for name in self.spec.heads], axis=1) + self.start


def _several_heads(sizes: list[int]) -> ActionSpec:
    return ActionSpec(heads={f"move_{i}": Choice(num=num, masked=False) for i, num in enumerate(sizes)})
