from collections import Counter
from itertools import count

import numpy as np
import pytest

from ludus.data.game_tree import CHANCE, OVER, FlatTree, TreeState
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.bots import RandomBot
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.games.game import HasTrees, allocate_actions
from ludus.games.tree_batch import TreeBatch

SOURCES = [Kuhn(), Kuhn(seats=3), Leduc(), Leduc(critic_state=True)]
Source = Kuhn | Leduc


def continuations(state: TreeState) -> list[TreeState]:
    """What a state may become once chance has moved."""
    if state.seat() != CHANCE:
        return [state]
    return [after for outcome, _ in state.chance_outcomes() for after in continuations(state.child(outcome))]


@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_tables_show_what_the_tree_says(source: Source) -> None:
    batch, num_tables = source.tables(16), 16
    assert isinstance(batch, HasTrees)
    actions = allocate_actions(source.spec, num_tables)
    rng, seeds = np.random.default_rng(0), count()
    states: list[TreeState] = [source.tree()] * num_tables
    episodes, lengths = 0, [0] * num_tables
    fresh = np.arange(num_tables)
    for _ in range(200):
        batch.reset(fresh, np.array([next(seeds) for _ in fresh], np.uint64))
        for table in fresh.tolist():
            states[table], lengths[table] = source.tree(), 0
        for table in range(num_tables):
            state = batch.tree_state(table)
            assert state in continuations(states[table])
            states[table] = state
            assert not batch.view.over[table]
            assert batch.view.to_act[table].tolist() == [seat == state.seat() for seat in range(source.spec.num_seats)]
            for name, array in state.observation().items():
                np.testing.assert_array_equal(batch.view.observation[0][name][table, state.seat()], array)
            legal = batch.view.legal[0]["move"][table, state.seat()]
            assert np.flatnonzero(legal).tolist() == list(state.legal_actions())
        tables, seats = np.nonzero(batch.view.to_act)
        moves = RandomBot().act(batch, tables, seats, rng)["move"]
        actions[0]["move"][tables, seats] = moves
        batch.step(actions)
        lengths = [length + 1 for length in lengths]
        states = [state.child(int(move)) for state, move in zip(states, moves, strict=True)]
        fresh = np.flatnonzero(batch.view.over)
        for table, state in enumerate(states):
            assert batch.view.over[table] == (state.seat() == OVER)
            expected = state.returns() if state.seat() == OVER else [0.0] * source.spec.num_seats
            assert batch.view.reward[table].tolist() == expected
            if state.seat() == OVER:
                assert batch.view.score[table].tolist() == expected
                assert lengths[table] <= source.spec.max_length
                episodes += 1
    assert episodes > 500


@pytest.mark.parametrize("source", [*SOURCES, RockPaperScissors(rounds=3)], ids=repr)
def test_an_episode_is_the_same_in_any_batch(source: Source | RockPaperScissors) -> None:
    """Table 5 of a crowd, started late, against the same seed and moves alone."""
    crowd, alone = source.tables(8), source.tables(1)
    crowd_actions, alone_actions = allocate_actions(source.spec, 8), allocate_actions(source.spec, 1)
    rng, bot = np.random.default_rng(1), RandomBot()
    for seed in range(40):
        others = np.array([0, 1, 2, 3, 4, 6, 7])
        crowd.reset(others, rng.integers(0, 2**63, 7).astype(np.uint64))
        for _ in range(2):
            tables, seats = np.nonzero(crowd.view.to_act)
            crowd_actions[0]["move"][tables, seats] = bot.act(crowd, tables, seats, rng)["move"]
            crowd.step(crowd_actions)
        crowd.reset(np.array([5]), np.array([seed], np.uint64))
        alone.reset(np.array([0]), np.array([seed], np.uint64))
        while not alone.view.over[0]:
            tables, seats = np.nonzero(crowd.view.to_act)
            crowd_actions[0]["move"][tables, seats] = bot.act(crowd, tables, seats, rng)["move"]
            alone_actions[0]["move"][0] = crowd_actions[0]["move"][5]
            crowd.step(crowd_actions)
            alone.step(alone_actions)
            for name in ("reward", "score", "over", "to_act"):
                np.testing.assert_array_equal(getattr(crowd.view, name)[5], getattr(alone.view, name)[0])
            for name, array in alone.view.observation[0].items():
                np.testing.assert_array_equal(crowd.view.observation[0][name][5], array[0])
            np.testing.assert_array_equal(crowd.view.legal[0]["move"][5], alone.view.legal[0]["move"][0])
        assert crowd.view.over[5]


@pytest.mark.parametrize("source", [*SOURCES, RockPaperScissors()], ids=repr)
def test_tables_that_are_over_or_not_started_stay_as_they_are(source: Source | RockPaperScissors) -> None:
    batch = source.tables(3)
    batch.reset(np.array([1]), np.array([5], np.uint64))
    actions = allocate_actions(source.spec, 3)
    actions[0]["move"][:] = 1
    for _ in range(source.spec.max_length):
        batch.step(actions)
    assert batch.view.over.tolist() == [True, True, True]
    reward, score = batch.view.reward.copy(), batch.view.score.copy()
    actions[0]["move"][:] = -99
    batch.step(actions)
    batch.reset(np.array([2]), np.array([6], np.uint64))
    np.testing.assert_array_equal(batch.view.reward[1], reward[1])
    np.testing.assert_array_equal(batch.view.score[1], score[1])
    assert batch.view.over.tolist() == [True, True, False]
    assert not batch.view.to_act[:2].any()


@pytest.mark.parametrize(("source", "deals"), [(Kuhn(), 6), (Kuhn(seats=3), 24), (Leduc(), 30)])
def test_all_deals_are_alike(source: Source, deals: int) -> None:
    num_tables = 1000 * deals
    batch = source.tables(num_tables)
    assert isinstance(batch, HasTrees)
    batch.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    counts = Counter(batch.tree_state(table) for table in range(num_tables))
    assert len(counts) == deals
    assert all(abs(number - 1000) < 160 for number in counts.values())


@pytest.mark.parametrize("move", [0, 3, -1])
def test_an_illegal_action_is_named(move: int) -> None:
    batch = Leduc().tables(4)
    batch.reset(np.arange(4), np.arange(4, dtype=np.uint64))
    actions = allocate_actions(Leduc().spec, 4)
    actions[0]["move"][:] = 1
    actions[0]["move"][2, 0] = move
    with pytest.raises(ValueError, match=rf"leduc: table 2, seat 0: move {move} is not one of \[1, 2\]"):
        batch.step(actions)


def test_a_tree_without_chance_and_with_spare_options_plays_too() -> None:
    root = RockPaperScissors().tree()
    assert root is not None
    spec = GameSpec.symmetric(
        name="slow_hands",
        num_seats=2,
        observation=ObservationSpec(parts={"previous": Vector(size=7)}),
        action=ActionSpec(heads={"move": Choice(num=5)}),
        max_length=2,
    )
    batch = TreeBatch(spec, root, 1)
    batch.reset(np.array([0]), np.array([0], np.uint64))
    assert batch.view.legal[0]["move"][0, 0].tolist() == [True, True, True, False, False]
    actions = allocate_actions(spec, 1)
    actions[0]["move"][0] = (1, 0)
    batch.step(actions)
    batch.step(actions)
    assert batch.view.over[0]
    assert batch.view.score[0].tolist() == [1.0, -1.0]


def test_critics_see_the_cards_and_seats_do_not() -> None:
    source = Kuhn(critic_state=True)
    batch = source.tables(64)
    batch.reset(np.arange(64), np.arange(64, dtype=np.uint64))
    seen = batch.view.observation[0]
    assert set(seen) == {"information", "critic.cards"}
    own = seen["information"][:, 0, 2:5]
    cards = seen["critic.cards"][:, 0].reshape(64, 2, 3)
    np.testing.assert_array_equal(cards[:, 0], own)
    assert {tuple(pair) for pair in cards.argmax(-1).tolist()} == {(a, b) for a in range(3) for b in range(3) if a != b}
    tree = FlatTree.build(source.tree())
    assert set(tree.observations) == {"information"}
    assert tree.nash_conv(tree.uniform()) == FlatTree.build(Kuhn().tree()).nash_conv(tree.uniform())
