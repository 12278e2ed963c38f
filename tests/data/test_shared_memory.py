"""Shared memory: the same arrays on both sides, nothing with a name, nothing left behind."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

from ludus.data.trees import Array
from ludus.system.shared_memory import ALIGNMENT, Region, bytes_needed


def build(new: Any) -> tuple[Array, Array, Array]:
    return new((3, 5), np.float32), new((7,), np.bool_), new((), np.int64)


def test_two_views_of_a_region_see_the_same_arrays() -> None:
    region = Region.create(bytes_needed(build))
    other = Region(os.dup(region.fd))
    mine, theirs = build(region.new), build(other.new)
    for array in mine:
        assert not array.any()
        array[...] = 1
    for array in theirs:
        assert array.all()
    region.close()
    other.close()
    mine[0][...] = 2
    assert (theirs[0] == 2).all(), "the arrays keep the memory alive"


def test_arrays_do_not_share_a_cache_line() -> None:
    region = Region.create(bytes_needed(build))
    starts = [array.__array_interface__["data"][0] for array in build(region.new)]
    assert all((b - a) % ALIGNMENT == 0 and b > a for a, b in itertools.pairwise(starts))
    region.close()


def test_counting_takes_no_memory() -> None:
    assert bytes_needed(lambda new: new((10**6, 10**6), np.float64)) > 8 * 10**12


def test_what_cannot_be_reserved_is_refused_with_the_settings_to_lower() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(MemoryError, match=r"actor\.num_tables"):
        Region.create(2**60)
    assert set(os.listdir("/proc/self/fd")) == before


def test_only_what_is_reserved_takes_up_memory() -> None:
    rows = 1_000_000
    region = Region.sparse(bytes_needed(lambda new: new((4, rows), np.float64)))
    array = region.new((4, rows), np.float64)
    assert os.fstat(region.fd).st_blocks == 0
    region.reserve([array[1]])
    taken = os.fstat(region.fd).st_blocks * 512
    assert array[1].nbytes <= taken <= array[1].nbytes + 2**16
    region.reserve([array[1]])
    assert os.fstat(region.fd).st_blocks * 512 == taken, "it has it already"
    array[1] = 1.0
    assert not array[[0, 2, 3]].any()
    region.close()


def test_what_does_not_fit_is_refused_and_the_rest_goes_on() -> None:
    region = Region.sparse(bytes_needed(lambda new: new((2**40,), np.float64)))
    array = region.new((2**40,), np.float64)
    with pytest.raises(MemoryError, match=r"actor\.num_tables"):
        region.reserve([array])
    region.reserve([array[:8]])
    array[:8] = 1.0
    region.close()
