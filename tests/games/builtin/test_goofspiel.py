from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, OVER, FlatTree
from ludus.games.builtin.goofspiel import SEATS, Goofspiel, GoofspielState
from ludus.games.game import allocate_actions

Play = Callable[..., NDArray[np.float32]]


def bid_all(state: GoofspielState, *bids: int) -> GoofspielState:
    for bid in bids:
        state = state.child(bid)
    return state


def test_the_highest_bid_takes_the_prize_unless_it_is_shared() -> None:
    state = bid_all(GoofspielState(3).child(2), 2, 1, 0)  # prize 3 to seat 0
    state = bid_all(state.child(1), 1, 2, 2)  # prize 2 to nobody
    state = bid_all(state.child(0), 0, 0, 1)  # prize 1 to seat 2
    assert state.seat() == OVER
    assert state.returns() == pytest.approx([(3 - 0.5) / 6, -2 / 6, (1 - 1.5) / 6])


@pytest.mark.parametrize("num_cards", [2, 3, 5])
def test_tables_play_as_the_tree(num_cards: int) -> None:
    num_tables = 50
    game = Goofspiel(num_cards=num_cards).tables(num_tables)
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    states = [GoofspielState(num_cards)] * num_tables
    actions = allocate_actions(game.spec, num_tables)
    rng = np.random.default_rng(0)
    view = game.view
    for _ in range(num_cards):
        assert view.to_act.all()
        for table in range(num_tables):
            state = states[table]
            assert state.seat() == CHANCE
            state = state.child(int(view.observation[0]["prize"][table, 0].argmax()))
            for seat in range(SEATS):
                assert state.seat() == seat
                for part, row in state.observation().items():
                    assert (view.observation[0][part][table, seat] == row).all(), part
                legal = state.legal_actions()
                assert np.flatnonzero(view.legal[0]["bid"][table, seat]).tolist() == legal
                bid = int(rng.choice(legal))
                actions[0]["bid"][table, seat] = bid
                state = state.child(bid)
            states[table] = state
        game.step(actions)
    assert view.over.all()
    for table, state in enumerate(states):
        assert state.seat() == OVER
        assert view.score[table] == pytest.approx(state.returns(), abs=1e-6)
        assert view.score[table].sum() == pytest.approx(0.0, abs=1e-6)


def test_bids_of_the_round_are_hidden() -> None:
    first = GoofspielState(3).child(1)
    keys = {first.child(bid).information_state() for bid in first.legal_actions()}
    assert len(keys) == 1


def test_orders_of_prizes_are_even() -> None:
    game = Goofspiel(num_cards=3).tables(6000)
    game.reset(np.arange(6000), np.arange(6000, dtype=np.uint64))
    first = game.view.observation[0]["prize"][:, 0].sum(axis=0)
    assert first == pytest.approx([2000, 2000, 2000], abs=150)


def test_the_small_tree_can_be_walked() -> None:
    root = Goofspiel(num_cards=2).tree()
    assert root is not None
    tree = FlatTree.build(root)
    assert int((tree.seat == OVER).sum()) == 2 * 2**3
    assert Goofspiel(num_cards=3).tree() is not None
    assert Goofspiel().tree() is None


def test_names_the_card_that_is_not_held() -> None:
    game = Goofspiel(num_cards=3).tables(1)
    game.reset(np.array([0]), np.array([0], np.uint64))
    actions = allocate_actions(game.spec, 1)
    actions[0]["bid"][0] = (0, 1, 2)
    game.step(actions)
    actions[0]["bid"][0] = (1, 1, 1)
    with pytest.raises(ValueError, match=r"goofspiel: table 0, seat 1: bid 1 is not one of \[0, 2\]"):
        game.step(actions)


def test_matching_the_prize_beats_two_random_seats(play: Play) -> None:
    source = Goofspiel()
    bots = source.bots()
    for seat in range(SEATS):
        seats = [bots["random"]] * SEATS
        seats[seat] = bots["match_prize"]
        assert play(source, seats, 300)[:, seat].mean() > 0.08


def test_needs_two_cards() -> None:
    with pytest.raises(ValueError, match="num_cards must be 2 to 1000, got 1"):
        Goofspiel(num_cards=1)
