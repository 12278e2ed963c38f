import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish import Mode, Skirmish, SkirmishTables
from ludus.games.builtin.skirmish_view import PIXELS, SIDE_COLOURS


def fresh(mode: Mode) -> SkirmishTables:
    game = Skirmish(mode=mode).tables(1)
    assert isinstance(game, SkirmishTables)
    game.reset(np.array([0]), np.array([5], np.uint64))
    return game


def pixels(picture: NDArray[np.uint8], side: int) -> NDArray[np.bool_]:
    coloured: NDArray[np.bool_] = (picture == SIDE_COLOURS[side]).all(axis=2)
    return coloured


@pytest.mark.parametrize("mode", ["1v1", "5v5"])
def test_draws_each_side_in_its_corner(mode: Mode) -> None:
    picture = fresh(mode).render(0)
    assert picture.shape == (PIXELS, PIXELS, 3)
    assert picture.dtype == np.uint8
    half = PIXELS // 2
    lower_left, upper_right = np.zeros((2, PIXELS, PIXELS), np.bool_)
    lower_left[half:, :half] = True
    upper_right[:half, half:] = True
    for side, corner in enumerate((lower_left, upper_right)):
        assert pixels(picture, side)[corner].sum() > 500
        assert not pixels(picture, side)[~corner].any()


def test_a_seat_sees_no_enemy_in_the_dark() -> None:
    game = fresh("1v1")
    for seat in (0, 1):
        seen = game.render(0, seat)
        assert pixels(seen, seat).any()
        assert not pixels(seen, 1 - seat).any()
        assert seen.mean() < game.render(0).mean()


def test_a_seat_sees_no_patch_in_the_dark() -> None:
    game = fresh("1v1")
    seen = [game.render(0, seat) for seat in (0, 1)]
    game.state.patch[0, rules.PATCHES // 2 :] = 0
    np.testing.assert_array_equal(game.render(0, 0), seen[0])
    assert (game.render(0, 1) != seen[1]).any()


def test_a_damaged_base_looks_different() -> None:
    game = fresh("1v1")
    before = game.render(0)
    game.state.health[0, 0, 0] //= 2
    assert (game.render(0) != before).any()
