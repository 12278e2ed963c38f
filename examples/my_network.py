"""Your own network: a small module for tic-tac-toe that applies the same weights to each of the eight lines.

    ludus train examples/my_network.py:experiment

After 30,000 decisions, within ten seconds on one core, the player beats a random one in nine games of ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ludus import ActorConfig, BySteps, Experiment, LeagueRules, LearnerConfig, ModulePolicy, Role, SeatKind, SelfPlay
from ludus.games import TicTacToe

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class LineNetwork(nn.Module):
    """Rates a cell by the marks in its lines, with the same weights for every line of the board."""

    lines: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("lines", torch.tensor(LINES))
        self.read_line = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.rate_cell = nn.Linear(width, 3)
        self.rate_position = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.rate_place = nn.Parameter(torch.zeros(9))

    def forward(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits [rows, 9] and values [rows]. `ModulePolicy` masks illegal moves."""
        board = observation["board"].reshape(-1, 2, 9)  # [rows, mine or theirs, cell]
        lines = board[:, :, self.lines].movedim(1, 2).flatten(2)  # [rows, line, 6]
        features = self.read_line(lines)
        logits = self.rate_place.repeat(len(board), 1)
        logits = logits.index_add(1, self.lines.flatten(), self.rate_cell(features).flatten(1))
        return logits, self.rate_position(features.mean(1)).squeeze(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """The model of an experiment: holds its settings and builds it for a kind of seat."""

    width: int = 32

    def build(self, kind: SeatKind, seed: int) -> ModulePolicy:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ModulePolicy(kind, LineNetwork(self.width))


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=15_000))
    return Experiment(
        name="lines",
        game=TicTacToe(),
        budget=45_000,
        model=Lines(width=32),
        actor=ActorConfig(num_tables=128),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=512, epochs=4, learning_rate=5e-3),
        league=LeagueRules(roles={"main": main}, bots=("random",)),
    )
