"""Trajectories that were packed on one node are the same on another."""

from __future__ import annotations

import numpy as np
from small_runs import parts_in_memory, play

from ludus.runtime.ray.transfer import pack_slots, put_slots


def test_the_learner_stacks_the_same_batch_on_another_node() -> None:
    here, there = parts_in_memory(), parts_in_memory()
    slots = play(here, 1, np.random.default_rng(0))
    codes = np.concatenate((here.code(0, 0, slots), [-1]))
    assert np.array_equal(put_slots(there, pack_slots(here, codes, "none")), codes)
    for pool in there.pools:
        pool.rows["value"][...] += 0  # writable as ever
    one, two = here.pools[0].stack(slots), there.pools[0].stack(slots)
    used = np.nonzero(one.valid | np.roll(one.valid, 1, 0))  # decisions, and what follows the last one
    assert len(used[0]) > len(slots)
    for name in ("log_prob", "value", "reward", "over", "first", "version"):
        assert np.array_equal(getattr(one, name)[used], getattr(two, name)[used]), name
    for name, array in one.observation.items():
        assert np.array_equal(array[used], two.observation[name][used])
    assert np.array_equal(one.valid, two.valid)
    for name, array in one.state.items():
        assert np.array_equal(array, two.state[name])


def test_only_rows_that_were_written_travel() -> None:
    parts = parts_in_memory()
    slots = play(parts, 0, np.random.default_rng(0))
    codes = parts.code(0, 0, slots)
    full = pack_slots(parts, codes, "none").body.nbytes
    parts.pools[0].slots["length"][slots] = 1
    assert pack_slots(parts, codes, "none").body.nbytes < full / 2


def test_a_mark_alone_travels_too() -> None:
    here, there = parts_in_memory(), parts_in_memory()
    assert put_slots(there, pack_slots(here, np.array([-1]), "none")).tolist() == [-1]
