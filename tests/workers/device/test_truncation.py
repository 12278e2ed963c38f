"""Truncated episodes on a device: what their decisions are worth, and tensor games with them on the CPU."""

from __future__ import annotations

from typing import Any

import engines
import numpy as np
import pytest
import torch
from engines import CutOff, cut_goofspiel, cut_leduc, new_engine

from ludus import check_game
from ludus.algorithms.returns import discounts, gae
from ludus.games.device.twin_check import twin_differences
from ludus.workers.device.played import Played
from ludus.workers.device.rollout import Layout
from ludus.workers.device.streams import trajectories


def all_decide(
    tables: int, value: list[list[float]], reward: list[list[float]], over: list[int], truncated: list[int]
) -> Played:
    """Every row decides in every step, and an episode is over after the steps `over`. `value` [steps + 1, rows],
    `reward` [steps, sides] of every table."""
    values, steps = torch.tensor(value), len(reward)
    ends = torch.tensor([[step in over] for step in range(steps)]).expand(-1, tables)
    cuts = torch.tensor([[step in truncated] for step in range(steps)]).expand(-1, tables)
    acted = torch.ones_like(values, dtype=torch.bool)
    nothing: dict[str, Any] = {"state": {}, "action": {}, "memory": {}, "first": None, "elapsed": None}
    nothing |= {"seat": torch.zeros_like(values), "log_prob": torch.zeros_like(values)}
    rewards = torch.tensor(reward).unsqueeze(1).unsqueeze(3).expand(-1, tables, -1, -1)
    return Played(acted=acted, value=values, reward=rewards, over=ends, truncated=cuts, **nothing)


def advantages(layout: Layout, played: Played) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every turn and row with gamma and lambda 0.5, and whether it is trained on."""
    sides = layout.side_of_group.repeat_interleave(layout.rows, 1)
    streams = trajectories(layout, sides, torch.ones_like(sides, dtype=torch.bool), played)
    shared = discounts(streams.elapsed[:-1], streams.over[:-1], 0.5, torch.float32)
    decay = torch.where(streams.idle[:-1], 1.0, 0.5)
    found = gae(streams.reward[:-1], streams.value, shared, streams.follows[:-1], decay)
    return found, streams.valid[:-1]


def test_the_last_decision_before_a_truncation_is_only_the_bootstrap_of_the_one_before_it() -> None:
    layout = Layout(learners=1, blocks=1, tables=1, sides=2, steps=4, in_turn=False)
    value = [[1.0, 1.0], [2.0, 4.0], [3.0, 1.0], [4.0, 1.0], [5.0, 3.0]]
    played = all_decide(1, value, [[0.5, -0.5]] * 4, over=[1], truncated=[1])
    found, valid = advantages(layout, played)
    assert valid[:, 0].tolist() == [[True, True], [False, False], [True, True], [True, True]]
    # 0.5 + 2 / 2 - 1 and -0.5 + 4 / 2 - 1: the value of the last decision, and nothing after it.
    assert found[0, 0].tolist() == [0.5, 0.5]
    # 0.5 + 5 / 2 - 4 and -0.5 + 3 / 2 - 1, and a quarter of it before.
    assert found[3, 0].tolist() == [-1.0, 0.0]
    assert found[2, 0].tolist() == [0.5 + 4 / 2 - 3 - 0.25, -0.5 + 1 / 2 - 1]
    by_rules, trains = advantages(layout, played._replace(truncated=torch.zeros_like(played.over)))
    assert trains.all()
    assert by_rules[1, 0].tolist() == [0.5 - 2.0, -0.5 - 4.0]
    assert by_rules[0, 0].tolist() == [0.5 - 1.5 / 4, 0.5 - 4.5 / 4]
    for one, other in zip(advantages(layout, played._replace(truncated=None)), (by_rules, trains), strict=True):
        assert torch.equal(one, other)


def test_both_sides_of_a_truncated_game_that_move_in_turn_end_with_a_bootstrap() -> None:
    """At the table of half 0 side 0 moves first; its episode is cut off after three moves, so that in the last turn
    side 1 has no decision that ends."""
    layout = Layout(learners=1, blocks=1, tables=2, sides=2, steps=6, in_turn=True)
    value = [[float(1 + step), 0.0] for step in range(7)]
    reward = [[0.5, -0.5], [0.25, -0.25], [1.0, -1.0], [2.0, -2.0], [0.0, 0.0], [0.0, 0.0]]
    played = all_decide(2, value, reward, over=[2], truncated=[2])
    found, valid = advantages(layout, played)
    # Steps 0, 2 and 4 are those of side 0: 2 is the bootstrap of 0, and 4 sees the value after the last step.
    assert valid[:, 0, 0].tolist() == [True, False, True]
    assert found[0, 0, 0] == 0.5 + 0.25 + 3 / 2 - 1
    assert found[2, 0, 0] == 7 / 2 - 5
    # Steps 1, 3 and 5 are those of side 1: 1 is followed by the end, and 5 has no later value.
    assert valid[:, 1, 0].tolist() == [False, True, False]
    assert found[1, 1, 0] == -2 + 6 / 2 - 4


@pytest.mark.parametrize("game", [cut_goofspiel, cut_leduc])
def test_a_match_counts_truncated_episodes_with_their_scores(game: CutOff) -> None:
    engine = new_engine(f"{engines.__file__}:cut_{game.game}", tables=8, matches=1, batch=8 * 60, episodes=4)
    columns = engine.rollout._columns
    played = engine.rollout.play(engine.weights, engine.learning.views, None)
    assert played.truncated is not None
    assert played.truncated.any()
    assert bool((played.over | ~played.truncated).all())
    [tally] = engine.tally()
    assert tally[columns.episodes] == 8 * 4
    sides = (engine.layout.sides, engine.layout.sides)
    won, drawn = (tally[pairs].reshape(sides) for pairs in (columns.wins, columns.draws))
    assert won[0, 1] + won[1, 0] + drawn[0, 1] == 8 * 4


@pytest.mark.parametrize("game", [cut_goofspiel, cut_leduc])
def test_on_the_cpu_the_view_says_truncated_and_shows_what_is_seen_last(game: CutOff) -> None:
    assert check_game(game, episodes=16).ok
    tables = game.tables(3)
    tables.reset(np.arange(3), np.arange(3, dtype=np.uint64))
    rng = np.random.default_rng(0)
    before: dict[str, Any] = {}
    while not (tables.view.over | tables.view.truncated).all():
        before = {name: array.copy() for name, array in tables.view.observation[0].items()}
        actions = tables.view.legal[0][game.head] * rng.random(tables.view.legal[0][game.head].shape)
        tables.step(({game.head: actions.argmax(-1).astype(np.int32)},))
        assert not (tables.view.over & tables.view.truncated).any()
    cut = np.flatnonzero(tables.view.truncated)
    assert len(cut)
    assert not tables.view.to_act[cut].any()
    assert any((tables.view.observation[0][name][cut] != array[cut]).any() for name, array in before.items())


def test_a_twin_that_calls_a_truncation_an_end_is_named() -> None:
    class Over(CutOff):
        def step(self, *given: Any) -> Any:
            return super().step(*given)._replace(truncated=None)

    [found, *_] = twin_differences(Over("goofspiel", 3), cut_goofspiel, steps=12, seed=0, tables=4)
    assert found.startswith("over[")
