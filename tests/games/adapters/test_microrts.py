"""MicroRTS: orders as numbers (without the game), and the game itself where it is installed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ludus.games.adapters.microrts_java import (
    ATTACK,
    DIRECTIONS,
    HARVEST,
    MASK_SIZE,
    MOVE,
    NUM_ORDERS,
    NUMBER_FOR_SEAT,
    ORDERS,
    PRODUCE,
    WAIT,
    Order,
    legal_orders,
    number_of,
)
from ludus.games.bots import RandomBot
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import Bot, GameSource, allocate_actions

WORKER, BARRACKS = 3, 2
EVERYWHERE, EVERYTHING = np.ones(5, np.bool_), np.ones(8, np.bool_)


def mask(*, kinds: list[int], **parts: int) -> np.ndarray:
    """As the game writes it: kinds of action, and one place in each part."""
    first = {"move": 7, "harvest": 11, "back": 15, "produce": 19, "unit_type": 23, "attack": 30}
    made = np.zeros(MASK_SIZE, np.int32)
    made[[1 + kind for kind in kinds]] = 1
    for name, place in parts.items():
        made[first[name] + place] = 1
    return made


def legal(*arguments: np.ndarray) -> list[Order]:
    return [ORDERS[number] for number in np.flatnonzero(legal_orders(*arguments))]


def test_there_is_one_number_for_every_order() -> None:
    assert len(set(ORDERS)) == NUM_ORDERS == 1 + 3 * 4 + 4 * 7 + 49


def test_the_game_mask_becomes_orders() -> None:
    given = mask(kinds=[WAIT, MOVE, PRODUCE, ATTACK], move=1, produce=2, unit_type=BARRACKS, attack=24 - 7)
    right, down = DIRECTIONS[1], DIRECTIONS[2]
    expected = [Order(WAIT), Order(MOVE, 1, offset=right), Order(PRODUCE, 2, BARRACKS, down)]
    assert legal(given, EVERYWHERE, EVERYTHING) == [*expected, Order(ATTACK, offset=(-1, 0))]


def test_places_that_are_taken_and_things_that_cannot_be_paid_for_are_left_out() -> None:
    given = mask(kinds=[WAIT, MOVE, HARVEST, PRODUCE], move=0, harvest=0, produce=0, unit_type=WORKER)
    free, paid = EVERYWHERE.copy(), EVERYTHING.copy()
    free[0] = False
    up = DIRECTIONS[0]
    assert legal(given, free, EVERYTHING) == [Order(WAIT), Order(HARVEST, 0, offset=up)]
    paid[WORKER] = False
    kept = [Order(WAIT), Order(MOVE, 0, offset=up), Order(HARVEST, 0, offset=up)]
    assert legal(given, EVERYWHERE, paid) == kept


def test_the_other_seat_sees_the_map_turned() -> None:
    turn = NUMBER_FOR_SEAT[1]
    assert (turn[turn] == np.arange(NUM_ORDERS)).all()
    for order, other in ((order, ORDERS[turn[number]]) for number, order in enumerate(ORDERS)):
        assert (other.action, other.unit_type) == (order.action, order.unit_type)
        assert other.offset == (-order.offset[0], -order.offset[1])


@pytest.mark.parametrize("number", [0, 3, 8, 12, 13 + 7 + WORKER, 41, NUM_ORDERS - 1])
def test_what_a_java_player_wants_finds_its_number(number: int) -> None:
    order, row, column = ORDERS[number], 5, 2
    action = SimpleNamespace(
        getType=lambda: order.action,
        getDirection=lambda: order.direction,
        getUnitType=lambda: SimpleNamespace(ID=order.unit_type),
        getLocationX=lambda: column + order.offset[1],
        getLocationY=lambda: row + order.offset[0],
    )
    assert number_of(action, row, column) == number
    assert number_of(None, row, column) == 0


@pytest.fixture(scope="module")
def game() -> GameSource:
    try:
        return resolve("microrts:8x8", max_ticks=600, bot_milliseconds=5)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


def scores(game: GameSource, right: Bot, left: Bot, episodes: int = 4) -> list[float]:
    """Of seat 0, an episode at each table."""
    tables, rng, ended = game.tables(episodes), np.random.default_rng(0), np.zeros(episodes, np.bool_)
    actions = allocate_actions(game.spec, episodes)
    tables.reset(np.arange(episodes), np.arange(episodes).astype(np.uint64))
    while not ended.all():
        for seat, bot in enumerate((right, left)):
            asked = np.flatnonzero(tables.view.to_act[:, seat])
            if len(asked):
                chosen = bot.act(tables, asked, np.full(len(asked), seat), rng)
                actions[0]["order"][asked, seat] = chosen["order"]
        tables.step(actions)
        ended = tables.view.over.copy()
    found: list[float] = tables.view.score[:, 0].tolist()
    tables.close()
    return found


@pytest.mark.slow
def test_it_keeps_its_promises(game: GameSource) -> None:
    report = check_game(game, episodes=3, tables=2, max_steps=400, bot_seconds=0.2)
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_bot_plays_the_same_game_from_both_seats(game: GameSource) -> None:
    bots = game.bots()
    assert {"worker_rush", "heavy_rush", "ranged_rush", "coac", "naive_mcts", "tiamat"} <= set(bots)
    assert scores(game, bots["worker_rush"], RandomBot()) == [1.0] * 4
    assert scores(game, RandomBot(), bots["worker_rush"]) == [-1.0] * 4
    for name in ("heavy_rush", "ranged_rush"):
        assert scores(game, bots[name], RandomBot()) == [1.0] * 4


@pytest.mark.slow
def test_both_seats_start_with_the_same_view(game: GameSource) -> None:
    tables = game.tables(1)
    tables.reset(np.array([0]), np.zeros(1, np.uint64))
    for array in (*tables.view.observation[0].values(), *tables.view.legal[0].values()):
        np.testing.assert_array_equal(array[0, 0], array[0, 1])
    assert tables.view.to_act.all()
    tables.close()


@pytest.mark.slow
def test_a_map_that_is_not_there_is_named(game: GameSource) -> None:
    with pytest.raises(Exception, match="no map '9x9'; there are"):
        _ = resolve("microrts:9x9").spec
