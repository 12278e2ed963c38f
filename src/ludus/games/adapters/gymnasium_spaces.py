"""Observation spaces as parts, action spaces as heads: of Gymnasium, the old gym, and copies of them.

Spaces are recognised by the names of their classes, which needs none of these libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.data.specs import ActionSpec, Box, Choice, ObservationSpec, Part, Planes, Vector
from ludus.data.trees import Array, Tree

_KNOWN = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")

Encode = Callable[[Any], Array]
"""Converts a value of the space, or a batch along leading axes, to the array of a part."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One part of an observation: the path to its value, and its conversion to an array."""

    name: str
    part: Part
    path: tuple[Any, ...]
    encode: Encode

    def read(self, observation: Any) -> Array:
        for key in self.path:
            observation = observation[key]
        return self.encode(observation)

    def read_all(self, observations: Sequence[Any]) -> Array:
        """The part for several tables: [tables, ...]."""
        for key in self.path:
            observations = [observation[key] for observation in observations]
        return self.encode(np.array(observations))


def observation_leaves(space: Any, path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The parts of an observation space to which `path` leads."""
    kind = space_kind(space)
    if kind in ("Dict", "Tuple"):
        inner = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return [leaf for key, one in inner for leaf in observation_leaves(one, (*path, key))]
    part, encode = _part(space)
    name = "_".join(str(key) if isinstance(key, str) else f"part{key}" for key in path)
    return [Leaf(name or "observation", part, path, encode)]


def array_leaf(value: Array) -> Leaf:
    """The part for arrays like this one, for a value that has no space."""
    part, encode = _box(value)
    return Leaf("observation", part, (), encode)


def observation_spec(leaves: list[Leaf]) -> ObservationSpec:
    return ObservationSpec(parts={leaf.name: leaf.part for leaf in leaves})


def _part(space: Any) -> tuple[Part, Encode]:
    kind = space_kind(space)
    if kind == "Box" and len(space.shape) <= 3:
        return _box(space)
    if kind == "Discrete":
        rows, start = np.eye(int(space.n), dtype=np.float32), int(_start(space))
        return Vector(size=len(rows)), lambda value: rows[np.asarray(value) - start]
    if kind == "MultiDiscrete" and len(space.shape) == 1:
        tables = [np.eye(int(num), dtype=np.float32) for num in space.nvec]
        lowest = _start(space)
        return Vector(size=sum(map(len, tables))), lambda value: np.concatenate(
            [rows[(np.asarray(value) - lowest)[..., i]] for i, rows in enumerate(tables)], axis=-1
        )
    if kind == "MultiBinary" and len(space.shape) == 1:
        return Vector(size=int(space.shape[0])), np.asarray
    raise ValueError(
        f"observation space {space} is not supported: use Box with up to 3 axes, Discrete, "
        "MultiDiscrete or MultiBinary with one, or Dict and Tuple of these"
    )


def _box(space: Any) -> tuple[Part, Encode]:
    shape = tuple(int(size) for size in space.shape)
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    if len(shape) == 0:
        return Vector(size=1, dtype=dtype), lambda value: np.asarray(value)[..., None]
    if len(shape) == 1:
        return Vector(size=shape[0], dtype=dtype), np.asarray
    if len(shape) == 2:
        planes = Planes(channels=1, height=shape[0], width=shape[1], dtype=dtype)
        return planes, lambda value: np.asarray(value)[..., None, :, :]
    # Channels last: fewer channels than rows or columns, or a square board.
    if shape[2] <= min(shape[:2]) or shape[0] == shape[1]:
        planes = Planes(channels=shape[2], height=shape[0], width=shape[1], dtype=dtype)
        # moveaxis(value, -1, -3) takes ten times as long.
        return planes, lambda value: np.asarray(value).swapaxes(-1, -2).swapaxes(-2, -3)
    return Planes(channels=shape[0], height=shape[1], width=shape[2], dtype=dtype), np.asarray


@dataclass(frozen=True, slots=True)
class ActionCodec:
    """The heads of an action space, and the conversion of their values to actions of the environment."""

    spec: ActionSpec
    start: Array
    """The lowest value of each head in the environment."""
    single: bool
    """Whether the environment takes a number, not an array."""
    values: Array | None = None
    """[heads, bins]: values of the options, for a Box in bins."""
    shape: tuple[int, ...] = ()
    dtype: Any = None
    """The type of the numbers of a Box."""

    @classmethod
    def of(cls, space: Any, env_id: str, bins: int | None = None) -> ActionCodec:
        """`bins`: options per number of a Box, evenly spread; None: it is played with real numbers."""
        kind = space_kind(space)
        shape: tuple[int, ...] = getattr(space, "shape", None) or ()
        if kind == "Box":
            return cls._numbers(space, env_id) if bins is None else cls._binned(space, env_id, bins)
        if bins is not None:
            raise ValueError(f"{env_id}: bins are for a Box of actions, but its action space is {space}")
        if kind == "Discrete":
            heads = {"move": Choice(num=int(space.n), masked=False)}
            return cls(ActionSpec(heads=heads), np.array([_start(space)]), True)
        if kind == "MultiBinary" and len(shape) == 1:
            return cls(_several_heads([2] * shape[0]), np.zeros(shape, np.int64), False)
        if kind == "MultiDiscrete" and len(shape) == 1:
            return cls(_several_heads(space.nvec.tolist()), _start(space), False)
        raise ValueError(
            f"{env_id}: action space {space} is not supported: "
            "use Box, Discrete, or MultiDiscrete or MultiBinary with one axis"
        )

    @classmethod
    def _numbers(cls, space: Any, env_id: str) -> ActionCodec:
        low, high = _bounds(space, env_id)
        if np.dtype(space.dtype).kind != "f":
            raise ValueError(
                f"{env_id}: actions are whole numbers ({space}): with bins=N each is a choice among N, evenly spread "
                "(`ludus train`: --set game.bins=11)"
            )
        head = Box(size=len(low), low=low.tolist(), high=high.tolist())
        return cls(ActionSpec(heads={"move": head}), low, False, None, tuple(space.shape), space.dtype)

    @classmethod
    def _binned(cls, space: Any, env_id: str, bins: int) -> ActionCodec:
        if bins < 2:
            raise ValueError(f"{env_id}: bins must be at least 2, got {bins}")
        low, high = _bounds(space, env_id)
        values = np.linspace(low, high, bins, axis=1).astype(space.dtype)
        return cls(_several_heads([bins] * len(low)), low, False, values, tuple(space.shape))

    def decode(self, heads: Tree) -> Array:
        """Actions of the environment [tables] (or [tables, heads]) from head -> [tables, 1]."""
        if self.single:
            moves: Array = heads["move"][:, 0] + self.start[0]
            return moves
        if self.dtype is not None:
            # Rows that are not to act may hold anything; a bound in float32 may lie beyond one in float64.
            low, high = np.array(self.spec.boxes["move"].bounds)
            within: Array = np.clip(heads["move"][:, 0].astype(np.float64), low, high).astype(self.dtype)
            return within.reshape(-1, *self.shape)
        chosen = np.stack([heads[name][:, 0] for name in self.spec.heads], axis=1)
        if self.values is None:
            return chosen + self.start
        numbers: Array = self.values[np.arange(len(self.values)), chosen]
        return numbers.reshape(-1, *self.shape)


def _bounds(space: Any, env_id: str) -> tuple[Array, Array]:
    """Lowest and highest value of each number of a Box."""
    low, high = (np.ravel(side).astype(np.float64) for side in (space.low, space.high))
    most = np.finfo(np.float32).max
    if not (np.abs(low) <= most).all() or not (np.abs(high) <= most).all():
        raise ValueError(
            f"{env_id}: actions need a lowest and a highest value, but they are {space}: wrap the environment so that "
            "its action space has finite bounds (gymnasium.wrappers.TransformAction), and name the class or function "
            "that makes it, FILE.py:NAME"
        )
    return low, high


def _several_heads(sizes: list[int]) -> ActionSpec:
    return ActionSpec(heads={f"move_{i}": Choice(num=num, masked=False) for i, num in enumerate(sizes)})


def space_kind(space: Any) -> str:
    """The first known name among a space's classes; else the name of its class."""
    names = [cls.__name__ for cls in type(space).__mro__]
    return next((name for name in names if name in _KNOWN), names[0])


def _start(space: Any) -> Any:
    """The lowest value of a space; 0 for old spaces, which have no `start`."""
    if space_kind(space) == "Discrete":
        return int(getattr(space, "start", 0))
    return np.asarray(getattr(space, "start", np.zeros(len(space.nvec), np.int64)))
