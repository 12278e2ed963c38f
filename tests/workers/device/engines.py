"""Small engines for tests, with every block in self-play."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ludus import PPO, ActorCritic, AlphaStar, LearnerConfig
from ludus.algorithms.algorithm import Algorithm
from ludus.data.specs import GameSpec
from ludus.games import resolve
from ludus.games.adapters.slimevolley import SlimeVolley
from ludus.games.builtin.skirmish_view import X, Y
from ludus.games.device.tensor_game import (
    TensorActions,
    TensorGame,
    TensorMasks,
    TensorState,
    TensorStep,
    tensor_game_of,
)
from ludus.models import Scatter
from ludus.models.policy import ModelConfig
from ludus.workers.config import DeviceConfig, Openings
from ludus.workers.device.engine import Engine
from ludus.workers.device.rollout import Layout
from ludus.workers.trained_player import TrainedPlayer

MODEL = ActorCritic(hidden=(16,))
SMALL_ALPHASTAR = AlphaStar(
    scalar_size=4,
    entity_size=8,
    entity_hidden=8,
    map_channels=4,
    down=(4, 4),
    spatial_size=8,
    hidden=(16,),
    memory=0,
    action_size=8,
    head_hidden=8,
    key_size=4,
    embedding_size=8,
    up=(4,),
    value_size=8,
    central_critic=True,
    scatter=(Scatter(entities="entities", onto="minimap", x=X, y=Y),),
    scatter_channels=2,
)


@dataclass(frozen=True)
class CutOff(TensorGame):
    """A tensor game whose episodes are truncated after `length` steps."""

    game: str = "goofspiel"
    length: int = 3

    @cached_property
    def inner(self) -> TensorGame:
        found = tensor_game_of(resolve(self.game))
        assert found is not None
        return found

    @cached_property
    def spec(self) -> GameSpec:
        return replace(self.inner.spec, name=f"cut_off_{self.game}", max_length=self.length)

    @property
    def simultaneous(self) -> bool:  # type: ignore[override]
        return self.inner.simultaneous

    @property
    def start_draws(self) -> int:  # type: ignore[override]
        return self.inner.start_draws

    @property
    def step_draws(self) -> int:  # type: ignore[override]
        return self.inner.step_draws

    def start(self, draws: Tensor) -> TensorState:
        steps = torch.zeros(len(draws), dtype=torch.int8, device=draws.device)
        return {**self.inner.start(draws), "steps": steps}

    def to_act(self, state: TensorState) -> Tensor:
        return self.inner.to_act(state)

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        return self.inner.observe(state, seats)

    def legal(self, state: TensorState, seats: Tensor) -> TensorMasks:
        return self.inner.legal(state, seats)

    def step(self, state: TensorState, actions: TensorActions, draws: Tensor) -> TensorStep:
        played, steps = self.inner.step(state, actions, draws), state["steps"] + 1
        cut = ~played.over & (steps >= self.length)
        return played._replace(state={**played.state, "steps": steps}, over=played.over | cut, truncated=cut)


slimevolley = SlimeVolley(max_length=7)
cut_goofspiel, cut_leduc, cut_skirmish = CutOff("goofspiel", 3), CutOff("leduc", 3), CutOff("skirmish", 3)


def new_players(
    game: Any, count: int, algorithm: Algorithm, config: LearnerConfig, model: ModelConfig = MODEL
) -> list[TrainedPlayer]:
    kind = game.spec.kinds[0]
    return [
        TrainedPlayer(f"p{number}", (model.build(kind, number),), algorithm, config, seed=number)
        for number in range(count)
    ]


def new_engine(
    address: str,
    *,
    learners: int = 1,
    tables: int = 16,
    matches: int = 2,
    batch: int = 128,
    minibatch: int = 64,
    epochs: int = 1,
    algorithm: Algorithm | None = None,
    config: DeviceConfig | None = None,
    episodes: int = 4,
    seed: int = 0,
    openings: Openings | None = None,
    model: ModelConfig = MODEL,
    unroll: int = 8,
    **options: Any,
) -> Engine:
    game = tensor_game_of(resolve(address, **options))
    assert game is not None
    learner = LearnerConfig(batch_size=batch, minibatch_size=minibatch, epochs=epochs, learning_rate=1e-2, device="cpu")
    players = new_players(game, learners, algorithm or PPO(), learner, model)
    layout = Layout.fit(
        game,
        learners=learners,
        num_tables=tables,
        matches=matches,
        batch_size=batch,
        unroll_length=unroll if players[0].is_whole else None,
    )
    engine = Engine(game, layout, players, config or DeviceConfig(), seed=seed, openings=openings or Openings())
    for block in range(layout.num_blocks):
        player = block // layout.blocks
        engine.seat(block, [player] * layout.sides, [True] * layout.sides, episodes)
    engine.expect([layout.blocks * layout.sides] * learners)
    return engine
