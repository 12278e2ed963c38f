import math
from random import Random

import numpy as np
import pytest

from ludus.data.game_tree import OVER, TreeState
from ludus.games.builtin.goofspiel import Goofspiel, GoofspielState
from ludus.games.builtin.tic_tac_toe import TicTacToe, TicTacToeState
from ludus.games.search import AlphaBetaBot, PerfectBot, SearchBot, UctBot, play_randomly


def random_positions(number: int, seed: int = 0) -> list[TicTacToeState]:
    """Unfinished positions of random games."""
    random = Random(seed)
    found: list[TicTacToeState] = []
    while len(found) < number:
        state = TicTacToeState()
        for _ in range(random.randrange(9)):
            if state.seat() != OVER:
                state = state.child(random.choice(state.legal_actions()))
        if state.seat() != OVER:
            found.append(state)
    return found


def minimax(state: TreeState, seat: int, ply: int, depth: int) -> float:
    """The value without cut-offs, with the number of free corners as the leaf score."""
    if state.seat() == OVER:
        return state.returns()[seat] * (1 - ply / 1000)
    if ply == depth:
        return corners(state, seat)
    values = [minimax(state.child(action), seat, ply + 1, depth) for action in state.legal_actions()]
    return max(values) if state.seat() == seat else min(values)


def corners(state: TreeState, seat: int) -> float:
    return len({0, 2, 6, 8} & {*state.legal_actions()}) / 10 * (1 if seat == 0 else -1)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_alpha_beta_finds_all_best_moves_of_minimax(depth: int) -> None:
    for state in random_positions(40, seed=depth):
        values = {a: minimax(state.child(a), state.seat(), 1, depth) for a in state.legal_actions()}
        best = [action for action, value in values.items() if value == max(values.values())]
        assert AlphaBetaBot(depth=depth, leaf=corners).best_actions(state, Random(0)) == best


def test_perfect_play_is_alpha_beta_to_the_end() -> None:
    perfect, deep = PerfectBot(), AlphaBetaBot(depth=9)
    for state in [position for position in random_positions(100) if sum(position.marks).bit_count() > 1]:
        assert perfect.best_actions(state, Random(0)) == deep.best_actions(state, Random(0))


def test_perfect_play_holds_every_opening_for_a_draw() -> None:
    assert PerfectBot().best_actions(TicTacToeState(), Random(0)) == list(range(9))


def test_uct_finds_the_only_move() -> None:
    # The mover must take cell 2: it completes the top row of the first seat, or stops it for the second.
    wins = TicTacToeState((0b000000011, 0b000110000))
    assert UctBot(simulations=300).best_actions(wins, Random(0)) == [2]
    stops = TicTacToeState((0b000000011, 0b000010000))
    assert stops.seat() == 1
    assert UctBot(simulations=300).best_actions(stops, Random(0)) == [2]


def test_uct_with_one_simulation_plays_at_random() -> None:
    bot = UctBot(simulations=1)
    random = Random(0)
    assert {move for _ in range(200) for move in bot.best_actions(TicTacToeState(), random)} == set(range(9))


BOTS = {"alpha_beta": AlphaBetaBot(depth=2), "perfect": PerfectBot(), "uct": UctBot(simulations=20)}


@pytest.mark.parametrize("bot", BOTS.values(), ids=BOTS.keys())
def test_ties_are_broken_at_random_and_by_the_rng_alone(bot: SearchBot) -> None:
    game = TicTacToe().tables(200)
    tables = np.arange(200)
    game.reset(tables, tables.astype(np.uint64))
    moves = [bot.act(game, tables, 0 * tables, np.random.default_rng(5))["move"] for _ in range(2)]
    assert (moves[0] == moves[1]).all()
    assert moves[0].dtype == np.int32
    assert len({*moves[0].tolist()}) == 9


def test_search_needs_a_tree_without_chance() -> None:
    source = Goofspiel()
    game = source.tables(1)
    with pytest.raises(TypeError, match="AlphaBetaBot needs a game with tree_state; goofspiel has none"):
        AlphaBetaBot(depth=1).act(game, np.array([0]), np.array([0]), np.random.default_rng(0))
    before_chance = GoofspielState(3, (0,), (0, 0))
    for bot in (AlphaBetaBot(depth=3), PerfectBot(), UctBot(simulations=50)):
        with pytest.raises(ValueError, match="cannot search a game with chance"):
            bot.best_actions(before_chance, Random(0))


@pytest.mark.parametrize("bad", [lambda: AlphaBetaBot(depth=0), lambda: UctBot(simulations=0)])
def test_refuses_no_search_at_all(bad: object) -> None:
    assert callable(bad)
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        bad()


def test_random_playouts_end_with_returns() -> None:
    random = Random(0)
    outcomes = [play_randomly(TicTacToeState(), random)[0] for _ in range(2000)]
    # Uniformly random play: the first seat wins 58.5 %, the second 28.8 %.
    assert math.isclose(np.mean(outcomes), 0.297, abs_tol=0.07)
