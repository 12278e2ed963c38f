"""Play on a device: every side sits on every seat, each table's quota counts, and only the weights of a side decide."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from engines import SMALL_ALPHASTAR, new_engine

from ludus.games import resolve
from ludus.games.device.tensor_game import tensor_game_of
from ludus.workers.config import Openings
from ludus.workers.device.engine import Engine
from ludus.workers.device.played import Played, Tally
from ludus.workers.device.rollout import Layout

EXAMPLES = Path(__file__).parents[3] / "examples"
QUOTA = 2


class Recount:
    """The sums of a match counted table by table, from what was played."""

    def __init__(self, engine: Engine) -> None:
        layout = engine.layout
        self.layout = layout
        self.episode = np.zeros(layout.num_tables, int)
        self.score = np.zeros((layout.num_tables, layout.sides))
        self.length = np.zeros(layout.num_tables, int)
        self.columns = Tally.of(layout.sides)
        self.tally = np.zeros((layout.num_blocks, self.columns.width))
        self.seats = np.zeros((layout.sides, layout.sides), int)
        """[side, seat]: counted decisions."""

    def add(self, played: Played) -> None:
        layout, columns = self.layout, self.columns
        for step in range(layout.steps):
            for table in range(layout.num_tables):
                block, place = divmod(table, layout.tables)
                sums, counts = self.tally[block], self.episode[table] < QUOTA
                acted = 0
                for side in range(layout.sides):
                    row = table if layout.in_turn else (block * layout.sides + side) * layout.tables + place
                    if layout.in_turn and (step + place // (layout.tables // 2)) % 2 != side:
                        continue
                    if played.acted[step, row]:
                        acted += 1
                        seat = int(played.seat[step, row])
                        assert seat == (side + self.episode[table]) % layout.sides
                        if counts:
                            sums[columns.decisions][side] += 1
                            self.seats[side, seat] += 1
                self.length[table] += acted > 0
                assert acted or layout.in_turn
                self.score[table] += played.reward[step, table, :, 0].numpy()
                if not played.over[step, table]:
                    continue
                if counts:
                    one, other = self.score[table][:, None], self.score[table][None, :]
                    sums[columns.episodes] += 1
                    sums[columns.steps] += self.length[table]
                    sums[columns.wins] += (one - other > 1e-6).ravel()
                    sums[columns.draws] += (abs(one - other) <= 1e-6).ravel()
                    sums[columns.score] += self.score[table]
                    sums[columns.square] += self.score[table] ** 2
                self.episode[table] += 1
                self.score[table] = self.length[table] = 0


def test_bots_of_a_game_in_which_sides_move_in_turn_play_their_side_of_a_block() -> None:
    engine = new_engine(f"{EXAMPLES / 'my_tensor_game.py'}:Nim", tables=24, matches=3, batch=240)
    assert engine.bots == ("greedy", "perfect")
    engine.seat(1, [0, 0], [True, False], 4, bots=[-1, 0])
    engine.seat(2, [0, 0], [True, False], 4, bots=[-1, 1])
    layout = engine.layout
    played = engine.rollout.play(engine.weights, engine.learning.views, torch.Generator().manual_seed(0))
    block = layout.block_of_group.repeat_interleave(layout.rows)
    asked = 0
    for step in range(layout.steps):
        side = layout.side_of_group[step % 2].repeat_interleave(layout.rows)
        state = {name: tensor[step] for name, tensor in played.state.items()}
        pile = state["pile"].long()
        perfect = (pile % 4 - 1).clamp(min=0)
        bots = {(1, 1): pile.clamp(max=3) - 1, (2, 1): perfect}
        for place in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)):
            rows = played.acted[step] & (block == place[0]) & (side == place[1])
            chosen = played.action["take"][step][rows]
            if place in bots:
                assert chosen.tolist() == bots[place][rows].tolist()
                asked += len(chosen)
            elif step == 0 and len(chosen):
                assert set(chosen.tolist()) != set(perfect[rows].tolist())
    assert asked > 40


def test_bots_of_a_game_in_which_sides_move_at_once_play_their_side_of_a_block() -> None:
    """Only rows of side 1 are theirs, with each seat in turn; what side 0 chooses stays what its network chose."""
    engine = new_engine("skirmish", tables=12, matches=3, batch=24 * 30, model=SMALL_ALPHASTAR, episodes=1)
    names, layout = engine.bots, engine.layout
    assert set(names) == {"rush", "boom", "spears", "horses", "bows"}
    engine.seat(1, [0, 0], [True, False], 1, bots=[-1, names.index("rush")])
    engine.seat(2, [0, 0], [True, False], 1, bots=[-1, names.index("boom")])
    game = tensor_game_of(resolve("skirmish"))
    assert game is not None
    bots = game.tensor_bots()
    assert bots is not None
    played = engine.rollout.play(engine.weights, engine.learning.views, None)
    shape = (layout.num_blocks, layout.sides, layout.tables)
    block = torch.arange(3).view(-1, 1, 1).expand(shape).flatten()
    side = torch.arange(2).view(1, -1, 1).expand(shape).flatten()
    numbers = torch.tensor([-1, names.index("rush"), names.index("boom")])[block].where(side == 1, -1)
    asked, same = 0, []
    for step in range(layout.steps):
        state = {name: engine.rollout._by_row(tensor[step]) for name, tensor in played.state.items()}
        observation, legal = engine.rollout.observe(state, played.seat[step])
        found = bots.act(numbers.clamp(min=0), observation, legal, torch.zeros(len(numbers), 1))
        theirs, others = played.acted[step] & (numbers >= 0), played.acted[step] & (numbers < 0)
        for head in ("action", "units", "target_point"):
            assert torch.equal(played.action[head][step][theirs].long(), found[head][theirs]), (head, step)
        waits = played.action["delay"][step][theirs].long() - found["delay"][theirs]
        assert ((waits >= 0) & (waits <= 3)).all()
        asked += int(theirs.sum())
        same.append((played.action["action"][step][others] == found["action"][others]).float())
    assert asked > 50
    assert torch.cat(same).mean() < 0.6


@pytest.mark.parametrize("address", ["kuhn", "leduc", "goofspiel", "tic_tac_toe"])
def test_a_match_counts_the_first_episodes_of_every_table_and_no_other(address: str) -> None:
    engine = new_engine(address, tables=12, matches=2, batch=60, episodes=QUOTA)
    recount = Recount(engine)
    episodes = engine.layout.tables * QUOTA
    for _ in range(12):
        recount.add(engine.rollout.play(engine.weights, engine.learning.views, None))
    np.testing.assert_allclose(engine.tally(), recount.tally, atol=1e-4)
    assert (engine.tally()[:, recount.columns.episodes] == episodes).all()
    assert (recount.episode > QUOTA).all()  # they went on, and it did not count
    if engine.layout.in_turn:
        assert (recount.seats > 0).all()  # with two episodes each side has had both seats


def test_a_new_match_starts_its_tables_again() -> None:
    engine = new_engine("connect_four", tables=8, matches=2, batch=16)
    engine.rollout.play(engine.weights, engine.learning.views, None)
    engine.rollout.play(engine.weights, engine.learning.views, None)
    assert engine.tally()[:, Tally.of(2).decisions].sum() > 0
    engine.seat(1, [0, 0], [True, True], 4)
    played = engine.rollout.play(engine.weights, engine.learning.views, None)
    first, second = played.state["stones"][0].view(2, -1)
    assert (first != 0).any()
    assert (second == 0).all()
    decisions = engine.tally()[:, Tally.of(2).decisions].sum(1)
    assert decisions[1] < decisions[0]


def test_each_side_decides_with_its_own_weights() -> None:
    """The opponent always takes the first column: its head prefers it by far."""
    engine = new_engine("connect_four", tables=16, matches=2, batch=256)
    row = engine.row_of_opponent(0, 1)
    stubborn = {name: np.zeros_like(array) for name, array in engine.players[0].weights().items()}
    [bias] = [name for name in stubborn if name.endswith("scores.bias")]
    stubborn[bias][0] = 50.0
    engine.load_opponent(row, stubborn)
    engine.seat(0, [0, row], [True, False], 4)
    played = engine.rollout.play(engine.weights, engine.learning.views, None)
    layout = engine.layout
    sides = layout.side_of_group.repeat_interleave(layout.rows, 1)
    in_block_0 = torch.arange(layout.num_rows) < layout.tables
    free = (played.state["stones"][..., 0] | played.state["stones"][..., 1]) & 0b111111 != 0b111111
    for step in range(layout.steps):
        side = sides[step % 2]
        theirs = in_block_0 & (side == 1) & played.acted[step] & free[step]
        assert (played.action["move"][step][theirs] == 0).all()
    mine = played.acted[:-1] & ~(in_block_0 & (sides.repeat(layout.steps // 2, 1) == 1))
    assert set(played.action["move"][:-1][mine].tolist()) == set(range(7))


def test_the_same_seed_plays_the_same_and_another_does_not() -> None:
    plays = []
    for seed in (0, 0, 1):
        engine = new_engine("leduc", tables=16, batch=128, seed=seed)
        for _ in range(2):
            engine.iterate(0.0)
        engine.read()
        plays.append((engine.tally(), engine.weights.clone(), engine.players[0].decisions))
    (tally, weights, decisions), again, other = plays
    np.testing.assert_array_equal(tally, again[0])
    assert torch.equal(weights, again[1])
    assert decisions == again[2]
    assert not torch.equal(weights, other[1])


def test_random_openings_begin_in_many_positions() -> None:
    engine = new_engine("connect_four", tables=64, matches=1, batch=64, openings=Openings(moves=8))
    played = engine.rollout.play(engine.weights, engine.learning.views, engine._generator)
    begun = played.state["stones"][0]
    assert len({tuple(row) for row in begun.tolist()}) > 5  # from a pool of eight positions
    turn = played.state["turn"][0]
    assert set(turn.tolist()) == {0, 1}
    assert played.acted[:2].any(0).all()  # a table waits one step at most


def test_a_share_of_the_episodes_has_an_opening() -> None:
    for share, least, most in ((0.0, 0, 0), (0.3, 10, 35), (1.0, 40, 64)):
        openings = Openings(moves=8, share=share)
        engine = new_engine("connect_four", tables=512, matches=1, batch=512, openings=openings)
        generator = torch.Generator().manual_seed(0)
        played = engine.rollout.play(engine.weights, engine.learning.views, generator)
        starts = engine.rollout._starts(partial(torch.rand, generator=generator))(0)["stones"]
        assert played.state["stones"].shape[1:] == starts.shape
        pool = {tuple(row.flatten().tolist()) for row in starts}
        assert least <= len(pool) - 1 <= most, (share, len(pool))


def test_tables_are_cut_into_equal_blocks() -> None:
    game = tensor_game_of(resolve("connect_four"))
    assert game is not None
    layout = Layout.fit(game, learners=3, num_tables=1000, matches=8, batch_size=10_000)
    assert (layout.blocks, layout.tables, layout.num_blocks) == (2, 166, 6)
    assert layout.steps == 32  # 332 tables of a player, rounded up to an even number of steps
    with pytest.raises(ValueError, match=r"actor\.num_tables=8 is too few for 6 blocks"):
        Layout.fit(game, learners=3, num_tables=8, matches=6, batch_size=10)
