"""Checkpoints come back exactly, and the last good one is used when the newest is damaged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.store.checkpoints import Checkpoints, DamagedCheckpoints

ARRAYS = {
    "policy.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "optimiser.square": np.full(3, 1e-300),
    "torch_rng": np.arange(16, dtype=np.uint8),
    "seen": np.array([True, False]),
    "count": np.array(2**62, dtype=np.int64),
}
FACTS: dict[str, Any] = {
    "decisions": 2**40, "best": float("-inf"), "rate": 0.1, "names": ["a", "שלום"], "big": 2**128 - 1,
    "deep": {"list": [1, [2.5, {"x": None}]], "flag": True},
}  # fmt: skip


def loaded_step(folder: Path) -> int | None:
    checkpoint = Checkpoints(folder).load_latest()
    return None if checkpoint is None else checkpoint.step


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "main").load_latest() is None
    Checkpoints(tmp_path / "main").save(7, ARRAYS, FACTS)
    checkpoint = Checkpoints(tmp_path / "main").load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 7
    assert checkpoint.facts == FACTS
    assert checkpoint.damaged == ()
    assert checkpoint.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert checkpoint.arrays[name].dtype == array.dtype
        assert np.array_equal(checkpoint.arrays[name], array)


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    rng, resumed = (np.random.Generator(np.random.PCG64(seed)) for seed in (5, 6))
    rng.integers(10, size=3, dtype=np.uint32)  # leaves half of a 64-bit draw behind
    Checkpoints(tmp_path).save(1, {}, {"rng": rng.bit_generator.state})
    checkpoint = Checkpoints(tmp_path).load_latest()
    assert checkpoint is not None
    resumed.bit_generator.state = checkpoint.facts["rng"]
    assert rng.integers(10**6, size=700, dtype=np.uint32).tolist() == (
        resumed.integers(10**6, size=700, dtype=np.uint32).tolist()
    )
    assert rng.normal() == resumed.normal()


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10, 20, 30):
        checkpoints.save(step, ARRAYS, {})
    assert sorted(os.listdir(tmp_path)) == ["000002-20.safetensors", "000003-30.safetensors"]
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


def test_the_latest_is_the_last_saved_even_after_a_reset(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(900, ARRAYS, {})
    checkpoints.save(0, ARRAYS, {})
    assert loaded_step(tmp_path) == 0


def test_facts_that_are_not_plain_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(TypeError, match="object"):
        checkpoints.save(1, {}, {"x": object()})
    assert os.listdir(tmp_path) == []


def test_a_cut_at_any_byte_falls_back_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, ARRAYS, FACTS)
    newest = checkpoints.save(2, ARRAYS, FACTS)
    content = newest.read_bytes()
    for length in range(len(content)):
        newest.write_bytes(content[:length])
        checkpoint = Checkpoints(tmp_path).load_latest()
        assert checkpoint is not None
        assert (checkpoint.step, checkpoint.damaged) == (1, (newest.name,)), length
    newest.write_bytes(content + b"\0")
    assert loaded_step(tmp_path) == 1
    newest.write_bytes(content)
    assert loaded_step(tmp_path) == 2


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, ARRAYS, FACTS)
    newest = checkpoints.save(2, ARRAYS, FACTS)
    content = newest.read_bytes()
    rng = random.Random(0)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.randrange(8)
        newest.write_bytes(flipped)
        assert loaded_step(tmp_path) == 1, position


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, ARRAYS, {})
    checkpoints.save(2, ARRAYS, {}).write_bytes(b"")
    resumed = Checkpoints(tmp_path, keep=2)
    resumed.load_latest()
    newest = resumed.save(3, ARRAYS, {})
    newest.write_bytes(b"")
    assert loaded_step(tmp_path) == 1


def test_no_good_checkpoint_is_not_the_same_as_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, ARRAYS, {}).write_bytes(b"")
    with pytest.raises(DamagedCheckpoints, match=r"no checkpoint in .*000001-1\.safetensors: it is empty"):
        checkpoints.load_latest()


def test_kill_9_while_saving_keeps_the_last_acknowledged(tmp_path: Path) -> None:
    code = (
        "import sys; import numpy as np; from ludus.store.checkpoints import Checkpoints\n"
        "checkpoints = Checkpoints(sys.argv[1])\n"
        "latest = checkpoints.load_latest()\n"
        "step = latest.step if latest else 0\n"
        "while True:\n"
        "    step += 1\n"
        "    checkpoints.save(step, {'w': np.full(300_000, step)}, {'step': step})\n"
        "    print(step, flush=True)\n"
    )
    rng = random.Random(0)
    for _ in range(4):
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            writer.kill()
            acknowledged = int([first, *writer.stdout.read().split()][-1])
        checkpoint = Checkpoints(tmp_path).load_latest()
        assert checkpoint is not None
        assert checkpoint.step in (acknowledged, acknowledged + 1)
        assert checkpoint.damaged == ()
        assert (checkpoint.arrays["w"] == checkpoint.step).all()
    assert len(os.listdir(tmp_path)) <= 3  # temporaries of the killed are gone
