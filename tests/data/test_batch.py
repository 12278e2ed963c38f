"""Batches hold numpy arrays or torch tensors alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ludus.data.batch import Batch

T1, B = 3, 4


def new_batch() -> Batch:
    """Row t of column b holds t * B + b everywhere."""
    flat = np.arange(T1 * B).reshape(T1, B)
    return Batch(
        observation={"seen": flat[..., None] * np.ones(2)},
        legal={"move": np.ones((T1, B, 3), np.bool_)},
        action={"move": flat},
        log_prob=flat[..., None],
        value=flat,
        reward=flat,
        elapsed=flat,
        over=flat > 3,
        valid=flat > 4,
        follows=flat > 5,
        first=flat > 6,
        version=flat,
        state={"h": np.arange(B)[:, None]},
        extra={"target": flat},
        progress=0.5,
    )


def columns_in(batch: Batch) -> dict[str, Any]:
    names = ("log_prob", "value", "reward", "elapsed", "version")
    rows = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
    return {**rows, **batch.observation, **batch.action, **batch.extra}


def test_rows_are_single_decisions_by_flat_index() -> None:
    chosen = new_batch().rows(np.array([7, 0]))
    for name, array in columns_in(chosen).items():
        assert array.reshape(2, -1)[:, 0].tolist() == [7, 0], name
    assert chosen.legal["move"].shape == (2, 3)
    assert (chosen.valid.tolist(), chosen.first.tolist()) == ([True, False], [True, False])
    assert chosen.progress == 0.5
    for name in ("reward", "elapsed", "over", "follows", "version"):
        assert getattr(chosen, name) is None, f"{name} has no meaning for single decisions"
    assert chosen.state == {}, "nor has memory"


def test_a_flat_batch_is_trajectory_after_trajectory_and_a_view_of_what_lies_so() -> None:
    flat = new_batch().flat()
    wanted = [t * B + b for b in range(B) for t in range(T1)]
    for name, array in columns_in(flat).items():
        assert array.reshape(T1 * B, -1)[:, 0].tolist() == wanted, name
    stacked = new_batch().map(lambda array: np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1))
    flat = stacked.flat()
    flat.observation["seen"][1] = -1
    assert stacked.observation["seen"][1, 0].tolist() == [-1, -1]


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_picked_rows_of_a_flat_batch(kind: str) -> None:
    batch, index = new_batch().flat(), np.array([4, 0])
    if kind == "tensors":
        picked = batch.map(torch.from_numpy).pick(torch.from_numpy(index), all_valid=True)
    else:
        picked = batch.pick(index)
    for name, array in columns_in(picked).items():
        assert array.reshape(2, -1)[:, 0].tolist() == [5, 0], name
    assert (picked.mask is None) == (kind == "tensors"), "only who picks knows that all are valid"
    assert batch.mask is batch.valid


def test_columns_are_whole_trajectories_with_their_memory() -> None:
    chosen = new_batch().columns(np.array([2, 1]))
    for name, array in columns_in(chosen).items():
        assert array.reshape(T1, 2, -1)[..., 0].tolist() == [[2, 1], [6, 5], [10, 9]], name
    assert chosen.state["h"].tolist() == [[2], [1]]


def test_map_reaches_every_array_and_keeps_the_progress() -> None:
    tensors = new_batch().map(torch.from_numpy)
    named = {**columns_in(tensors), **tensors.legal, **tensors.state}
    named |= {name: getattr(tensors, name) for name in ("over", "valid", "follows", "first")}
    assert all(isinstance(array, torch.Tensor) for array in named.values())
    assert tensors.progress == 0.5
    assert torch.equal(tensors.rows(torch.tensor([5])).value, torch.tensor([5]))


def test_extra_columns_are_added_and_follow_the_others() -> None:
    batch = new_batch().with_extra(advantage=np.arange(T1 * B).reshape(T1, B))
    assert set(batch.extra) == {"target", "advantage"}
    assert batch.columns(np.array([3])).extra["advantage"].tolist() == [[3], [7], [11]]
    assert set(new_batch().with_extra(target=batch.value * 2).extra) == {"target"}


def test_a_batch_does_not_change() -> None:
    with pytest.raises(AttributeError):
        new_batch().value = np.zeros(1)  # type: ignore[misc]
    assert replace(new_batch(), progress=1.0).progress == 1.0
