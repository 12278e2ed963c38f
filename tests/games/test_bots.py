from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    GameSpec,
    ObservationSpec,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot, StrategyBot, head_counts
from ludus.games.builtin.leduc import Leduc
from ludus.games.game import Actions, TableView

SCOUT = SeatKind(
    name="scout",
    observation=ObservationSpec(parts={"wind": Vector(size=1)}),
    action=ActionSpec(heads={"turn": Choice(num=2, masked=False)}),
)
COMMANDER = SeatKind(
    name="commander",
    observation=ObservationSpec(parts={"units": Entities(maximum=6, features=1)}),
    action=ActionSpec(
        heads={
            "order": Choice(num=3),
            "who": Pointer(into="units", picks=3, when=When(head="order", values=(1, 2))),
            "target": Pointer(into="units", masked=False, when=When(head="order", values=(2,))),
            "where": Point(height=2, width=3),
        }
    ),
)
SPEC = GameSpec(name="orders", kinds=(SCOUT, COMMANDER), seats=(0, 1, 0, 1), teams=(0, 0, 1, 1), max_length=1)


class Orders:
    """A game of a single decision with every kind of head; the number of units differs by table and seat."""

    spec = SPEC

    def __init__(self, num_tables: int) -> None:
        self.num_tables = num_tables
        self.view = TableView.allocate(SPEC, num_tables)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        lengths = 1 + (tables[:, None] + np.arange(2)) % 6
        self.view.observation[1]["units_length"][tables] = lengths
        self.view.legal[1]["order"][tables] = True
        self.view.legal[1]["who"][tables] = np.arange(6) != 3
        self.view.to_act[tables] = True
        self.view.over[tables] = False

    def step(self, actions: Actions) -> None:
        self.view.over[:] = True
        self.view.to_act[:] = False

    def close(self) -> None:
        pass


@pytest.fixture
def drawn() -> tuple[Orders, IntArray, IntArray, Tree]:
    """Both commanders at many tables, in random order, and what the random bot does there."""
    game = Orders(3000)
    game.reset(np.arange(3000), np.arange(3000, dtype=np.uint64))
    rng = np.random.default_rng(0)
    tables, seats = rng.permutation(3000), rng.choice([1, 3], 3000)
    return game, tables, seats, RandomBot().act(game, tables, seats, rng)


def test_random_actions_have_the_shapes_of_the_spec(drawn: tuple[Orders, IntArray, IntArray, Tree]) -> None:
    _, tables, _, actions = drawn
    assert {name: (array.shape[1:], array.dtype) for name, array in actions.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in COMMANDER.action.arrays.items()
    }
    assert all(len(array) == len(tables) for array in actions.values())


def test_random_picks_are_different_legal_real_entities(drawn: tuple[Orders, IntArray, IntArray, Tree]) -> None:
    game, tables, seats, actions = drawn
    lengths = game.view.observation[1]["units_length"][tables, (seats - 1) // 2]
    numbers = set()
    for order, who, target, length in zip(actions["order"], actions["who"], actions["target"], lengths, strict=True):
        if order == 0:
            assert (who == -1).all()
        else:
            picks = who[: (who >= 0).sum()]
            assert 1 <= len(picks) == len(set(picks.tolist()))
            assert (who[len(picks) :] == -1).all()
            assert (picks < length).all()
            assert 3 not in picks
            numbers.add(len(picks))
        assert 0 <= target < length if order == 2 else target == 0
    assert numbers == {1, 2, 3}


def test_random_choices_and_points_are_even(drawn: tuple[Orders, IntArray, IntArray, Tree]) -> None:
    *_, actions = drawn
    assert np.abs(np.bincount(actions["order"]) - 1000).max() < 150
    assert np.abs(np.bincount(actions["where"], minlength=6) - 500).max() < 110


def test_random_bot_names_the_seat_that_cannot_move() -> None:
    game = Orders(4)
    game.reset(np.arange(4), np.arange(4, dtype=np.uint64))
    game.view.legal[1]["order"][2, 1] = False
    with pytest.raises(ValueError, match="head 'order' has no legal option at table 2, seat 3"):
        RandomBot().act(game, np.array([0, 2]), np.array([1, 3]), np.random.default_rng(0))


NESTED = SeatKind(
    name="nested",
    observation=ObservationSpec(parts={"wind": Vector(size=1)}),
    action=ActionSpec(
        heads={
            "order": Choice(num=2),
            "speed": Choice(num=2, when=When(head="order", values=(1,))),
            "turn": Choice(num=3, when=When(head="speed", values=(0,))),
        }
    ),
)


def test_a_head_counts_only_if_the_one_it_depends_on_does() -> None:
    actions = {"order": np.array([0, 1, 1]), "speed": np.array([0, 0, 1])}
    counted = {head: head_counts(NESTED, head, actions, 3).tolist() for head in NESTED.action.heads}
    assert counted == {"order": [True, True, True], "speed": [False, True, True], "turn": [False, True, False]}


def test_bots_take_no_rows() -> None:
    none = np.zeros(0, np.int64)
    actions = RandomBot().act(Leduc().tables(2), none, none, np.random.default_rng(0))
    assert actions["move"].shape == (0,)


@dataclass(frozen=True, kw_only=True)
class MostlyRaise(StrategyBot):
    """Raises three times in four where that is legal, else calls."""

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        raises = np.where(legal[:, 2], 0.75, 0.0)
        return np.stack([np.zeros(len(legal)), 1.0 - raises, raises], axis=1)


def test_strategy_bots_draw_from_their_probabilities() -> None:
    game = Leduc().tables(4000)
    game.reset(np.arange(4000), np.arange(4000, dtype=np.uint64))
    tables = np.arange(4000)
    moves = MostlyRaise().act(game, tables, np.zeros(4000, np.int64), np.random.default_rng(0))["move"]
    assert moves.dtype == np.int32
    counts = np.bincount(moves, minlength=3)
    assert counts[0] == 0
    assert abs(counts[2] - 3000) < 150
