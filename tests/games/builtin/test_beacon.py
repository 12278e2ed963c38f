from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin.beacon import (
    BEACON,
    BEACON_RADIUS,
    DESTINATION,
    GAME_STEPS,
    LEAST_DISTANCE,
    MOVE,
    NO_OP,
    SPEED,
    UNIT,
    WIDTH,
    Beacon,
    BeaconTables,
)
from ludus.games.check import check_game
from ludus.games.game import allocate_actions

Play = Callable[..., NDArray[np.float32]]
SOURCE = Beacon()
BOTS = SOURCE.bots()


def start(num_tables: int) -> BeaconTables:
    game = BeaconTables(SOURCE.spec, num_tables)
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    return game


def order(game: BeaconTables, kind: int, x: int = 0, y: int = 0) -> None:
    """The same order at all tables."""
    actions = allocate_actions(game.spec, game.num_tables)
    actions[0]["order"][:] = kind
    actions[0]["target"][:] = y * WIDTH + x
    game.step(actions)


def middles(game: BeaconTables, plane: int) -> NDArray[np.float64]:
    """[tables, (x, y)]: the mean of the marked cells, in places."""
    marked = game.view.observation[0]["map"][:, 0, plane]
    return np.array([np.argwhere(one)[:, ::-1].mean(axis=0) + 0.5 for one in marked])


def test_keeps_the_promises_of_a_game() -> None:
    report = check_game(SOURCE, episodes=2, tables=2, bot_seconds=0.05)
    assert report.ok, str(report)


def test_the_oracle_scores_as_people_do_at_move_to_beacon(play: Play) -> None:
    assert 26 < play(SOURCE, [BOTS["oracle"]], 40).mean() < 29
    assert play(SOURCE, [BOTS["random"]], 10).mean() < 3


def test_an_episode_is_cut_off_after_its_decisions() -> None:
    game = start(2)
    for decision in range(240):
        assert game.view.to_act.all(), decision
        order(game, NO_OP)
    assert game.view.truncated.all()
    assert not game.view.over.any()
    assert not game.view.to_act.any()
    assert not game.view.score.any()  # a unit without orders stays where it is


def test_the_unit_walks_in_a_straight_line_and_no_op_lets_it_go_on() -> None:
    game = start(20)
    before = middles(game, UNIT)
    order(game, MOVE, 32, 40)
    way = np.array([32.5, 40.5]) - before
    length = np.hypot(*way.T)
    for decisions in (1, 2, 3):
        walked = np.minimum(decisions * GAME_STEPS * SPEED, length)
        expected = before + way * (walked / length)[:, None]
        # The middle of the marked cells is within a cell of where the unit really is.
        assert np.abs(middles(game, UNIT) - expected).max() < 0.75
        order(game, NO_OP)
    assert np.array_equal(middles(game, DESTINATION), np.broadcast_to([32.5, 40.5], (20, 2)))


def test_a_beacon_is_reached_once_and_the_next_is_far_away() -> None:
    game = start(30)
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(60):
        old = middles(game, BEACON)
        actions = allocate_actions(game.spec, 30)
        for head, values in BOTS["oracle"].act(game, np.arange(30), np.zeros(30, int), rng).items():
            actions[0][head][:, 0] = values
        game.step(actions)
        reached = game.view.reward[:, 0] == 1
        seen += int(reached.sum())
        moved = (middles(game, BEACON) != old).any(axis=1)
        assert np.array_equal(moved, reached)
        distance = np.hypot(*(middles(game, UNIT) - middles(game, BEACON)).T)
        assert (distance[reached] > LEAST_DISTANCE - 1).all()
        assert (distance[~reached] > BEACON_RADIUS - 1).all()
    assert seen > 100
    assert game.view.score.sum() == seen


def test_things_at_the_edge_are_drawn_as_far_as_the_map_goes() -> None:
    game = start(1)
    order(game, MOVE, 0, 63)
    marked = np.argwhere(game.view.observation[0]["map"][0, 0, DESTINATION])
    assert sorted(map(tuple, marked)) == [(62, 0), (62, 1), (63, 0), (63, 1)]


def test_names_what_is_not_legal() -> None:
    game = start(3)
    with pytest.raises(ValueError, match="beacon: table 0, seat 0: order 2 is not one of 0 to 1"):
        order(game, 2)
    with pytest.raises(ValueError, match="beacon: table 0, seat 0: target 4096 is not one of 0 to 4095"):
        order(game, MOVE, 0, 64)
    order(game, NO_OP, 0, 64)  # the target does not count


def test_the_picture_shows_unit_beacon_and_destination() -> None:
    game = start(2)
    order(game, MOVE, 10, 50)
    picture = game.render(1)
    assert picture.shape == (512, 512, 3)
    assert picture.dtype == np.uint8

    def colour(plane: int) -> list[int]:
        x, y = (middles(game, plane)[1] * 8).astype(int)
        return picture[y, x].tolist()  # type: ignore[no-any-return]

    unit, beacon, ground = colour(UNIT), colour(BEACON), picture[0, 511].tolist()
    assert unit != beacon != ground != unit
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 4  # and the ring
