"""Pgx's games: promises, the same rules as ours, seats, chance from seeds, and what is refused."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("pgx", reason="Pgx is not installed: pip install -e '.[pgx]'")
import pgx

from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.data.search import GumbelSearch
from ludus.data.specs import Planes, Vector
from ludus.data.trees import Tree
from ludus.games.adapters.pgx import _FACTS, HEAD, PART, Pgx, require_platform, same_memory
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import CALL, FOLD, RAISE, Leduc, LeducState
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.device.pgx_game import TensorPgx
from ludus.games.device.tensor_game import tensor_game_of
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.network_search import NetworkSearch
from ludus.games.seat_rows import GameError

QUICK = ["tic_tac_toe", "kuhn_poker"]
SLOW = sorted(set(pgx.available_envs()) - {*QUICK, "go_19x19", "shogi"})  # these take minutes to compile and play


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_games_keep_the_promises_of_a_game_and_their_tensor_games_equal_them(name: str) -> None:
    report = check_game(f"pgx:{name}", episodes=6, tables=3, max_steps=150, bot_seconds=0.01)
    assert report.ok, str(report)
    assert {one.promise: one.times for one in report.verdicts}["tensor_twin"] == 1


def test_an_episode_that_is_cut_off_shows_every_seat_its_own_view() -> None:
    report = check_game("pgx:kuhn_poker", max_length=2, episodes=12, tables=3, bot_seconds=0.01)
    assert report.ok, str(report)
    source = resolve("pgx:kuhn_poker", max_length=2)
    assert tensor_game_of(source) is None  # a tensor game has no episodes that are cut off
    with closing(source.tables(16)) as tables:
        tables.reset(np.arange(16), np.arange(16, dtype=np.uint64))
        cards = _cards(tables)
        for _ in range(2):
            tables.step(_moves(tables, np.ones(16, np.int64)))  # a pass each, which Pgx counts as 1
        assert tables.view.over.all()
        tables.reset(np.arange(16), np.arange(16, dtype=np.uint64))
        for move in (1, 0):  # a pass and a bet
            tables.step(_moves(tables, np.full(16, move)))
        assert tables.view.truncated.all()
        assert not tables.view.to_act.any()
        shown = tables.view.observation[0][PART][:, :, :3].argmax(-1)
        assert np.array_equal(shown, cards)


def _cards(tables: GameBatch) -> NDArray[np.int64]:
    """[tables, seats]: the private cards, from the state."""
    state: Any = tables._state  # type: ignore[attr-defined]
    rules: Any = tables._rules  # type: ignore[attr-defined]
    seen = np.asarray(rules.seen_by_all(state))[: tables.num_tables, :, :3]
    cards: NDArray[np.int64] = seen.argmax(-1)
    return cards


def _moves(tables: GameBatch, moves: NDArray[np.int64]) -> Any:
    actions = allocate_actions(tables.spec, tables.num_tables)
    actions[0][HEAD][:] = moves[:, None]
    return actions


@pytest.mark.parametrize("name", ["connect_four", "tic_tac_toe"])
def test_boards_have_the_rules_of_ours(name: str) -> None:
    rng, every, ended = np.random.default_rng(0), np.arange(64), 0
    with closing(resolve(f"pgx:{name}").tables(64)) as theirs, closing(resolve(name).tables(64)) as ours:
        seeds = np.arange(64, dtype=np.uint64)
        fresh = every
        for _ in range(60):
            theirs.reset(fresh, seeds[fresh])
            ours.reset(fresh, seeds[fresh])
            assert np.array_equal(theirs.view.to_act, ours.view.to_act)
            legal = next(iter(ours.view.legal[0].values()))
            acting = ours.view.to_act
            assert np.array_equal(theirs.view.legal[0][HEAD][acting], legal[acting])
            drawn = np.where(legal, rng.random(legal.shape), -1.0).argmax(-1)
            for tables in (theirs, ours):
                actions = allocate_actions(tables.spec, 64)
                next(iter(actions[0].values()))[acting] = drawn[acting]
                tables.step(actions)
            assert np.array_equal(theirs.view.reward, ours.view.reward)
            assert np.array_equal(theirs.view.over, ours.view.over)
            fresh = np.flatnonzero(ours.view.over)
            ended += len(fresh)
    assert ended > 64


POKER = [("kuhn_poker", Kuhn(), {0: 1, 1: 0}), ("leduc_holdem", Leduc(), {0: CALL, 1: RAISE, 2: FOLD})]
"""Pgx's name, our game, and our number of each of Pgx's moves."""


@pytest.mark.parametrize(("name", "ours", "translated"), POKER)
def test_poker_has_the_rules_of_ours(name: str, ours: Any, translated: dict[int, int]) -> None:
    """Our tree with Pgx's cards: turns, legal moves and payments of random play."""
    rng, ended = np.random.default_rng(1), 0
    with closing(resolve(f"pgx:{name}").tables(64)) as tables:
        tables.reset(np.arange(64), rng.integers(0, 2**64, 64, np.uint64))
        view, cards = tables.view, _cards(tables)
        states: list[TreeState] = [_dealt(ours.tree(), own.tolist(), None) for own in cards]
        while not view.over.all():
            legal, seats = view.legal[0][HEAD], view.to_act.argmax(1)
            drawn = np.where(legal, rng.random(legal.shape), -1.0).argmax(-1)[np.arange(64), seats]
            running = np.flatnonzero(~view.over)
            for table in running:
                state, seat = states[table], seats[table]
                assert state.seat() == seat
                mine = {translated[move] for move in np.flatnonzero(legal[table, seat]).tolist()}
                assert mine == set(state.legal_actions())
                states[table] = state.child(translated[int(drawn[table])])
            tables.step(_moves(tables, drawn))
            public = view.observation[0][PART][:, :, 3:6].argmax(-1)
            for table in running:
                if not view.over[table]:
                    shown = int(public[table, view.to_act[table].argmax()])
                    states[table] = _dealt(states[table], cards[table].tolist(), shown)
                    continue
                assert states[table].seat() == OVER
                assert view.reward[table].tolist() == list(states[table].returns())
                ended += 1
    assert ended == 64


def _dealt(state: TreeState, cards: list[int], public: int | None) -> TreeState:
    """After the deals: ranks of the seats, then of the public card."""
    ranks = [*cards, public]
    copies = 2 if isinstance(state, LeducState) else 1  # of each rank
    while state.seat() == CHANCE:
        wanted = ranks[len(state.cards)]  # type: ignore[attr-defined]
        state = state.child(next(card for card, _ in state.chance_outcomes() if card // copies == wanted))
    return state


def test_seat_0_begins_whichever_player_pgx_lets_begin() -> None:
    source = Pgx(name="tic_tac_toe")
    state = source.rules.start(source.rules.draws(np.arange(64, dtype=np.uint64), None))
    players = np.asarray(state["players"])
    assert {tuple(row) for row in players.tolist()} == {(0, 1), (1, 0)}
    assert not np.asarray(state["seat"]).any()


def test_chance_follows_the_seeds() -> None:
    with closing(resolve("pgx:kuhn_poker").tables(64)) as tables:
        deals = []
        for first in (0, *range(0, 1_024, 64)):
            tables.reset(np.arange(64), first + np.arange(64, dtype=np.uint64))
            deals.append(_cards(tables))
    assert np.array_equal(deals[0], deals[1])
    assert not np.array_equal(deals[0], deals[2])
    pairs, counts = np.unique(np.concatenate(deals[1:]), axis=0, return_counts=True)
    assert len(pairs) == 6
    assert counts.min() > 1_024 / 6 * 0.7


def test_observations_are_planes_or_vectors_of_the_type_that_pgx_has() -> None:
    parts = {name: Pgx(name=name).spec.kinds[0].observation.parts[PART] for name in ("hex", "backgammon")}
    assert parts["hex"] == Planes(channels=4, height=11, width=11, dtype="bool")
    assert parts["backgammon"] == Vector(size=34, dtype="int32")


def test_planes_are_those_of_pgx_with_the_channels_first() -> None:
    with closing(resolve("pgx:othello").tables(1)) as tables:
        tables.reset(np.arange(1), np.zeros(1, np.uint64))
        own, other = tables.view.observation[0][PART][0, 0]
    assert sorted(map(tuple, np.argwhere(own | other).tolist())) == [(3, 3), (3, 4), (4, 3), (4, 4)]
    assert own.sum() == other.sum() == 2


def test_every_game_of_pgx_is_described() -> None:
    assert set(_FACTS) == set(pgx.available_envs())


def test_what_cannot_be_played_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no game 'otello'; did you mean 'othello'"):
        _ = resolve("pgx:otello").spec
    with pytest.raises(ValueError, match="bridge_bidding cannot be played: it needs files"):
        _ = resolve("pgx:bridge_bidding").spec
    with pytest.raises(ValueError, match="JAX cannot use 'cuda' here: pip install 'jax"):
        require_platform("cuda")


def test_torch_and_jax_share_memory() -> None:
    tensor = torch.zeros(64, 4, dtype=torch.int32)
    array = same_memory(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    game = TensorPgx(Pgx(name="tic_tac_toe"))
    arrays = game._rules.start(np.zeros((64, 2), np.float32))
    assert torch.from_dlpack(arrays["words"]).data_ptr() == arrays["words"].unsafe_buffer_pointer()


def test_positions_are_copied_and_searched_as_those_of_our_own_game() -> None:
    """Tic-tac-toe of Pgx and ours: a network that knows nothing finds the same, from the same positions."""

    def even(kind: int, observation: Tree, legal: Tree) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        mask = legal[HEAD]
        return np.log(mask / mask.sum(1, keepdims=True) + 1e-30).astype(np.float32), np.zeros(len(mask), np.float32)

    found = []
    for source in (Pgx(name="tic_tac_toe"), TicTacToe()):
        with closing(source.tables(4)) as tables:
            tables.reset(np.arange(4), np.zeros(4, np.uint64))
            for moves in ((0, 4, 8, 2), (4, 0, 1, 5), (8, 2, 2, 8)):
                tables.step(_moves(tables, np.array(moves)))
            search = NetworkSearch(source, GumbelSearch(simulations=48), even)
            found.append(search.search(tables, np.arange(4), np.random.default_rng(0), noise=False))
    assert found[0].action.tolist() == found[1].action.tolist()
    assert np.allclose(found[0].policy, found[1].policy, atol=1e-4)
    with pytest.raises(GameError, match=r"it has chance$"):
        NetworkSearch(Pgx(name="backgammon"), GumbelSearch(), even)
