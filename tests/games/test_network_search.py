"""The search with a network: exact values lead to exact play, whatever the game and however many tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from ludus.data.game_tree import OVER
from ludus.data.search import GumbelSearch, split_search, with_search
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Tree
from ludus.games.bots import RandomBot, act_among
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.tic_tac_toe import CELLS, TicTacToe, TicTacToeState
from ludus.games.game import Bot, GameBatch, GameSource, HasPositions, Turn, allocate_actions
from ludus.games.lift import Lifted
from ludus.games.network_search import Evaluate, Floats, NetworkSearch, SearchingBot, halving_schedule
from ludus.games.outside_bots import with_bots
from ludus.games.seat_groups import group_seats
from ludus.games.seat_rows import GameError

BITS = 1 << np.arange(CELLS)


def even(kind: int, observation: Tree, legal: Tree) -> tuple[Floats, Floats]:
    """A network that knows nothing."""
    mask = next(iter(legal.values()))
    return np.log(mask / mask.sum(1, keepdims=True) + 1e-30).astype(np.float32), np.zeros(len(mask), np.float32)


@cache
def value_of(own: int, other: int) -> float:
    """Of a position of tic-tac-toe, to the seat that moves."""
    ply = (own | other).bit_count()
    state = TicTacToeState((own, other) if ply % 2 == 0 else (other, own))
    if state.seat() == OVER:
        return float(state.returns()[ply % 2])
    return max(-value_of(other, own | 1 << move) for move in state.legal_actions())


def exact(kind: int, observation: Tree, legal: Tree) -> tuple[Floats, Floats]:
    """A network with exact values, whose probabilities know a little of them."""
    board, mask = observation["board"].astype(np.int64), legal["move"]
    pairs = zip((board[:, :CELLS] @ BITS).tolist(), (board[:, CELLS:] @ BITS).tolist(), strict=True)
    logits = np.full(mask.shape, -1e9, np.float32)
    values = np.zeros(len(mask), np.float32)
    for row, (own, other) in enumerate(pairs):
        values[row] = value_of(own, other)
        for move in np.flatnonzero(mask[row]).tolist():
            logits[row, move] = -value_of(other, own | 1 << move)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True)), values


def searching(source: GameSource, evaluate: Evaluate, simulations: int, **settings: Any) -> NetworkSearch:
    return NetworkSearch(source, GumbelSearch(simulations=simulations, **settings), evaluate)


def played(source: GameSource, one: Bot, other: Bot, *, games: int, seed: int = 0) -> np.ndarray:
    """Scores of the first bot, which sits on both seats equally often."""
    with closing(source.tables(games)) as tables:
        tables.reset(np.arange(games), np.arange(games, dtype=np.uint64))
        actions, rng = allocate_actions(source.spec, games), np.random.default_rng(seed)
        mine = np.arange(games)[:, None] % 2 == np.arange(2)
        while not tables.view.over.all():
            act_among(one, tables, mine, rng, actions)
            act_among(other, tables, ~mine, rng, actions)
            tables.step(actions)
        return np.array(tables.view.score[mine])


def opened(source: GameSource, count: int, *, moves: int, seed: int = 0) -> GameBatch:
    """Tables after some random moves."""
    tables = source.tables(count)
    tables.reset(np.arange(count), np.arange(count, dtype=np.uint64))
    step_randomly(tables, moves, seed)
    return tables


def step_randomly(tables: GameBatch, moves: int, seed: int) -> None:
    actions, rng = allocate_actions(tables.spec, tables.num_tables), np.random.default_rng(seed)
    for _ in range(moves):
        act_among(RandomBot(), tables, np.ones((1, 1), np.bool_), rng, actions)
        tables.step(actions)


def test_a_schedule_halves_the_moves() -> None:
    assert halving_schedule(4, 16) == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert halving_schedule(1, 3) == (0, 1, 2)
    assert halving_schedule(8, 4) == (0, 0, 0, 0)


def test_exact_values_never_lose_tic_tac_toe() -> None:
    game = TicTacToe()
    bot = SearchingBot(searching(game, exact, 64), noise=True)
    assert (played(game, bot, game.bots()["perfect"], games=60) == 0).all()
    assert (played(game, bot, game.bots()["random"], games=60) >= 0).all()


def test_finds_every_forced_win() -> None:
    """From positions that the seat to move can win, it plays a move that keeps the win."""
    with closing(opened(TicTacToe(), 200, moves=4)) as tables:
        boards = tables.view.observation[0]["board"][:, 0].astype(np.int64)
        pairs = [(int(own @ BITS), int(other @ BITS)) for own, other in boards.reshape(-1, 2, CELLS)]
        won = np.array([row for row, pair in enumerate(pairs) if not tables.view.over[row] and value_of(*pair) == 1])
        assert len(won) > 50
        found = searching(TicTacToe(), exact, 32).search(tables, won, np.random.default_rng(0))
        for row, move in zip(won.tolist(), found.action.tolist(), strict=True):
            own, other = pairs[row]
            assert value_of(other, own | 1 << move) == -1
        assert (found.value > 0.5).all()


def test_a_search_finds_what_the_network_does_not_know() -> None:
    """Without any knowledge, it takes a win and prevents one; and the improved policy says so."""
    game = ConnectFour()
    with closing(game.tables(2)) as tables:
        tables.reset(np.arange(2), np.zeros(2, np.uint64))
        actions = allocate_actions(game.spec, 2)
        for first, second in zip((0, 6, 0, 6, 0, 6), (0, 6, 0, 6, 0, 3), strict=True):
            actions[0]["move"][:] = [[first], [second]]
            tables.step(actions)
        # Seat 0 wins in column 0 at both tables.
        found = searching(game, even, 64).search(tables, np.arange(2), np.random.default_rng(0), noise=False)
        assert found.action.tolist() == [0, 0]
        assert (found.policy[:, 0] > 0.99).all()
        assert np.allclose(found.policy.sum(1), 1.0)
        actions[0]["move"][:] = 3
        tables.step(actions)
        found = searching(game, even, 64).search(tables, np.arange(2), np.random.default_rng(0), noise=False)
        assert found.action.tolist() == [6, 0], "seat 0 played elsewhere: seat 1 wins at table 0 and blocks at table 1"


def test_search_is_stronger_than_none() -> None:
    game = ConnectFour()
    weak, strong = (SearchingBot(searching(game, even, simulations), noise=True) for simulations in (1, 32))
    assert played(game, strong, weak, games=40).mean() > 0.5


def test_tables_are_left_alone_and_do_not_matter_to_one_another() -> None:
    game = ConnectFour()
    with closing(opened(game, 5, moves=7)) as tables:
        before = {name: array.copy() for name, array in tables.view.named().items()}
        search, rng = searching(game, even, 24), np.random.default_rng(0)
        together = search.search(tables, np.arange(5), rng, noise=False)
        alone = [search.search(tables, np.array([table]), rng, noise=False) for table in range(5)]
        for name, array in tables.view.named().items():
            assert (array == before[name]).all(), name
    for name in ("action", "policy", "value"):
        assert np.allclose(getattr(together, name), np.concatenate([getattr(one, name) for one in alone]), atol=1e-5)


def test_illegal_moves_are_never_played() -> None:
    game = ConnectFour()
    with closing(opened(game, 64, moves=24)) as tables:
        rows = np.flatnonzero(~tables.view.over)
        found = searching(game, even, 8).search(tables, rows, np.random.default_rng(0))
        seats = tables.view.to_act[rows].argmax(1)
        legal = tables.view.legal[0]["move"][rows, seats]
        assert not legal.all()
        assert legal[np.arange(len(rows)), found.action].all()
        assert (found.policy[~legal] == 0).all()


class TwoSteps:
    """Seat 0 decides twice, then seat 1 once; only 1, 1 is worth something to seat 0, unless seat 1 can say 2."""

    spec = GameSpec.symmetric(
        name="two_steps",
        num_seats=2,
        observation=ObservationSpec(parts={"chosen": Vector(size=3)}),
        action=ActionSpec(heads={"move": Choice(num=3)}),
        max_length=3,
        hidden_information=False,
        chance=False,
    )

    def reset(self, seed: int) -> Turn:
        self.chosen: list[int] = []
        return self._turn()

    def step(self, actions: Mapping[int, int]) -> Turn:
        self.chosen += actions.values()
        return self._turn()

    def _turn(self) -> Turn:
        if len(self.chosen) == 3:
            payoff = 4.0 if self.chosen[:2] == [1, 1] else -4.0 if self.chosen[2] == 2 else 0.0
            return Turn(observations={}, reward=(payoff, -payoff), over=True)
        seen = np.zeros(3, np.float32)
        seen[: len(self.chosen)] = np.array(self.chosen) + 1
        return Turn(observations={len(self.chosen) // 2: seen})


def test_a_seat_may_move_twice_and_rewards_may_be_large() -> None:
    """A plain `Game` is copied as it is; values change sign only where the other seat moves."""
    game = Lifted(TwoSteps)
    with closing(game.tables(1)) as tables:
        tables.reset(np.array([0]), np.zeros(1, np.uint64))
        actions, rng, search = allocate_actions(game.spec, 1), np.random.default_rng(0), searching(game, even, 64)
        played = []
        for _ in range(2):
            played.append(search.search(tables, np.array([0]), rng, noise=False))
            actions[0]["move"][:] = played[-1].action
            tables.step(actions)
        assert [int(one.action[0]) for one in played] == [1, 1]
        assert played[1].value[0] == pytest.approx(4.0, abs=0.3), "the first visit saw only the network, which says 0"


@dataclass(frozen=True)
class Named:
    source: GameSource
    moves: int


GAMES = {
    "connect four": Named(ConnectFour(), 9),
    "connect four without threats": Named(ConnectFour(threats=False), 9),
    "tic-tac-toe": Named(TicTacToe(), 4),
    "a plain game": Named(Lifted(TwoSteps), 1),
    "with bots from outside": Named(with_bots(ConnectFour(), {"mine": "ludus.games.bots:RandomBot"}), 9),
    "grouped": Named(group_seats(TicTacToe(), "per_seat"), 4),
}


def require_same_play(source: GameSource, moves: int) -> None:
    """Positions that are put on other tables go on as they do on their own."""
    with closing(opened(source, 6, moves=moves)) as tables, closing(opened(source, 6, moves=moves, seed=1)) as others:
        assert isinstance(tables, HasPositions)
        assert isinstance(others, HasPositions)
        kept = tables.positions(np.arange(6))
        others.set_positions(np.arange(6), kept)
        again = source.tables(6)
        with closing(again):
            for _ in range(2):  # what was kept does not change while it is played
                for one in (tables, others):
                    step_randomly(one, 1, seed=2)
                for name, array in tables.view.named().items():
                    assert (array == others.view.named()[name]).all(), name
                assert (tables.view.over | tables.view.to_act.any(1)).all()
            assert isinstance(again, HasPositions)
            again.reset(np.arange(6), np.zeros(6, np.uint64))
            again.set_positions(np.arange(6), kept)
            step_randomly(again, 1, seed=2)
            step_randomly(again, 1, seed=2)
            for name, array in tables.view.named().items():
                assert (array == again.view.named()[name]).all(), name


@pytest.mark.parametrize("name", GAMES)
def test_positions_go_on_elsewhere(name: str) -> None:
    require_same_play(GAMES[name].source, GAMES[name].moves)


@pytest.mark.parametrize("name", ["with bots from outside", "grouped"])
def test_wrapped_games_are_searched(name: str) -> None:
    source, moves = GAMES[name].source, GAMES[name].moves
    with closing(opened(source, 8, moves=moves)) as tables:
        rows = np.flatnonzero(~tables.view.over)
        found = searching(source, even, 16).search(tables, rows, np.random.default_rng(0), noise=False)
    plain = ConnectFour() if "bots" in name else TicTacToe()
    with closing(opened(plain, 8, moves=moves)) as tables:
        expected = searching(plain, even, 16).search(tables, rows, np.random.default_rng(0), noise=False)
    assert found.action.tolist() == expected.action.tolist()


def test_openspiel_is_searched() -> None:
    pytest.importorskip("pyspiel", reason="OpenSpiel is not installed: pip install -e '.[openspiel]'")
    from ludus.games.adapters.openspiel import OpenSpiel

    require_same_play(OpenSpiel(name="othello"), 20)
    game = OpenSpiel(name="tic_tac_toe")
    bot = SearchingBot(searching(game, even, 64, c_scale=0.1), noise=False)
    assert played(game, bot, RandomBot(), games=20).mean() > 0.5
    with pytest.raises(GameError, match=r"backgammon cannot be searched with a network: it has chance$"):
        searching(OpenSpiel(name="backgammon"), even, 4)


def unknown_chance() -> GameSource:
    class Unknown(TwoSteps):
        spec = replace(TwoSteps.spec, chance=None)

    return Lifted(Unknown)


def at_the_same_time() -> GameSource:
    class Together(TwoSteps):
        def reset(self, seed: int) -> Turn:
            turn = super().reset(seed)
            return replace(turn, observations=dict.fromkeys((0, 1), turn.observations[0]))

    return Lifted(Together)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (Kuhn(), r"cannot be searched with a network: it has hidden information$"),
        (Goofspiel(num_cards=3), "it has 3 seats and 3 teams"),
        (at_the_same_time(), "two_steps cannot be searched with a network: seats move at the same time"),
        (unknown_chance(), r"it may have chance; if it has none, say chance=False in its spec"),
    ],
    ids=["kuhn", "goofspiel", "simultaneous", "chance"],
)
def test_other_games_are_refused_with_the_reason(source: GameSource, reason: str) -> None:
    with pytest.raises(GameError, match=reason):
        searching(source, even, 4)


def test_names_of_players_that_search() -> None:
    assert split_search("main@best?search=64") == ("main@best", 64)
    assert split_search("main.3") == ("main.3", None)
    assert with_search(*split_search("runs/a#main:0:3?search=8")) == "runs/a#main:0:3?search=8"
    for wrong in ("main?search=0", "main?search=", "main?search=many"):
        with pytest.raises(ValueError, match="search must be a number of simulations"):
            split_search(wrong)
    with pytest.raises(ValueError, match=r"GumbelSearch\.simulations must be at least 1"):
        GumbelSearch(simulations=0)
