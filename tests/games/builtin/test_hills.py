from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin.hills import HILLS, MOVES, ROUNDS, ROUNDS_PER_HILL, SEATS, WIDTH, Hills
from ludus.games.game import GameBatch, allocate_actions

Play = Callable[..., NDArray[np.float32]]
Cell = tuple[int, int]
SOURCE = Hills()
BOTS = SOURCE.bots()
UP = 1


def cells_of(plane: NDArray[np.float32]) -> list[Cell]:
    """The (x, y) of the flags of one plane."""
    return [(int(x), int(y)) for y, x in np.argwhere(plane > 0)]


def standing(game: GameBatch, table: int) -> list[Cell]:
    return [cells_of(game.view.observation[0]["map"][table, seat, 0])[0] for seat in range(SEATS)]


def test_follows_the_rules_on_random_games() -> None:
    num_tables = 12
    game = SOURCE.tables(num_tables)
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    rng = np.random.default_rng(0)
    actions = allocate_actions(game.spec, num_tables)
    view = game.view
    totals = np.zeros((num_tables, 2))
    for turn in range(ROUNDS):
        assert view.to_act.all()
        before = [standing(game, table) for table in range(num_tables)]
        hills = [cells_of(view.observation[0]["map"][table, 0, 3]) for table in range(num_tables)]
        for table, seat in np.ndindex(num_tables, SEATS):
            x, y = before[table][seat]
            legal = [0 <= x + dx < WIDTH and 0 <= y + dy < WIDTH for dx, dy in MOVES]
            assert view.legal[0]["move"][table, seat].tolist() == legal
            actions[0]["move"][table, seat] = rng.choice(np.flatnonzero(legal))
        game.step(actions)
        for table in range(num_tables):
            moves = [MOVES[move] for move in actions[0]["move"][table]]
            after = [(x + dx, y + dy) for (x, y), (dx, dy) in zip(before[table], moves, strict=True)]
            assert standing(game, table) == after
            gain = 0.0
            for hill in hills[table]:
                ours, theirs = after[:2].count(hill), after[2:].count(hill)
                gain += ((ours > theirs) - (ours < theirs)) / (HILLS * ROUNDS)
            assert view.reward[table] == pytest.approx([gain, gain, -gain, -gain])
            totals[table] += [gain, -gain]
            moved = cells_of(view.observation[0]["map"][table, 0, 3]) != hills[table]
            assert not moved or (turn + 1) % ROUNDS_PER_HILL == 0
    assert view.over.all()
    assert view.score == pytest.approx(totals, abs=1e-6)
    assert np.abs(totals).max() > 0


def test_rivals_are_seen_up_to_two_cells_away_and_by_the_critic_always() -> None:
    game = SOURCE.tables(60)
    game.reset(np.arange(60), np.arange(60, dtype=np.uint64))
    hidden = 0
    for table, seat in np.ndindex(60, SEATS):
        cells = standing(game, table)
        x, y = cells[seat]
        rivals = {cell for other, cell in enumerate(cells) if other // 2 != seat // 2}
        near = {cell for cell in rivals if max(abs(cell[0] - x), abs(cell[1] - y)) <= 2}
        observation = {name: array[table, seat] for name, array in game.view.observation[0].items()}
        assert cells_of(observation["map"][1]) == [cells[seat ^ 1]]
        assert {*cells_of(observation["map"][2])} == near
        assert {*cells_of(observation["critic.rivals"][0])} == rivals
        hidden += len(rivals - near)
    assert hidden > 50


def test_the_seed_draws_starts_and_hills() -> None:
    game = SOURCE.tables(200)
    game.reset(np.arange(200), np.arange(200, dtype=np.uint64))
    maps = game.view.observation[0]["map"]
    assert len({maps[table].tobytes() for table in range(200)}) > 190
    assert (maps[:, 0, 3].sum(axis=(1, 2)) == HILLS).all()
    assert all(len({*standing(game, table)}) == SEATS for table in range(200))
    # Every cell is a hill about as often as any other: 16 of 200 are expected.
    often = maps[:, 0, 3].sum(axis=0)
    assert often.min() >= 4
    assert often.max() <= 32


def test_names_the_move_that_leaves_the_grid() -> None:
    game = SOURCE.tables(1)
    game.reset(np.array([0]), np.array([0], np.uint64))
    actions = allocate_actions(game.spec, 1)
    actions[0]["move"][0, 0] = UP
    while game.view.legal[0]["move"][0, 0, UP]:
        game.step(actions)
    with pytest.raises(ValueError, match=r"hills: table 0, seat 0: move 1 is not one of \["):
        game.step(actions)
    actions[0]["move"][:] = 5
    with pytest.raises(ValueError, match=r"seat 0: move 5 is not one of \["):
        game.step(actions)


@pytest.mark.parametrize("name", ["spread", "together"])
def test_walkers_beat_random(play: Play, name: str) -> None:
    walker, random = BOTS[name], BOTS["random"]
    assert play(SOURCE, [walker, walker, random, random])[:, 0].mean() > 0.3
    assert play(SOURCE, [random, random, walker, walker])[:, 1].mean() > 0.3


def test_spread_mates_take_different_hills() -> None:
    game = SOURCE.tables(100)
    tables = np.arange(100)
    game.reset(tables, tables.astype(np.uint64))
    rng = np.random.default_rng(0)
    actions = allocate_actions(game.spec, 100)
    for _ in range(ROUNDS_PER_HILL - 1):
        for seat in range(SEATS):
            moves = BOTS["spread"].act(game, tables, np.full(100, seat), rng)["move"]
            actions[0]["move"][:, seat] = moves
        game.step(actions)
    # Seven rounds reach any hill; each team has one seat on each hill, so nobody earns anything.
    on_both = [
        {*standing(game, table)[:2]} == {*cells_of(game.view.observation[0]["map"][table, 0, 3])}
        for table in range(100)
    ]
    assert np.mean(on_both) > 0.9
