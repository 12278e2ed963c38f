"""Kinds of seat, random observations and played batches for the tests of models."""

import numpy as np

from ludus.data.batch import Batch
from ludus.data.specs import (
    ActionSpec,
    Box,
    Choice,
    Entities,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)

PLAIN = SeatKind(
    name="plain",
    observation=ObservationSpec(parts={"scalars": Vector(size=6)}, critic={"hidden": Vector(size=3, dtype="int8")}),
    action=ActionSpec(heads={"move": Choice(num=5)}),
)
RICH = SeatKind(
    name="rich",
    observation=ObservationSpec(
        parts={
            "scalars": Vector(size=4),
            "flags": Vector(size=3, dtype="bool"),
            "map": Planes(channels=2, height=5, width=4, dtype="uint8"),
            "units": Entities(maximum=6, features=3),
        },
        critic={"enemies": Entities(maximum=4, features=2)},
    ),
    action=ActionSpec(
        heads={
            "type": Choice(num=4),
            "target": Pointer(into="units", when=When(head="type", values=(1, 2))),
            "group": Pointer(into="units", picks=3, when=When(head="type", values=(3,))),
            "place": Point(height=5, width=4),
            "far": Point(height=17, width=18, masked=True),
        }
    ),
)

NUMBERS = SeatKind(
    name="numbers",
    observation=PLAIN.observation,
    action=ActionSpec(
        heads={
            "type": Choice(num=3),
            "push": Box(size=2, low=(-1.0, 5.0), high=(3.0, 6.0), when=When(head="type", values=(1, 2))),
            "turn": Box(size=1),
            "more": Choice(num=2),
        }
    ),
)


def observations(kind, rng, leading):
    """Random arrays; what lies beyond the length of an entity list is NaN."""
    arrays = {}
    for name, spec in kind.observation.arrays.items():
        shape = leading + spec.shape
        if spec.dtype.kind == "f":
            arrays[name] = rng.standard_normal(shape).astype(spec.dtype)
        elif not spec.shape:
            maximum = kind.observation.arrays[name.removesuffix("_length")].shape[0]
            arrays[name] = rng.integers(1, maximum, shape).astype(spec.dtype)
        else:
            arrays[name] = rng.integers(0, 2 if spec.dtype.kind == "b" else 100, shape).astype(spec.dtype)
    for name in arrays:
        if f"{name}_length" in arrays:
            arrays[name][np.arange(arrays[name].shape[-2]) >= arrays[f"{name}_length"][..., None]] = np.nan
    return arrays


def masks(kind, rng, observation, leading):
    """Random masks that leave at least the first option."""
    legal = {}
    for name, spec in kind.legal_arrays.items():
        legal[name] = rng.random(leading + spec.shape) < 0.6
        legal[name][..., 0] = True
        head = kind.action.heads[name]
        if isinstance(head, Pointer):
            length = observation[f"{head.into}_length"][..., None]
            legal[name] &= np.arange(spec.shape[0]) < length
    return legal


def inputs(policy, rng, leading):
    """What `act` takes, with random memory."""
    observation = observations(policy.kind, rng, leading)
    legal = masks(policy.kind, rng, observation, leading)
    state = {
        name: rng.standard_normal(leading + spec.shape).astype(spec.dtype) for name, spec in policy.state_arrays.items()
    }
    return observation, legal, state, rng.random((*leading, policy.num_draws), dtype=np.float32)


def play(policy, rng, num_steps, num_columns):
    """A batch [num_steps, num_columns] of `act`'s own decisions; memory is zeroed where `first`."""
    first = rng.random((num_steps, num_columns)) < 0.3
    _, _, state, _ = inputs(policy, rng, (num_columns,))
    start = {name: array.copy() for name, array in state.items()}
    steps = []
    for t in range(num_steps):
        observation, legal, _, uniforms = inputs(policy, rng, (num_columns,))
        state = {name: np.where(first[t][:, None], 0, array) for name, array in state.items()}
        acted = policy.act(observation, legal, state, uniforms)
        state = acted.state
        steps.append((observation, legal, acted))

    def joined(trees):
        return {name: np.stack([tree[name] for tree in trees]) for name in trees[0]}

    shape = (num_steps, num_columns)
    return Batch(
        observation=joined([step[0] for step in steps]),
        legal=joined([step[1] for step in steps]),
        action=joined([step[2].action for step in steps]),
        log_prob=np.stack([step[2].log_prob for step in steps]),
        value=np.stack([step[2].value for step in steps]),
        reward=np.zeros(shape, np.float32),
        elapsed=np.ones(shape, np.float32),
        over=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        follows=np.ones(shape, bool),
        first=first,
        version=np.zeros(shape, np.int64),
        state=start,
    )
