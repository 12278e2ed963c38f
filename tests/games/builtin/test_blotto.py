from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.game_tree import FlatTree
from ludus.data.trees import IntArray
from ludus.games.bots import AlwaysBot
from ludus.games.builtin.blotto import Blotto
from ludus.games.check import check_game
from ludus.games.game import GameSource, allocate_actions
from ludus.league.equilibrium import nash

Play = Callable[..., NDArray[np.float32]]


def test_placements_are_all_ways_to_spread_the_soldiers() -> None:
    placements = Blotto().placements
    assert len(placements) == len(set(placements)) == 28
    assert (Blotto().payoff == -1).any(axis=1).all()  # none is safe
    assert {sum(placement) for placement in placements} == {6}
    assert Blotto().spec.kinds[0].action.heads["placement"].num == 28  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("first", "second", "won"),
    [
        ((3, 3, 0), (2, 2, 2), 1),
        ((2, 2, 2), (4, 1, 1), 1),
        ((3, 3, 0), (4, 1, 1), -1),
        ((6, 0, 0), (2, 2, 2), -1),
        ((5, 1, 0), (3, 3, 0), 0),
        ((2, 2, 2), (2, 2, 2), 0),
    ],
)
def test_who_wins(first: tuple[int, ...], second: tuple[int, ...], won: float) -> None:
    source = Blotto()
    batch, actions = source.tables(1), allocate_actions(source.spec, 1)
    batch.reset(np.array([0]), np.array([0], np.uint64))
    actions[0]["placement"][0] = source.placements.index(first), source.placements.index(second)
    batch.step(actions)
    assert batch.view.over[0]
    assert not batch.view.to_act.any()
    assert batch.view.reward[0].tolist() == batch.view.score[0].tolist() == [won, -won]


def test_tables_show_what_the_tree_says() -> None:
    source = Blotto(soldiers=5, fields=4)
    root = source.tree()
    assert root is not None
    batch, actions = source.tables(200), allocate_actions(source.spec, 200)
    batch.reset(np.arange(200), np.arange(200, dtype=np.uint64))
    chosen: IntArray = np.random.default_rng(0).integers(0, len(source.placements), (200, 2))
    states = [root.child(int(one)).child(int(other)) for one, other in chosen]
    np.testing.assert_array_equal(batch.view.observation[0]["start"][0, 1], root.observation()["start"])
    actions[0]["placement"][:] = chosen
    batch.step(actions)
    np.testing.assert_array_equal(batch.view.score, [state.returns() for state in states])
    assert root.child(0).information_state() == root.child(1).information_state()


@pytest.mark.parametrize("source", [Blotto(), Blotto(soldiers=3), Blotto(soldiers=8, fields=4)], ids=repr)
def test_the_bots_go_in_a_circle(source: Blotto, play: Play) -> None:
    bots = source.bots()
    for winner, loser in (("left", "right"), ("right", "middle"), ("middle", "left")):
        assert (play(source, [bots[winner], bots[loser]], num_tables=4) == [1, -1]).all()
        assert (play(source, [bots[loser], bots[winner]], num_tables=4) == [-1, 1]).all()


def test_exploitability_is_exact() -> None:
    source = Blotto()
    root = source.tree()
    assert root is not None
    tree = FlatTree.build(root)
    for bot in source.bots().values():
        if isinstance(bot, AlwaysBot):  # some placement beats it from either seat
            assert tree.nash_conv(bot.probabilities(tree.observations, tree.legal)) == pytest.approx(2.0)
    mixed = nash(source.payoff.astype(np.float64)).row
    assert tree.nash_conv(np.stack([mixed, mixed])) == pytest.approx(0.0, abs=1e-6)
    assert (mixed > 1e-6).sum() > 1
    assert tree.nash_conv(tree.uniform()) > 0.3


def test_an_illegal_action_is_named() -> None:
    batch = Blotto().tables(3)
    batch.reset(np.arange(3), np.arange(3, dtype=np.uint64))
    actions = allocate_actions(batch.spec, 3)
    actions[0]["placement"][1, 1] = 28
    with pytest.raises(ValueError, match=r"table 1, seat 1: placement 28 is not one of \[0, 1, .*27\]"):
        batch.step(actions)


@pytest.mark.parametrize("source", [Blotto(), Blotto(soldiers=12, fields=4)], ids=repr)
def test_it_keeps_the_promises_of_a_game(source: Blotto) -> None:
    report = check_game(source, episodes=6, tables=3, bot_seconds=0.1)
    assert report.ok, str(report)


def test_it_is_a_game_source_with_bounds() -> None:
    assert isinstance(Blotto(), GameSource)
    assert Blotto(soldiers=12, fields=4).tree() is None
    with pytest.raises(ValueError, match="soldiers must be at least 3, got 2"):
        Blotto(soldiers=2)
    with pytest.raises(ValueError, match="fields must be at least 3, got 1"):
        Blotto(fields=1)
    with pytest.raises(ValueError, match="184756 placements; at most 2000"):
        Blotto(soldiers=10, fields=11)


@pytest.mark.parametrize(("soldiers", "fields"), [(2_000_000, 1_000_000), (10**18, 3), (3, 10**18)])
def test_too_many_placements_are_refused_before_they_are_counted(soldiers: int, fields: int) -> None:
    """Counting them all took hours, and with it the game server that a client had asked for them."""
    with pytest.raises(ValueError, match="has too many placements; at most 2000 are allowed"):
        Blotto(soldiers=soldiers, fields=fields)
