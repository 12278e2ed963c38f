"""What travels between nodes arrives as it was, or not at all."""

from __future__ import annotations

from typing import get_args

import msgspec
import numpy as np
import pytest

from ludus.experiment import ClusterConfig, Compression
from ludus.runtime.ray.transfer import Draft, pack, unpack

ARRAYS = {
    "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
    "flags": np.array([True, False, True]),
    "number": np.array(7, np.int64),
    "nothing": np.zeros((0, 5), np.int8),
}


def libraries(compress: Compression) -> None:
    if compress != "none":
        pytest.importorskip("lz4")
        pytest.importorskip("zstandard")


@pytest.mark.parametrize("compress", get_args(Compression))
def test_arrays_arrive_as_they_were(compress: Compression) -> None:
    libraries(compress)
    draft = Draft({name: (array.dtype, array.shape) for name, array in ARRAYS.items()})
    for name, array in ARRAYS.items():
        draft.arrays[name][...] = array
    arrived = unpack(draft.seal(compress, digest=True))
    assert arrived.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrived[name].dtype == array.dtype
        assert np.array_equal(arrived[name], array)


@pytest.mark.parametrize("compress", ["lz4", "zstd"])
def test_what_repeats_itself_becomes_smaller(compress: Compression) -> None:
    libraries(compress)
    draft = Draft({"zeros": (np.dtype(np.float32), (10_000,))})
    assert draft.seal(compress).body.nbytes < draft.seal("none").body.nbytes / 20


def test_a_damaged_parcel_is_refused() -> None:
    parcel = pack(ARRAYS)
    body = parcel.body.copy()
    body[3] ^= 1
    with pytest.raises(match="does not match its digest"):
        unpack(msgspec.structs.replace(parcel, body=body))
    with pytest.raises(match="bytes has"):
        unpack(msgspec.structs.replace(parcel, body=body[:-1]))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"compress is 'gzip', not one of .*none.*lz4.*zstd"):
        ClusterConfig(compress="gzip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        ClusterConfig(in_flight=0)
    with pytest.raises(ValueError, match="most_actors must be at least 1"):
        ClusterConfig(most_actors=0)
