import numpy as np
import pytest

from ludus.data.game_tree import FlatTree
from ludus.data.trees import IntArray
from ludus.games.bots import AlwaysBot
from ludus.games.builtin.rock_paper_scissors import PAPER, ROCK, SCISSORS, RockPaperScissors
from ludus.games.game import GameSource, allocate_actions


def test_tables_show_what_the_tree_says() -> None:
    source = RockPaperScissors(rounds=3)
    root = source.tree()
    assert root is not None
    batch, actions = source.tables(50), allocate_actions(source.spec, 50)
    batch.reset(np.arange(50), np.arange(50, dtype=np.uint64))
    states = [root] * 50
    rng = np.random.default_rng(0)
    for _ in range(3):
        assert batch.view.to_act.all()
        assert batch.view.legal[0]["move"].all()
        moves: IntArray = rng.integers(0, 3, (50, 2))
        for table, state in enumerate(states):
            for seat in (0, 1):
                assert state.seat() == seat
                shown = batch.view.observation[0]["previous"][table, seat]
                np.testing.assert_array_equal(shown, state.observation()["previous"])
                state = state.child(int(moves[table, seat]))
            states[table] = state
        actions[0]["move"][:] = moves
        before = batch.view.score.copy()
        batch.step(actions)
        np.testing.assert_array_equal(batch.view.score - before, batch.view.reward)
    assert batch.view.over.all()
    assert not batch.view.to_act.any()
    np.testing.assert_array_equal(batch.view.score, [state.returns() for state in states])


@pytest.mark.parametrize(
    ("first", "second", "won"), [(ROCK, SCISSORS, 1), (PAPER, ROCK, 1), (SCISSORS, ROCK, -1), (PAPER, PAPER, 0)]
)
def test_who_wins(first: int, second: int, won: float) -> None:
    batch = RockPaperScissors().tables(1)
    batch.reset(np.array([0]), np.array([0], np.uint64))
    actions = allocate_actions(batch.spec, 1)
    actions[0]["move"][0] = first, second
    batch.step(actions)
    assert batch.view.over[0]
    assert batch.view.reward[0].tolist() == [won, -won]


def test_the_second_seat_does_not_see_the_first_choice() -> None:
    root = RockPaperScissors(rounds=2).tree()
    assert root is not None
    assert root.child(ROCK).information_state() == root.child(PAPER).information_state()
    tree = FlatTree.build(root)
    assert np.bincount(tree.infostate_seat).tolist() == [10, 10]
    assert tree.nash_conv(tree.uniform()) == pytest.approx(0.0, abs=1e-12)
    rock = AlwaysBot(action=ROCK).probabilities(tree.observations, tree.legal)
    assert tree.nash_conv(rock) == pytest.approx(4.0)


def test_an_illegal_action_is_named() -> None:
    batch = RockPaperScissors().tables(3)
    batch.reset(np.arange(3), np.arange(3, dtype=np.uint64))
    actions = allocate_actions(batch.spec, 3)
    actions[0]["move"][1, 1] = 3
    with pytest.raises(ValueError, match=r"table 1, seat 1: move 3 is not one of \[0, 1, 2\]"):
        batch.step(actions)


def test_it_is_a_game_source() -> None:
    source = RockPaperScissors()
    assert isinstance(source, GameSource)
    assert set(source.bots()) == {"random", "rock", "paper", "scissors"}
    assert RockPaperScissors(rounds=5).tree() is None
    with pytest.raises(ValueError, match="rounds must be 1 to 1000000, got 0"):
        RockPaperScissors(rounds=0)


def test_always_bots_always_do() -> None:
    batch = RockPaperScissors().tables(9)
    batch.reset(np.arange(9), np.arange(9, dtype=np.uint64))
    for move, name in enumerate(["rock", "paper", "scissors"]):
        bot = RockPaperScissors().bots()[name]
        chosen = bot.act(batch, np.arange(9), np.arange(9) % 2, np.random.default_rng(0))["move"]
        assert (chosen == move).all()
