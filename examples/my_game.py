"""A game of your own: liar's dice. Each of two seats hides one die; they bid in turn how many dice show a face.

    ludus check examples/my_game.py:LiarsDice
    ludus train examples/my_game.py:experiment

In about ten seconds on one core the player beats a random one in four games of five.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.experiment import Experiment
from ludus.games.game import Turn
from ludus.games.lift import Lifted
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.workers.actor import ActorConfig
from ludus.workers.trained_player import LearnerConfig

FACES = 6
BIDS = 2 * FACES
"""Bid b says that at least b // FACES + 1 dice show face b % FACES; every bid must be above the last one."""
LIAR = BIDS
"""The action that doubts the last bid and ends the game."""


class LiarsDice:
    spec = GameSpec.symmetric(
        name="liars_dice",
        num_seats=2,
        observation=ObservationSpec(parts={"die": Vector(size=FACES), "last_bid": Vector(size=BIDS + 1)}),
        action=ActionSpec(heads={"bid": Choice(num=BIDS + 1)}),
        max_length=BIDS + 1,
    )

    def reset(self, seed: int) -> Turn:
        self.dice = np.random.default_rng(seed).integers(FACES, size=2)
        self.bid, self.mover = -1, 0
        return self.turn()

    def step(self, actions: Mapping[int, int]) -> Turn:
        action, bidder = actions[self.mover], 1 - self.mover
        if action == LIAR:
            holds = np.sum(self.dice == self.bid % FACES) > self.bid // FACES
            winner = bidder if holds else self.mover
            return Turn(observations={}, over=True, reward={winner: 1.0, 1 - winner: -1.0})
        self.bid, self.mover = action, bidder
        return self.turn()

    def turn(self) -> Turn:
        """What the mover sees: its own die and the last bid, but never the other die."""
        die = np.eye(FACES)[self.dice[self.mover]]
        last_bid = np.eye(BIDS + 1)[self.bid]  # before the first bid that is -1: the last flag
        legal = np.arange(BIDS + 1) > self.bid
        legal[LIAR] = self.bid >= 0
        return Turn(
            observations={self.mover: {"die": die, "last_bid": last_bid}}, legal={self.mover: legal}
        )


def experiment() -> Experiment:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=15_000))
    return Experiment(
        name="liars_dice",
        game=Lifted(LiarsDice),
        budget=50_000,
        actor=ActorConfig(num_tables=256),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=512, epochs=4, learning_rate=3e-3),
        league=LeagueRules(roles={"main": main}, bots=("random",)),
    )
