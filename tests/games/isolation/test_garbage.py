"""What is garbage in a view, and what is only large."""

from __future__ import annotations

import numpy as np
import pytest

from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.game import TableView
from ludus.games.isolation.host import GarbageWatch


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


TRUE = [1, 2, 255]
"""Bytes that a flag may be stored as, by a game in C or a server elsewhere."""


def store(flags: np.ndarray, table: int, byte: int) -> None:
    flags.view(np.uint8)[table] = byte


@pytest.mark.parametrize("byte", TRUE)
def test_a_table_that_has_ended_while_somebody_is_to_act_is_named(byte: int) -> None:
    for name in ("over", "truncated"):
        view, watch = begun()
        seat = int(view.to_act[2].argmax())
        store(getattr(view, name), 2, byte)
        assert watch.find() == f"table 2 has ended, but seat {seat} is to act"


@pytest.mark.parametrize("over", TRUE)
@pytest.mark.parametrize("truncated", TRUE)
def test_a_table_that_has_ended_twice_is_named(over: int, truncated: int) -> None:
    view, watch = begun()
    view.to_act[1] = False
    store(view.over, 1, over)
    store(view.truncated, 1, truncated)
    assert watch.find() == "table 1 is both over and truncated"


@pytest.mark.parametrize("byte", TRUE)
def test_an_end_is_an_end_however_it_is_stored(byte: int) -> None:
    view, watch = begun()
    view.to_act[1] = False
    store(view.over, 1, byte)
    assert watch.find() is None


def test_a_table_where_nobody_is_to_act_is_named_once_it_has_begun() -> None:
    view, watch = begun()
    view.to_act[0] = False
    assert watch.find() == "table 0 has not ended, but nobody is to act"
    watch.started[0] = False
    assert watch.find() is None


def test_a_seat_without_a_legal_option_is_named() -> None:
    view, watch = begun()
    seat = int(view.to_act[1].argmax())
    view.legal[0]["move"][1, 1 - seat] = False  # of the one who waits
    assert watch.find() is None
    view.legal[0]["move"][1, seat] = False
    assert watch.find() == f"seat {seat} of table 1 has no legal option for 'move'"
