"""Games in torch: each equals its CPU twin, keeps its shapes, and can start from random openings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus import check_game
from ludus.games import TensorState, TensorStep, TicTacToe, resolve
from ludus.games.device.board_games import TensorConnectFour, TensorTicTacToe
from ludus.games.device.tensor_game import random_starts, tensor_game_of
from ludus.games.device.twin_check import fixed_shape_faults, tensor_faults

EXAMPLES = Path(__file__).parents[3] / "examples"
GAMES: list[tuple[str, dict[str, Any]]] = [
    ("connect_four", {}),
    ("connect_four", {"threats": False}),
    ("tic_tac_toe", {}),
    ("kuhn", {}),
    ("kuhn", {"seats": 3}),
    ("leduc", {}),
    ("rock_paper_scissors", {"rounds": 3}),
    ("blotto", {}),
    ("goofspiel", {}),
]


@pytest.mark.parametrize(("address", "options"), GAMES)
def test_equals_its_cpu_twin_move_for_move(address: str, options: Mapping[str, Any]) -> None:
    source = resolve(address, **options)
    assert tensor_game_of(source) is not None
    assert tensor_faults(source, steps=60, tables=48) == []


class _NobodyWins(TensorTicTacToe):
    def step(self, state: TensorState, actions: torch.Tensor, draws: torch.Tensor) -> TensorStep:
        played = super().step(state, actions, draws)
        return played._replace(reward=torch.zeros_like(played.reward))


class _WithWrongTwin(TicTacToe):
    TENSOR_TWIN = f"{__file__}:_NobodyWins.of"


def test_a_wrong_rule_is_named() -> None:
    report = check_game(_WithWrongTwin(), episodes=4)
    assert [failure.promise for failure in report.failures] == ["tensor_twin"] * 2
    reward, score = (failure.seen for failure in report.failures)
    assert re.match(r"reward\[\d+, [01]\], step \d+: 0.0, and -?1.0 of the CPU game", reward)
    assert score.startswith("score at the end[")


def test_a_state_that_changes_its_type_is_named() -> None:
    class Shrinking(TensorTicTacToe):
        def step(self, state: TensorState, actions: torch.Tensor, draws: torch.Tensor) -> TensorStep:
            played = super().step(state, actions, draws)
            return played._replace(state={**played.state, "turn": played.state["turn"].long()})

    [found] = fixed_shape_faults(Shrinking(resolve("tic_tac_toe")))
    assert "state turn" in found
    assert "torch.int8" in found


def test_the_check_of_a_game_compares_its_tensor_twin() -> None:
    verdicts = {one.promise: one for one in check_game("kuhn", episodes=8).verdicts}
    assert verdicts["tensor_twin"].times == 1
    assert verdicts["tensor_twin"].ok
    assert {one.promise: one.times for one in check_game("beacon", episodes=2).verdicts}["tensor_twin"] == 0


def test_a_tensor_game_is_a_game_for_the_cpu_too() -> None:
    game = tensor_game_of(resolve("leduc"))
    assert game is not None
    assert check_game(game, episodes=16).ok


def test_random_openings_are_legal_positions_with_as_many_moves() -> None:
    game = TensorConnectFour(resolve("connect_four"))
    generator = torch.Generator().manual_seed(0)
    moves = torch.arange(9).repeat_interleave(64)
    state = random_starts(game, moves, 8, lambda rows, number: torch.rand(rows, number, generator=generator))
    stones = state["stones"].numpy().astype(np.uint64)
    placed = np.array([[int(word).bit_count() for word in row] for row in stones])
    begun = placed.sum(1) == 0
    assert np.array_equal(placed.sum(1)[~begun], moves.numpy()[~begun])
    assert begun[moves.numpy() > 0].mean() < 0.1  # those that ended within 8 moves start from the beginning
    assert np.array_equal(state["turn"].numpy()[~begun], moves.numpy()[~begun] % 2)
    assert len({tuple(row) for row in stones[moves.numpy() == 8].tolist()}) > 40


def test_the_example_keeps_its_promises_on_the_cpu_and_as_tensors() -> None:
    report = check_game(f"{EXAMPLES / 'my_tensor_game.py'}:Nim", episodes=16)
    assert report.ok, str(report)
    assert {one.promise: one.times for one in report.verdicts}["tensor_twin"] == 1
