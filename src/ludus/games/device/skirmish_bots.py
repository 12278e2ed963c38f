"""The scripted commanders of skirmish in torch. They choose as those in `builtin/skirmish_bots.py` do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ludus.games.builtin import skirmish_rules as rules, skirmish_view as view
from ludus.games.builtin.skirmish_bots import IDLE_TICKS, ORDER_TICKS, REINFORCEMENTS, Strategy
from ludus.games.device.tensor_game import TensorBots
from ludus.games.game import Bot

_LEAST, _MOST = IDLE_TICKS
_NEAR = (rules.NOTICE / rules.MAP) ** 2


class _Parameters(NamedTuple):
    """Of all strategies, by number."""

    workers: Tensor
    army: Tensor
    shares: Tensor
    """[strategies, trained kinds]: how often each kind is named; a kind that is not trained has the share 0."""

    @classmethod
    def on(cls, strategies: tuple[Strategy, ...], device: torch.device) -> _Parameters:
        shares = [[one.trains.count(kind) for kind in rules.TRAINED] for one in strategies]
        return cls(
            torch.tensor([one.workers for one in strategies], device=device),
            torch.tensor([one.army for one in strategies], device=device),
            torch.tensor(shares, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True)
class TensorCommanders(TensorBots):
    """Strategies of commanders, as one computation."""

    strategies: Mapping[str, Strategy]
    draws: ClassVar[int] = 1

    @classmethod
    def of(cls, bots: Mapping[str, Bot]) -> Self | None:
        """The strategies among the bots; None if there are none."""
        found = {name: bot for name, bot in bots.items() if type(bot) is Strategy}
        return cls(found) if found else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.strategies)

    @cached_property
    def _on(self) -> dict[torch.device, _Parameters]:
        return {}

    def _parameters(self, device: torch.device) -> _Parameters:
        if device not in self._on:
            self._on[device] = _Parameters.on(tuple(self.strategies.values()), device)
        return self._on[device]

    def act(
        self, numbers: Tensor, observation: dict[str, Tensor], legal: dict[str, Tensor], draws: Tensor
    ) -> dict[str, Tensor]:
        workers, army, shares = (one.index_select(0, numbers) for one in self._parameters(numbers.device))
        entities = observation["entities"][:, : rules.SLOTS]  # own units come first, before them their base
        own, kind = legal["units"][:, : rules.SLOTS], entities[:, :, view.KIND]
        orders = entities[:, :, view.ORDER : view.ORDER + rules.GATHER] > 0
        idle = own & ~orders.any(2)
        idle_workers = idle & (kind == rules.WORKER)
        at_x, at_y = entities[:, :, view.X], entities[:, :, view.Y]
        x, y = 1.0 - at_x[:, :1], 1.0 - at_y[:, :1]  # the enemy's base is opposite to the own one
        # A fighter at the enemy's base fights there without a further order.
        there = (at_x - x) ** 2 + (at_y - y) ** 2 <= _NEAR
        fighter = own & (kind >= rules.SPEAR) & (kind <= rules.BOW)
        ready = idle & fighter & ~there
        gone = fighter & (there | orders[:, :, rules.ADVANCE - 1])
        enough = torch.where(gone.any(1), REINFORCEMENTS, army)

        train = _wanted(observation["scalars"], workers, shares)
        trains = legal["action"].gather(1, train.unsqueeze(1)).squeeze(1)
        action = torch.where(ready.sum(1) >= enough, rules.ADVANCE, rules.NO_OP)
        action = torch.where(trains, train, action)
        action = torch.where(idle_workers.any(1), rules.GATHER, action)
        gathers, advances = action == rules.GATHER, action == rules.ADVANCE
        units = (idle_workers & gathers.unsqueeze(1)) | (ready & advances.unsqueeze(1))
        looks = _LEAST + (draws[:, 0] * (_MOST - _LEAST + 1)).long()
        column, row = ((at[:, 0] * rules.MAP / rules.CELL).long().clamp(0, rules.CELLS - 1) for at in (x, y))
        return {
            "action": action,
            "delay": torch.where(action == rules.NO_OP, looks, ORDER_TICKS) - 1,
            "units": _first_picks(units),
            "target_unit": torch.zeros_like(action),
            "target_point": row * rules.CELLS + column,
        }


def _wanted(scalars: Tensor, workers: Tensor, shares: Tensor) -> Tensor:
    """[rows]: the action that trains the most needed kind."""
    # Rounded, since a GPU may add and multiply in one step: the numbers of units are compared.
    counts = (scalars[:, view.COUNTS] * view.COUNT_UNIT + scalars[:, view.QUEUED] * rules.QUEUE).round()
    have = torch.where(shares > 0, counts / shares.clamp(min=1), torch.inf)
    kind = torch.where(counts[:, 0] < workers - 0.5, 0, have.argmin(1))
    return kind + rules.TRAIN[rules.WORKER]


def _first_picks(units: Tensor) -> Tensor:
    """[rows, PICKS]: the first units of each row, then -1."""
    place = torch.arange(units.shape[1], device=units.device)
    number = torch.arange(1, rules.PICKS + 1, device=units.device).unsqueeze(1)
    picked = (units.cumsum(1).unsqueeze(1) == number) & units.unsqueeze(1)
    return (picked * (place + 1)).sum(2) - 1
