from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.skirmish_bots import CYCLE

Play = Callable[..., NDArray[np.float32]]
SOURCE = Skirmish()
BOTS = SOURCE.bots()


def test_the_strategies_form_a_cycle_of_all() -> None:
    assert len(CYCLE) >= 4
    assert {*CYCLE, "random"} == set(BOTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("winner", "loser"), list(zip(CYCLE, (*CYCLE[1:], CYCLE[0]), strict=True)), ids="-".join
)
def test_each_strategy_beats_the_next(winner: str, loser: str, play: Play) -> None:
    first = play(SOURCE, [BOTS[winner], BOTS[loser]], 12)[:, 0]
    second = play(SOURCE, [BOTS[loser], BOTS[winner]], 12)[:, 1]
    assert (np.concatenate([first, second]) > 0).mean() >= 0.7


def test_a_rush_beats_random_play_in_both_seats(play: Play) -> None:
    assert (play(SOURCE, [BOTS["rush"], BOTS["random"]], 4)[:, 0] > 0).all()
    assert (play(SOURCE, [BOTS["random"], BOTS["rush"]], 4)[:, 1] > 0).all()


def test_scripted_heroes_beat_random_ones(play: Play) -> None:
    source = Skirmish(mode="3v3")
    bots = source.bots()
    assert (play(source, [bots["push"]] * 3 + [bots["random"]] * 3, 6)[:, 0] > 0).mean() > 0.8
