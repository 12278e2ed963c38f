"""What is garbage in a view, and what is only large."""

from __future__ import annotations

import numpy as np
import pytest

from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.game import TableView
from ludus.games.isolation.garbage import GarbageWatch


def begun() -> tuple[TableView, GarbageWatch]:
    tables = ConnectFour().tables(3)
    tables.reset(np.arange(3), np.arange(3, dtype=np.uint64))
    watch = GarbageWatch(tables.spec, tables.view)
    watch.started[:] = True
    return tables.view, watch


@pytest.mark.parametrize("large", [1e20, -3e38])
def test_large_numbers_are_no_garbage_and_raise_nothing(large: float) -> None:
    """Their squares are beyond float32."""
    view, watch = begun()
    view.observation[0]["board"][1] = large
    view.reward[2] = large
    with np.errstate(all="raise"):  # as a game may have set it
        assert watch.find() is None


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_named(wrong: float) -> None:
    view, watch = begun()
    assert watch.find() is None
    seat = int(view.to_act[1].argmax())
    view.observation[0]["board"][1, seat, 5] = wrong
    assert watch.find() == f"'board' that seat {seat} of table 1 sees is not finite"
    view.reward[2, 0] = wrong
    found = watch.find()
    assert found is not None
    assert found.startswith("reward of table 2 is")
