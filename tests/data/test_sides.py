"""Who trains on a side and whose result it is, also as ledgers write it."""

from __future__ import annotations

import msgspec
import pytest

from ludus.data.records import Side


@pytest.mark.parametrize(
    ("written", "side", "trainees", "stands_for"),
    [
        ('{"players":["main"],"trains":true}', Side(("main",), trains=True), ("main",), "main"),
        ('{"players":["main.1"],"trains":false}', Side(("main.1",)), (), "main.1"),
        ('{"players":["a","b"],"trains":true}', Side(("a", "b"), trains=True), ("a", "b"), None),
        (
            '{"players":["a","b"],"trains":["b"],"captain":"b"}',
            Side(("a", "b"), trains=("b",), captain="b"),
            ("b",),
            "b",
        ),
        ('{"players":["a","a"]}', Side(("a", "a")), (), "a"),
    ],
)
def test_sides_read_as_they_were_written(
    written: str, side: Side, trainees: tuple[str, ...], stands_for: str | None
) -> None:
    assert msgspec.json.decode(written, type=Side) == side
    assert msgspec.json.decode(msgspec.json.encode(side), type=Side) == side
    assert side.trainees == trainees
    assert side.stands_for == stands_for


def test_a_side_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"trains"):
        msgspec.json.decode('{"players":["a"],"trains":"a"}', type=Side)
