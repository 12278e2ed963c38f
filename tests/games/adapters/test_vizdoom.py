import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ludus.games.adapters.vizdoom import ViZDoom
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import allocate_actions, lost_tables
from ludus.games.seat_rows import GameError

needs_game = pytest.mark.skipif(
    importlib.util.find_spec("vizdoom") is None, reason="not installed: pip install -e '.[vizdoom]'"
)


def engines(below: int) -> Iterator[int]:
    """Processes of the Doom engine that this one, or its children, have started."""
    for task in Path(f"/proc/{below}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            if Path(f"/proc/{child}/comm").read_text().strip() == "vizdoom":
                yield child
            yield from engines(child)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"shrink": 3}, "shrink must divide 160 and 120, such as 1, 2 or 4, got 3"),
        ({"seconds": 0.0}, "seconds must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(GameError, match=message):
        ViZDoom(scenario="duel", **options)  # type: ignore[arg-type]


@needs_game
def test_buttons_that_exclude_each_other_share_a_head() -> None:
    kind = resolve("vizdoom:deathmatch").spec.kinds[0]
    heads = {name: kind.num_options(name) for name in kind.action.heads}
    sides = {"sideways": 3, "turn": 3, "walk": 3}
    assert heads == {**sides, "weapon": 9, "attack": 2, "speed": 2, "strafe": 2}


@needs_game
def test_a_scenario_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(GameError, match="no scenario 'bsic'; did you mean 'basic'"):
        _ = resolve("vizdoom:bsic").spec
    with pytest.raises(GameError, match=r"there is no scenario file 'nowhere\.cfg'"):
        _ = resolve("vizdoom:nowhere.cfg").spec


@needs_game
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "options"),
    [("basic", {"seconds": 4.0}), ("defend_the_center", {"seconds": 4.0, "colour": True, "shrink": 4})],
)
def test_a_scenario_for_one_keeps_its_promises(scenario: str, options: dict[str, float]) -> None:
    report = check_game(resolve(f"vizdoom:{scenario}", **options), tables=2, episodes=2, max_steps=40)
    assert report.ok, str(report)


@needs_game
@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["duel", "duel_cig"])
def test_a_duel_keeps_its_promises(scenario: str) -> None:
    source = resolve(f"vizdoom:{scenario}", seconds=3.0)
    assert not source.spec.repeatable
    report = check_game(source, tables=2, episodes=2, max_steps=30)
    assert report.ok, str(report)


@needs_game
@pytest.mark.slow
def test_a_duel_whose_engine_is_killed_is_lost_and_comes_back_and_nothing_is_left() -> None:
    source = resolve("vizdoom:duel", seconds=2.0, answer_seconds=10.0)
    tables = source.tables(2)
    try:
        tables.reset(np.arange(2), np.array([3, 4], np.uint64))
        first = sorted(engines(os.getpid()))
        assert len(first) == 4
        os.kill(first[0], signal.SIGKILL)
        actions = allocate_actions(source.spec, 2)
        tables.step(actions)
        lost = lost_tables(tables)
        assert len(lost) == 1
        (table,) = lost
        assert tables.view.to_act.any(1).tolist() == [other != table for other in range(2)]
        tables.reset(np.array([table]), np.array([5], np.uint64))
        assert not lost_tables(tables)
        while not tables.view.over.all():
            tables.step(actions)
        assert len(list(engines(os.getpid()))) == 4
        pictures = [tables.render(0, seat).shape for seat in (None, 1)]  # type: ignore[attr-defined]
        assert pictures == [(60, 160, 3), (60, 80, 3)]
    finally:
        tables.close()
    assert not list(engines(os.getpid()))
