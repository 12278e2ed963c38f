"""Boards: the newest weights, whole, whoever publishes meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ludus.data.records import ModelId
from ludus.data.specs import ArraySpec
from ludus.workers.player_cache import LocalWeights, SharedWeights, WeightStore

SPECS = {"player/weight": ArraySpec(shape=(400, 50), dtype=np.dtype(np.float32))}


@pytest.fixture(params=["local", "shared"])
def board(request: pytest.FixtureRequest) -> WeightStore:
    return LocalWeights() if request.param == "local" else SharedWeights(np.zeros, {"main": SPECS, "other": SPECS})


def weights(value: float) -> dict[str, np.ndarray]:
    return {"player/weight": np.full((400, 50), value, np.float32)}


def test_the_newest_weights_are_found(board: WeightStore) -> None:
    assert board.newest("main") is None
    for step in range(5):
        board.publish(ModelId("main", 1, step), weights(step))
        assert board.newest("main") == ModelId("main", 1, step)
        model, found = board.fetch("main")
        assert model.step == step
        assert (found["player/weight"] == step).all()
    assert board.newest("other") is None
    assert board.newest("nobody") is None


def test_what_was_fetched_does_not_change(board: WeightStore) -> None:
    board.publish(ModelId("main", 0, 1), weights(1))
    _, found = board.fetch("main")
    for step in (2, 3):
        board.publish(ModelId("main", 0, step), weights(step))
    assert (found["player/weight"] == 1).all()


def test_a_reader_never_sees_half_of_two_versions() -> None:
    board = SharedWeights(np.zeros, {"main": SPECS})
    board.publish(ModelId("main", 0, 0), weights(0))
    stop = threading.Event()

    def publish() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            board.publish(ModelId("main", 0, step), weights(step))

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        for _ in range(300):
            model, found = board.fetch("main")
            assert (found["player/weight"] == model.step).all()
    finally:
        stop.set()
        writer.join()


def test_a_weight_without_axes_stays_an_array(board: WeightStore) -> None:
    specs = {"player/scale": ArraySpec(shape=(), dtype=np.dtype(np.float32))}
    board = LocalWeights() if isinstance(board, LocalWeights) else SharedWeights(np.zeros, {"main": specs})
    board.publish(ModelId("main", 0, 1), {"player/scale": np.array(2.5, np.float32)})
    _, found = board.fetch("main")
    assert isinstance(found["player/scale"], np.ndarray)
    assert found["player/scale"] == 2.5
