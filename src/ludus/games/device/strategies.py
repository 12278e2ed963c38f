"""Strategies to follow in torch: the twin of `WithStrategies` around a tensor game whose seats build things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.data.trees import Tree
from ludus.games.device.tensor_game import (
    START,
    Function,
    TensorActions,
    TensorBots,
    TensorGame,
    TensorMasks,
    TensorState,
    TensorStep,
    TensorTwin,
    below_one,
    tensor_game_of,
)
from ludus.games.game import GameSource
from ludus.games.strategies import FADED, WithStrategies, strategy_draws

_PREFIX = "strategy."
"""Of the arrays that are added to the state of the game."""


class Builds(Protocol):
    """A tensor game in which seats build things."""

    def built(self, state: TensorState) -> tuple[Tensor, Tensor]:
        """What each seat has built: its order [rows, seats, places], -1 after the end, and [rows, seats, facts]."""


class _Known(NamedTuple):
    """All strategies of the file, on a device."""

    build_order: Tensor
    built: Tensor
    features: dict[str, Tensor]
    faded: Tensor


@dataclass(frozen=True)
class TensorStrategies(TensorTwin):
    """Adds to the state, by seat: the `number` of the strategy, whether it is `shown`, which rewards are `active`, and
    the `distance` [rows, seats, rewards]; and the `clock` [rows]."""

    @classmethod
    def of(cls, game: GameSource) -> TensorStrategies | None:
        """None if the game inside has no tensor game, or strategies say where things are built."""
        assert isinstance(game, WithStrategies)
        inner = tensor_game_of(game.game)
        fits = inner is not None and hasattr(inner, "built") and game.known.build_place is None
        return cls(game) if fits else None

    @cached_property
    def inner(self) -> TensorGame:
        inner = tensor_game_of(self._source.game)
        assert inner is not None
        return inner

    @property
    def _source(self) -> WithStrategies:
        assert isinstance(self.game, WithStrategies)
        return self.game

    @property
    def simultaneous(self) -> bool:  # type: ignore[override]
        return self.inner.simultaneous

    @property
    def start_draws(self) -> int:  # type: ignore[override]
        return self.inner.start_draws + self.spec.num_seats * (2 + self._num_rewards)

    @property
    def step_draws(self) -> int:  # type: ignore[override]
        return self.inner.step_draws

    def tensor_bots(self) -> TensorBots | None:
        """They look at what the game inside shows them, not at strategies."""
        return self.inner.tensor_bots()

    @property
    def _num_rewards(self) -> int:
        return 1 + len(self._source.facts)

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        inner = self.inner.draws(seeds, step)
        if step != START:
            return inner
        source = self._source
        drawn = strategy_draws(source, seeds, self.spec.num_seats)
        number = (drawn.number + 0.5) / len(source.known)
        # What is below its probability becomes 0, so that rounding to float32 changes no decision.
        lucky = np.concatenate((drawn.shown[..., None], drawn.active), 2)
        own = np.concatenate((number[..., None], np.where(lucky, 0.0, 1.0)), 2)
        return np.concatenate((inner, below_one(own.reshape(len(seeds), self.start_draws - inner.shape[1]))), 1)

    @cached_property
    def _tables(self) -> dict[torch.device, _Known]:
        return {}

    def _known(self, device: torch.device) -> _Known:
        if device not in self._tables:
            source = self._source
            strategies = source.known
            features: Tree = source.features(strategies, np.ones(len(strategies), np.bool_))
            order, built = (
                torch.from_numpy(one.copy()).to(device) for one in (strategies.build_order, strategies.built)
            )
            self._tables[device] = _Known(
                order.to(torch.int16),
                built,
                {name: torch.from_numpy(array).to(device) for name, array in features.items()},
                torch.from_numpy(FADED).to(device),
            )
        return self._tables[device]

    def start(self, draws: Tensor) -> TensorState:
        inner, own = draws[:, : self.inner.start_draws], draws[:, self.inner.start_draws :]
        source, known = self._source, self._known(draws.device)
        state = self.inner.start(inner)
        own = own.view(len(draws), self.spec.num_seats, 2 + self._num_rewards)
        number = (own[:, :, 0] * len(source.known)).int().clamp(max=len(source.known) - 1)
        shown = own[:, :, 1] < source.shown
        if source.fixed is not None:
            number, shown = torch.full_like(number, source.fixed), torch.ones_like(shown)
        added = {
            "number": number,
            "shown": shown,
            "active": (own[:, :, 2:] < source.active) & shown.unsqueeze(2),
            "distance": self._distances(state, number, known),
            "clock": torch.zeros(len(draws), dtype=torch.int32, device=draws.device),
        }
        return {**state, **{_PREFIX + name: tensor for name, tensor in added.items()}}

    def to_act(self, state: TensorState) -> Tensor:
        return self.inner.to_act(state)

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        seen = self.inner.observe(state, seats)
        number, shown = (state[_PREFIX + name].gather(1, seats.unsqueeze(1)).squeeze(1) for name in ("number", "shown"))
        for name, table in self._known(seats.device).features.items():
            rows = table.index_select(0, number)
            seen[name] = torch.where(shown.view(-1, *(1,) * (rows.dim() - 1)), rows, 0)
        return seen

    def legal(self, state: TensorState, seats: Tensor) -> TensorMasks:
        return self.inner.legal(state, seats)

    def step(self, state: TensorState, actions: TensorActions, draws: Tensor) -> TensorStep:
        return self._followed(state, self.inner.step(state, actions, draws))

    def step_apart(self, compiled: Callable[[Function], Function]) -> Callable[..., TensorStep] | None:
        inner, followed = self.inner.step_apart(compiled), compiled(self._followed)
        if inner is None:
            return None
        return lambda state, actions, draws: followed(state, inner(state, actions, draws))

    def _followed(self, state: TensorState, played: TensorStep) -> TensorStep:
        """The step with the rewards for following the strategies."""
        source, known = self._source, self._known(state[_PREFIX + "clock"].device)
        clock = state[_PREFIX + "clock"] + (1 if played.elapsed is None else played.elapsed)
        passed = torch.zeros_like(clock)
        for time in source.fade or ():
            passed = passed + (clock >= time)
        faded = known.faded.index_select(0, passed).view(-1, 1, 1)
        after = self._distances(played.state, state[_PREFIX + "number"], known)
        gained = source.scale * faded * state[_PREFIX + "active"] * (state[_PREFIX + "distance"] - after)
        kept = {_PREFIX + name: state[_PREFIX + name] for name in ("number", "shown", "active")}
        now = {**played.state, **kept, _PREFIX + "distance": after, _PREFIX + "clock": clock.int()}
        others = played.rewards
        rewards = gained if others is None else torch.cat((others, gained), 2)
        # Not `_replace`: what it returns from a compiled function is empty in PyTorch 2.11.
        return TensorStep(now, played.reward, played.over, played.elapsed, rewards, played.truncated)

    def _distances(self, state: TensorState, number: Tensor, known: _Known) -> Tensor:
        """[rows, seats, rewards]: distance between what was built and the strategy, as a share of its size."""
        order, built = cast("Builds", self.inner).built(state)
        goal, wrong = known.build_order[number.long()], built != known.built[number.long()]
        facts = [wrong[:, :, rows].sum(2) / (rows.stop - rows.start) for rows in self._source.facts.values()]
        return torch.stack((edit_distances(order, goal) / order.shape[2], *facts), 2)


def edit_distances(sequences: Tensor, goals: Tensor) -> Tensor:
    """Levenshtein distances of sequences [..., size] from the prefixes of the same length of their goals. Both hold -1
    after the end."""
    places = torch.arange(sequences.shape[-1] + 1, device=goals.device)
    row = places.expand(*goals.shape[:-1], -1)
    for place in range(sequences.shape[-1]):
        item = sequences[..., place : place + 1]
        replaced = row[..., :-1] + (goals != item)
        best = torch.cat((row[..., :1] + 1, torch.minimum(replaced, row[..., 1:] + 1)), -1)
        # The minimum of best[k] + j - k over k <= j: the sequence may leave out items of the goal.
        longer: Any = (best - places).cummin(-1).values + places
        row = torch.where(item >= 0, longer, row)
    lengths = [(one >= 0).sum(-1, keepdim=True) for one in (sequences, goals)]
    return row.gather(-1, torch.minimum(*lengths)).squeeze(-1)
