"""The interface of games in torch, whose tables live on the device that trains, and their tables for the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ludus.data.addresses import load_address
from ludus.data.specs import GameSpec, Pointer
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import Rows
from ludus.games.catalog import ADAPTERS
from ludus.games.game import Actions, Bot, GameBatch, GameSource
from ludus.games.isolation.isolated import Isolated
from ludus.games.seeding import uniform
from ludus.games.tables import ArrayTables, GameDefaults

TensorState = dict[str, Tensor]
"""The state of the tables, as compact as the game can make it: name -> [rows, ...]."""
TensorActions = Any
"""A tensor [rows, seats] int64; if there are several heads, a dict of them by head, with [rows, seats, picks] where a
head picks several."""
TensorMasks = Tensor | dict[str, Tensor]
"""[rows, options] bool; by head for those that are masked, if there are several."""
Function = Callable[..., Any]
START = -1
"""The number of the step before the first one, for `TensorGame.draws`."""


class TensorStep(NamedTuple):
    """The result of `TensorGame.step`."""

    state: TensorState
    """At a table that is over it is never read, unless its episode is truncated."""
    reward: Tensor
    """[rows, seats] float32."""
    over: Tensor
    """[rows] bool."""
    elapsed: Tensor | None = None
    """[rows]: game time that the step took, where the spec is `timed`."""
    rewards: Tensor | None = None
    """[rows, seats, names] float32: the further rewards of the kind of seat, if it has any."""
    truncated: Tensor | None = None
    """[rows] bool: where the episode is `over` but not by the rules, so that the future still has value. None: nowhere,
    in any step."""


class TensorBots(ABC):
    """Scripted players of a tensor game in torch, which can be opponents in training on a device.

    All of them are one computation with parameters by row, not one after the other. Usually a frozen dataclass.
    """

    draws: ClassVar[int] = 0
    """Uniform numbers that a decision uses."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The bots by number."""

    @abstractmethod
    def act(
        self, numbers: Tensor, observation: dict[str, Tensor], legal: dict[str, Tensor], draws: Tensor
    ) -> dict[str, Tensor]:
        """What bot `numbers[row]` chooses, by head: [rows] int64, or [rows, picks] of a head that picks several, with
        -1 after the last pick. `observation` and `legal`, by head, are those of the seat that it plays; `draws`
        [rows, draws]. The rules for `TensorGame` hold. It is called once as it is before it is compiled or recorded,
        so that constants can be put on the device. Rows that are ignored may hold anything finite."""


class TensorGame(GameDefaults, ABC):
    """The rules of a game as pure functions of tensors, one row per table.

    A row depends on nothing but its state, its actions and its random numbers. Shapes are fixed, and no Python branch,
    `.item()`, `tensor[mask]` or `torch.tensor([...])` is allowed in the five methods: they are compiled and recorded
    in a CUDA graph. The score of a team is the sum of its rewards in the episode. A game need not
    reset itself: the engine starts tables that are over again.

    Usually a frozen dataclass with the options of the game. It is also a `GameSource`: every runtime can play it.
    """

    TENSOR_TWIN: ClassVar[str] = ""
    """A game for the CPU names its tensor game here; this is one itself."""
    start_draws: ClassVar[int] = 0
    """Uniform numbers that the start of an episode uses."""
    step_draws: ClassVar[int] = 0
    """Uniform numbers that a step uses, whether or not chance has a part in it."""
    simultaneous: ClassVar[bool] = False
    """Whether several seats may act in the same step."""
    recordable: ClassVar[bool] = True
    """Whether `start` and `step` are operations of torch only. If not, the engine neither compiles them nor records
    play, but only what surrounds them and learning."""
    seen: ClassVar[tuple[str, ...]] = ()
    """The parts of the state that `to_act`, `observe` and `legal` read, which are kept for learning; empty: all."""

    @property
    @abstractmethod
    def spec(self) -> GameSpec:
        """One kind of seat, and one seat per team."""

    @abstractmethod
    def start(self, draws: Tensor) -> TensorState:
        """New episodes at `len(draws)` tables, on the device of `draws` [rows, start_draws], float32 in [0, 1)."""

    @abstractmethod
    def to_act(self, state: TensorState) -> Tensor:
        """[rows, seats] bool: whether a seat must act now; at least one of them must."""

    @abstractmethod
    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        """What seat `seats[row]` of each table sees, by array: [rows, ...]. A list of entities NAME also has the array
        NAME_length, and a critic-only part PART is called critic.PART. Rows of seats that need not act are ignored,
        but must be finite."""

    @abstractmethod
    def legal(self, state: TensorState, seats: Tensor) -> TensorMasks:
        """[rows, options] bool: what these seats may choose; at least one option, also where it is ignored. A game with
        several heads returns the masks by head; those of a head with a condition may be empty."""

    @abstractmethod
    def step(self, state: TensorState, actions: TensorActions, draws: Tensor) -> TensorStep:
        """Play the actions [rows, seats] int64, or those of each head by its name; those of seats that need not act
        are to be ignored. A game in real time goes on until a seat must act."""

    def step_apart(self, compiled: Callable[[Function], Function]) -> Callable[..., TensorStep] | None:
        """What the engine calls in place of `step` without compiling it; it may call parts that `compiled` has
        compiled. None: `step` is compiled together with what surrounds it, which takes minutes where `step` has a long
        loop, since it is unrolled."""
        return None if self.recordable else self.step

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        """[rows, draws]: the random numbers of tables on the CPU by seed, at their start (`START`) or in a step. A game
        with a CPU twin gives those with which it plays as its twin does from the same seed."""
        first, number = (0, self.start_draws) if step == START else (self.start_draws, self.step_draws)
        counters = first + max(step, 0) * self.step_draws + np.arange(number)
        return below_one(uniform(seeds[:, None], counters[None, :]))

    def tables(self, num_tables: int) -> TensorTables:
        return TensorTables(self, num_tables)

    def tensor_bots(self) -> TensorBots | None:
        """Scripted players that can play on the device, if there are any."""
        return None

    def bots(self) -> Mapping[str, Bot]:
        """Those of `tensor_bots` too, so that they play on a CPU as on a device."""
        bots = self.tensor_bots()
        own = {} if bots is None else {name: _BotOnCpu(bots, number) for number, name in enumerate(bots.names)}
        return {**super().bots(), **own}

    def require_device(self, device: torch.device) -> None:
        """Raise a ValueError if the game cannot live on this device."""

    def seen_of(self, state: TensorState) -> TensorState:
        """The parts of the state that `seen` names."""
        return {name: state[name] for name in self.seen} if self.seen else state

    def masks(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        """`legal` by head."""
        found = self.legal(state, seats)
        return found if isinstance(found, dict) else {self.head: found}

    def given(self, actions: Mapping[str, Tensor]) -> TensorActions:
        """Actions by head as `step` takes them."""
        return dict(actions) if len(actions) > 1 else actions[self.head]

    @property
    def head(self) -> str:
        """The first head, which is the only one of most games."""
        return next(iter(self.spec.kinds[0].action.heads))

    @property
    def num_options(self) -> int:
        return self.spec.kinds[0].num_options(self.head)

    def checked(self) -> Self:
        """The game, if its spec is one that tensors can play; else a ValueError."""
        spec = self.spec
        if len(spec.kinds) != 1:
            raise ValueError(f"{spec.name}: a tensor game has one kind of seat, got {len(spec.kinds)}")
        if spec.num_teams != spec.num_seats:
            raise ValueError(f"{spec.name}: a tensor game has one seat per team, got {spec.num_seats} seats")
        if numbers := next(iter(spec.kinds[0].action.boxes), None):
            raise ValueError(f"{spec.name}: a tensor game has no heads with real numbers, and {numbers!r} is one")
        return self


@dataclass(frozen=True, slots=True)
class _BotOnCpu:
    """One of some tensor bots as a bot of the CPU."""

    bots: TensorBots
    number: int

    @torch.no_grad()
    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        observation, legal = (
            {name: torch.from_numpy(array) for name, array in tree.items()} for tree in (rows.observation, rows.legal)
        )
        draws = torch.from_numpy(below_one(rng.random((len(rows), self.bots.draws))))
        chosen = self.bots.act(torch.full((len(rows),), self.number), observation, legal, draws)
        return {head: action.numpy().astype(np.int32) for head, action in chosen.items()}


@dataclass(frozen=True)
class TensorTwin(TensorGame):
    """Base of a tensor game that plays as a game for the CPU does, with the same spec."""

    game: GameSource

    @classmethod
    def of(cls, game: GameSource) -> Self | None:
        """What `TENSOR_TWIN` of the game names; None if there is no tensor game with the game's options."""
        return cls(game)

    @cached_property
    def spec(self) -> GameSpec:
        return self.game.spec


def below_one(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32 in [0, 1): rounding must not give 1."""
    return np.minimum(numbers.astype(np.float32), np.float32(1.0 - 2.0**-24))


def tensor_game_of(source: GameSource) -> TensorGame | None:
    """The tensor game that plays as this one does; None if it has none. A game, or a wrapper that changes it, names it
    by `TENSOR_TWIN`, the address of a function that makes it from the game. Other wrappers are passed over. A game
    whose library is in an environment of its own has that of its adapter."""
    game = source
    while not hasattr(type(game), "TENSOR_TWIN") and isinstance(inner := getattr(game, "game", None), GameSource):
        game = inner
    if isinstance(game, TensorGame):
        return game.checked()
    kind: Any = type(game)
    if isinstance(game, Isolated) and game.python is not None and game.game in ADAPTERS:
        kind = load_address(ADAPTERS[game.game].source)
    address = getattr(kind, "TENSOR_TWIN", None)
    if address is None:
        return None
    make: Callable[[GameSource], TensorGame | None] = load_address(address)
    made = make(game)
    return None if made is None else made.checked()


def select(where: Tensor, one: TensorState, other: TensorState) -> TensorState:
    """Per table the one state or the other."""
    return {
        name: torch.where(where.view(-1, *(1,) * (tensor.dim() - 1)), tensor, other[name])
        for name, tensor in one.items()
    }


@torch.no_grad()
def random_starts(game: TensorGame, moves: Tensor, most: int, draw: Callable[[int, int], Tensor]) -> TensorState:
    """Positions after `moves[row]` random legal moves, at most `most`. A game that ends before starts from its
    beginning. `draw(rows, numbers)` gives uniform numbers."""
    rows = len(moves)
    begun = game.start(draw(rows, game.start_draws))
    state, ended = begun, torch.zeros_like(moves, dtype=torch.bool)
    for number in range(most):
        chosen = random_actions(game, state, draw)
        played = game.step(state, game.given(chosen), draw(rows, game.step_draws))
        moving = (number < moves) & ~ended
        ended = ended | (moving & played.over)
        state = select(moving & ~played.over, played.state, state)
    return select(ended, begun, state)


def random_actions(game: TensorGame, state: TensorState, draw: Callable[[int, int], Tensor]) -> dict[str, Tensor]:
    """Uniform legal actions of all seats, by head: [rows, seats], or [rows, seats, picks] of a pointer with several
    picks, which picks one."""
    kind, rows = game.spec.kinds[0], len(next(iter(state.values())))
    by_seat: list[dict[str, Tensor]] = []
    for seat in range(game.spec.num_seats):
        masks = game.masks(state, torch.full((rows,), seat, device=next(iter(state.values())).device))
        chosen = {}
        for head, spec in kind.action.heads.items():
            numbers = draw(rows, kind.num_options(head))
            action = (torch.where(masks[head], numbers, -1.0) if head in masks else numbers).argmax(-1)
            picks = spec.picks if isinstance(spec, Pointer) else 1
            chosen[head] = functional.pad(action.unsqueeze(1), (0, picks - 1), value=-1) if picks > 1 else action
        by_seat.append(chosen)
    return {head: torch.stack([chosen[head] for chosen in by_seat], 1) for head in by_seat[0]}


class TensorTables(ArrayTables):
    """Tables of a `TensorGame` on the CPU, as a `GameBatch`. All of them are computed in every call, so that shapes are
    fixed; those that are not asked for keep their state, and those that are over by the rules the one before the last
    step."""

    def __init__(self, game: TensorGame, num_tables: int) -> None:
        super().__init__(game.spec, num_tables)
        self._game = game.checked()
        self._seeds = np.zeros(num_tables, np.uint64)
        self._steps = np.zeros(num_tables, np.int64)
        self._state = game.start(torch.zeros(num_tables, game.start_draws))

    @torch.no_grad()
    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._seeds[tables] = seeds
        self._steps[tables] = 0
        self._start_episodes(tables)
        fresh = self._game.start(torch.from_numpy(self._game.draws(self._seeds, START)))
        for name, tensor in self._state.items():
            tensor[tables] = fresh[name][tables]
        self._show(tables)

    @torch.no_grad()
    def step(self, actions: Actions) -> None:
        view, game = self.view, self._game
        tables = np.flatnonzero(~(view.over | view.truncated))
        chosen = {head: array.astype(np.int64) for head, array in actions[0].items()}
        self._require_all_legal(tables, {head: one[tables] for head, one in chosen.items()}, view.to_act[tables])
        draws = np.zeros((self.num_tables, game.step_draws), np.float32)
        for step in np.unique(self._steps).tolist():
            rows = self._steps == step
            draws[rows] = game.draws(self._seeds[rows], step)
        taken = {head: torch.from_numpy(self._or_any(head, one)) for head, one in chosen.items()}
        played = game.step(self._state, game.given(taken), torch.from_numpy(draws))
        self._steps[tables] += 1
        over, reward = played.over.numpy()[tables], played.reward.numpy()[tables]
        view.reward[tables] = reward
        view.score[tables] += reward
        truncated = np.zeros_like(over) if played.truncated is None else played.truncated.numpy()[tables]
        view.over[tables], view.truncated[tables] = over & ~truncated, truncated
        if played.elapsed is not None:
            view.clock[tables] += played.elapsed.numpy()[tables]
        if played.rewards is not None:
            view.rewards[0][tables] = played.rewards.numpy()[tables]
        shown = tables[~over | truncated]  # the last observation of a truncated episode, too
        for name, tensor in self._state.items():
            tensor[shown] = played.state[name][shown]
        if len(shown):
            self._show(shown)
        view.to_act[tables[over]] = False

    def _or_any(self, head: str, chosen: Array) -> Array:
        """The actions of a head; of seats that need not act the first legal one, or 0."""
        mask, acts = self.view.legal[0].get(head), self.view.to_act
        if chosen.ndim > 2 or mask is None:
            return np.where(acts.reshape(*acts.shape, *(1,) * (chosen.ndim - 2)), chosen, 0)
        return np.where(acts, chosen, mask.argmax(-1))

    def _require_all_legal(self, tables: IntArray, chosen: Mapping[str, Array], acts: Array) -> None:
        """Raise for an illegal action of a seat that acts."""
        seats, counts = np.arange(self.spec.num_seats), {}
        for head, spec in self.spec.kinds[0].action.heads.items():
            counts[head] = acts
            if spec.when is not None:
                counts[head] = counts[spec.when.head] & np.isin(chosen[spec.when.head], spec.when.values)
            counted = counts[head]
            at, columns = tables[:, None], seats
            if chosen[head].ndim > 2:  # the first pick is required, later ones until the first -1
                ended = np.logical_or.accumulate(chosen[head] < 0, axis=2)
                ended[:, :, 0] = False
                counted, at, columns = counted[:, :, None] & ~ended, at[:, :, None], columns[:, None]
            self._require_legal(head, at, columns, chosen[head], counts=counted)

    def _show(self, tables: IntArray) -> None:
        state = {name: tensor[tables] for name, tensor in self._state.items()}
        self.view.to_act[tables] = self._game.to_act(state).numpy()
        for seat in range(self.spec.num_seats):
            seats = torch.full((len(tables),), seat)
            for name, part in self._game.observe(state, seats).items():
                self.view.observation[0][name][tables, seat] = part.numpy()
            for head, mask in self._game.masks(state, seats).items():
                self.view.legal[0][head][tables, seat] = mask.numpy()
