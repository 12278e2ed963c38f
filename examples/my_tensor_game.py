"""A game of your own in torch, whose tables can live on a GPU: Nim. Two seats take one to three stones of a pile in
turn; who takes the last one wins.

    ludus check examples/my_tensor_game.py:Nim
    ludus train examples/my_tensor_game.py:experiment
    ludus train examples/my_tensor_game.py:Nim --runtime device
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from ludus import ActorConfig, ActorCritic, Experiment, LearnerConfig
from ludus.games import (
    ActionSpec,
    Choice,
    GameSpec,
    ObservationSpec,
    TensorBots,
    TensorGame,
    TensorState,
    TensorStep,
    Vector,
)
from ludus.league import PFSP, BySteps, LeagueRules, Mixture, Role, SelfPlay

MOST = 3


@dataclass(frozen=True)
class NimBots(TensorBots):
    """Scripted players: one takes as many stones as it may, the other leaves a multiple of four where it can."""

    names = ("greedy", "perfect")

    def act(
        self, numbers: Tensor, observation: dict[str, Tensor], legal: dict[str, Tensor], draws: Tensor
    ) -> dict[str, Tensor]:
        greedy = legal["take"].sum(1) - 1
        perfect = (observation["pile"].argmax(1) % (MOST + 1) - 1).clamp(min=0)
        return {"take": torch.where(numbers == 0, greedy, perfect)}


@dataclass(frozen=True, kw_only=True)
class Nim(TensorGame):
    """Options: the number of stones in the pile. Half of the episodes begin with one stone less."""

    stones: int = 21
    start_draws = 1  # one random number per episode

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="nim",
            num_seats=2,
            observation=ObservationSpec(parts={"pile": Vector(size=self.stones + 1)}),
            action=ActionSpec(heads={"take": Choice(num=MOST)}),
            max_length=self.stones,
        )

    def tensor_bots(self) -> NimBots:
        return NimBots()

    def start(self, draws: Tensor) -> TensorState:
        pile = self.stones - (draws[:, 0] < 0.5).long()
        return {"pile": pile.to(torch.int16), "turn": torch.zeros_like(pile, dtype=torch.int8)}

    def to_act(self, state: TensorState) -> Tensor:
        return torch.arange(2, device=state["turn"].device) == state["turn"].unsqueeze(1)

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        return {"pile": functional.one_hot(state["pile"].long(), self.stones + 1).float()}

    def legal(self, state: TensorState, seats: Tensor) -> Tensor:
        fits = torch.arange(MOST, device=seats.device) < state["pile"].unsqueeze(1)
        return fits | (state["pile"] == 0).unsqueeze(1)  # every row needs an option, also those that nobody reads

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        first = state["turn"] == 0
        taken = torch.where(first, actions[:, 0], actions[:, 1]) + 1
        pile = (state["pile"] - taken).to(torch.int16)
        over = pile <= 0
        won = torch.where(first, 1.0, -1.0) * over
        after = {"pile": pile.clamp(min=0), "turn": 1 - state["turn"]}
        return TensorStep(after, torch.stack((won, -won), 1), over)


def experiment() -> Experiment:
    opponents = Mixture(branches=((0.6, SelfPlay()), (0.4, PFSP(include_scripted=True))))
    main = Role(matchmaking=opponents, promotion=BySteps(every=50_000))
    return Experiment(
        name="nim",
        game=Nim(),
        budget=200_000,
        model=ActorCritic(hidden=(64,), activation="relu"),
        actor=ActorConfig(num_tables=256, matches=2, episodes_per_table=16),
        learner=LearnerConfig(batch_size=4_096, minibatch_size=1_024, epochs=3, learning_rate=1e-3),
        league=LeagueRules(roles={"main": main}, bots=("random", "greedy", "perfect")),
        runtime="device",
    )
