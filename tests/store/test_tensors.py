"""Arrays survive as they are, and a file that lies about itself is refused before anything is allocated."""

from __future__ import annotations

import pickle
import resource
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from ludus.store.checkpoints import (
    BadTensorFile,
    architecture_digest,
    canonical,
    content_digest,
    encode_tensors,
    read_tensors,
)

DTYPES = ["f8", "f4", "f2", "c8", "?", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]


def written(path: Path, arrays: dict[str, NDArray[Any]], **metadata: str) -> Path:
    path.write_bytes(encode_tensors(canonical(arrays), metadata))
    return path


def with_header(path: Path, header: object, data: bytes) -> Path:
    text = msgspec.json.encode(header)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_survives(tmp_path: Path, dtype: str) -> None:
    values = np.arange(24).astype(dtype)
    arrays = {"flat": values, "cube": values.reshape(2, 3, 4), "scalar": values[1].reshape(()), "no": values[:0]}
    read, metadata = read_tensors(written(tmp_path / "x", arrays, note="שלום"))
    assert metadata == {"note": "שלום"}
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)
        assert read[name].flags.writeable


def test_views_and_foreign_byte_order_survive(tmp_path: Path) -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays: dict[str, NDArray[Any]] = {
        "transposed": grid.T, "strided": grid[::2, 1::2],
        "swapped": grid.astype(">f4"), "reversed": grid[::-1],
    }  # fmt: skip
    read, _ = read_tensors(written(tmp_path / "x", arrays))
    for name, array in arrays.items():
        assert np.array_equal(read[name], array), name


def test_digests_see_names_dtypes_shapes_and_values() -> None:
    one = canonical({"w": np.ones((2, 3), np.float32)})
    others: list[dict[str, NDArray[Any]]] = [
        {"v": np.ones((2, 3), np.float32)},
        {"w": np.ones((3, 2), np.float32)},
        {"w": np.ones((2, 3), np.int32)},
        {"w": np.ones((2, 3), np.float32), "b": np.ones(0, np.float32)},
    ]
    for digest in (architecture_digest, content_digest):
        assert len({digest(canonical(arrays)) for arrays in [one, *others]}) == 5
    changed = canonical({"w": np.array([[1, 1, 1], [1, 1, -1]], np.float32)})
    assert architecture_digest(one) == architecture_digest(changed)
    assert content_digest(one) != content_digest(changed)
    assert content_digest(one, "ab", "c") != content_digest(one, "a", "bc")


@pytest.mark.parametrize("array", [np.array([object()]), np.array(["text"]), np.array([0], "M8[s]")])
def test_what_is_not_numbers_is_refused(array: NDArray[Any]) -> None:
    with pytest.raises(TypeError, match=r"array 'w' is of .*use one of .*float32"):
        canonical({"w": array})


def test_a_small_file_that_declares_50_gigabytes_is_refused_unallocated(tmp_path: Path) -> None:
    size = 50 * 10**9
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    path = with_header(tmp_path / "x", header, bytes(1024))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadTensorFile, match=r"\(1,\d+ bytes\): .*not fully covered"):
        read_tensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"w": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"w": {"dtype": "X32", "shape": [2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2]}},
        {"w": [1, 2]},
        [],
        {},
        msgspec.Raw(b"[" * 100_000),
        msgspec.Raw(b'{"\xff": {}}'),
    ],
)
def test_headers_that_do_not_fit_the_file_are_refused(tmp_path: Path, tensors: object) -> None:
    with pytest.raises(BadTensorFile):
        read_tensors(with_header(tmp_path / "x", tensors, bytes(8)))


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (canary,)

    path = tmp_path / "weights"
    path.write_bytes(pickle.dumps({"w": Attack()}))
    with pytest.raises(BadTensorFile, match="pickle"):
        read_tensors(path)
    assert not canary.exists()


def test_other_programs_read_and_write_the_same_format(tmp_path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert np.array_equal(safetensors.numpy.load_file(written(tmp_path / "x", arrays))["w"], arrays["w"])
    safetensors.numpy.save_file(arrays, tmp_path / "y")
    assert np.array_equal(read_tensors(tmp_path / "y")[0]["w"], arrays["w"])
