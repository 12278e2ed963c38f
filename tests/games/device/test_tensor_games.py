"""Games in torch: each equals its CPU twin, keeps its shapes, and can start from random openings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from ludus import check_game
from ludus.games import Skirmish, TensorBots, TensorState, TensorStep, TicTacToe, WithStrategies, resolve
from ludus.games.bots import RandomBot, act_among
from ludus.games.builtin import skirmish_rules as rules
from ludus.games.builtin.skirmish_bots import STRATEGIES, Strategy
from ludus.games.device import twin_check
from ludus.games.device.board_games import TensorConnectFour, TensorTicTacToe
from ludus.games.device.strategies import TensorStrategies, edit_distances
from ludus.games.device.tensor_game import random_starts, tensor_game_of
from ludus.games.device.twin_check import fixed_shape_faults, tensor_faults, twin_differences
from ludus.games.game import allocate_actions
from ludus.games.strategies import EditDistances
from ludus.games.tables import InnerBot

EXAMPLES = Path(__file__).parents[3] / "examples"
GAMES: list[tuple[str, dict[str, Any]]] = [
    ("connect_four", {}),
    ("connect_four", {"threats": False}),
    ("connect_four", {"all_threats": True}),
    ("tic_tac_toe", {}),
    ("kuhn", {}),
    ("kuhn", {"seats": 3}),
    ("leduc", {}),
    ("leduc", {"critic_state": True}),
    ("rock_paper_scissors", {"rounds": 3}),
    ("blotto", {}),
    ("goofspiel", {}),
    ("skirmish", {}),
]


@pytest.mark.parametrize(("address", "options"), GAMES)
def test_equals_its_cpu_twin_move_for_move(address: str, options: Mapping[str, Any]) -> None:
    source = resolve(address, **options)
    assert tensor_game_of(source) is not None
    small = address == "skirmish"
    assert tensor_faults(source, steps=30 if small else 60, tables=8 if small else 48) == []


@pytest.mark.slow
def test_skirmish_of_scripted_players_equals_its_cpu_twin_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fight, gather, train and end episodes, which random play hardly does."""
    ends = []

    def exactly(one: Any, other: Any) -> bool:
        if one.dtype == np.bool_ and one.ndim == 1:
            ends.append(int(one.sum()))
        return np.array_equal(one, other)

    monkeypatch.setattr(twin_check, "_equal", exactly)
    source = resolve("skirmish")
    game, bots = tensor_game_of(source), [*STRATEGIES.values(), RandomBot()]
    assert game is not None
    assert twin_differences(game, source, steps=400, seed=1, tables=24, bots=bots) == []
    assert sum(ends) > 20


class _Drawn:
    """A generator for numpy bots that draws integers from given uniform numbers."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers

    def integers(self, low: int, high: int, size: int, *, endpoint: bool) -> np.ndarray:
        assert endpoint
        assert size == len(self._numbers)
        return low + (self._numbers * (high + 1 - low)).astype(np.int64)


@pytest.mark.parametrize("shown", [False, True])
def test_scripted_players_in_torch_choose_what_those_of_numpy_choose(shown: bool) -> None:
    """At tables that the strategies and random players play to their ends, whoever is asked sits there."""
    source: Any = Skirmish()
    if shown:
        source = WithStrategies(game=source, strategies="skirmish", types=5)
    game = tensor_game_of(source)
    assert game is not None
    bots = game.tensor_bots()
    assert bots is not None
    assert bots.names == tuple(STRATEGIES)
    rng, tables = np.random.default_rng(0), 24
    there = source.tables(tables)
    there.reset(np.arange(tables), np.arange(tables, dtype=np.uint64))
    asked, chosen, ends = 0, set(), 0
    players = [*source.bots().values()]
    for _ in range(160):
        rows, seats = np.nonzero(there.view.to_act)
        numbers = rng.integers(0, len(bots.names), len(rows))
        draws = rng.random(len(rows)).astype(np.float32)
        observation, legal = (
            {name: torch.from_numpy(array[rows, seats]) for name, array in tree[0].items()}
            for tree in (there.view.observation, there.view.legal)
        )
        found = bots.act(torch.from_numpy(numbers), observation, legal, torch.from_numpy(draws)[:, None])
        for number, name in enumerate(bots.names):
            own = np.flatnonzero(numbers == number)
            if not len(own):
                continue
            wanted = source.bots()[name].act(there, rows[own], seats[own], _Drawn(draws[own]))
            for head, action in wanted.items():
                np.testing.assert_array_equal(found[head].numpy()[own], action, err_msg=f"{head} of {name}")
            chosen |= {(name, one) for one in wanted["action"].tolist()}
            asked += len(own)
        actions = allocate_actions(source.spec, tables)
        for number, bot in enumerate(players):
            plays = (np.arange(tables)[:, None] + np.arange(2)) % len(players) == number
            act_among(bot, there, plays, rng, actions)
        there.step(actions)
        over = np.flatnonzero(there.view.over)
        ends += len(over)
        if len(over):
            there.reset(over, rng.integers(0, 2**63, len(over)).astype(np.uint64))
    assert asked > 3_000
    assert ends > 8
    assert {(name, rules.ADVANCE) for name in STRATEGIES} | {("rush", rules.GATHER)} <= chosen
    assert {("boom", rules.TRAIN[kind]) for kind in rules.TRAINED} <= chosen


@pytest.mark.parametrize("address", ["skirmish", "kuhn", "connect_four", f"{EXAMPLES / 'my_tensor_game.py'}:Nim"])
def test_what_a_step_of_decisions_computes_is_one_graph(address: str) -> None:
    """As an engine compiles it, without `fullgraph`: a number of numpy that is read would end the graph."""
    game = tensor_game_of(resolve(address))
    assert game is not None
    rows, bots = 4, game.tensor_bots()
    state, seats = game.start(torch.rand(rows, game.start_draws)), torch.zeros(rows, dtype=torch.int64)

    def decided(state: TensorState, seats: torch.Tensor, draws: torch.Tensor) -> Any:
        seen, masks = game.observe(state, seats), game.masks(state, seats)
        return game.to_act(state), seen, masks, None if bots is None else bots.act(seats, seen, masks, draws)

    draws = torch.rand(rows, 0 if bots is None else bots.draws)
    expected = decided(state, seats, draws)
    counter = CompileCounter()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(decided, dynamic=False, backend=counter)(state, seats, draws), expected)
    assert counter.frame_count == 1


def test_scripted_players_in_torch_are_those_that_the_game_has() -> None:
    class Own(Strategy):
        """It may act in another way."""

    @dataclass(frozen=True, kw_only=True)
    class Changed(Skirmish):
        def bots(self) -> Mapping[str, Any]:
            own = Own(workers=4, trains=(rules.BOW,), army=1)
            return {"random": RandomBot(), "slow": replace(STRATEGIES["rush"], army=9), "own": own}

    game = tensor_game_of(Changed())
    assert game is not None
    bots = game.tensor_bots()
    assert bots is not None
    assert bots.names == ("slow",)
    assert [*game.bots()] == ["random", "slow"]


@pytest.mark.parametrize("separate", [False, True])
def test_strategies_to_follow_equal_those_of_the_cpu(separate: bool) -> None:
    """Seats see them, and are rewarded for building them."""
    source = WithStrategies(
        game=Skirmish(), strategies="skirmish", types=5, fade=(8, 40, 100), shown=0.8, active=0.7, separate=separate
    )
    game = tensor_game_of(source)
    assert isinstance(game, TensorStrategies)
    assert fixed_shape_faults(game, rows=4) == []
    bots = [InnerBot(STRATEGIES["boom"]), RandomBot()]
    assert twin_differences(game, source, steps=36, seed=3, tables=6, bots=bots) == []


def test_edit_distances_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    known = EditDistances((40,), 6)

    def sequences(count: int) -> Any:
        items = rng.integers(0, 3, (count, 6)).astype(np.int16)
        return np.where(np.arange(6) < rng.integers(0, 7, count)[:, None], items, -1).astype(np.int16)

    goals, built = sequences(40), sequences(40)
    known.begin(np.arange(40), goals)
    found = edit_distances(torch.from_numpy(built), torch.from_numpy(goals))
    np.testing.assert_array_equal(found.numpy(), known.of(built))


def test_skirmish_of_heroes_has_no_tensor_game() -> None:
    source = resolve("skirmish", mode="3v3")
    assert tensor_game_of(source) is None
    assert tensor_faults(source, steps=2) is None


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


def test_a_bot_that_chooses_what_it_may_not_is_named() -> None:
    class Two(TensorBots):
        names = ("wrong", "right")

        def act(self, numbers: Any, observation: Any, legal: Any, draws: Any) -> dict[str, torch.Tensor]:
            taken, free = (one.int().argmax(1) for one in (~legal["move"], legal["move"]))
            return {"move": torch.where(numbers == 0, taken, free)}

    class WithBots(TensorTicTacToe):
        def tensor_bots(self) -> TensorBots:
            return Two()

    [found] = fixed_shape_faults(WithBots(resolve("tic_tac_toe")))
    assert found == "bot wrong: move is an illegal option"


def test_a_bot_that_chooses_what_does_not_exist_is_named() -> None:
    class Off(TensorBots):
        names = ("off",)

        def act(self, numbers: Any, observation: Any, legal: Any, draws: Any) -> dict[str, torch.Tensor]:
            return {"move": torch.full_like(numbers, 9)}

    class WithBots(TensorTicTacToe):
        def tensor_bots(self) -> TensorBots:
            return Off()

    assert fixed_shape_faults(WithBots(resolve("tic_tac_toe"))) == ["bot off: move is an illegal option"]


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
