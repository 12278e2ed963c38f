"""Plays whole games of bots against bots."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.game import Bot, GameBatch, GameSource, allocate_actions

Play = Callable[..., NDArray[np.float32]]


def step_with_bots(game: GameBatch, bots: Sequence[Bot], rng: np.random.Generator) -> None:
    """One step, seat i played by bots[i]."""
    spec = game.spec
    actions = allocate_actions(spec, game.num_tables)
    for seat, bot in enumerate(bots):
        tables = np.flatnonzero(game.view.to_act[:, seat])
        if len(tables):
            chosen = bot.act(game, tables, np.full(len(tables), seat), rng)
            for head, values in chosen.items():
                actions[spec.seats[seat]][head][tables, spec.column_of_seat[seat]] = values
    game.step(actions)


def play_episodes(source: GameSource, bots: Sequence[Bot], num_tables: int = 100, seed: int = 0) -> NDArray[np.float32]:
    """One episode per table; returns the scores [tables, teams]."""
    game = source.tables(num_tables)
    rng = np.random.default_rng(seed)
    game.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    while game.view.to_act.any():
        step_with_bots(game, bots, rng)
    return game.view.score


@pytest.fixture
def play() -> Play:
    return play_episodes


@pytest.fixture
def bot_step() -> Callable[[GameBatch, Sequence[Bot], np.random.Generator], None]:
    return step_with_bots
