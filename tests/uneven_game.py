"""A game whose roles decide who scores more: one step, in which every seat may work (1) or not (0).

The chief gets 100 and its work; each pair of hands gets its own work, half of the chief's, and a small draw. So a chief
always has the higher score, and working is better in every role. It is not zero-sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Vector
from ludus.games.bots import AlwaysBot
from ludus.games.game import Action, Seat, Turn
from ludus.games.lift import Lifted

CHIEF_GETS = 100.0
WORK = ActionSpec(heads={"work": Choice(num=2)})


def uneven_spec(hands: int) -> GameSpec:
    """A chief against `hands` teams of two seats."""
    kinds = tuple(
        SeatKind(name=name, observation=ObservationSpec(parts={"luck": Vector(size=size)}), action=WORK)
        for name, size in (("chief", 1), ("hand", 2))
    )
    seats, teams = (0, *(1, 1) * hands), (0, *(team for team in range(1, hands + 1) for _ in range(2)))
    return GameSpec(name="uneven", kinds=kinds, seats=seats, teams=teams, max_length=1, zero_sum=False)


class Uneven:
    """One table."""

    spec = uneven_spec(1)

    def reset(self, seed: int) -> Turn:
        self._luck = np.random.default_rng(seed).uniform(-0.2, 0.2, self.spec.num_teams)
        return Turn(observations={seat: {"luck": np.zeros(1 + kind)} for seat, kind in enumerate(self.spec.seats)})

    def step(self, actions: Mapping[Seat, Action]) -> Turn:
        work = [np.mean([float(actions[seat]) for seat in seats]) for seats in self.spec.seats_of_team]  # type: ignore[arg-type]
        score = [float(own + luck) for own, luck in zip(work, self._luck, strict=True)]
        score[0] += CHIEF_GETS
        score[1:] = [one + float(work[0]) / 2 for one in score[1:]]
        reward = [score[team] for team in self.spec.teams]
        return Turn(observations={}, reward=reward, over=True, score=score)


class UnevenOfThree(Uneven):
    spec = uneven_spec(2)


BOTS = {"works": AlwaysBot(action=1), "rests": AlwaysBot(action=0)}
UNEVEN = Lifted(Uneven, extra_bots=BOTS)
UNEVEN_OF_THREE = Lifted(UnevenOfThree, extra_bots=BOTS)
